package memory

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// notOffered are the events that nothing in this store raises.
var notOffered = map[store.Event]string{
	store.TakeOver:         "a run dies with the process, and so does the store: there are no leases",
	store.ResolveCompleted: "the store has no operator's interface",
	store.ResolveNoEffect:  "the store has no operator's interface",
}

// into brings a key into a state, and returns the attempt whose run led there.
func (h *harness) into(state store.State, key string) store.Attempt {
	h.t.Helper()
	if state == store.Absent {
		return h.attempt(key)
	}
	a := h.take(key)
	switch state {
	case store.Waiting:
		h.record(a, store.Ask, "question")
	case store.Completed:
		h.record(a, store.Complete, "result")
	case store.NoEffect:
		h.record(a, store.DeclareNoEffect, "message")
	case store.Unknown:
		h.record(a, store.Lose, "")
	}
	return a
}

// stateOf reads the state of a key off the store's verdict.
func (h *harness) stateOf(key string) store.State {
	h.t.Helper()
	switch r := h.look(key); r.Verdict {
	case store.Free:
		return store.Absent
	case store.Joinable, store.Asked, store.Known:
		return r.Record.State
	default:
		h.t.Fatalf("verdict %v", r.Verdict)
		return 0
	}
}

// apply raises an event; the error is what the store said when it refused.
func (h *harness) apply(event store.Event, a store.Attempt) error {
	switch event {
	case store.Reserve, store.Continue:
		next := h.attempt(a.Key)
		if event == store.Continue {
			next.Nonce = store.Nonce{1}
		}
		if r := h.reserve(next); r.Verdict != store.Run {
			return errors.New("refused")
		}
		return nil
	}
	return h.Record(context.Background(), ref(a), store.End{Event: event, Nonce: store.Nonce{1}})
}

func TestTheStoreFollowsTheLifeCycle(t *testing.T) {
	covered := 0
	for _, from := range store.States() {
		for _, event := range store.Events() {
			h := newHarness(t, nil)
			key := h.namespace() + ".k"
			a := h.into(from, key)
			if from == store.Running && event == store.Reject { // only an answer can be rejected
				h.record(a, store.Ask, "question")
				a = h.attempt(key)
				a.Nonce = store.Nonce{1}
				h.reserve(a)
			}
			if got := h.stateOf(key); got != from {
				t.Fatalf("set up %v, got %v", from, got)
			}
			err := h.apply(event, a)
			want, allowed := store.Next(from, event)
			if from == store.Absent && event == store.Continue {
				// A nonce makes no difference to a key that is new.
				want, allowed = store.Running, true
			}
			if _, never := notOffered[event]; never {
				if err == nil {
					t.Errorf("%v on %v is not refused", from, event)
				}
				want, allowed = from, false
			}
			if !allowed {
				want = from
			} else if err != nil {
				t.Errorf("%v on %v: %v", from, event, err)
			} else {
				covered++
			}
			if got := h.stateOf(key); got != want {
				t.Errorf("%v on %v led to %v, want %v", from, event, got, want)
			}
		}
	}
	if want := len(store.Transitions()) - len(notOffered) + 1; covered != want {
		t.Errorf("%d transitions were made, the table has %d that this store offers", covered, want)
	}
}

func TestAnotherRunsTokenChangesNothing(t *testing.T) {
	for _, tr := range store.Transitions() {
		if !tr.Fence {
			continue
		}
		h := newHarness(t, nil)
		key := h.namespace() + ".k"
		a := h.into(tr.From, key)
		a.Token = store.Token{9}
		if err := h.apply(tr.On, a); !errors.Is(err, store.ErrFenced) {
			t.Errorf("%v on %v with another token: %v", tr.From, tr.On, err)
		}
		if got := h.stateOf(key); got != tr.From {
			t.Errorf("%v on %v with another token led to %v", tr.From, tr.On, got)
		}
	}
}

// X4: an end whose acknowledgement was lost is told again. That is no error,
// and it does not touch the next round's run.
func TestAnEndToldTwiceIsToldOnce(t *testing.T) {
	for _, event := range []store.Event{store.Complete, store.DeclareNoEffect, store.Ask, store.Reject, store.Lose} {
		h := newHarness(t, nil)
		key := h.namespace() + ".k"
		a := h.take(key)
		if event == store.Reject {
			h.record(a, store.Ask, "question")
			next := h.attempt(key)
			next.Nonce = store.Nonce{1}
			if r := h.reserve(next); r.Verdict != store.Run || !r.Continued {
				t.Fatal(r)
			}
			a = next
		}
		h.record(a, event, "once")
		before := h.look(key)
		for range 3 {
			h.record(a, event, "once")
		}
		if after := h.look(key); after.Record.State != before.Record.State || string(after.Record.Outcome) != string(before.Record.Outcome) {
			t.Errorf("%v: %+v became %+v", event, before, after)
		}
		if event != store.Ask && event != store.Reject {
			continue
		}
		next := h.attempt(key)
		next.Nonce = store.Nonce{1}
		if r := h.reserve(next); r.Verdict != store.Run {
			t.Fatal(r)
		}
		if err := h.Record(t.Context(), ref(a), store.End{Event: event, Nonce: store.Nonce{1}}); !errors.Is(err, store.ErrFenced) {
			t.Errorf("%v told again while the next round runs: %v", event, err)
		}
		if s := h.stateOf(key); s != store.Running {
			t.Errorf("%v told again left the next round %v", event, s)
		}
	}
}

