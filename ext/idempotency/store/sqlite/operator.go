package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// List implements [store.Operator]. Runs whose lease has passed count as
// unknown, whether or not an attempt has met them. Among ended calls the
// states are looked up one by one: completed and noEffect cost what they
// return, and with a principal what that one has.
func (s *Store) List(ctx context.Context, q store.Query) (entries []store.Entry, err error) {
	states := q.States
	if len(states) == 0 {
		states = []store.State{store.Unknown}
	}
	limit := cmp.Or(max(q.Limit, 0), 100)
	err = s.step(ctx, func(t *txn) error {
		entries = nil
		for _, ns := range t.view.held {
			if err := t.lapseAll(ns); err != nil {
				return err
			}
			for _, state := range states {
				if err := t.list(&entries, ns, state, q.Principal, limit); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(entries, func(a, b store.Entry) int { return a.Since.Compare(b.Since) })
	return entries[:min(len(entries), limit)], nil
}

// list appends the oldest records of a namespace in a state.
func (t *txn) list(entries *[]store.Entry, ns *namespace, state store.State, principal *string, limit int) error {
	var q query
	var args []any
	switch ended := state == store.Completed || state == store.NoEffect; {
	case ended && principal != nil:
		low, high := digestRange(*principal)
		q, args = listEndedOf, []any{low, high, []byte(*principal), int(state), limit}
	case state == store.Completed:
		q, args = listCompleted, []any{limit}
	case state == store.NoEffect:
		q, args = listNoEffect, []any{limit}
	case state == store.Absent:
		return nil
	default:
		var only any
		if principal != nil {
			only = []byte(*principal)
		}
		q, args = listOpen, []any{int(state), only, limit, kindOf(state)}
	}
	return t.s.w.rows(ns.id, q, args, func(scan func(...any) error) error {
		var principal, key []byte
		var since, lease int64
		if err := scan(&principal, &key, &since, &lease); err != nil {
			return err
		}
		e := store.Entry{
			ID: store.ID{Principal: string(principal), Key: string(key)}, Namespace: ns.name,
			State: state, Since: timeOf(since),
		}
		if state == store.Running {
			e.LeaseUntil = timeOf(lease)
		}
		*entries = append(*entries, e)
		return nil
	})
}

// lapseAll gives up the runs of a namespace whose lease has passed, as the
// next attempt would.
func (t *txn) lapseAll(ns *namespace) error {
	var all []digest
	err := t.s.w.rows(ns.id, lapsedRuns, []any{t.now.at}, func(scan func(...any) error) error {
		var d []byte
		if err := scan(&d); err != nil {
			return err
		}
		all = append(all, digest(d))
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range all {
		o, found, err := t.findOpen(ns, d)
		if err != nil {
			return err
		}
		if !found || o.transactional && !o.continued {
			continue // it left nothing behind: the next attempt runs
		}
		if err := t.lapse(ns, o); err != nil {
			return err
		}
	}
	return nil
}

// Resolve implements [store.Operator].
func (s *Store) Resolve(ctx context.Context, id store.ID, event store.Event, outcome []byte) error {
	state, ok := store.Next(store.Unknown, event)
	if !ok || event != store.ResolveCompleted && event != store.ResolveNoEffect {
		return fmt.Errorf("sqlite: an operator does not resolve with %v", event)
	}
	d := digestOf(id)
	sealed, err := s.seal(d, outcome)
	if err != nil {
		return err
	}
	var refusal error
	err = s.step(ctx, func(t *txn) (err error) {
		refusal, err = t.resolve(d, id, state, sealed)
		return err
	})
	if err == nil {
		err = refusal
	}
	return err
}

// resolve applies an operator's word, or says why it does not.
func (t *txn) resolve(d digest, id store.ID, state store.State, blob []byte) (refusal, err error) {
	for _, ns := range t.candidates(id) {
		o, found, err := t.findOpen(ns, d)
		if err != nil {
			return nil, err
		}
		if !found {
			if _, found, err = t.findEnded(ns, d); found || err != nil {
				return store.ErrNotUnknown, err
			}
			continue
		}
		if o.state == store.Running && o.lease <= t.now.at && !o.transactional {
			if err := t.lapse(ns, o); err != nil {
				return nil, err
			}
		}
		if o.state != store.Unknown {
			return store.ErrNotUnknown, nil
		}
		blob = t.keep(blob)
		// Without a token: the run that was given up is fenced from now on.
		if _, err := t.exec(ns.id, endAny, d[:], kindOf(o.state), nil, int(state), t.now.at, blob); err != nil {
			return nil, err
		}
		return nil, t.finish(ns, o.state, ended{d, o.token}, id.Principal, delta{bytes: int64(len(blob))}, delta{})
	}
	return store.ErrNoRecord, nil
}

// DeleteOutcomes implements [store.Operator]. What is deleted is overwritten
// in the file, and in the log unless another process reads at that moment. The
// questions of calls that wait for input stay: they are needed to go on, and go
// when the call ends.
func (s *Store) DeleteOutcomes(ctx context.Context, principal string) (deleted int, err error) {
	err = s.step(ctx, func(t *txn) error {
		deleted = 0
		if err := t.s.w.script("PRAGMA secure_delete = ON"); err != nil {
			return err
		}
		for _, ns := range t.view.held {
			n, err := t.deleteOutcomes(ns, principal)
			if err != nil {
				return err
			}
			deleted += n
		}
		t.grant() // a copy of the file from before has them still
		t.mark()
		return t.s.w.script("PRAGMA secure_delete = FAST")
	})
	if err != nil {
		return 0, err
	}
	return deleted, s.truncateLog(ctx)
}

func (t *txn) deleteOutcomes(ns *namespace, principal string) (int, error) {
	low, high := digestRange(principal)
	args := []any{low, high, []byte(principal)}
	var count, bytes int64
	if _, err := t.row(ns.id, outcomesOf, args, &count, &bytes); err != nil || count == 0 {
		return 0, err
	}
	if _, err := t.exec(ns.id, clearOutcomesOf, args...); err != nil {
		return 0, err
	}
	return int(count), t.move(ns, principal, delta{bytes: -bytes}, delta{})
}

// truncateLog moves everything from the log into the file, if nobody reads.
func (s *Store) truncateLog(ctx context.Context) error {
	if err := s.take(ctx, s.turn); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	if s.w == nil {
		return errReplaced
	}
	return s.w.script("PRAGMA wal_checkpoint(TRUNCATE)")
}
