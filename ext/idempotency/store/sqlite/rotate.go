package sqlite

import (
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rotate moves the namespaces on to where they belong now. The write lock
// makes it a compare-and-set: of two processes that find that it is time, the
// second finds that it was done.
//
// Every namespace has tables of its own, so that it is dropped as a whole, in
// two steps: its row goes, from when on its keys are not held; then its tables
// go, which is nobody's step, may fail, and is done again by whoever looks next.
// Removing a table puts its pages on SQLite's list of free ones (a million
// records take half a second, during which the file is locked). Deleting row by
// row would write all of them to the log, and one table for all namespaces
// would keep what is old and what is new on the same pages.
func (t *txn) rotate() error {
	v, o, now := t.view, &t.s.opt, t.now.at
	if now < v.lookAt {
		return nil
	}
	if current := v.held[0]; now-current.born >= ms(o.RotateEvery) {
		if err := t.advance(current, stateClosing); err != nil {
			return err
		}
		if err := t.addNamespace(); err != nil {
			return err
		}
	}
	for _, ns := range slices.Clone(v.held[1:]) {
		if ns.state == stateClosing && now-ns.retired >= ms(o.ClosingFor) {
			if err := t.advance(ns, stateClosed); err != nil {
				return err
			}
		}
		if ns.state != stateClosed {
			continue
		}
		needed, err := t.needed(ns)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		if err := t.drop(ns); err != nil {
			return err
		}
		t.mark()
	}
	t.dropped = t.dropped || len(v.dropped) > 0 // what another process left behind
	// Looking later than the instant keeps records longer, never shorter.
	v.lookAt = now + ms(min(o.Retention, o.RotateEvery, o.ClosingFor, time.Minute)/64)
	return nil
}

// advance moves a namespace to its next state.
func (t *txn) advance(ns *namespace, state int64) error {
	ns.state = state
	if state == stateClosing {
		ns.retired = t.now.at
	} else {
		// When it was due, and not now: a store that slept owes nobody more.
		ns.closed = ns.retired + ms(t.s.opt.ClosingFor)
	}
	_, err := t.exec(ns.id, setState, ns.id, ns.state, ns.retired, ns.closed)
	return err
}

// addNamespace makes a new current namespace.
func (t *txn) addNamespace() error {
	ns := newNamespace()
	ns.name, ns.state, ns.retention, ns.born = newName(), stateCurrent, ms(t.s.opt.Retention), t.now.at
	if _, err := t.exec(0, addNamespace, ns.name, ns.retention, ns.born); err != nil {
		return err
	}
	if _, err := t.row(0, namespaceID, []any{ns.name}, &ns.id); err != nil {
		return err
	}
	if err := t.s.w.script(strings.ReplaceAll(namespaceTables, "{id}", strconv.FormatInt(ns.id, 10))); err != nil {
		return err
	}
	t.view.held = append([]*namespace{ns}, t.view.held...)
	t.mark()
	return nil
}

// mark has the number of grants and the time written into the current
// namespace, where they outlive the others.
func (t *txn) mark() {
	current := t.view.held[0]
	t.change(current, current.total)
}

// drop forgets a namespace. From when this is committed on its keys are not
// held; the tables follow.
func (t *txn) drop(ns *namespace) error {
	if _, err := t.exec(0, dropNamespace, ns.id); err != nil {
		return err
	}
	if _, err := t.exec(0, addDropped, ns.id); err != nil {
		return err
	}
	v := t.view
	v.held = slices.DeleteFunc(v.held, func(other *namespace) bool { return other == ns })
	t.changed = slices.DeleteFunc(t.changed, func(c change) bool { return c.ns == ns })
	v.dropped = append(v.dropped, ns.id)
	t.dropped = true
	return nil
}

// removeTables removes the tables of dropped namespaces, each in a transaction
// of its own. What cannot be removed now is left for later: nobody uses it.
func (s *Store) removeTables() {
	for v := s.view; v != nil && len(v.dropped) > 0; {
		id := v.dropped[0]
		s.w.forget(id)
		if err := s.removeTablesOf(id); err != nil {
			s.opt.Logger.Warn("idempotency: the tables of a dropped namespace were not removed", "database", s.path, "error", err)
			return
		}
		v.dropped = v.dropped[1:]
	}
}

func (s *Store) removeTablesOf(id int64) (err error) {
	if err := s.w.begin(background, time.Now().Add(s.opt.BusyTimeout)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.undo()
		}
	}()
	before, err := s.w.version()
	if err != nil {
		return err
	}
	for _, table := range []string{"live", "ended"} {
		if err := s.w.script("DROP TABLE IF EXISTS idempotency_" + table + "_" + strconv.FormatInt(id, 10)); err != nil {
			return err
		}
	}
	if _, err := s.w.exec(0, removeDropped, id); err != nil {
		return err
	}
	if _, err := s.w.exec(0, commit); err != nil {
		return err
	}
	after, err := s.w.version()
	if before == s.seen {
		s.seen = after // nobody has changed anything since the step
	}
	return err
}

// needed reports whether a closed namespace has to be held: retention has not
// passed since it closed (so that late keys learn that they never ran), since
// a call in it ended or was asked for, or since the last attempt on an open
// one; or a call runs in it.
func (t *txn) needed(ns *namespace) (bool, error) {
	// touched is written when it is a 64th of the retention late.
	last := max(ns.closed, ns.touched+ns.retention/64, ns.needed)
	if t.now.at-last < ns.retention {
		return true, nil
	}
	for _, q := range []query{lastEnded, lastSince, lastLease} { // a run is alive until its lease passes
		var at int64 // stays zero when there is no such call
		if _, err := t.row(ns.id, q, nil, &at); err != nil {
			return false, err
		}
		last = max(last, at)
	}
	ns.needed = last
	return t.now.at-last < ns.retention, nil
}

// touch notes that an open record was asked for.
func (t *txn) touch(ns *namespace) error {
	if t.now.at-ns.touched <= ns.retention/64 {
		return nil
	}
	ns.touched = t.now.at
	_, err := t.exec(0, setTouched, ns.id, ns.touched)
	return err
}

// reincarnate gives up every record: from now on this is another store.
func (t *txn) reincarnate(grants int64) error {
	for _, ns := range slices.Clone(t.view.held) {
		if err := t.drop(ns); err != nil {
			return err
		}
	}
	v := t.view
	_, _ = rand.Read(v.incarnation[:]) // never fails
	v.grants = max(v.grants, grants)
	if _, err := t.exec(0, setStore, v.incarnation[:]); err != nil {
		return err
	}
	if err := t.addNamespace(); err != nil {
		return err
	}
	// Before the commit: a crash in between leaves a witness that objects, and
	// so another incarnation, and never one that vouches for the old records.
	return t.s.witness.renew(testimony{incarnation: v.incarnation, database: fileNumber(t.s.file), grants: v.grants})
}

func newName() string { return "s" + strings.ToLower(rand.Text()) }
