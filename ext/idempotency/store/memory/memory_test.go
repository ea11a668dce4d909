package memory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func TestOfConcurrentReservationsOneRuns(t *testing.T) {
	s := New(nil)
	ns, _ := s.Current(t.Context())
	for k := range 50 {
		key := fmt.Sprintf("%s.k%d", ns.Name, k)
		var wg sync.WaitGroup
		var runs, joins atomic.Int64
		for i := range 16 {
			wg.Go(func() {
				a := store.Attempt{ID: store.ID{Key: key}, Token: store.Token{byte(k), byte(i), 1}}
				switch r, err := s.Reserve(t.Context(), a); {
				case err != nil:
					t.Error(err)
				case r.Verdict == store.Run:
					runs.Add(1)
					if err := s.Record(t.Context(), ref(a), store.End{Event: store.Complete, Outcome: []byte("r")}); err != nil {
						t.Error(err)
					}
				case r.Verdict == store.Joinable:
					joins.Add(1)
					if err := s.Await(t.Context(), a.ID, r.Record.Token); err != nil {
						t.Error(err)
					}
					if r, _ := s.Reserve(t.Context(), a); r.Verdict != store.Known {
						t.Errorf("after waiting: %v", r.Verdict)
					}
				case r.Verdict != store.Known:
					t.Errorf("verdict %v", r.Verdict)
				}
			})
		}
		wg.Wait()
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	}
	if err := s.audit(); err != nil {
		t.Error(err)
	}
}

// Everything at once, for the race detector.
func TestConcurrentUse(t *testing.T) {
	s := New(&Options{MaxRecords: 500, MaxResultBytes: 2000, MaxOpenPerPrincipal: 100})
	ns, _ := s.Current(t.Context())
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				id := store.ID{Principal: fmt.Sprint(g % 3), Key: fmt.Sprintf("%s.k%d", ns.Name, i%90)}
				a := store.Attempt{ID: id, Token: store.Token{byte(g), byte(i), 2}}
				r, _ := s.Reserve(t.Context(), a)
				if r.Verdict == store.Asked {
					a.Nonce = r.Record.Nonce
					r, _ = s.Reserve(t.Context(), a)
				}
				if r.Verdict == store.Run {
					event := []store.Event{store.Complete, store.Ask, store.Lose, store.DeclareNoEffect}[i%4]
					if err := s.Record(t.Context(), ref(a), store.End{Event: event, Outcome: make([]byte, i), Nonce: store.Nonce{byte(i), 1}}); err != nil {
						t.Error(err)
					}
				}
				_ = s.Stats()
				_, _ = s.Current(t.Context())
			}
		})
	}
	wg.Wait()
	if err := s.audit(); err != nil {
		t.Error(err)
	}
}

// E1 for the store: ids are told apart wherever principal ends and key begins.
func TestPrincipalAndKeyAreNotRunTogether(t *testing.T) {
	h := newHarness(t, nil)
	ns := h.namespace()
	ids := []store.ID{
		{Principal: "", Key: ns + ".k"}, {Principal: "a", Key: ns + ".k"}, {Principal: "a\x00", Key: ns + ".k"}, {Principal: ns, Key: ns + ".k"},
		{Principal: "", Key: ns + ".kk"}, {Principal: "k", Key: ns + ".k"}, {Principal: "", Key: ".k"}, {Principal: ".", Key: ".k"}, {Principal: "", Key: "." + ns + ".k"},
	}
	for _, id := range ids {
		a := h.attempt(id.Key)
		a.Principal = id.Principal
		if r := h.reserve(a); r.Verdict != store.Run {
			t.Errorf("%q: %v", id, r.Verdict)
		}
	}
}

