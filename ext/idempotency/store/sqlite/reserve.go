package sqlite

import (
	"context"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, a store.Attempt) (store.Reservation, error) {
	d := digestOf(a.ID)
	var res store.Reservation
	err := s.step(ctx, func(t *txn) (err error) {
		res, err = t.reserve(d, a)
		return err
	})
	if err == nil {
		res.Record.Outcome, err = s.unseal(d, res.Record.Outcome)
	}
	if err != nil {
		return store.Reservation{}, err
	}
	return res, nil
}

func (t *txn) reserve(d digest, a store.Attempt) (store.Reservation, error) {
	candidates := t.candidates(a.ID)
	if len(candidates) == 0 {
		return store.Reservation{Verdict: store.NamespaceNotHeld, Current: t.view.held[0].name}, nil
	}
	into := candidates[0] // of all held ones the current
	room, err := t.room(a.Principal)
	if err != nil {
		return store.Reservation{}, err
	}
	takes := into.state != stateClosed && room && !a.Peek
	if takes && len(candidates) == 1 {
		// Most keys are new: take it, and look only if it is not.
		if ok, err := t.insert(into, d, a); ok || err != nil {
			return store.Reservation{Verdict: store.Run, Leased: true}, err
		}
	}
	for _, ns := range candidates {
		res, found, err := t.known(ns, d, a)
		if found || err != nil {
			return res, err
		}
	}
	switch {
	case into.state == stateClosed:
		return store.Reservation{Verdict: store.NamespaceClosed, Current: t.view.held[0].name}, nil
	case !room:
		return store.Reservation{Verdict: store.NoRoom, RetryAfter: t.roomIn()}, nil
	case a.Peek:
		return store.Reservation{Verdict: store.Free}, nil
	}
	if ok, err := t.insert(into, d, a); !ok || err != nil {
		return store.Reservation{}, joinMissing(err)
	}
	return store.Reservation{Verdict: store.Run, Leased: true}, nil
}

// insert takes a key if it is new.
func (t *txn) insert(ns *namespace, d digest, a store.Attempt) (bool, error) {
	n, err := t.exec(ns.id, insertOpen, d[:], []byte(a.Principal), []byte(a.Key), t.now.at, t.now.at+ms(a.Lease),
		flags(false, a.Transactional), a.Fingerprint[:], a.Token[:], orNull(a.Nonce[:]), orNull(a.Answers[:]), t.view.grants+1)
	if err != nil || n == 0 {
		return false, err
	}
	t.grant()
	return true, t.move(ns, a.Principal, delta{}, delta{records: 1, open: 1})
}

// known answers an attempt from the record of its key, if there is one.
func (t *txn) known(ns *namespace, d digest, a store.Attempt) (res store.Reservation, found bool, err error) {
	e, found, err := t.findEnded(ns, d)
	if err != nil {
		return res, false, err
	}
	if found {
		if e.fingerprint != a.Fingerprint {
			return store.Reservation{Verdict: store.Mismatch}, true, nil
		}
		return store.Reservation{Verdict: store.Known, Record: store.Record{State: e.state, Outcome: e.outcome}}, true, nil
	}
	o, found, err := t.findOpen(ns, d)
	if !found || err != nil {
		return res, false, err
	}
	if o.fingerprint != a.Fingerprint {
		return store.Reservation{Verdict: store.Mismatch}, true, nil
	}
	res, err = t.reserveOpen(ns, o, a)
	return res, true, err
}

