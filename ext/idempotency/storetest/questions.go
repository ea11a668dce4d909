package storetest

import (
	"sync"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func questionTests() []contract {
	return []contract{
		{rule: "a lost question is asked again, not run again (X3)", check: questionAskedAgain},
		{rule: "one continuation of a round runs, over two instances (X14)", check: oneContinuation},
		{rule: "only the latest nonce continues", check: onlyLatestNonce},
		{rule: "a rejected continuation leaves its question standing (X18)", check: rejectedContinuation},
		{rule: "a question may be asked again with other words", check: questionReplaced},
		{rule: "an ended call forgets its question", check: endedForgetsQuestion},
		{rule: "the joinable record says what it answers", check: joinableSaysAnswers},
	}
}

func (w *world) expectAsked(s store.Store, a store.Attempt, n store.Nonce, question string) {
	w.Helper()
	res := w.expect(s, a, store.Asked)
	if res.Record.State != store.Waiting || res.Record.Nonce != n || string(res.Record.Outcome) != question {
		w.Fatalf("asked %v %x %q, want waiting %x %q", res.Record.State, res.Record.Nonce, res.Record.Outcome, n, question)
	}
}

func questionAskedAgain(w *world) {
	a := attempt(w.id())
	n := nonce()
	w.record(w.a, w.run(w.a, a), ask(n, "which?"))
	for _, s := range []store.Store{w.a, w.b, w.a} {
		w.expectAsked(s, again(a), n, "which?")
	}
	w.expectAsked(w.b, peek(a), n, "which?")
	w.expect(w.b, other(a), store.Mismatch)
}

func oneContinuation(w *world) {
	a := attempt(w.id())
	n := nonce()
	w.record(w.a, w.run(w.a, a), ask(n, "which?"))
	const each = 8
	results := make(chan store.Reservation, 2*each)
	var wg sync.WaitGroup
	for _, s := range []store.Store{w.a, w.b} {
		for range each {
			wg.Go(func() {
				res, err := s.Reserve(w.ctx, continuing(a, n, "this"))
				if err != nil {
					w.Errorf("Reserve: %v", err)
				}
				results <- res
			})
		}
	}
	wg.Wait()
	close(results)
	runs := 0
	for res := range results {
		switch res.Verdict {
		case store.Run:
			runs++
			if !res.Continued {
				w.Error("a continuation runs and Continued is false")
			}
		case store.Joinable:
		default:
			w.Errorf("a continuation got %s", verdict(res.Verdict))
		}
	}
	if runs != 1 {
		w.Errorf("%d continuations run, want 1", runs)
	}
}

func onlyLatestNonce(w *world) {
	a := attempt(w.id())
	n1, n2 := nonce(), nonce()
	w.record(w.a, w.run(w.a, a), ask(n1, "first?"))
	w.expectAsked(w.b, continuing(a, nonce(), "forged"), n1, "first?")
	w.record(w.b, w.run(w.b, continuing(a, n1, "yes")), ask(n2, "second?"))
	w.expectAsked(w.a, continuing(a, n1, "yes"), n2, "second?")
	w.expectAsked(w.a, again(a), n2, "second?")
	r := w.run(w.a, continuing(a, n2, "yes"))
	w.expect(w.b, continuing(a, n1, "yes"), store.Joinable)
	w.record(w.a, r, complete("done"))
	for _, late := range []store.Attempt{again(a), continuing(a, n1, "yes"), continuing(a, n2, "no")} {
		w.expectKnown(w.b, late, store.Completed, []byte("done"))
	}
}

func rejectedContinuation(w *world) {
	a := attempt(w.id())
	n := nonce()
	w.record(w.a, w.run(w.a, a), ask(n, "which?"))
	for range 2 {
		r := w.run(w.b, continuing(a, n, "nonsense"))
		w.record(w.b, r, store.End{Event: store.Reject})
		w.expectAsked(w.a, again(a), n, "which?")
	}
	r := w.run(w.a, continuing(a, n, "this"))
	w.record(w.a, r, complete("done"))
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
}

func questionReplaced(w *world) {
	a := attempt(w.id())
	n1, n2 := nonce(), nonce()
	w.record(w.a, w.run(w.a, a), ask(n1, "which?"))
	w.record(w.a, w.run(w.a, continuing(a, n1, "this")), ask(n2, "which?")) // the same state of the tool's own
	w.expectAsked(w.b, again(a), n2, "which?")
	w.expectAsked(w.b, continuing(a, n1, "this"), n2, "which?")
}

func endedForgetsQuestion(w *world) {
	for _, end := range []store.End{{Event: store.Complete}, {Event: store.DeclareNoEffect}, {Event: store.Lose}} {
		a := attempt(w.id())
		n := nonce()
		w.record(w.a, w.run(w.a, a), ask(n, "which?"))
		w.record(w.a, w.run(w.a, continuing(a, n, "this")), end)
		state, _ := store.Next(store.Running, end.Event)
		w.expectKnown(w.b, again(a), state, nil)
		w.expectKnown(w.b, continuing(a, n, "this"), state, nil)
	}
}

func joinableSaysAnswers(w *world) {
	a := attempt(w.id())
	n := nonce()
	w.record(w.a, w.run(w.a, a), ask(n, "how much?"))
	ten := continuing(a, n, "10")
	w.expect(w.a, ten, store.Run)
	res := w.expect(w.b, continuing(a, n, "20"), store.Joinable)
	if got := res.Record; got.State != store.Running || got.Token != ten.Token || got.Nonce != n || got.Answers != ten.Answers {
		w.Errorf("joinable record %+v does not say that the run answers 10", got)
	}
}
