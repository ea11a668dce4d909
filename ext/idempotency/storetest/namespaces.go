package storetest

import (
	"strings"
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// times are short against each other and long against a millisecond.
func times() Config {
	return Config{Retention: 10 * time.Hour, RotateEvery: 4 * time.Hour, ClosingFor: time.Hour}
}

func namespaceTests() []contract {
	return []contract{
		{rule: "the current namespace is one that a key can name", check: namespaceName},
		{rule: "every instance declares the same namespace", check: sameNamespace},
		{rule: "the stores of two factories share nothing", check: nothingShared},
		{rule: "a namespace passes through its four states", config: times(), check: fourStates},
		{rule: "two instances that rotate at once make one namespace (X23)", config: times(), check: rotateAtOnce},
		{rule: "nobody acts on a namespace state of yesterday (X5)", config: times(), check: noCachedState},
		{rule: "retention is fixed when a namespace is made (X24)", config: times(), check: retentionFixed},
		{rule: "a record is kept for the retention after its call ended", config: times(), check: keptForRetention},
		{rule: "a run holds its namespace", config: times(), check: runHoldsNamespace},
		{rule: "a question holds its namespace for the retention after the last attempt (X15, X16)", config: times(), check: questionHoldsNamespace},
		{rule: "a key without a namespace is found wherever it is held", config: times(), check: keyWithoutNamespace},
		{rule: "a store that sleeps through everything does not vouch for what it dropped", config: times(), check: longSleep},
	}
}

func namespaceName(w *world) {
	ns := w.namespace(w.a)
	if len(ns.Name) < 1 || len(ns.Name) > 64 || ns.Retention <= 0 {
		w.Errorf("namespace %+v: want 1–64 characters and a positive retention", ns)
	}
	for _, r := range ns.Name {
		if !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_~:-", r) {
			w.Errorf("namespace %q has %q in it", ns.Name, r)
		}
	}
}

func sameNamespace(w *world) {
	if a, b := w.namespace(w.a), w.namespace(w.b); a != b {
		w.Errorf("one instance declares %+v, another %+v", a, b)
	}
	res := w.expect(w.b, attempt(store.ID{Key: "unheld.key"}), store.NamespaceNotHeld)
	if res.Current != w.namespace(w.a).Name {
		w.Errorf("namespaceNotHeld names %q as the current one, want %q", res.Current, w.namespace(w.a).Name)
	}
}

func nothingShared(w *world) {
	a := attempt(w.id())
	w.run(w.a, a)
	far := w.factory(w.TB, w.config).Open(w.TB)
	w.expect(far, again(a), store.NamespaceNotHeld)
	if w.namespace(far).Name == w.namespace(w.a).Name {
		w.Error("two stores apart declare the same namespace")
	}
}

// rotated moves on until the namespace is no longer declared, and returns the
// one that is.
func (w *world) rotated(old string) string {
	w.Helper()
	w.advance(w.config.RotateEvery + time.Second)
	now := w.namespace(w.b).Name
	if now == old {
		w.Fatalf("%s is still declared after RotateEvery", old)
	}
	return now
}

func fourStates(w *world) {
	old := w.namespace(w.a).Name
	known := attempt(idIn(old))
	w.record(w.a, w.run(w.a, known), complete("done"))

	current := w.rotated(old) // closing
	closing := attempt(idIn(old))
	w.record(w.a, w.run(w.b, closing), complete("closing"))
	w.record(w.a, w.run(w.a, attempt(idIn(current))), complete("new"))

	w.advance(w.config.ClosingFor + time.Minute) // closed
	for _, s := range []store.Store{w.a, w.b} {
		w.expectKnown(s, again(known), store.Completed, []byte("done"))
		w.expectKnown(s, again(closing), store.Completed, []byte("closing"))
		late := attempt(idIn(old))
		if res := w.expect(s, late, store.NamespaceClosed); res.Current != w.namespace(s).Name {
			w.Errorf("namespaceClosed names %q as the current one, want %q", res.Current, w.namespace(s).Name)
		}
		w.expect(s, peek(late), store.NamespaceClosed)
		w.expect(s, other(known), store.Mismatch)
	}

	w.advance(w.config.Retention + w.config.Retention/4) // dropped
	for _, s := range []store.Store{w.a, w.b} {
		w.expect(s, again(known), store.NamespaceNotHeld)
		w.expect(s, attempt(idIn(old)), store.NamespaceNotHeld)
		w.fenced("Record in a dropped namespace", s.Record(w.ctx, ref(known), complete("done")))
	}
}

