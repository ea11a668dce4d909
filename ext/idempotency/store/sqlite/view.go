package sqlite

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Codes of the states in the database.
const (
	stateCurrent = 1
	stateClosing = 2
	stateClosed  = 3
)

// A view is what the database says about everything but single records. It is
// kept from step to step, and each step, once it has the write lock, asks
// SQLite whether anybody else has changed the file since; so it is never out
// of date when it is used.
type view struct {
	incarnation incarnation
	held        []*namespace // the newest, which is the current one, first
	grants      int64        // runs that were ever granted, and deletions
	clock       instant      // of the last change
	dropped     []int64      // namespaces whose tables remain
	lookAt      int64        // when to look again which namespaces move on
}

func newNamespace() *namespace {
	return &namespace{total: &tally{key: []byte{}}, principals: map[string]*tally{}, running: map[string]delta{}}
}

type namespace struct {
	id        int64
	name      string
	state     int64
	retention int64 // ms, as every time here
	born      int64
	retired   int64
	closed    int64
	touched   int64
	evicted   int64
	needed    int64 // is held until the retention has passed since then, at least

	total *tally
	// principals remembers the tallies that were read. running are those that
	// run at present, of principals that are not among them.
	principals map[string]*tally
	running    map[string]delta
}

// A delta is a part of a tally, or a change of one.
type delta struct{ records, open, bytes, questions int64 }

func (d *delta) add(e delta) {
	d.records += e.records
	d.open += e.open
	d.bytes += e.bytes
	d.questions += e.questions
}

// A tally is what a principal, or a namespace as a whole, has. The running
// calls are not in what is stored of it: the table has them anyway, and a step
// that takes a key writes one row and not three.
type tally struct {
	key     []byte // 'p' and the principal; empty for the namespace
	stored  delta
	running delta
	changed bool // and not written
}

// A change is a tally that has to be written.
type change struct {
	ns *namespace
	*tally
}

// maxTallies bounds the tallies of a namespace that are remembered.
const maxTallies = 1024

// load reads the view, and closes the statements of namespaces that have gone.
func load(c *conn) (*view, error) {
	if _, err := version(c); err != nil {
		return nil, err
	}
	v := &view{}
	var id []byte
	if _, err := c.row(0, selectStore, nil, &id); err != nil {
		return nil, err
	}
	copy(v.incarnation[:], id)
	var err error
	if v.held, err = heldNamespaces(c); err != nil {
		return nil, err
	}
	for _, ns := range v.held {
		if err := v.loadTallies(c, ns); err != nil {
			return nil, err
		}
	}
	err = c.rows(0, selectDropped, nil, func(scan func(...any) error) error {
		v.dropped = append(v.dropped, 0)
		return scan(&v.dropped[len(v.dropped)-1])
	})
	c.forgetAllBut(v.held)
	return v, err
}

// loadTallies reads what a namespace has, and counts the running calls.
func (v *view) loadTallies(c *conn, ns *namespace) error {
	n := &ns.total.stored
	var grants int64
	var at instant
	if _, err := c.row(ns.id, selectTotal, nil, &n.records, &n.open, &n.bytes, &n.questions, &grants, &at.at, &at.wall); err != nil {
		return err
	}
	v.grants = max(v.grants, grants)
	if at.at > v.clock.at {
		v.clock = at
	}
	return c.rows(ns.id, selectRunning, nil, func(scan func(...any) error) error {
		var principal []byte
		var question, since, grants int64
		if err := scan(&principal, &question, &since, &grants); err != nil {
			return err
		}
		run := delta{records: 1, open: 1, questions: question}
		ns.total.running.add(run)
		of := ns.running[string(principal)]
		of.add(run)
		ns.running[string(principal)] = of
		v.grants = max(v.grants, grants)
		v.clock.at = max(v.clock.at, since)
		return nil
	})
}

// heldNamespaces reads the rows of the namespaces, the newest first.
func heldNamespaces(c *conn) (held []*namespace, err error) {
	err = c.rows(0, selectNamespaces, nil, func(scan func(...any) error) error {
		ns := newNamespace()
		held = append(held, ns)
		return scan(&ns.id, &ns.name, &ns.state, &ns.retention, &ns.born, &ns.retired, &ns.closed, &ns.touched, &ns.evicted)
	})
	return held, err
}

// forgetAllBut closes the statements of other namespaces.
func (c *conn) forgetAllBut(held []*namespace) {
	for id := range c.stmts {
		keep := id == 0
		for _, ns := range held {
			keep = keep || ns.id == id
		}
		if !keep {
			c.forget(id)
		}
	}
}

