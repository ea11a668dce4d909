package sqlite

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// The witness is a small file beside the database. It says which incarnation
// of the store it vouches for and how many runs that has granted at least. The
// database says the same of itself, and one that says less has been set back.
//
// The order of writing makes every verdict safe. A run is granted in this
// order: its record is committed, which is when it is on disk; the witness is
// raised; the caller is told to run. So the witness is never ahead of a
// database that nobody has touched, whenever the process is killed. And a copy
// that lacks a run which was really granted is behind the witness.
//
// Raising is a write without fsync. It survives the process, and not the
// machine: after a power failure the witness may say too little, by what was
// granted since it was last synced (at most syncEvery runs). A copy of the
// database that was taken within that stretch, and put back after the power
// failure, is not noticed.
//
// The witness also says which file the database is and which file it is
// itself, where the system numbers files: a copy of both vouches for nothing.
type witness struct {
	path string
	f    *os.File // nil when there is no file
	self uint64   // its number

	raw    [testimonyLen]byte // what was read or written last
	last   testimony
	synced int64 // grants at the last fsync
}

// A testimony is the content of the file.
type testimony struct {
	incarnation incarnation
	database    uint64
	self        uint64
	grants      int64
}

type incarnation [16]byte

// syncEvery is after how many grants the witness is synced.
const syncEvery = 256

// testimonyLen is the length of the file.
const testimonyLen = len("mcp-idempotency witness 1\n") + len("incarnation \n") + 2*16 +
	len("database \n") + 20 + len("witness \n") + 20 + len("grants \n") + 20 + len("crc \n") + 8

// errNoTestimony says that there is no witness, or that it cannot be read.
var errNoTestimony = errors.New("there is no readable witness")

// encode returns the content of the file: lines of text, so that a human can
// read it, of a fixed length, so that it is replaced by one write.
func (t testimony) encode() [testimonyLen]byte {
	b := make([]byte, 0, testimonyLen)
	b = append(b, "mcp-idempotency witness 1\nincarnation "...)
	b = hex.AppendEncode(b, t.incarnation[:])
	b = appendPadded(append(b, "\ndatabase "...), t.database, 10, 20)
	b = appendPadded(append(b, "\nwitness "...), t.self, 10, 20)
	b = appendPadded(append(b, "\ngrants "...), uint64(t.grants), 10, 20)
	b = append(b, '\n')
	b = appendPadded(append(b, "crc "...), uint64(crc32.ChecksumIEEE(b)), 16, 8)
	return [testimonyLen]byte(append(b, '\n'))
}

// appendPadded appends a number with zeros in front.
func appendPadded(b []byte, n uint64, base, width int) []byte {
	var digits [20]byte
	d := strconv.AppendUint(digits[:0], n, base)
	for range width - len(d) {
		b = append(b, '0')
	}
	return append(b, d...)
}

// decode reads a testimony. Whatever encode would not have written is none.
func decode(raw [testimonyLen]byte) (t testimony, err error) {
	lines := bytes.Split(raw[:], []byte("\n"))
	if len(lines) != 7 {
		return t, errNoTestimony
	}
	value := func(i int) string {
		_, v, _ := bytes.Cut(lines[i], []byte(" "))
		return string(v)
	}
	id, errID := hex.DecodeString(value(1))
	database, errDB := strconv.ParseUint(value(2), 10, 64)
	self, errSelf := strconv.ParseUint(value(3), 10, 64)
	grants, errGrants := strconv.ParseInt(value(4), 10, 64)
	if errors.Join(errID, errDB, errSelf, errGrants) != nil {
		return t, errNoTestimony
	}
	copy(t.incarnation[:], id)
	t.database, t.self, t.grants = database, self, grants
	if t.encode() != raw {
		return testimony{}, errNoTestimony
	}
	return t, nil
}

// open opens the file, if there is one.
func (w *witness) open() error {
	w.close()
	f, err := os.OpenFile(w.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sqlite: opening the witness: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close() // nothing was written
		return fmt.Errorf("sqlite: opening the witness: %w", err)
	}
	w.f, w.self = f, fileNumber(info)
	return nil
}

