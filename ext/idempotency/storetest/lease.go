package storetest

import (
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func leaseTests() []contract {
	return []contract{
		{rule: "a run whose lease passed is unknown and is never run again (L3, L4)", check: lapsedIsUnknown},
		{rule: "a lease is not the retention, and is in the unit it is said in (L2, L7)", check: leaseUnits},
		{rule: "no lease at all has passed at once (L1)", check: zeroLease},
		{rule: "Renew keeps a run alive, by d from now", check: renewKeeps},
		{rule: "Renew is refused when the run has ended or was given up (L6)", check: renewFenced},
		{rule: "a late end after the lease is accepted", check: lateEndAfterLease},
		{rule: "the lease of a continuation counts as any other", check: continuationLapses},
		{rule: "opening another instance does not disturb a run (X29)", check: openingDisturbsNothing},
	}
}

func lapsedIsUnknown(w *world) {
	a := attempt(w.id())
	a.Lease = w.shortLease()
	r := w.leased(w.a, a)
	w.expect(w.b, again(a), store.Joinable)
	w.lapse(w.b, r, a.Lease)
	var wg sync.WaitGroup
	for _, s := range []store.Store{w.a, w.b, w.a, w.b} {
		wg.Go(func() {
			res, err := s.Reserve(w.ctx, again(a))
			if err != nil || res.Verdict != store.Known || res.Record.State != store.Unknown {
				w.Errorf("after the lease: %s %v, %v; want Known unknown", verdict(res.Verdict), res.Record.State, err)
			}
		})
	}
	wg.Wait()
	w.expectKnown(w.a, peek(a), store.Unknown, nil)
	w.expect(w.a, other(a), store.Mismatch)
}

func leaseUnits(w *world) {
	a := attempt(w.id())
	r := w.leased(w.a, a)
	if w.Advance == nil {
		w.Skip("the backend has no clock that can be moved")
	}
	w.advance(lease - time.Second)
	w.expect(w.b, again(a), store.Joinable)
	w.advance(2 * time.Second)
	w.expectKnown(w.b, again(a), store.Unknown, nil)
	_ = r
}

func zeroLease(w *world) {
	for _, d := range []time.Duration{0, -time.Second} {
		a := attempt(w.id())
		a.Lease = d
		w.leased(w.a, a)
		if w.Advance != nil {
			w.advance(time.Millisecond)
		} else if err := w.b.Await(w.ctx, a.ID, a.Token); err != nil {
			w.Fatalf("Await: %v", err)
		}
		w.expectKnown(w.b, again(a), store.Unknown, nil)
	}
}

func renewKeeps(w *world) {
	a := attempt(w.id())
	r := w.leased(w.a, a)
	if w.Advance == nil {
		w.Skip("the backend has no clock that can be moved")
	}
	for range 3 {
		w.advance(lease - time.Second)
		if err := w.a.Renew(w.ctx, r, lease); err != nil {
			w.Fatalf("Renew: %v", err)
		}
		w.expect(w.b, again(a), store.Joinable)
	}
	// From now, and not from when the lease would have passed.
	w.advance(lease + time.Second)
	w.expectKnown(w.b, again(a), store.Unknown, nil)
}

func renewFenced(w *world) {
	a := attempt(w.id())
	a.Lease = w.shortLease()
	r := w.leased(w.a, a)
	w.lapse(w.b, r, a.Lease)
	w.expectKnown(w.b, again(a), store.Unknown, nil)
	w.fenced("Renew of a run that others were told is unknown", w.a.Renew(w.ctx, r, lease))
	w.expectKnown(w.b, again(a), store.Unknown, nil)

	for _, end := range []store.End{complete("done"), noEffect("none"), ask(nonce(), "which?"), {Event: store.Lose}} {
		a := attempt(w.id())
		r := w.run(w.a, a)
		w.record(w.a, r, end)
		w.fenced("Renew after "+end.Event.String(), w.b.Renew(w.ctx, r, lease))
	}
	w.fenced("Renew of an absent record", w.a.Renew(w.ctx, store.RunRef{ID: w.id(), Token: token()}, lease))
}

func lateEndAfterLease(w *world) {
	for _, seen := range []bool{false, true} {
		a := attempt(w.id())
		a.Lease = w.shortLease()
		r := w.leased(w.a, a)
		w.lapse(w.b, r, a.Lease)
		if seen {
			w.expectKnown(w.b, again(a), store.Unknown, nil)
		}
		w.record(w.a, r, complete("late"))
		w.expectKnown(w.b, again(a), store.Completed, []byte("late"))
	}
}

func continuationLapses(w *world) {
	a := attempt(w.id())
	n := nonce()
	r := w.leased(w.a, a)
	w.record(w.a, r, ask(n, "which?"))
	if w.Advance != nil {
		w.advance(10 * lease) // a question has no lease
	}
	c := continuing(a, n, "this")
	c.Lease = w.shortLease()
	r = w.leased(w.a, c)
	w.expect(w.b, again(a), store.Joinable)
	w.lapse(w.b, r, c.Lease)
	w.expectKnown(w.b, again(c), store.Unknown, nil)
	w.expectKnown(w.b, again(a), store.Unknown, nil)
}

func openingDisturbsNothing(w *world) {
	a := attempt(w.id())
	r := w.run(w.a, a)
	waiting, n := attempt(w.id()), nonce()
	w.record(w.a, w.run(w.a, waiting), ask(n, "which?"))
	c := w.open()
	w.expect(c, again(a), store.Joinable)
	w.expectAsked(c, again(waiting), n, "which?")
	w.record(w.a, r, complete("done"))
	w.expectKnown(c, again(a), store.Completed, []byte("done"))
}

func transactionalTests() []contract {
	return []contract{
		{rule: "after the lease the next attempt takes over, and the old run is fenced (X12)", check: takeOver},
		{rule: "one attempt takes over, over two instances", check: oneTakesOver},
		{rule: "nobody takes over before the lease has passed", check: noTakeOverBefore},
		{rule: "a continuation that died leaves its question standing", check: continuationTakenOver},
		{rule: "the record decides, not the attempt", check: recordDecides},
	}
}

func (w *world) transactional() (store.Attempt, store.RunRef) {
	w.Helper()
	a := attempt(w.id())
	a.Lease, a.Transactional = w.shortLease(), true
	return a, w.leased(w.a, a)
}

func takeOver(w *world) {
	a, old := w.transactional()
	w.lapse(w.b, old, a.Lease)
	w.expect(w.b, peek(a), store.Free)
	w.expect(w.b, other(a), store.Mismatch)
	next := again(a)
	next.Lease = lease
	if res := w.expect(w.b, next, store.Run); res.Continued || !res.Leased {
		w.Errorf("a run that took over: %+v, want leased and not continued", res)
	}
	w.fenced("Renew of the slow run", w.a.Renew(w.ctx, old, lease))
	w.fenced("the end of the slow run", w.a.Record(w.ctx, old, complete("slow")))
	w.expect(w.a, again(a), store.Joinable)
	w.record(w.b, ref(next), complete("second"))
	w.fenced("the end of the slow run", w.a.Record(w.ctx, old, complete("slow")))
	w.expectKnown(w.a, again(a), store.Completed, []byte("second"))
}

func oneTakesOver(w *world) {
	a, old := w.transactional()
	w.lapse(w.b, old, a.Lease)
	const each = 6
	runs := make(chan bool, 2*each)
	var wg sync.WaitGroup
	for _, s := range []store.Store{w.a, w.b} {
		for range each {
			wg.Go(func() {
				next := again(a)
				next.Lease = lease
				res, err := s.Reserve(w.ctx, next)
				if err != nil || res.Verdict != store.Run && res.Verdict != store.Joinable {
					w.Errorf("Reserve: %s, %v", verdict(res.Verdict), err)
				}
				runs <- res.Verdict == store.Run
			})
		}
	}
	wg.Wait()
	close(runs)
	n := 0
	for ran := range runs {
		if ran {
			n++
		}
	}
	if n != 1 {
		w.Errorf("%d attempts took over, want 1", n)
	}
}

func noTakeOverBefore(w *world) {
	a := attempt(w.id())
	a.Transactional = true
	r := w.leased(w.a, a)
	w.expect(w.b, again(a), store.Joinable)
	if w.Advance != nil {
		w.advance(lease - time.Second)
	}
	w.expect(w.b, again(a), store.Joinable)
	w.record(w.a, r, complete("done"))
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
}

func continuationTakenOver(w *world) {
	a, r := w.transactional()
	n := nonce()
	w.record(w.a, r, ask(n, "which?"))
	dead := continuing(a, n, "this")
	old := w.leased(w.a, dead)
	w.lapse(w.b, old, dead.Lease)
	w.expectAsked(w.b, again(a), n, "which?") // does not continue, so it does not run
	next := continuing(a, n, "that")
	next.Lease = lease
	if res := w.expect(w.b, next, store.Run); !res.Continued {
		w.Error("Continued is false")
	}
	w.fenced("the end of the slow run", w.a.Record(w.ctx, old, complete("slow")))
	w.record(w.b, ref(next), complete("done"))
	w.expectKnown(w.a, again(dead), store.Completed, []byte("done"))
}

func recordDecides(w *world) {
	plain := attempt(w.id())
	plain.Lease = w.shortLease()
	r := w.leased(w.a, plain)
	w.lapse(w.b, r, plain.Lease)
	next := again(plain)
	next.Transactional = true // a deploy made the tool transactional
	w.expectKnown(w.b, next, store.Unknown, nil)
}