func (v *view) records() (n int64) {
	for _, ns := range v.held {
		n += ns.total.stored.records + ns.total.running.records
	}
	return n
}

func (v *view) bytes() (n int64) {
	for _, ns := range v.held {
		n += ns.total.stored.bytes
	}
	return n
}

func (v *view) questions() (n int64) {
	for _, ns := range v.held {
		n += ns.total.stored.questions + ns.total.running.questions
	}
	return n
}

// candidates are the namespaces that a key can be in: that of its name, or,
// for a key without one, all.
func (t *txn) candidates(id store.ID) []*namespace {
	name := id.Namespace()
	if name == "" {
		return t.view.held
	}
	for i, ns := range t.view.held {
		if ns.name == name {
			return t.view.held[i : i+1]
		}
	}
	return nil
}

// tally returns what a principal has in a namespace.
func (t *txn) tally(ns *namespace, principal string) (*tally, error) {
	if p, ok := ns.principals[principal]; ok {
		return p, nil
	}
	p := &tally{key: append([]byte{'p'}, principal...), running: ns.running[principal]}
	n := &p.stored
	if _, err := t.row(ns.id, selectTally, []any{p.key}, &n.records, &n.open, &n.bytes, &n.questions); err != nil {
		return nil, err
	}
	delete(ns.running, principal)
	ns.principals[principal] = p
	return p, nil
}

// move changes the tallies of a principal and of the namespace.
func (t *txn) move(ns *namespace, principal string, stored, running delta) error {
	p, err := t.tally(ns, principal)
	if err != nil {
		return err
	}
	for _, n := range []*tally{ns.total, p} {
		n.stored.add(stored)
		n.running.add(running)
		if stored != (delta{}) {
			t.change(ns, n)
		}
	}
	return nil
}

// change has a tally written, and with it the number of grants and the time.
func (t *txn) change(ns *namespace, n *tally) {
	if !n.changed {
		n.changed = true
		t.changed = append(t.changed, change{ns, n})
	}
}

// writeTallies writes what has changed: the values as they are known, which is
// what the database has and what was done since, under the write lock.
func (t *txn) writeTallies() error {
	args := func(changes ...change) []any {
		args := []any{t.now.at, t.now.wall, t.view.grants}
		for _, c := range changes {
			c.changed = false
			args = append(args, c.key, c.stored.records, c.stored.open, c.stored.bytes, c.stored.questions)
		}
		return args
	}
	for len(t.changed) > 0 {
		q, n := putTally, 1
		if len(t.changed) > 1 && t.changed[1].ns == t.changed[0].ns {
			q, n = putTallies, 2
		}
		ns := t.changed[0].ns
		if _, err := t.exec(ns.id, q, args(t.changed[:n]...)...); err != nil {
			return err
		}
		t.changed = t.changed[n:]
		t.view.clock = t.now
		ns.forget()
	}
	return nil
}

// forget drops tallies when there are many, and keeps of them what is not in
// the table.
func (ns *namespace) forget() {
	if len(ns.principals) <= maxTallies {
		return
	}
	for principal, p := range ns.principals {
		if p.changed {
			continue
		}
		if p.running != (delta{}) {
			ns.running[principal] = p.running
		}
		delete(ns.principals, principal)
	}
}

// grant counts something that a copy of the database must not lack.
func (t *txn) grant() {
	t.granted = true
	t.view.grants++
}

// A digest stands for a principal and a key: 64 bits of a hash of the
// principal, so that the records of one are together, and 128 of one of both.
type digest [24]byte

func digestOf(id store.ID) (d digest) {
	p := principalDigest(id.Principal)
	buf := make([]byte, 0, 512)
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(id.Principal)))
	buf = append(append(buf, id.Principal...), id.Key...)
	both := sha256.Sum256(buf)
	copy(d[:8], p[:])
	copy(d[8:], both[:])
	return d
}

func principalDigest(principal string) (p [8]byte) {
	sum := sha256.Sum256([]byte(principal))
	copy(p[:], sum[:])
	return p
}

// digestRange returns the bounds of a principal's digests, the upper one
// exclusive.
func digestRange(principal string) (low, high []byte) {
	p := principalDigest(principal)
	next := binary.BigEndian.Uint64(p[:]) + 1
	if next == 0 {
		// Blobs compare by their bytes: every digest is below 24 times 0xff and one more.
		for range len(digest{}) + 1 {
			high = append(high, 0xff)
		}
		return p[:], high
	}
	return p[:], binary.BigEndian.AppendUint64(nil, next)
}