func (w *witness) close() {
	if w.f != nil {
		_ = w.f.Close() // what matters has been synced
	}
	w.f, w.raw, w.last = nil, [testimonyLen]byte{}, testimony{}
}

// read returns the testimony, or errNoTestimony.
func (w *witness) read() (testimony, error) {
	if w.f == nil {
		return testimony{}, errNoTestimony
	}
	t, err := w.readOnce()
	if !errors.Is(err, errNoTestimony) {
		return t, err
	}
	// Perhaps another process was writing just then.
	if err := lockFile(w.f); err != nil {
		return testimony{}, fmt.Errorf("sqlite: locking the witness: %w", err)
	}
	t, err = w.readOnce()
	return t, errors.Join(err, unlockFile(w.f))
}

func (w *witness) readOnce() (testimony, error) {
	var raw [testimonyLen]byte
	switch n, err := w.f.ReadAt(raw[:], 0); {
	case n < len(raw) && errors.Is(err, io.EOF):
		return testimony{}, errNoTestimony
	case n < len(raw):
		return testimony{}, fmt.Errorf("sqlite: reading the witness: %w", err)
	case raw == w.raw:
		return w.last, nil
	}
	t, err := decode(raw)
	if err == nil {
		w.raw, w.last = raw, t
	}
	return t, err
}

// put writes the testimony. The file is locked.
func (w *witness) put(t testimony) error {
	raw := t.encode()
	if _, err := w.f.WriteAt(raw[:], 0); err != nil {
		w.raw = [testimonyLen]byte{}
		return fmt.Errorf("sqlite: writing the witness: %w", err)
	}
	w.raw, w.last = raw, t
	return nil
}

// renew makes the file say t and nothing of what it said before, on disk.
func (w *witness) renew(t testimony) (err error) {
	created := w.f == nil
	if created {
		f, err := os.OpenFile(w.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return fmt.Errorf("sqlite: making the witness: %w", err)
		}
		_ = f.Close() // opened again in a moment
		if err := w.open(); err != nil {
			return err
		}
		if w.f == nil {
			return fmt.Errorf("sqlite: the witness %s went away", w.path)
		}
	}
	t.self = w.self
	if err := lockFile(w.f); err != nil {
		return fmt.Errorf("sqlite: locking the witness: %w", err)
	}
	defer func() { err = errors.Join(err, unlockFile(w.f)) }()
	if err := errors.Join(w.f.Truncate(int64(testimonyLen)), w.put(t), w.sync()); err != nil {
		return err
	}
	if created {
		return syncDir(filepath.Dir(w.path))
	}
	return nil
}

// raise makes the file say at least grants of the incarnation. It fails when
// another incarnation has begun.
func (w *witness) raise(id incarnation, grants int64) (err error) {
	if w.f == nil {
		return errNoTestimony
	}
	if err := lockFile(w.f); err != nil {
		return fmt.Errorf("sqlite: locking the witness: %w", err)
	}
	defer func() { err = errors.Join(err, unlockFile(w.f)) }()
	t, err := w.readOnce()
	if err != nil {
		return err
	}
	if t.incarnation != id {
		return errOtherIncarnation
	}
	if t.grants < grants {
		t.grants = grants
		if err := w.put(t); err != nil {
			return err
		}
	}
	if grants/syncEvery > w.synced/syncEvery {
		return w.sync()
	}
	return nil
}

// errOtherIncarnation says that the records were given up while a step was
// under way.
var errOtherIncarnation = errors.New("sqlite: the records cannot be vouched for any more; a new namespace has begun")

func (w *witness) sync() error {
	if w.f == nil {
		return nil
	}
	if err := w.f.Sync(); err != nil {
		return fmt.Errorf("sqlite: syncing the witness: %w", err)
	}
	w.synced = w.last.grants
	return nil
}

// syncDir makes a new file's name durable, where directories can be synced.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	_ = d.Sync() // not supported everywhere; a witness that is lost begins a new namespace
	return d.Close()
}
