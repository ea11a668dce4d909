package sqlite

import (
	"os"

	"golang.org/x/sys/windows"
)

// The region that is locked lies beyond the file's end: locks on Windows keep
// others from reading.
const lockOffset = 1 << 30

func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{Offset: lockOffset})
}

func unlockFile(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{Offset: lockOffset})
}

// fileNumber is not known from an os.FileInfo here: copies are not told from
// originals by it.
func fileNumber(os.FileInfo) uint64 { return 0 }
