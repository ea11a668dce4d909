package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// ErrClosed is returned by every method of a store that is closed.
var ErrClosed = errors.New("sqlite: the store is closed")

// Store is a [store.Store] and [store.Operator] in a SQLite file. Make it with
// [Open].
type Store struct {
	path  string
	opt   Options
	clock clock

	// turn is held by the one caller that does what is queued, and uses the
	// fields below it.
	queue    queue
	turn     chan struct{}
	w        *conn // nil when it has to be opened again
	witness  witness
	file     os.FileInfo // of the database as it was opened
	view     *view       // nil when it has to be read again
	seen     uint32      // the file's version that view shows
	leftover bool        // there are tables to remove

	// reading is held by the one reader that uses r.
	reading chan struct{}
	r       *conn // nil when it has to be opened again
	rSeen   int64

	closing   chan struct{}
	closeOnce sync.Once
	closeErr  error
	waiting   waiters
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Operator = (*Store)(nil)
)

// Open opens the store in the file at path, and makes it when there is none.
// Any number of processes may have the same file open. opt may be nil.
func Open(ctx context.Context, path string, opt *Options) (*Store, error) {
	path, err := realPath(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	o, err := opt.withDefaults(path)
	if err != nil {
		return nil, err
	}
	s := &Store{
		path: path, opt: o, clock: clock{now: o.Now}, witness: witness{path: o.WitnessPath},
		turn: make(chan struct{}, 1), reading: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	s.waiting.store = s
	createPrivate(path)
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	if _, err := s.Current(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// realPath follows links, so that a file has one witness whatever it is called
// by: SQLite puts its log beside the file that a link leads to as well.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); err != nil {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		return filepath.Join(dir, filepath.Base(path)), err
	}
	return filepath.EvalSymlinks(path)
}

// createPrivate makes an empty file that only its owner can read, unless there
// is one: SQLite would let others read what tools return. The file never has a
// descriptor of ours, whose closing would drop the locks that SQLite has on it
// in this process. Where there are no links, SQLite makes the file.
func createPrivate(path string) {
	if _, err := os.Lstat(path); err == nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".idempotency-*")
	if err != nil {
		return // opening the database will say what is wrong
	}
	_ = f.Close()
	_ = os.Link(f.Name(), path)
	_ = os.Remove(f.Name())
}

// connect opens the file and its witness. Until it returns nil nothing is
// open.
func (s *Store) connect(ctx context.Context) (err error) {
	deadline := time.Now().Add(s.opt.BusyTimeout)
	before, _ := os.Stat(s.path) // nil when there is none yet
	w, err := connect(ctx, s.path, deadline)
	if err != nil {
		return fmt.Errorf("sqlite: opening %s: %w", s.path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err := migrate(ctx, w, deadline); err != nil {
		return err
	}
	r, err := connect(ctx, s.path, deadline)
	if err != nil {
		return fmt.Errorf("sqlite: opening %s: %w", s.path, err)
	}
	after, err := os.Stat(s.path)
	if err == nil && before != nil && !os.SameFile(before, after) {
		err = errReplaced
	}
	if err == nil {
		err = s.witness.open()
	}
	if err != nil {
		return errors.Join(err, r.close())
	}
	s.w, s.r, s.file, s.view, s.seen, s.rSeen = w, r, after, nil, 0, 0
	return nil
}

// disconnect closes the connection that writes, and with it its transaction;
// the next step connects anew. The caller has the turn.
func (s *Store) disconnect() {
	if s.w != nil {
		_ = s.w.close() // what was committed is committed
	}
	s.w, s.view = nil, nil
}

// reconnect opens the file anew: it was replaced, or the connection was
// unusable. The caller has the turn.
func (s *Store) reconnect(ctx context.Context) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.r != nil {
		_ = s.r.close() // it only reads
		s.r = nil
	}
	return s.connect(ctx)
}

// errReplaced says that the path leads to another file than the one that is
// open.
var errReplaced = errors.New("sqlite: the database file has been replaced")

// Close closes the store, waiting for the step that is under way. Those who
// wait for a run get [ErrClosed].
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.turn <- struct{}{}
		s.reading <- struct{}{}
		s.waiting.end()
		s.closeErr = s.witness.sync()
		for _, c := range []*conn{s.w, s.r} {
			if c != nil {
				s.closeErr = errors.Join(s.closeErr, c.close())
			}
		}
		s.witness.close()
	})
	return s.closeErr
}

// isOpen returns ErrClosed once Close has begun.
func (s *Store) isOpen() error {
	select {
	case <-s.closing:
		return ErrClosed
	default:
		return nil
	}
}

// take waits for a turn.
func (s *Store) take(ctx context.Context, turn chan struct{}) error {
	if err := errors.Join(ctx.Err(), s.isOpen()); err != nil {
		return err
	}
	select {
	case turn <- struct{}{}:
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.isOpen(); err != nil { // Close has the connections next
		<-turn
		return err
	}
	return nil
}

// Current implements [store.Store].
func (s *Store) Current(ctx context.Context) (ns store.Namespace, err error) {
	err = s.step(ctx, func(t *txn) error {
		c := t.view.held[0]
		ns = store.Namespace{Name: c.name, Retention: time.Duration(c.retention) * time.Millisecond}
		return nil
	})
	return ns, err
}

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, run store.RunRef, d time.Duration) error {
	dg := digestOf(run.ID)
	var fenced bool
	err := s.step(ctx, func(t *txn) error {
		fenced = true
		for _, ns := range t.candidates(run.ID) {
			n, err := t.exec(ns.id, renewLease, dg[:], run.Token[:], t.now.at+ms(d))
			if err != nil {
				return err
			}
			if n > 0 {
				fenced = false
				return nil
			}
		}
		return nil
	})
	if err == nil && fenced {
		return store.ErrFenced
	}
	return err
}