// M1: what a call needs while it runs is gone when it has ended.
func TestNothingIsLeftOfAnEndedCallButItsTombstone(t *testing.T) {
	h := newHarness(t, &Options{MaxResultBytes: 1})
	ns := h.namespace()
	before := runtime.NumGoroutine()
	for i := range 2000 {
		a := h.attempt(fmt.Sprintf("%s.k%d", ns, i))
		if r, _ := h.Reserve(t.Context(), a); r.Verdict != store.Run {
			t.Fatal(r)
		}
		if err := h.Record(t.Context(), ref(a), store.End{Event: store.Complete, Outcome: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	h.check()
	if n := h.held[0]; len(n.open) != 0 || n.outcomes.Len() != 0 || len(n.ended) != 2000 || len(n.principals) != 1 {
		t.Errorf("%d open, %d outcomes, %d ended, %d principals", len(n.open), n.outcomes.Len(), len(n.ended), len(n.principals))
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines became %d", before, after)
	}
}

// X6: a store that begins again runs no key from before, and those who wait
// are let go.
func TestReincarnationForgetsAllAndRunsNothingAgain(t *testing.T) {
	h := newHarness(t, nil)
	old := h.namespace()
	running := h.take(old + ".running")
	asked := h.into(store.Waiting, old+".asked")
	h.finish(old+".done", "result")
	h.take(".arg:x")
	waiting := make(chan error)
	go func() { waiting <- h.Await(t.Context(), running.ID, running.Token) }()
	h.Reincarnate()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	h.check()
	if st := h.Stats(); st != (Stats{Namespaces: 1}) {
		t.Errorf("%+v", st)
	}
	if h.namespace() == old {
		t.Error("the namespace is the same")
	}
	for _, k := range []string{".running", ".asked", ".done", ".new"} {
		h.want(old+k, store.NamespaceNotHeld)
	}
	for _, a := range []store.Attempt{running, asked} {
		if err := h.Record(t.Context(), ref(a), store.End{Event: store.Complete, Outcome: []byte("late")}); !errors.Is(err, store.ErrFenced) {
			t.Errorf("a late end: %v", err)
		}
	}
	h.finish(h.namespace()+".new", "result")
}

// X1 and X6: two stores never hold one key.
func TestNoTwoStoresShareANamespace(t *testing.T) {
	a, b := newHarness(t, nil), newHarness(t, nil)
	key := a.namespace() + ".k"
	a.finish(key, "result")
	if r := b.look(key); r.Verdict != store.NamespaceNotHeld || r.Current != b.namespace() {
		t.Errorf("%+v", r)
	}
}

func TestARunDoesNotEndWithAnEventOfAnotherKind(t *testing.T) {
	h := newHarness(t, nil)
	a := h.take(h.namespace() + ".k")
	for _, e := range []store.Event{0, store.Reserve, store.Continue, store.TakeOver, store.ResolveCompleted, store.ResolveNoEffect, 99} {
		if err := h.Record(t.Context(), ref(a), store.End{Event: e}); err == nil {
			t.Errorf("%v is taken", e)
		}
		h.check()
	}
	if s := h.stateOf(a.Key); s != store.Running {
		t.Errorf("the run is %v", s)
	}
}

func TestRenewIsAlwaysGranted(t *testing.T) {
	h := newHarness(t, nil)
	if err := h.Renew(context.Background(), store.RunRef{}, 0); err != nil {
		t.Error(err)
	}
	if r := h.reserve(h.attempt(h.namespace() + ".k")); r.Leased {
		t.Error("a run of this store needs no lease")
	}
}

// BenchmarkTombstone measures what one ended call without its result takes, at
// a number at which the maps have just grown: the worst.
func BenchmarkTombstone(b *testing.B) {
	const n = 1 << 18
	for b.Loop() {
		s := New(nil)
		ns, _ := s.Current(b.Context())
		before := heap()
		for i := range n {
			a := store.Attempt{ID: store.ID{Principal: fmt.Sprint(i % 1000), Key: fmt.Sprintf("%s.%026d", ns.Name, i)}, Token: store.Token{byte(i), byte(i >> 8), byte(i >> 16)}}
			if r, _ := s.Reserve(b.Context(), a); r.Verdict != store.Run {
				b.Fatal(r)
			}
			if err := s.Record(b.Context(), ref(a), store.End{Event: store.Complete}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before)/n, "B/tombstone")
		runtime.KeepAlive(s)
	}
}
