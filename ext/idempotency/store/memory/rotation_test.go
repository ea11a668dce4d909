package memory

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

const (
	every     = 10 * time.Hour
	closing   = 2 * time.Hour
	retention = 5 * time.Hour
)

func rotating() *Options {
	return &Options{RotateEvery: every, ClosingFor: closing, Retention: retention}
}

func TestANamespaceIsCurrentThenClosingThenClosedThenDropped(t *testing.T) {
	h := newHarness(t, rotating())
	ns := h.namespace()
	h.finish(ns+".old", "result")
	known := func() {
		t.Helper()
		if r := h.look(ns + ".old"); r.Verdict != store.Known || string(r.Record.Outcome) != "result" {
			t.Errorf("the old key: %+v", r)
		}
	}

	// Current: declared, takes new keys.
	h.advance(every - 1)
	if h.namespace() != ns {
		t.Error("rotated early")
	}
	known()
	h.want(ns+".new", store.Free)

	// Closing: no longer declared, still takes new keys.
	h.advance(1 + every/64)
	current := h.namespace()
	if current == ns {
		t.Fatal("not rotated")
	}
	known()
	h.finish(ns+".late", "result")
	h.want(current+".new", store.Free)

	// Closed: replays, and says of other keys that they never ran.
	h.advance(closing)
	known()
	if r := h.look(ns + ".new"); r.Verdict != store.NamespaceClosed || r.Current != current {
		t.Errorf("a new key: %+v", r)
	}
	if r := h.reserve(h.attempt(ns + ".new")); r.Verdict != store.NamespaceClosed {
		t.Errorf("a new key: %+v", r)
	}

	// Dropped: nothing is known of it any more, and nothing of it is kept.
	h.advance(retention + every/64)
	for _, key := range []string{".old", ".late", ".new"} {
		if r := h.look(ns + key); r.Verdict != store.NamespaceNotHeld || r.Current != h.namespace() {
			t.Errorf("%s: %+v", key, r)
		}
	}
	if st := h.Stats(); st.Records != 0 || st.ResultBytes != 0 || st.Namespaces != 1 {
		t.Errorf("%+v", st)
	}
}

// Whenever a call ends, its record is there for all of retention, and the
// namespace goes at last.
func TestRetentionIsNeverShortened(t *testing.T) {
	for after := time.Duration(0); after <= every+closing; after += 37 * time.Minute {
		for _, takes := range []time.Duration{0, time.Hour, closing + retention, 3 * every} {
			h := newHarness(t, rotating())
			key := h.namespace() + ".k"
			for range after / (37 * time.Minute) {
				h.advance(37 * time.Minute)
				h.namespace()
			}
			a := h.attempt(key)
			if r := h.reserve(a); r.Verdict != store.Run {
				t.Fatalf("after %v: %v", after, r.Verdict)
			}
			h.advance(takes)
			h.namespace()
			h.record(a, store.Complete, "result")
			for i := range 50 {
				if h.advance(retention / 50); i == 49 {
					h.advance(-1)
				}
				if r := h.look(key); r.Verdict != store.Known || r.Record.State != store.Completed || string(r.Record.Outcome) != "result" {
					t.Fatalf("reserved after %v, ran for %v: %+v", after, takes, r)
				}
			}
			h.advance(every + closing + retention)
			h.namespace() // looks
			h.advance(every + closing + retention)
			h.want(key, store.NamespaceNotHeld)
		}
	}
}

func TestARunHoldsItsNamespaceForAsLongAsItTakes(t *testing.T) {
	h := newHarness(t, rotating())
	key := h.namespace() + ".k"
	a := h.take(key)
	for range 40 {
		h.advance(every)
		h.want(key, store.Joinable)
	}
	h.record(a, store.Lose, "")
	h.advance(retention - 1)
	h.want(key, store.Known)
	h.advance(retention + every)
	h.want(key, store.NamespaceNotHeld)
}

// X15 and X16: an open question holds its namespace for retention after the
// last attempt, and not longer.
func TestAQuestionHoldsItsNamespaceAfterTheLastAttemptOnly(t *testing.T) {
	h := newHarness(t, rotating())
	key := h.namespace() + ".k"
	h.into(store.Waiting, key)
	for range 30 {
		h.advance(retention - time.Minute)
		h.want(key, store.Asked)
	}
	next := h.attempt(key)
	next.Nonce = store.Nonce{1}
	if r := h.reserve(next); r.Verdict != store.Run || !r.Continued {
		t.Fatalf("%+v", r)
	}
	h.record(next, store.Ask, "another")
	h.advance(retention + every)
	h.want(key, store.NamespaceNotHeld)
	if st := h.Stats(); st.Open != 0 || h.questions != 0 {
		t.Errorf("%+v, %d bytes of questions", st, h.questions)
	}
}