func rotateAtOnce(w *world) {
	if w.Advance == nil {
		w.Skip("the backend has no clock that can be moved")
	}
	for range 5 {
		old := w.namespace(w.a).Name
		w.advance(w.config.RotateEvery + time.Second)
		names := make(chan string, 16)
		var wg sync.WaitGroup
		for i := range 16 {
			s := []store.Store{w.a, w.b}[i%2]
			wg.Go(func() {
				// Whatever notices first rotates: a look at the namespace or a call.
				if i%4 < 2 {
					if res, err := s.Reserve(w.ctx, attempt(store.ID{Key: "unheld.key"})); err != nil || res.Current == old {
						w.Errorf("Reserve: current %q (before: %q), %v", res.Current, old, err)
					}
				}
				ns, err := s.Current(w.ctx)
				if err != nil {
					w.Errorf("Current: %v", err)
				}
				names <- ns.Name
			})
		}
		wg.Wait()
		close(names)
		first := <-names
		for name := range names {
			if name != first {
				w.Fatalf("rotated to both %s and %s", first, name)
			}
		}
		w.expect(w.a, attempt(idIn(old)), store.Run)
	}
}

// noCachedState lets one instance see each change first and asks the other,
// which has only seen the state before.
func noCachedState(w *world) {
	old := w.namespace(w.a).Name
	w.expect(w.b, attempt(idIn(old)), store.Run)
	current := w.rotated(old)
	w.expect(w.a, attempt(idIn(current)), store.Run)
	if res := w.expect(w.a, attempt(store.ID{Key: "unheld.key"}), store.NamespaceNotHeld); res.Current != current {
		w.Errorf("an instance calls %s current, which is %s", res.Current, current)
	}
	w.advance(w.config.ClosingFor + time.Minute)
	w.expect(w.b, attempt(idIn(old)), store.NamespaceClosed)
	w.expect(w.a, attempt(idIn(old)), store.NamespaceClosed)
}

func retentionFixed(w *world) {
	if w.Reconfigure == nil {
		w.Skip("the backend cannot be reconfigured")
	}
	old := w.namespace(w.a)
	if old.Retention != w.config.Retention {
		w.Fatalf("retention %v, want %v", old.Retention, w.config.Retention)
	}
	known := attempt(idIn(old.Name))
	w.record(w.a, w.run(w.a, known), complete("done"))
	lowered := w.config
	lowered.Retention = w.config.Retention / 5
	w.Reconfigure(lowered)
	c := w.open()
	if ns := w.namespace(c); ns != old {
		w.Errorf("after a deploy the namespace is %+v, was %+v", ns, old)
	}
	w.advance(w.config.RotateEvery + time.Second)
	if ns := w.namespace(c); ns.Name == old.Name || ns.Retention != lowered.Retention {
		w.Errorf("the next namespace is %+v, want retention %v", ns, lowered.Retention)
	}
	w.advance(w.config.Retention - w.config.RotateEvery - 2*time.Second)
	w.expectKnown(c, again(known), store.Completed, []byte("done"))
}

func keptForRetention(w *world) {
	old := w.namespace(w.a).Name
	early, late := attempt(idIn(old)), attempt(idIn(old))
	w.record(w.a, w.run(w.a, early), complete("early"))
	late.Lease = 24 * time.Hour
	r := w.run(w.a, late)
	w.rotated(old)
	w.advance(w.config.ClosingFor + w.config.Retention/2)
	w.namespace(w.b)
	w.record(w.a, r, complete("late"))
	ended := w.config.Retention - time.Second
	for range 4 {
		w.advance(ended / 4)
		w.expectKnown(w.b, again(late), store.Completed, []byte("late"))
	}
	// The namespace goes as a whole, so the early one is there as well.
	w.expectKnown(w.a, again(early), store.Completed, []byte("early"))
	w.advance(w.config.Retention/4 + time.Hour)
	w.expect(w.b, again(late), store.NamespaceNotHeld)
}

func runHoldsNamespace(w *world) {
	old := w.namespace(w.a).Name
	a := attempt(idIn(old))
	a.Lease = 1000 * time.Hour
	r := w.run(w.a, a)
	w.rotated(old)
	for range 8 {
		w.advance(w.config.Retention)
		w.expect(w.b, again(a), store.Joinable)
	}
	w.record(w.a, r, complete("done"))
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
}

func questionHoldsNamespace(w *world) {
	old := w.namespace(w.a).Name
	a, n := attempt(idIn(old)), nonce()
	w.record(w.a, w.run(w.a, a), ask(n, "which?"))
	w.rotated(old)
	for range 5 {
		w.advance(w.config.Retention - time.Minute)
		w.expectAsked(w.b, again(a), n, "which?")
	}
	// The namespace is closed by now, and the continuation runs in it.
	w.expect(w.a, attempt(idIn(old)), store.NamespaceClosed)
	n2 := nonce()
	w.record(w.a, w.run(w.a, continuing(a, n, "this")), ask(n2, "and?"))
	w.advance(w.config.Retention - time.Minute)
	w.expectAsked(w.b, again(a), n2, "and?")
	// Nobody asks any more: it does not hold the namespace for ever.
	w.advance(w.config.Retention + w.config.Retention/4)
	w.expect(w.b, again(a), store.NamespaceNotHeld)
}

