package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func awaitTests() []contract {
	return []contract{
		{rule: "returns at once when there is no such run", check: awaitNothing},
		{rule: "wakes when the run ends, however it ends, on every instance", check: awaitWakes},
		{rule: "wakes everyone who waits", check: awaitWakesAll},
		{rule: "does not return while the run lives", check: awaitWaits},
		{rule: "wakes when the lease passes", check: awaitLease},
		{rule: "wakes when the run is taken over", check: awaitTakeOver},
		{rule: "ends with its context, and others go on waiting", check: awaitContext},
		{rule: "works for keys without a namespace", check: awaitWithoutNamespace},
	}
}

// awaiting calls Await in the background; the channel gets what it returned.
func (w *world) awaiting(ctx context.Context, s store.Store, r store.RunRef) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Await(ctx, r.ID, r.Token) }()
	return done
}

// returns demands that an Await returns nil soon.
func (w *world) returns(done <-chan error) {
	w.Helper()
	select {
	case err := <-done:
		if err != nil {
			w.Fatalf("Await: %v", err)
		}
	case <-time.After(w.WakeWithin):
		w.Fatalf("Await did not return within %v", w.WakeWithin)
	}
}

func awaitNothing(w *world) {
	ended := attempt(w.id())
	w.record(w.a, w.run(w.a, ended), complete("done"))
	running := attempt(w.id())
	w.run(w.a, running)
	waiting := attempt(w.id())
	w.record(w.a, w.run(w.a, waiting), ask(nonce(), "which?"))
	for _, r := range []store.RunRef{
		{ID: w.id(), Token: token()},
		{ID: store.ID{Key: "unheld.key"}, Token: token()},
		{ID: running.ID, Token: token()}, // the run is another one
		{ID: store.ID{Principal: "other", Key: running.Key}, Token: running.Token},
		ref(ended), ref(waiting),
	} {
		w.returns(w.awaiting(w.ctx, w.a, r))
		w.returns(w.awaiting(w.ctx, w.b, r))
	}
}

func awaitWakes(w *world) {
	for _, end := range []store.End{complete("done"), noEffect("none"), ask(nonce(), "which?"), {Event: store.Lose}} {
		for _, s := range []store.Store{w.a, w.b} {
			a := attempt(w.id())
			r := w.run(w.a, a)
			done := w.awaiting(w.ctx, s, r)
			w.record(w.a, r, end)
			w.returns(done)
			if res := w.reserve(s, again(a)); res.Verdict != store.Known && res.Verdict != store.Asked {
				w.Errorf("after Await: %s", verdict(res.Verdict))
			}
		}
	}
	a, n := attempt(w.id()), nonce()
	w.record(w.a, w.run(w.a, a), ask(n, "which?"))
	r := w.run(w.a, continuing(a, n, "this"))
	done := w.awaiting(w.ctx, w.b, r)
	w.record(w.a, r, store.End{Event: store.Reject})
	w.returns(done)
}

func awaitWakesAll(w *world) {
	const each = 50
	a := attempt(w.id())
	r := w.run(w.a, a)
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	for _, s := range []store.Store{w.a, w.b} {
		for range each {
			wg.Go(func() {
				if err := s.Await(ctx, r.ID, r.Token); err != nil {
					w.Errorf("Await: %v", err)
				}
			})
		}
	}
	w.record(w.b, r, complete("done"))
	wg.Wait()
}

// awaitWaits cannot see the future: it demands that an Await which was given
// time, and other records that end, has not returned.
func awaitWaits(w *world) {
	a := attempt(w.id())
	r := w.run(w.a, a)
	ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
	defer cancel()
	here, there := w.awaiting(ctx, w.a, r), w.awaiting(ctx, w.b, r)
	for range 20 {
		b := attempt(w.id())
		w.record(w.b, w.run(w.a, b), complete("done"))
	}
	for _, done := range []<-chan error{here, there} {
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("Await of a live run returned %v, want that its context ended", err)
		}
	}
}

func awaitLease(w *world) {
	for _, transactional := range []bool{false, true} {
		a := attempt(w.id())
		a.Lease, a.Transactional = w.shortLease(), transactional
		r := w.leased(w.a, a)
		here, there := w.awaiting(w.ctx, w.a, r), w.awaiting(w.ctx, w.b, r)
		if w.Advance != nil {
			w.advance(a.Lease + time.Millisecond)
		}
		w.returns(here)
		w.returns(there)
	}
}

func awaitTakeOver(w *world) {
	a, old := w.transactional()
	w.lapse(w.b, old, a.Lease)
	next := again(a)
	next.Lease = lease
	w.expect(w.b, next, store.Run)
	w.returns(w.awaiting(w.ctx, w.a, old))
	done := w.awaiting(w.ctx, w.a, ref(next))
	w.record(w.b, ref(next), complete("done"))
	w.returns(done)
}

func awaitContext(w *world) {
	a := attempt(w.id())
	r := w.run(w.a, a)
	for _, s := range []store.Store{w.a, w.b} {
		ctx, cancel := context.WithCancel(w.ctx)
		gone, stays := w.awaiting(ctx, s, r), w.awaiting(w.ctx, s, r)
		cancel()
		select {
		case err := <-gone:
			if !errors.Is(err, context.Canceled) {
				w.Errorf("Await returned %v when its context was cancelled", err)
			}
		case <-time.After(patience):
			w.Fatal("Await did not end with its context")
		}
		select {
		case err := <-stays:
			w.Errorf("another Await returned %v", err)
		default:
		}
		defer func() { w.returns(stays) }()
	}
	w.record(w.a, r, complete("done"))
}

func awaitWithoutNamespace(w *world) {
	a := attempt(store.ID{Principal: "p", Key: ".effect-1"})
	r := w.run(w.a, a)
	done := w.awaiting(w.ctx, w.b, r)
	w.record(w.a, r, complete("done"))
	w.returns(done)
}
