package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Record implements [store.Store].
func (s *Store) Record(ctx context.Context, run store.RunRef, end store.End) error {
	switch end.Event {
	case store.Complete, store.DeclareNoEffect, store.Ask, store.Reject, store.Lose:
	default:
		return fmt.Errorf("sqlite: a run does not end with %v", end.Event)
	}
	d := digestOf(run.ID)
	blob, err := s.seal(d, end.Outcome)
	if err != nil {
		return err
	}
	var refusal error
	err = s.step(ctx, func(t *txn) (err error) {
		refusal, err = t.record(d, run, end, blob)
		return err
	})
	if err == nil {
		err = refusal
	}
	return err
}

// errNothingToReject says that a run which answers no question cannot go back
// to one.
var errNothingToReject = errors.New("sqlite: the run answers no question that it could reject")

// record applies the end of a run, or says why it does not.
func (t *txn) record(d digest, run store.RunRef, end store.End, blob []byte) (refusal, err error) {
	for _, ns := range t.candidates(run.ID) {
		if ok, err := t.recordCommon(ns, d, run, end, blob); ok || err != nil {
			return nil, err
		}
		o, found, err := t.findOpen(ns, d)
		if err != nil {
			return nil, err
		}
		if found {
			return t.recordOpen(ns, o, run, end, blob)
		}
		e, found, err := t.findEnded(ns, d)
		if err != nil {
			return nil, err
		}
		if state, _ := store.Next(store.Running, end.Event); found && e.state == state && bytes.Equal(e.token, run.Token[:]) {
			return nil, nil // the same end, told twice
		}
		if found {
			break
		}
	}
	return store.ErrFenced, nil
}

// recordCommon is the end of a run that never asked and has its lease: no look
// at the record is needed.
func (t *txn) recordCommon(ns *namespace, d digest, run store.RunRef, end store.End, blob []byte) (bool, error) {
	if end.Event != store.Complete && end.Event != store.DeclareNoEffect {
		return false, nil
	}
	state, _ := store.Next(store.Running, end.Event)
	blob = t.keep(blob)
	n, err := t.exec(ns.id, endRunning, d[:], run.Token[:], int(state), t.now.at, blob)
	if err != nil || n == 0 {
		return false, err
	}
	return true, t.finish(ns, store.Running, ended{d, run.Token}, run.Principal,
		delta{records: 1, bytes: int64(len(blob))}, delta{records: -1, open: -1})
}

// recordOpen is every other end of a call that has not ended.
func (t *txn) recordOpen(ns *namespace, o *open, run store.RunRef, end store.End, blob []byte) (refusal, err error) {
	next, ok := store.Next(o.state, end.Event)
	switch {
	case o.token != run.Token:
		return store.ErrFenced, nil
	case o.state == store.Waiting && (end.Event == store.Ask && o.nonce == end.Nonce || end.Event == store.Reject),
		o.state == store.Unknown && end.Event == store.Lose:
		return nil, nil // the same end, told twice
	case !ok:
		return store.ErrFenced, nil
	case end.Event == store.Reject && !o.continued:
		return errNothingToReject, nil
	}
	stored, running := delta{}, delta{}
	if o.state == store.Running {
		stored.records, running = 1, o.tallied(-1)
	}
	switch next {
	case store.Completed, store.NoEffect:
		blob = t.keep(blob)
		stored.bytes = int64(len(blob))
		if _, err := t.exec(ns.id, endAny, o.digest[:], kindOf(o.state), o.token[:], int(next), t.now.at, blob); err != nil {
			return nil, err
		}
		return nil, t.finish(ns, o.state, ended{o.digest, o.token}, o.principal, stored, running)
	case store.Unknown:
		o.question, o.nonce = nil, store.Nonce{}
	case store.Waiting:
		if end.Event == store.Ask {
			o.nonce, o.question = end.Nonce, blob
		}
		stored.open, stored.questions = 1, int64(len(o.question))
	}
	o.state, o.since = next, t.now.at
	if err := t.setOpen(ns, o); err != nil {
		return nil, err
	}
	t.ended = append(t.ended, ended{o.digest, run.Token})
	return nil, t.move(ns, o.principal, stored, running)
}

// finish is what every call that ends has in common, once its ended row is
// there.
func (t *txn) finish(ns *namespace, from store.State, e ended, principal string, stored, running delta) error {
	t.ended = append(t.ended, e)
	if _, err := t.exec(ns.id, deleteOpen, e.digest[:], kindOf(from)); err != nil {
		return err
	}
	if err := t.move(ns, principal, stored, running); err != nil {
		return err
	}
	return t.evict()
}

// keep returns what is to be stored of an outcome: nothing when it alone does
// not fit.
func (t *txn) keep(blob []byte) []byte {
	if int64(len(blob)) > t.s.opt.MaxResultBytes {
		return nil
	}
	return blob
}

// evict drops outcomes until they fit: those of the oldest namespace first,
// and in it those of the calls that ended first. Their records stay.
func (t *txn) evict() error {
	held := t.view.held
	for i := len(held) - 1; i >= 0 && t.view.bytes() > t.s.opt.MaxResultBytes; i-- {
		ns, from := held[i], held[i].evicted
		for t.view.bytes() > t.s.opt.MaxResultBytes {
			more, err := t.evictNext(ns)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
		if ns.evicted != from {
			if _, err := t.exec(0, setEvicted, ns.id, ns.evicted); err != nil {
				return err
			}
		}
	}
	return nil
}

// evictNext drops the oldest outcome of a namespace, if there is one.
func (t *txn) evictNext(ns *namespace) (more bool, err error) {
	var principal []byte
	length := int64(-1)
	more, err = t.row(ns.id, nextOutcome, []any{ns.evicted}, &ns.evicted, &principal, &length)
	if !more || err != nil || length < 0 {
		return more, err
	}
	if _, err := t.exec(ns.id, clearOutcome, ns.evicted); err != nil {
		return false, err
	}
	return true, t.move(ns, string(principal), delta{bytes: -length}, delta{})
}
