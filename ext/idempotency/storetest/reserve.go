package storetest

import (
	"fmt"
	"sync"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func reserveTests() []contract {
	return []contract{
		{rule: "a new key runs", check: newKeyRuns},
		{rule: "one winner over two instances and many goroutines (C1, C5)", check: oneWinner},
		{rule: "the loser is answered by the record it lost to (C2)", check: loserIsAnswered},
		{rule: "a finished key replays, on every instance (S2)", check: finishedReplays},
		{rule: "no instance remembers that a key runs (M2)", check: noStaleRunning},
		{rule: "a finished key never looks running under load (C3)", check: finishedStaysFinished},
		{rule: "another fingerprint is a mismatch, running or finished (E2)", check: mismatch},
		{rule: "another principal's key is another key (E1)", check: principalsApart},
		{rule: "a Reserve repeated with its token runs again (X19, L9)", check: repeatedReserve},
		{rule: "Peek never reserves", check: peekNeverReserves},
		{rule: "Peek answers as Reserve does when the key is known", check: peekKnows},
		{rule: "a nonce on a new key does not keep it from running", check: nonceOnNewKey},
	}
}

func newKeyRuns(w *world) {
	res := w.expect(w.a, attempt(w.id()), store.Run)
	if res.Continued {
		w.Error("a new key is said to continue a question")
	}
}

func oneWinner(w *world) {
	const keys, each = 20, 8
	for range keys {
		first := attempt(w.id())
		verdicts := make(chan store.Reservation, 2*each)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for _, s := range []store.Store{w.a, w.b} {
			for range each {
				wg.Go(func() {
					a := again(first)
					<-start
					res, err := s.Reserve(w.ctx, a)
					if err != nil {
						w.Errorf("Reserve under contention: %v", err)
					}
					if res.Verdict == store.Run {
						res.Record.Token = a.Token
					}
					verdicts <- res
				})
			}
		}
		close(start)
		wg.Wait()
		close(verdicts)
		runs, tokens := 0, map[store.Token]bool{}
		for res := range verdicts {
			tokens[res.Record.Token] = true
			switch res.Verdict {
			case store.Run:
				runs++
			case store.Joinable:
			default:
				w.Fatalf("a duplicate got %s", verdict(res.Verdict))
			}
		}
		if runs != 1 || len(tokens) != 1 {
			w.Fatalf("%d attempts were told to run, and %d tokens are said to hold the key; want 1 and 1", runs, len(tokens))
		}
	}
}

func loserIsAnswered(w *world) {
	first := attempt(w.id())
	first.Answers = fingerprint("answers")
	r := w.run(w.a, first)
	for _, s := range []store.Store{w.a, w.b} {
		res := w.expect(s, again(first), store.Joinable)
		want := store.Record{State: store.Running, Token: first.Token, Answers: first.Answers}
		if got := res.Record; got.State != want.State || got.Token != want.Token || got.Nonce != want.Nonce || got.Answers != want.Answers {
			w.Errorf("joinable record %+v, want %+v", got, want)
		}
	}
	w.record(w.a, r, complete("done"))
	w.expectKnown(w.b, again(first), store.Completed, []byte("done"))
}

func finishedReplays(w *world) {
	for _, outcome := range [][]byte{[]byte("result"), []byte("null"), []byte("0"), {0}, {}, nil} {
		first := attempt(w.id())
		w.record(w.a, w.run(w.a, first), store.End{Event: store.Complete, Outcome: outcome})
		for range 2 {
			w.expectKnown(w.a, again(first), store.Completed, outcome)
			w.expectKnown(w.b, again(first), store.Completed, outcome)
		}
	}
	first := attempt(w.id())
	w.record(w.a, w.run(w.a, first), noEffect("refused"))
	w.expectKnown(w.b, again(first), store.NoEffect, []byte("refused"))
}

func noStaleRunning(w *world) {
	first := attempt(w.id())
	r := w.run(w.a, first)
	w.expect(w.b, again(first), store.Joinable)
	w.record(w.a, r, complete("done"))
	w.expectKnown(w.b, again(first), store.Completed, []byte("done"))
}

// finishedStaysFinished asks for finished keys while others are reserved and
// recorded on both instances.
func finishedStaysFinished(w *world) {
	const writers, calls = 4, 25
	ns := w.namespace(w.a).Name
	finished := make(chan store.Attempt, writers*calls)
	var wg sync.WaitGroup
	for i := range writers {
		s := []store.Store{w.a, w.b}[i%2]
		wg.Go(func() {
			for range calls {
				a := attempt(idIn(ns))
				if res, err := s.Reserve(w.ctx, a); err != nil || res.Verdict != store.Run {
					w.Errorf("Reserve: %s, %v", verdict(res.Verdict), err)
					return
				}
				if err := s.Record(w.ctx, ref(a), complete("done")); err != nil {
					w.Errorf("Record: %v", err)
					return
				}
				finished <- a
			}
		})
	}
	go func() { wg.Wait(); close(finished) }()
	i := 0
	for a := range finished {
		s := []store.Store{w.a, w.b}[i%2]
		i++
		res, err := s.Reserve(w.ctx, again(a))
		if err != nil || res.Verdict != store.Known || string(res.Record.Outcome) != "done" {
			w.Errorf("a finished key got %s with %q, %v", verdict(res.Verdict), res.Record.Outcome, err)
		}
	}
}

func mismatch(w *world) {
	first := attempt(w.id())
	r := w.run(w.a, first)
	w.expect(w.a, other(first), store.Mismatch)
	w.expect(w.b, peek(other(first)), store.Mismatch)
	sameToken := other(first)
	sameToken.Token = first.Token
	w.expect(w.b, sameToken, store.Mismatch)
	w.record(w.a, r, complete("done"))
	w.expect(w.a, other(first), store.Mismatch)
	w.expect(w.b, other(first), store.Mismatch)
	w.expectKnown(w.a, again(first), store.Completed, []byte("done"))
}

func principalsApart(w *world) {
	key := w.id().Key
	for i, p := range []string{"", "p", "P", "p ", "p\x00", "q"} {
		a := attempt(store.ID{Principal: p, Key: key})
		w.record(w.a, w.run(w.a, a), complete(fmt.Sprint(i)))
		w.expectKnown(w.b, again(a), store.Completed, []byte(fmt.Sprint(i)))
	}
}

func repeatedReserve(w *world) {
	first := attempt(w.id())
	w.expect(w.a, first, store.Run)
	w.expect(w.a, first, store.Run)
	w.expect(w.b, first, store.Run) // read again elsewhere, after a fail-over
	w.expect(w.b, again(first), store.Joinable)
	w.record(w.a, ref(first), complete("done"))
	w.expectKnown(w.a, first, store.Completed, []byte("done"))

	// The same for a continuation: Continued has to be said again.
	second := attempt(w.id())
	n := nonce()
	w.record(w.a, w.run(w.a, second), ask(n, "which?"))
	c := continuing(second, n, "this")
	for range 2 {
		if res := w.expect(w.a, c, store.Run); !res.Continued {
			w.Error("Continued is false")
		}
	}
}

func peekNeverReserves(w *world) {
	first := attempt(w.id())
	for _, s := range []store.Store{w.a, w.b, w.a} {
		w.expect(s, peek(first), store.Free)
	}
	w.expect(w.b, first, store.Run)

	n := nonce()
	w.record(w.b, ref(first), ask(n, "which?"))
	for range 2 {
		c := continuing(first, n, "this")
		c.Peek = true
		w.expect(w.a, c, store.Free)
	}
	w.expect(w.a, continuing(first, n, "this"), store.Run)
}

func peekKnows(w *world) {
	first := attempt(w.id())
	r := w.run(w.a, first)
	if res := w.expect(w.b, peek(first), store.Joinable); res.Record.Token != first.Token {
		w.Error("Peek does not say which run holds the key")
	}
	w.record(w.a, r, complete("done"))
	w.expectKnown(w.b, peek(first), store.Completed, []byte("done"))
	w.expect(w.b, peek(attempt(store.ID{Key: "unheld.key"})), store.NamespaceNotHeld)
}

func nonceOnNewKey(w *world) {
	a := continuing(attempt(w.id()), nonce(), "this")
	if res := w.expect(w.a, a, store.Run); res.Continued {
		w.Error("a new key is said to continue a question")
	}
	res := w.expect(w.b, again(a), store.Joinable)
	if res.Record.Nonce != a.Nonce || res.Record.Answers != a.Answers {
		w.Error("the joinable record does not say what the run answers")
	}
}
