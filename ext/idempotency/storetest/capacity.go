package storetest

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func capacityTests() []contract {
	return []contract{
		{rule: "a full store refuses new keys and forgets none", config: Config{MaxRecords: 8, MaxRecordsPerPrincipal: 8}, check: fullForgetsNothing},
		{rule: "one principal cannot fill the store", config: Config{MaxRecords: 100, MaxRecordsPerPrincipal: 4}, check: quotaPerPrincipal},
		{rule: "open calls are bounded per principal", config: Config{MaxOpenPerPrincipal: 3}, check: openPerPrincipal},
		{rule: "two instances at once do not exceed the bounds", config: Config{MaxRecords: 20, MaxRecordsPerPrincipal: 20}, check: boundsUnderContention},
		{rule: "dropped namespaces give their room back", config: withRecords(times(), 4), check: roomComesBack},
		{rule: "an evicted outcome leaves a tombstone", config: Config{MaxResultBytes: 64 << 10}, check: tombstones},
		{rule: "an outcome that is larger than all the room is still a finished call (S4)", config: Config{MaxResultBytes: 1 << 10}, check: tooLarge},
	}
}

func withRecords(c Config, n int) Config {
	c.MaxRecords, c.MaxRecordsPerPrincipal = n, n
	return c
}

func (w *world) limited(has bool) {
	w.Helper()
	if !has {
		w.Skip("the backend does not keep this bound")
	}
}

func (w *world) noRoom(s store.Store, a store.Attempt) {
	w.Helper()
	if res := w.expect(s, a, store.NoRoom); res.RetryAfter <= 0 {
		w.Errorf("NoRoom with RetryAfter %v, want a positive one", res.RetryAfter)
	}
}

func fullForgetsNothing(w *world) {
	w.limited(w.Limits.Records && w.Limits.RecordsPerPrincipal)
	var ended []store.Attempt
	for range w.config.MaxRecords - 1 {
		a := attempt(w.id())
		w.record(w.a, w.run(w.a, a), complete("done"))
		ended = append(ended, a)
	}
	running := attempt(w.id())
	r := w.run(w.b, running)
	for range 3 {
		for _, s := range []store.Store{w.a, w.b} {
			w.noRoom(s, attempt(w.id()))
			w.noRoom(s, peek(attempt(w.id())))
			w.noRoom(s, attempt(store.ID{Principal: "another", Key: w.id().Key}))
		}
	}
	w.expect(w.a, again(running), store.Joinable)
	w.expect(w.a, running, store.Run)
	w.expect(w.a, other(running), store.Mismatch)
	w.record(w.a, r, complete("done"))
	for _, a := range append(ended, running) {
		w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
	}
	w.noRoom(w.a, attempt(w.id()))
}

func quotaPerPrincipal(w *world) {
	w.limited(w.Limits.RecordsPerPrincipal)
	key := func(p string) store.Attempt { return attempt(store.ID{Principal: p, Key: w.id().Key}) }
	for _, p := range []string{"greedy", ""} {
		for range w.config.MaxRecordsPerPrincipal {
			w.record(w.a, w.run(w.a, key(p)), complete("done"))
		}
		w.noRoom(w.a, key(p))
		w.noRoom(w.b, key(p))
	}
	w.expect(w.b, key("modest"), store.Run)
}

func openPerPrincipal(w *world) {
	w.limited(w.Limits.OpenPerPrincipal)
	var runs []store.RunRef
	for range w.config.MaxOpenPerPrincipal {
		runs = append(runs, w.run(w.a, attempt(w.id())))
	}
	full := func() {
		w.Helper()
		w.noRoom(w.a, attempt(w.id()))
		w.noRoom(w.b, attempt(w.id()))
	}
	full()
	w.expect(w.b, attempt(store.ID{Principal: "another", Key: w.id().Key}), store.Run)
	w.record(w.b, runs[0], ask(nonce(), "which?")) // a question is open too
	full()
	w.record(w.b, runs[1], complete("done"))
	runs = append(runs, w.run(w.b, attempt(w.id())))
	full()
	w.record(w.a, runs[2], store.End{Event: store.Lose})
	w.run(w.a, attempt(w.id()))
	full()
}

func boundsUnderContention(w *world) {
	w.limited(w.Limits.Records && w.Limits.RecordsPerPrincipal)
	var got atomic.Int64
	var wg sync.WaitGroup
	ns := w.namespace(w.a).Name
	for i := range 8 {
		s := []store.Store{w.a, w.b}[i%2]
		wg.Go(func() {
			for range w.config.MaxRecords / 4 {
				res, err := s.Reserve(w.ctx, attempt(idIn(ns)))
				switch {
				case err != nil:
					w.Errorf("Reserve: %v", err)
				case res.Verdict == store.Run:
					got.Add(1)
				case res.Verdict != store.NoRoom:
					w.Errorf("Reserve: %s", verdict(res.Verdict))
				}
			}
		})
	}
	wg.Wait()
	if n := got.Load(); n != int64(w.config.MaxRecords) {
		w.Errorf("%d records in room for %d", n, w.config.MaxRecords)
	}
}

func roomComesBack(w *world) {
	w.limited(w.Limits.Records && w.Limits.RecordsPerPrincipal)
	old := w.namespace(w.a).Name
	for range w.config.MaxRecords {
		w.record(w.a, w.run(w.a, attempt(idIn(old))), complete("done"))
	}
	w.noRoom(w.a, attempt(w.id()))
	w.rotated(old)
	w.noRoom(w.a, attempt(w.id()))
	w.advance(w.config.ClosingFor + w.config.Retention + w.config.Retention/4)
	for range w.config.MaxRecords {
		w.record(w.b, w.run(w.b, attempt(w.id())), complete("done"))
	}
	w.noRoom(w.b, attempt(w.id()))
}

func tombstones(w *world) {
	const size, n = 8 << 10, 32
	outcome := bytes.Repeat([]byte("x"), size)
	var all []store.Attempt
	for range n {
		a := attempt(w.id())
		w.record(w.a, w.run(w.a, a), store.End{Event: store.Complete, Outcome: outcome})
		all = append(all, a)
	}
	kept := int64(0)
	for _, a := range all {
		res := w.expect(w.b, again(a), store.Known)
		if res.Record.State != store.Completed || res.Record.Outcome != nil && !bytes.Equal(res.Record.Outcome, outcome) {
			w.Fatalf("a record is %v with %d bytes", res.Record.State, len(res.Record.Outcome))
		}
		kept += int64(len(res.Record.Outcome))
		w.expect(w.b, other(a), store.Mismatch)
	}
	w.fenced("Record on a tombstone", w.a.Record(w.ctx, store.RunRef{ID: all[0].ID, Token: token()}, complete("forged")))
	w.record(w.a, ref(all[0]), store.End{Event: store.Complete, Outcome: outcome}) // the same end told twice
	if w.Limits.ResultBytes && (kept > w.config.MaxResultBytes || kept == 0) {
		w.Errorf("%d bytes of outcomes are kept, want some and at most %d", kept, w.config.MaxResultBytes)
	}
}

func tooLarge(w *world) {
	a := attempt(w.id())
	w.record(w.a, w.run(w.a, a), store.End{Event: store.Complete, Outcome: make([]byte, 1<<20)})
	res := w.expect(w.b, again(a), store.Known)
	if res.Record.State != store.Completed || w.Limits.ResultBytes && res.Record.Outcome != nil {
		w.Errorf("the record is %v with %d bytes", res.Record.State, len(res.Record.Outcome))
	}
}