func TestAReserveToldTwiceIsOneReservation(t *testing.T) {
	h := newHarness(t, nil)
	key := h.namespace() + ".k"
	a := h.take(key)
	if r := h.reserve(a); r.Verdict != store.Run || r.Continued {
		t.Errorf("%+v", r)
	}
	h.record(a, store.Ask, "question")
	// The late repeat of a round that is over does not run.
	if r := h.reserve(a); r.Verdict != store.Asked || string(r.Record.Outcome) != "question" {
		t.Errorf("%+v", r)
	}
	b := h.attempt(key)
	b.Nonce, b.Answers = store.Nonce{1}, store.Fingerprint{7}
	for range 2 {
		if r := h.reserve(b); r.Verdict != store.Run || !r.Continued {
			t.Errorf("%+v", r)
		}
	}
	if r := h.look(key); r.Verdict != store.Joinable || r.Record.Token != b.Token || r.Record.Nonce != b.Nonce || r.Record.Answers != b.Answers {
		t.Errorf("%+v", r)
	}
	h.record(b, store.Complete, "result")
	for _, late := range []store.Attempt{a, b} {
		if r := h.reserve(late); r.Verdict != store.Known || r.Record.State != store.Completed || string(r.Record.Outcome) != "result" {
			t.Errorf("%+v", r)
		}
	}
	if st := h.Stats(); st != (Stats{Namespaces: 1, Records: 1, ResultBytes: 6}) {
		t.Errorf("%+v", st)
	}
}

func TestAPeekReservesNothing(t *testing.T) {
	for _, state := range store.States() {
		h := newHarness(t, nil)
		key := h.namespace() + ".k"
		h.into(state, key)
		before := h.Stats()
		a := h.attempt(key)
		a.Peek, a.Nonce = true, store.Nonce{1}
		r := h.reserve(a)
		if free := state == store.Absent || state == store.Waiting; (r.Verdict == store.Free) != free {
			t.Errorf("%v: %v", state, r.Verdict)
		}
		if after := h.Stats(); after != before {
			t.Errorf("%v: %+v became %+v", state, before, after)
		}
	}
}

func TestAMismatchIsSeenInEveryStateAndChangesNone(t *testing.T) {
	for _, state := range store.States()[1:] {
		h := newHarness(t, nil)
		key := h.namespace() + ".k"
		h.into(state, key)
		for _, nonce := range []store.Nonce{{}, {1}} {
			a := h.attempt(key)
			a.Fingerprint[0], a.Nonce = 2, nonce
			if r := h.reserve(a); r.Verdict != store.Mismatch {
				t.Errorf("%v: %v", state, r.Verdict)
			}
		}
		if got := h.stateOf(key); got != state {
			t.Errorf("%v became %v", state, got)
		}
	}
}

// The late end of a run that was given up is its outcome; it takes up the room
// of one record all the time.
func TestALateEndReplacesTheUnknownOutcome(t *testing.T) {
	for event, want := range map[store.Event]store.State{store.Complete: store.Completed, store.DeclareNoEffect: store.NoEffect} {
		h := newHarness(t, nil)
		key := h.namespace() + ".k"
		a := h.into(store.Unknown, key)
		if st := h.Stats(); st.Open != 1 || st.Records != 1 {
			t.Errorf("%+v", st)
		}
		h.record(a, event, "late")
		if r := h.look(key); r.Record.State != want || string(r.Record.Outcome) != "late" {
			t.Errorf("%v: %+v", event, r)
		}
		if st := h.Stats(); st.Open != 0 || st.Records != 1 {
			t.Errorf("%+v", st)
		}
	}
}

func TestAwaitReturnsWhenTheRunIsOver(t *testing.T) {
	for _, event := range []store.Event{store.Complete, store.DeclareNoEffect, store.Ask, store.Lose} {
		h := newHarness(t, nil)
		key := h.namespace() + ".k"
		a := h.take(key)
		done := make(chan error)
		go func() { done <- h.Await(t.Context(), a.ID, a.Token) }()
		// Neither another token nor a record that is not running is waited for.
		for _, id := range []store.ID{a.ID, {Key: "other.k"}, {Key: h.namespace() + ".other"}} {
			if err := h.Await(t.Context(), id, store.Token{9}); err != nil {
				t.Error(err)
			}
		}
		select {
		case err := <-done:
			t.Fatalf("returned early: %v", err)
		default:
		}
		h.record(a, event, "")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := h.Await(t.Context(), a.ID, a.Token); err != nil {
			t.Error(err)
		}
	}
	h := newHarness(t, nil)
	a := h.take(h.namespace() + ".k")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := h.Await(ctx, a.ID, a.Token); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
