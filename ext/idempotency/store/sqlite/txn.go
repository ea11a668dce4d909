package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A txn is the transaction of one or more steps, which holds the database's
// write lock from its first look on.
type txn struct {
	s    *Store
	view *view
	now  instant

	granted bool     // the witness has to know before the callers do
	dropped bool     // there are tables to remove
	ended   []ended  // runs that those who wait for them should hear of
	changed []change // tallies to write
}

// ended names a run that is over.
type ended struct {
	digest digest
	token  store.Token
}

// run does the jobs between BEGIN and COMMIT.
func (t *txn) run(batch []*job) error {
	s := t.s
	version, err := s.w.version()
	if err != nil {
		return err
	}
	if s.view == nil || s.seen != version {
		if s.view, err = load(s.w); err != nil {
			return err
		}
	}
	t.view = s.view
	t.now = s.clock.read(t.view.clock)
	if err := t.vouch(); err != nil {
		return err
	}
	if err := t.rotate(); err != nil {
		return err
	}
	before := t.granted
	for _, j := range batch {
		t.granted = false
		if err := j.f(t); err != nil {
			return err
		}
		j.granted = t.granted
		before = before || t.granted
	}
	t.granted = before
	return t.writeTallies()
}

// replaced reports whether the path leads to another file than the one that is
// open: that is another store then, which other processes use.
func (s *Store) replaced() (bool, error) {
	info, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("the database file is gone: %w", err)
	}
	return err == nil && !os.SameFile(info, s.file), err
}

func (t *txn) exec(id int64, q query, args ...any) (int64, error) { return t.s.w.exec(id, q, args...) }

func (t *txn) row(id int64, q query, args []any, dest ...any) (bool, error) {
	return t.s.w.row(id, q, args, dest...)
}

// vouch begins a new namespace, and drops the old ones, unless the witness
// says that the records are complete.
func (t *txn) vouch() error {
	s, v := t.s, t.view
	if v.incarnation == (incarnation{}) || len(v.held) == 0 {
		return t.reincarnate(0) // the store is new
	}
	number := fileNumber(s.file)
	reason, grants, err := s.witness.objects(v.incarnation, number, v.grants)
	if err == nil && reason != "" {
		// The witness itself may have been replaced.
		if err := s.witness.open(); err != nil {
			return err
		}
		reason, grants, err = s.witness.objects(v.incarnation, number, v.grants)
	}
	if err != nil {
		return err
	}
	if reason == "" {
		return nil
	}
	s.opt.Logger.Warn("idempotency: the records cannot be vouched for; they are dropped and a new namespace begins",
		"database", s.path, "reason", reason)
	return t.reincarnate(grants)
}

// objects returns what the witness has against a database that says so of
// itself, and how many grants it knows of.
func (w *witness) objects(id incarnation, file uint64, grants int64) (reason string, known int64, err error) {
	t, err := w.read()
	switch {
	case errors.Is(err, errNoTestimony):
		return err.Error(), 0, nil
	case err != nil:
		return "", 0, err
	case t.incarnation != id:
		reason = "the witness is of another incarnation of the store"
	case t.grants > grants:
		reason = fmt.Sprintf("the database is older than its witness: it has granted %d runs, and the witness knows of %d", grants, t.grants)
	case t.database != file:
		reason = "the database is another file than the one the witness knows"
	case t.self != w.self:
		reason = "the witness is a copy"
	}
	return reason, t.grants, nil
}