func TestAnUnknownOutcomeIsHeldForRetention(t *testing.T) {
	h := newHarness(t, rotating())
	key := h.namespace() + ".k"
	h.into(store.Unknown, key)
	h.advance(every + closing)
	h.namespace()
	h.advance(retention - time.Minute)
	h.want(key, store.Known)
	h.advance(retention + every)
	h.want(key, store.NamespaceNotHeld)
}

// The end of a run whose namespace is gone is refused, not put elsewhere.
func TestTheEndOfAForgottenRunIsFenced(t *testing.T) {
	for _, key := range []string{".k", ""} {
		h := newHarness(t, rotating())
		if key == "" {
			key = ".arg:x"
		} else {
			key = h.namespace() + key
		}
		a := h.into(store.Waiting, key)
		h.advance(every + retention)
		h.namespace()
		h.advance(every)
		h.namespace()
		if err := h.Record(t.Context(), ref(a), store.End{Event: store.Complete}); !errors.Is(err, store.ErrFenced) {
			t.Errorf("%s: %v", key, err)
		}
		if st := h.Stats(); st.Records != 0 {
			t.Errorf("%s: %+v", key, st)
		}
	}
}

func TestAKeyWithoutANamespaceIsFoundInEveryHeldOne(t *testing.T) {
	h := newHarness(t, rotating())
	const key = ".arg:x"
	h.finish(key, "result")
	for range 3 {
		h.advance(every / 2)
		h.namespace()
		if r := h.look(key); r.Verdict != store.Known {
			t.Fatalf("%v", r.Verdict)
		}
	}
	h.advance(every + closing + retention)
	h.namespace()
	h.advance(every)
	// The record is gone; the value is new again, in the current namespace.
	h.finish(key, "again")
	if r := h.look(key); string(r.Record.Outcome) != "again" {
		t.Errorf("%+v", r)
	}
}

// X23: many rotate at once; there is one new namespace.
func TestConcurrentCallsRotateOnce(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	var mu sync.Mutex
	o := rotating()
	o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	s := New(o)
	for round := range 20 {
		mu.Lock()
		now = now.Add(every)
		mu.Unlock()
		names := make([]string, 8)
		var wg sync.WaitGroup
		for i := range names {
			wg.Go(func() {
				ns, _ := s.Current(t.Context())
				names[i] = ns.Name
				a := store.Attempt{ID: store.ID{Key: fmt.Sprintf("%s.%d-%d", ns.Name, round, i)}, Token: store.Token{byte(round), byte(i)}}
				if r, _ := s.Reserve(t.Context(), a); r.Verdict != store.Run {
					t.Errorf("%v", r.Verdict)
				}
			})
		}
		wg.Wait()
		for _, n := range names {
			if n != names[0] {
				t.Errorf("two namespaces are declared: %v", names)
			}
		}
	}
	if err := s.audit(); err != nil {
		t.Error(err)
	}
}

func TestAStoreThatWasIdleForYearsGoesOn(t *testing.T) {
	h := newHarness(t, rotating())
	old := h.namespace()
	h.finish(old+".k", "result")
	h.advance(10 * 365 * 24 * time.Hour)
	// The first look retires the old namespace as of now: late, not early.
	if h.namespace() == old {
		t.Error("the old namespace is declared")
	}
	h.want(old+".k", store.Known)
	h.advance(closing + retention + time.Hour)
	h.want(old+".k", store.NamespaceNotHeld)
}

// A clock that steps back keeps records longer and loses none.
func TestAClockThatStepsBackForgetsNothing(t *testing.T) {
	h := newHarness(t, rotating())
	key := h.namespace() + ".k"
	h.finish(key, "result")
	h.advance(every)
	h.namespace()
	h.advance(-3 * every)
	h.want(key, store.Known)
	h.advance(every)
	h.want(key, store.Known)
}

func TestNamespacesAreNeverNamedAlike(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		n := newName()
		if seen[n] || len(n) > 64 {
			t.Fatal(n)
		}
		seen[n] = true
	}
}

func TestRetentionIsDeclaredAsItIsKept(t *testing.T) {
	h := newHarness(t, rotating())
	if ns, _ := h.Current(t.Context()); ns.Retention != retention {
		t.Error(ns)
	}
}