// reserveOpen answers an attempt whose call has not ended.
func (t *txn) reserveOpen(ns *namespace, o *open, a store.Attempt) (store.Reservation, error) {
	if err := t.touch(ns); err != nil {
		return store.Reservation{}, err
	}
	if o.state == store.Running && o.token == a.Token {
		// The answer to this very attempt was lost. The witness may not have
		// heard of it either.
		res := store.Reservation{Verdict: store.Run, Continued: o.continued, Leased: true}
		if a.Peek {
			return res, nil
		}
		t.granted = true
		_, err := t.exec(ns.id, renewLease, o.digest[:], o.token[:], t.now.at+ms(a.Lease))
		return res, err
	}
	if o.state == store.Running && o.lease > t.now.at {
		return store.Reservation{Verdict: store.Joinable, Record: o.record()}, nil
	}
	taken := o.state == store.Running && o.transactional && !o.continued
	if o.state == store.Running && !taken {
		if err := t.lapse(ns, o); err != nil {
			return store.Reservation{}, err
		}
	}
	switch {
	case o.state == store.Unknown:
		return store.Reservation{Verdict: store.Known, Record: o.record()}, nil
	case o.state == store.Waiting && (a.Nonce == store.Nonce{} || a.Nonce != o.nonce):
		return store.Reservation{Verdict: store.Asked, Record: o.record()}, nil
	case a.Peek:
		return store.Reservation{Verdict: store.Free}, nil
	}
	return t.runAgain(ns, o, a, !taken)
}

// runAgain gives the record of an open call to an attempt: it continues the
// call, or takes over from a transactional run that died.
func (t *txn) runAgain(ns *namespace, o *open, a store.Attempt, continued bool) (store.Reservation, error) {
	_, err := t.exec(ns.id, takeOver, o.digest[:], kindOf(o.state), t.now.at, t.now.at+ms(a.Lease),
		flags(continued, a.Transactional), a.Token[:], orNull(a.Nonce[:]), orNull(a.Answers[:]), t.view.grants+1)
	if err != nil {
		return store.Reservation{}, err
	}
	t.ended = append(t.ended, ended{o.digest, o.token})
	t.grant()
	stored, running := delta{}, delta{}
	if continued {
		stored, running = o.tallied(-1), o.tallied(1)
	}
	return store.Reservation{Verdict: store.Run, Continued: continued, Leased: true}, t.move(ns, a.Principal, stored, running)
}

// lapse gives up a run whose lease has passed: its outcome is unknown, unless
// it was transactional and answered a question, which then stands.
func (t *txn) lapse(ns *namespace, o *open) error {
	t.ended = append(t.ended, ended{o.digest, o.token})
	stored, running := delta{records: 1}, o.tallied(-1)
	o.since = o.lease
	if o.transactional && o.continued {
		o.state = store.Waiting
		stored = o.tallied(1)
	} else {
		o.state = store.Unknown
		o.question, o.nonce = nil, store.Nonce{}
	}
	if err := t.setOpen(ns, o); err != nil {
		return err
	}
	return t.move(ns, o.principal, stored, running)
}

// setOpen writes what has become of a run that did not end its call.
func (t *txn) setOpen(ns *namespace, o *open) error {
	_, err := t.exec(ns.id, setOpen, o.digest[:], int(o.state), o.since, orNull(o.nonce[:]), o.question)
	return err
}

// room reports whether a principal may have one more record.
func (t *txn) room(principal string) (bool, error) {
	o, v := &t.s.opt, t.view
	if v.records() >= int64(o.MaxRecords) || v.questions() >= o.MaxResultBytes {
		return false, nil
	}
	var records, open int64
	for _, ns := range v.held {
		p, err := t.tally(ns, principal)
		if err != nil {
			return false, err
		}
		records += p.stored.records + p.running.records
		open += p.stored.open + p.running.open
	}
	return records < int64(o.MaxRecordsPerPrincipal) && open < int64(o.MaxOpenPerPrincipal), nil
}

// roomIn guesses when there will be room: when the oldest namespace may go,
// and not so far ahead that a caller who could be served sooner stays away.
func (t *txn) roomIn() time.Duration {
	const least, most = time.Second, time.Minute
	oldest := t.view.held[len(t.view.held)-1]
	goes := oldest.born + ms(t.s.opt.RotateEvery+t.s.opt.ClosingFor) + oldest.retention
	return min(max(time.Duration(goes-t.now.at)*time.Millisecond, least), most)
}
