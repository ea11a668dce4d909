package memory

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A flood of keys is refused when the store is full; it pushes no key out and
// does not grow the store.
func TestAKeyFloodForgetsNoKeyAndStaysBounded(t *testing.T) {
	const flood, limit = 200_000, 1000
	h := newHarness(t, &Options{MaxRecords: limit, MaxRecordsPerPrincipal: limit, MaxResultBytes: 10_000, Retention: time.Hour, RotateEvery: time.Hour, ClosingFor: time.Minute})
	ns := h.namespace()
	for i := range limit {
		a := h.attempt(fmt.Sprintf("%s.k%d", ns, i))
		if r, _ := h.Reserve(t.Context(), a); r.Verdict != store.Run {
			t.Fatal(r)
		}
		if err := h.Record(t.Context(), ref(a), store.End{Event: store.Complete, Outcome: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	h.check()
	before := heap()
	for i := range flood {
		a := h.attempt(fmt.Sprintf("%s.flood-%d", ns, i))
		r, _ := h.Reserve(t.Context(), a)
		if r.Verdict != store.NoRoom || r.RetryAfter <= 0 || r.RetryAfter > time.Minute {
			t.Fatalf("%+v", r)
		}
	}
	if grown := int64(heap()) - int64(before); grown > 256<<10 {
		t.Errorf("the flood grew the heap by %d bytes", grown)
	}
	h.check()
	replayable := 0
	for i := range limit {
		r := h.look(fmt.Sprintf("%s.k%d", ns, i))
		if r.Verdict != store.Known || r.Record.State != store.Completed {
			t.Fatalf("key %d: %+v", i, r)
		}
		if r.Record.Outcome != nil {
			replayable++
		}
	}
	if replayable != 100 {
		t.Errorf("%d results are kept, want the 100 that fit", replayable)
	}
	// Room comes with the end of retention, and not before.
	h.advance(time.Hour + time.Minute)
	h.namespace()
	h.want(h.namespace()+".x", store.NoRoom)
	h.advance(2*time.Hour + time.Minute)
	h.want(h.namespace()+".x", store.Free)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (h *harness) by(principal, key string) store.Attempt {
	a := h.attempt(key)
	a.Principal = principal
	return a
}

func TestOnePrincipalCannotFillTheStore(t *testing.T) {
	h := newHarness(t, &Options{MaxRecords: 100}) // half for one principal
	ns := h.namespace()
	for i := range 60 {
		want := store.Run
		if i >= 50 {
			want = store.NoRoom
		}
		a := h.by("greedy", fmt.Sprintf("%s.k%d", ns, i))
		if r := h.reserve(a); r.Verdict != want {
			t.Fatalf("record %d: %v", i, r.Verdict)
		}
		if want == store.Run {
			h.record(a, store.Complete, "")
		}
	}
	for i := range 50 {
		if r := h.reserve(h.by(fmt.Sprint("other", i), ns+".k")); r.Verdict != store.Run {
			t.Fatalf("another principal: %v", r.Verdict)
		}
	}
	// What the greedy one has still holds, and its known keys are answered.
	if r := h.reserve(h.by("greedy", ns+".k0")); r.Verdict != store.Known {
		t.Error(r)
	}
}

func TestOpenCallsArePerPrincipalAndFreeWhenTheyEnd(t *testing.T) {
	h := newHarness(t, &Options{MaxOpenPerPrincipal: 2})
	ns := h.namespace()
	a, b := h.by("p", ns+".a"), h.by("p", ns+".b")
	for _, x := range []store.Attempt{a, b} {
		if r := h.reserve(x); r.Verdict != store.Run {
			t.Fatal(r)
		}
	}
	next := func() store.Verdict { return h.reserve(h.by("p", ns+".c")).Verdict }
	if v := next(); v != store.NoRoom {
		t.Error(v)
	}
	if r := h.reserve(h.by("q", ns+".c")); r.Verdict != store.Run {
		t.Error(r)
	}
	h.record(a, store.Ask, "question")
	if v := next(); v != store.NoRoom {
		t.Error(v)
	}
	// A continuation needs no room of its own.
	cont := h.by("p", ns+".a")
	cont.Nonce = store.Nonce{1}
	if r := h.reserve(cont); r.Verdict != store.Run {
		t.Error(r)
	}
	h.record(b, store.Lose, "") // nobody runs it any more
	if v := next(); v != store.Run {
		t.Error(v)
	}
	// Its late end frees nothing twice.
	h.record(b, store.Complete, "")
	if r := h.reserve(h.by("p", ns+".d")); r.Verdict != store.NoRoom {
		t.Error(r)
	}
}

// Quotas count what all held namespaces have.
func TestQuotasSpanRotations(t *testing.T) {
	h := newHarness(t, &Options{MaxRecords: 10, MaxRecordsPerPrincipal: 2, RotateEvery: time.Hour, ClosingFor: time.Hour, Retention: 10 * time.Hour})
	for i := range 3 {
		want := store.Run
		if i == 2 {
			want = store.NoRoom
		}
		if r := h.reserve(h.by("p", h.namespace()+".k")); r.Verdict != want {
			t.Errorf("namespace %d: %v", i, r.Verdict)
		}
		h.advance(time.Hour)
	}
}

func TestQuestionsAreBoundedInBytes(t *testing.T) {
	h := newHarness(t, &Options{MaxResultBytes: 1000})
	ns := h.namespace()
	a := h.take(ns + ".a")
	h.record(a, store.Ask, strings.Repeat("q", 1000))
	h.want(ns+".b", store.NoRoom)
	next := h.attempt(ns + ".a")
	next.Nonce = store.Nonce{1}
	h.reserve(next)
	h.record(next, store.Ask, "short")
	h.want(ns+".b", store.Free)
	last := h.attempt(ns + ".a")
	last.Nonce = store.Nonce{1}
	h.reserve(last)
	h.record(last, store.Complete, "done")
	if h.questions != 0 {
		t.Errorf("%d bytes of questions are left", h.questions)
	}
}

func TestAnEvictedResultLeavesATombstone(t *testing.T) {
	h := newHarness(t, &Options{MaxResultBytes: 30})
	ns := h.namespace()
	for _, k := range []string{".a", ".b", ".c"} {
		h.finish(ns+k, strings.Repeat(k[1:], 10))
	}
	h.look(ns + ".a") // used, so that b is the oldest
	h.finish(ns+".d", strings.Repeat("d", 10))
	for k, kept := range map[string]bool{".a": true, ".b": false, ".c": true, ".d": true} {
		r := h.look(ns + k)
		if r.Verdict != store.Known || r.Record.State != store.Completed || (r.Record.Outcome != nil) != kept {
			t.Errorf("%s: %+v, kept %v", k, r, kept)
		}
	}
	// One that fills the whole cache is kept, a larger one is not, and does
	// not empty it.
	h.finish(ns+".e", strings.Repeat("e", 30))
	h.finish(ns+".f", strings.Repeat("f", 31))
	if r := h.look(ns + ".e"); len(r.Record.Outcome) != 30 {
		t.Errorf("%+v", r)
	}
	if r := h.look(ns + ".f"); r.Verdict != store.Known || r.Record.Outcome != nil {
		t.Errorf("%+v", r)
	}
	if st := h.Stats(); st.Records != 6 || st.ResultBytes != 30 {
		t.Errorf("%+v", st)
	}
}

func TestTheOldestNamespacesResultsGoFirst(t *testing.T) {
	h := newHarness(t, &Options{MaxResultBytes: 20, RotateEvery: time.Hour, ClosingFor: time.Hour})
	old := h.namespace()
	h.finish(old+".a", strings.Repeat("a", 10))
	h.advance(time.Hour)
	h.finish(h.namespace()+".b", strings.Repeat("b", 10))
	h.look(old + ".a") // used last, and still the first to go
	h.finish(h.namespace()+".c", strings.Repeat("c", 10))
	if r := h.look(old + ".a"); r.Verdict != store.Known || r.Record.Outcome != nil {
		t.Errorf("%+v", r)
	}
	if r := h.look(h.namespace() + ".b"); r.Record.Outcome == nil {
		t.Errorf("%+v", r)
	}
}

func TestAnEmptyOutcomeIsNotNone(t *testing.T) {
	h := newHarness(t, nil)
	ns := h.namespace()
	a, b := h.take(ns+".a"), h.take(ns+".b")
	for x, outcome := range map[*store.Attempt][]byte{&a: {}, &b: nil} {
		if err := h.Record(t.Context(), ref(*x), store.End{Event: store.Complete, Outcome: outcome}); err != nil {
			t.Fatal(err)
		}
	}
	if r := h.look(ns + ".a"); r.Record.Outcome == nil {
		t.Error("an empty outcome is not kept")
	}
	if r := h.look(ns + ".b"); r.Record.Outcome != nil {
		t.Error("no outcome became one")
	}
}

func TestNegativeOptionsAreAMistake(t *testing.T) {
	for name, o := range map[string]Options{
		"Retention": {Retention: -1}, "RotateEvery": {RotateEvery: -1}, "ClosingFor": {ClosingFor: -1}, "MaxRecords": {MaxRecords: -1},
		"MaxRecordsPerPrincipal": {MaxRecordsPerPrincipal: -1}, "MaxOpenPerPrincipal": {MaxOpenPerPrincipal: -1}, "MaxResultBytes": {MaxResultBytes: -1},
	} {
		func() {
			defer func() {
				if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "Options."+name+" is negative") {
					t.Errorf("%s: %v", name, r)
				}
			}()
			New(&o)
		}()
	}
}

// The default bounds hang together, however small one of them is made.
func TestBoundsNeverExceedEachOther(t *testing.T) {
	for _, o := range []Options{{MaxRecords: 1}, {MaxRecords: 3}, {MaxRecords: 10, MaxRecordsPerPrincipal: 100}, {MaxRecordsPerPrincipal: 5}, {}} {
		s := New(&o)
		if p := s.opt.MaxRecordsPerPrincipal; p < 1 || p > s.opt.MaxRecords || s.opt.MaxOpenPerPrincipal > p {
			t.Errorf("%+v became %+v", o, s.opt)
		}
		if o.MaxRecords != 0 && s.opt.MaxRecords != o.MaxRecords {
			t.Errorf("%+v became %+v", o, s.opt)
		}
	}
}
