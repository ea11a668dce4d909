//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// lockFile waits until it holds the file alone, over all processes. The lock
// belongs to the open file and not to the process, so that two stores of one
// process exclude each other as well.
func lockFile(f *os.File) error { return flock(f, syscall.LOCK_EX) }

func unlockFile(f *os.File) error { return flock(f, syscall.LOCK_UN) }

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// fileNumber tells a file from a copy of it.
func fileNumber(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}