func keyWithoutNamespace(w *world) {
	a := attempt(store.ID{Principal: "p", Key: ".arg:effect"})
	b := attempt(store.ID{Principal: "p", Key: ".arg:other"})
	w.expect(w.a, peek(a), store.Free)
	w.record(w.a, w.run(w.a, a), complete("done"))
	r := w.run(w.a, b)
	w.expect(w.b, again(b), store.Joinable)
	if w.Advance == nil {
		w.record(w.a, r, complete("other"))
		return
	}
	old := w.namespace(w.a).Name
	w.rotated(old)
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
	w.advance(w.config.ClosingFor + time.Minute)
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
	w.expect(w.b, other(a), store.Mismatch)
	w.record(w.a, r, complete("other"))
	w.expectKnown(w.b, again(b), store.Completed, []byte("other"))
	// A new one goes into the current namespace and outlives the old.
	c := attempt(store.ID{Principal: "p", Key: ".arg:third"})
	w.record(w.b, w.run(w.b, c), complete("third"))
	w.expectKnown(w.a, again(c), store.Completed, []byte("third"))
	w.advance(w.config.Retention - time.Minute)
	w.expectKnown(w.a, again(c), store.Completed, []byte("third"))
}

func longSleep(w *world) {
	old := w.namespace(w.a).Name
	a := attempt(idIn(old))
	w.record(w.a, w.run(w.a, a), complete("done"))
	w.advance(1000 * w.config.Retention)
	for range 2 {
		res := w.reserve(w.b, again(a))
		if res.Verdict != store.Known && res.Verdict != store.NamespaceNotHeld {
			w.Fatalf("after a long sleep: %s, want Known or NamespaceNotHeld", verdict(res.Verdict))
		}
		w.advance(1000 * w.config.Retention)
	}
	w.expect(w.a, attempt(w.id()), store.Run)
}

func clockTests() []contract {
	back := times()
	return []contract{
		{rule: "a step back does not reopen what was closed", config: back, check: stepBackReopensNothing},
		{rule: "a step back does not shorten the retention", config: back, check: stepBackKeeps},
		{rule: "a step back does not stretch a lease", config: back, check: stepBackLease},
		{rule: "a step back does not stop the rotation", config: back, check: stepBackRotates},
	}
}

func stepBackReopensNothing(w *world) {
	old := w.namespace(w.a).Name
	current := w.rotated(old)
	w.advance(w.config.ClosingFor + time.Minute)
	late := attempt(idIn(old))
	w.expect(w.a, late, store.NamespaceClosed)
	w.advance(-w.config.ClosingFor - w.config.RotateEvery - time.Hour)
	for _, s := range []store.Store{w.a, w.b} {
		w.expect(s, again(late), store.NamespaceClosed)
		if ns := w.namespace(s).Name; ns != current {
			w.Errorf("after a step back %s is declared, was %s", ns, current)
		}
	}
	w.expect(w.a, attempt(idIn(current)), store.Run)
}

func stepBackKeeps(w *world) {
	old := w.namespace(w.a).Name
	a := attempt(idIn(old))
	w.record(w.a, w.run(w.a, a), complete("done"))
	w.rotated(old)
	w.advance(w.config.ClosingFor)
	for range 3 {
		w.advance(-w.config.Retention / 2)
		w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
		w.advance(w.config.Retention / 4)
		w.expectKnown(w.a, again(a), store.Completed, []byte("done"))
	}
}

// stepBackLease lets both instances see the clock after each step: they can
// only notice a step by looking.
func stepBackLease(w *world) {
	w.advance(time.Minute)
	w.expect(w.b, attempt(w.id()), store.Run)
	w.advance(-24 * time.Hour)
	a := attempt(w.id())
	w.leased(w.a, a)
	w.expect(w.b, again(a), store.Joinable)
	w.advance(lease - time.Second)
	w.expect(w.b, again(a), store.Joinable)
	w.advance(-24 * time.Hour)
	w.expect(w.b, again(a), store.Joinable)
	w.advance(2 * time.Second)
	w.expectKnown(w.b, again(a), store.Unknown, nil)
}

func stepBackRotates(w *world) {
	old := w.namespace(w.a).Name
	w.expect(w.b, attempt(idIn(old)), store.Run)
	w.advance(-24 * time.Hour)
	w.expect(w.a, attempt(idIn(old)), store.Run)
	// Late by the step at most; a store may do better.
	w.advance(24*time.Hour + w.config.RotateEvery + time.Second)
	if w.namespace(w.a).Name == old {
		w.Error("the namespace did not rotate")
	}
}
