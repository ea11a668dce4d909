package sqlite

import (
	"errors"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// An open row is a call that has not ended.
type open struct {
	digest      digest
	principal   string
	state       store.State
	since       int64
	lease       int64
	fingerprint store.Fingerprint
	token       store.Token
	nonce       store.Nonce
	answers     store.Fingerprint
	question    []byte // as it is stored

	continued     bool // the run answers the question, which stands if it is rejected
	transactional bool
}

// tallied is what a running or waiting call adds to a tally, times n.
func (o *open) tallied(n int64) delta {
	return delta{records: n, open: n, questions: n * int64(len(o.question))}
}

// kindOf says which rows of the table a state is among.
func kindOf(s store.State) int {
	if s == store.Running {
		return 1
	}
	return 2
}

func (o *open) record() store.Record {
	r := store.Record{State: o.state, Token: o.token, Nonce: o.nonce, Answers: o.answers}
	if o.state == store.Waiting {
		r.Outcome = o.question
	}
	return r
}

// An endedRow is a call that has ended.
type endedRow struct {
	state       store.State
	fingerprint store.Fingerprint
	token       []byte // nil when an operator resolved it
	outcome     []byte // as it is stored
}

func (t *txn) findOpen(ns *namespace, d digest) (*open, bool, error) {
	o := &open{digest: d}
	var principal, fingerprint, token, nonce, answers []byte
	var state, flags int64
	found, err := t.row(ns.id, findOpen, []any{d[:]},
		&principal, &state, &o.since, &o.lease, &flags, &fingerprint, &token, &nonce, &answers, &o.question)
	if !found || err != nil {
		return nil, false, err
	}
	o.principal, o.state = string(principal), store.State(state)
	o.continued, o.transactional = flags&flagContinued != 0, flags&flagTransactional != 0
	copy(o.fingerprint[:], fingerprint)
	copy(o.token[:], token)
	copy(o.nonce[:], nonce)
	copy(o.answers[:], answers)
	return o, true, nil
}

func (t *txn) findEnded(ns *namespace, d digest) (e endedRow, found bool, err error) {
	var state int64
	var fingerprint []byte
	found, err = t.row(ns.id, findEnded, []any{d[:]}, &state, &fingerprint, &e.token, &e.outcome)
	e.state = store.State(state)
	copy(e.fingerprint[:], fingerprint)
	return e, found, err
}

const (
	flagContinued     = 1
	flagTransactional = 2
)

func flags(continued, transactional bool) (f int) {
	if continued {
		f |= flagContinued
	}
	if transactional {
		f |= flagTransactional
	}
	return f
}

// orNull makes a parameter of a nonce or fingerprint: null for the zero value.
func orNull(b []byte) []byte {
	for _, c := range b {
		if c != 0 {
			return b
		}
	}
	return nil
}

// errMissing cannot happen: a key was neither new nor known.
var errMissing = errors.New("a key was found when it was to be taken and not when it was looked for")

func joinMissing(err error) error {
	if err != nil {
		return err
	}
	return errMissing
}
