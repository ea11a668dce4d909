package storetest

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func outageTests() []contract {
	return []contract{
		{rule: "a store that fails returns errors, at every step", check: failingStore},
		{rule: "a failed Reserve does not run, and can be repeated", check: failedReserve},
		{rule: "a failed Record can be repeated", check: failedRecord},
		{rule: "a context that has ended reserves nothing behind the caller's back", check: endedContext},
		{rule: "a slow store gives up with the context", check: slowStore},
		{rule: "a closed store returns errors", check: closedStore},
		{rule: "closing wakes those who wait", check: closingWakes},
		{rule: "records survive their instances, where they are durable", check: reopened},
		{rule: "keys of a store that forgot are not held", check: forgot},
	}
}

func (w *world) failing(broken bool) {
	w.Helper()
	if w.Break == nil {
		w.Skip("the backend cannot be made to fail")
	}
	w.Break(broken)
}

func (w *world) briefly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.ctx, patience)
}

// everyStep demands that each step returns an error.
func (w *world) everyStep(s store.Store, r store.RunRef, a store.Attempt) {
	w.Helper()
	ctx, cancel := w.briefly()
	defer cancel()
	_, current := s.Current(ctx)
	_, reserve := s.Reserve(ctx, a)
	_, peeked := s.Reserve(ctx, peek(a))
	steps := map[string]error{
		"Current": current, "Reserve": reserve, "Peek": peeked,
		"Record": s.Record(ctx, r, complete("done")),
	}
	if op, ok := s.(store.Operator); ok {
		_, steps["List"] = op.List(ctx, store.Query{})
		steps["Resolve"] = op.Resolve(ctx, r.ID, store.ResolveNoEffect, nil)
		_, steps["DeleteOutcomes"] = op.DeleteOutcomes(ctx, "p")
	}
	for name, err := range steps {
		if err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrNoRecord) || errors.Is(err, store.ErrNotUnknown) {
			w.Errorf("%s: got %v, want that it could not be done", name, err)
		}
	}
}

func failingStore(w *world) {
	a := attempt(w.id())
	res := w.expect(w.a, a, store.Run)
	fresh := attempt(w.id())
	w.failing(true)
	for _, s := range []store.Store{w.a, w.b} {
		w.everyStep(s, ref(a), fresh)
		if res.Leased {
			ctx, cancel := w.briefly()
			if err := s.Renew(ctx, ref(a), lease); err == nil || errors.Is(err, store.ErrFenced) {
				w.Errorf("Renew: got %v, want that it could not be done", err)
			}
			cancel()
		}
	}
	w.failing(false)
	w.expect(w.b, again(a), store.Joinable)
	w.record(w.a, ref(a), complete("done"))
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
}

func failedReserve(w *world) {
	a := attempt(w.id())
	w.failing(true)
	ctx, cancel := w.briefly()
	defer cancel()
	if res, err := w.a.Reserve(ctx, a); err == nil {
		w.Fatalf("Reserve in an outage: %s", verdict(res.Verdict))
	}
	w.failing(false)
	// Whether it was stored or not, its own token decides.
	w.expect(w.b, a, store.Run)
	w.expect(w.a, again(a), store.Joinable)
}

func failedRecord(w *world) {
	a := attempt(w.id())
	r := w.run(w.a, a)
	w.failing(true)
	ctx, cancel := w.briefly()
	defer cancel()
	if err := w.a.Record(ctx, r, complete("done")); err == nil || errors.Is(err, store.ErrFenced) {
		w.Fatalf("Record in an outage: %v", err)
	}
	w.failing(false)
	w.record(w.b, r, complete("done"))
	w.expectKnown(w.a, again(a), store.Completed, []byte("done"))
}

// endedContext: an error leaves open whether the key was reserved, but then
// only for the attempt's own token.
func endedContext(w *world) {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	a := attempt(w.id())
	res, err := w.a.Reserve(ctx, a)
	if err == nil && res.Verdict != store.Run {
		w.Fatalf("Reserve: %s", verdict(res.Verdict))
	}
	late := w.reserve(w.b, again(a))
	switch {
	case late.Verdict == store.Joinable && late.Record.Token == a.Token:
	case late.Verdict == store.Run && err != nil:
	default:
		w.Errorf("after a Reserve that returned %v: %s", err, verdict(late.Verdict))
	}
}

func slowStore(w *world) {
	a := attempt(w.id())
	w.failing(true)
	defer w.failing(false)
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := w.a.Reserve(ctx, a)
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		if err == nil {
			w.Error("Reserve in an outage succeeded")
		}
	case <-time.After(patience):
		w.Error("Reserve did not end with its context")
	}
}

func closedStore(w *world) {
	a := attempt(w.id())
	r := w.run(w.a, a)
	fresh := attempt(w.id())
	w.closing(w.a)
	w.everyStep(w.a, r, fresh)
	if err := w.a.Await(w.ctx, r.ID, r.Token); err == nil {
		w.Error("Await on a closed store returned nil")
	}
	if err := w.a.(io.Closer).Close(); err != nil {
		w.Errorf("Close again: %v", err)
	}
	w.expect(w.b, again(a), store.Joinable) // the other instance works on
	w.record(w.b, r, complete("done"))
}

func closingWakes(w *world) {
	a := attempt(w.id())
	r := w.run(w.b, a)
	done := w.awaiting(w.ctx, w.a, r)
	w.closing(w.a)
	select {
	case err := <-done:
		if err == nil {
			w.Error("Await returned nil when its store was closed, and the run lives")
		}
	case <-time.After(patience):
		w.Error("Await did not end when its store was closed")
	}
}

func reopened(w *world) {
	if !w.Durable {
		w.Skip("the backend is not durable")
	}
	ns := w.namespace(w.a)
	ended, running, asked, n := attempt(w.id()), attempt(w.id()), attempt(w.id()), nonce()
	w.record(w.a, w.run(w.a, ended), complete("done"))
	r := w.run(w.a, running)
	w.record(w.b, w.run(w.b, asked), ask(n, "which?"))
	w.closing(w.a)
	w.closing(w.b)
	c := w.open()
	if got := w.namespace(c); got != ns {
		w.Errorf("after reopening the namespace is %+v, was %+v", got, ns)
	}
	w.expectKnown(c, again(ended), store.Completed, []byte("done"))
	w.expect(c, again(running), store.Joinable)
	w.expectAsked(c, again(asked), n, "which?")
	w.record(c, r, complete("late"))
	w.expectKnown(c, again(running), store.Completed, []byte("late"))
	w.expect(c, continuing(asked, n, "this"), store.Run)
}

// forgot is a restart of a store that is not durable: another factory's.
func forgot(w *world) {
	a := attempt(w.id())
	w.run(w.a, a)
	next := w.factory(w.TB, w.config).Open(w.TB)
	for range 2 {
		w.expect(next, again(a), store.NamespaceNotHeld)
	}
}
