package storetest

import (
	"errors"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// lifeCycleTests walk the table that defines the life of a record: every
// transition in it happens, and every other pair of a state and an event
// leaves the record as it is.
func lifeCycleTests() []contract {
	var tests []contract
	for _, from := range store.States() {
		for _, on := range store.Events() {
			to, allowed := store.Next(from, on)
			rule := fmt.Sprintf("%v on %v is refused", from, on)
			check := func(w *world) { w.refuses(from, on) }
			if allowed {
				rule = fmt.Sprintf("%v on %v becomes %v", from, on, to)
				check = func(w *world) { w.allows(from, on, to) }
			}
			tests = append(tests, contract{rule: rule, check: check})
		}
	}
	return append(tests, contract{rule: "the table has no other transitions", check: tableIsComplete})
}

func tableIsComplete(w *world) {
	for _, tr := range store.Transitions() {
		if to, ok := store.Next(tr.From, tr.On); !ok || to != tr.To {
			w.Errorf("%v on %v: the table says %v, Next says %v, %t", tr.From, tr.On, tr.To, to, ok)
		}
	}
}

// A subject is a record in some state, the attempt that made it, its latest
// run and the nonce of its latest question.
type subject struct {
	attempt store.Attempt
	run     store.RunRef
	nonce   store.Nonce
}

// in drives a new record into a state.
func (w *world) in(state store.State) subject {
	w.Helper()
	a, n := attempt(w.id()), nonce()
	s := subject{attempt: a, run: ref(a), nonce: n}
	if state == store.Absent {
		return s
	}
	w.run(w.a, a)
	switch state {
	case store.Running: // a continuation, which can be rejected too
		w.record(w.a, s.run, ask(n, "which?"))
		s.run = w.run(w.a, continuing(a, n, "this"))
	case store.Waiting:
		w.record(w.a, s.run, ask(n, "which?"))
	case store.Completed:
		w.record(w.a, s.run, complete("done"))
	case store.NoEffect:
		w.record(w.a, s.run, noEffect("none"))
	case store.Unknown:
		w.record(w.a, s.run, store.End{Event: store.Lose})
	}
	return s
}

// state looks at a record without changing it.
func (w *world) state(s subject) store.State {
	w.Helper()
	res := w.reserve(w.b, peek(s.attempt))
	switch res.Verdict {
	case store.Free:
		return store.Absent
	case store.Joinable, store.Asked, store.Known:
		return res.Record.State
	}
	w.Fatalf("Peek: %s", verdict(res.Verdict))
	return 0
}

func (w *world) operator(s store.Store) store.Operator {
	w.Helper()
	op, ok := s.(store.Operator)
	if !ok {
		w.Skip("the store is not a store.Operator")
	}
	return op
}

// allows applies an event of the table and looks at what has become of the
// record, on the other instance.
func (w *world) allows(from store.State, on store.Event, to store.State) {
	if on == store.TakeOver {
		a, old := w.transactional()
		w.lapse(w.a, old, a.Lease)
		next := again(a)
		next.Lease = lease
		w.expect(w.a, next, store.Run)
		if got := w.state(subject{attempt: a}); got != to {
			w.Errorf("the record is %v, want %v", got, to)
		}
		return
	}
	s := w.in(from)
	var err error
	switch on {
	case store.Reserve:
		w.expect(w.a, s.attempt, store.Run)
	case store.Continue:
		w.expect(w.a, continuing(s.attempt, s.nonce, "this"), store.Run)
	case store.ResolveCompleted, store.ResolveNoEffect:
		err = w.operator(w.a).Resolve(w.ctx, s.attempt.ID, on, []byte("resolved"))
	default:
		err = w.a.Record(w.ctx, s.run, w.end(on, s.nonce))
	}
	if err != nil {
		w.Fatalf("%v: %v", on, err)
	}
	if got := w.state(s); got != to {
		w.Errorf("the record is %v, want %v", got, to)
	}
}

func (w *world) end(on store.Event, n store.Nonce) store.End {
	end := store.End{Event: on}
	if on == store.Ask {
		end.Nonce = n
	}
	if on != store.Lose && on != store.Reject {
		end.Outcome = []byte("outcome of " + on.String())
	}
	return end
}

// refuses applies an event that is not in the table.
func (w *world) refuses(from store.State, on store.Event) {
	s := w.in(from)
	switch on {
	case store.Reserve, store.Continue, store.TakeOver:
		w.refusesToRun(s, from, on)
	case store.ResolveCompleted, store.ResolveNoEffect:
		want := store.ErrNotUnknown
		if from == store.Absent {
			want = store.ErrNoRecord
		}
		if err := w.operator(w.a).Resolve(w.ctx, s.attempt.ID, on, []byte("forged")); !errors.Is(err, want) {
			w.Errorf("Resolve: got error %v, want %v", err, want)
		}
	default:
		err := w.a.Record(w.ctx, s.run, w.end(on, nonce()))
		if from == store.Absent {
			w.fenced("Record", err)
		} else {
			w.ignored("Record", err)
		}
	}
	if got := w.state(s); got != from {
		w.Errorf("the record became %v", got)
	}
}

// refusesToRun asks for a run that the state does not allow.
func (w *world) refusesToRun(s subject, from store.State, on store.Event) {
	if from == store.Absent {
		return // nothing to continue or to take over: the attempt is a new key's
	}
	a := again(s.attempt)
	switch on {
	case store.Continue:
		a = continuing(s.attempt, s.nonce, "other answers")
	case store.TakeOver:
		a.Transactional = true
	}
	if res := w.reserve(w.a, a); res.Verdict == store.Run {
		w.Errorf("a %v record was run again", from)
	}
}
