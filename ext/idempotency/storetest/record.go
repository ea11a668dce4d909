package storetest

import (
	"slices"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func recordTests() []contract {
	return []contract{
		{rule: "the same end told twice is not an error (X4)", check: sameEndTwice},
		{rule: "another token never changes a record (L5)", check: wrongTokenFenced},
		{rule: "a record that does not exist is fenced", check: absentFenced},
		{rule: "a late write of an earlier round does not touch the next run (X4)", check: lateWriteOfEarlierRound},
		{rule: "a second, other end of the same run is fenced", check: noEndAfterEnd},
		{rule: "a run that answers no question cannot reject one", check: nothingToReject},
		{rule: "a run that was given up may still say how it ended", check: lateEnd},
		{rule: "only the ends of runs can be recorded", check: onlyEnds},
		{rule: "the caller's slices may be used again after Reserve", check: slicesAreCopied},
	}
}

func sameEndTwice(w *world) {
	n := nonce()
	for _, end := range []store.End{complete("done"), noEffect("none"), ask(n, "which?"), {Event: store.Lose}} {
		a := attempt(w.id())
		r := w.run(w.a, a)
		for range 2 {
			w.record(w.a, r, end)
			w.record(w.b, r, end)
		}
		res := w.reserve(w.a, again(a))
		if !slices.Equal(res.Record.Outcome, end.Outcome) {
			w.Errorf("after %v: outcome %q, want %q", end.Event, res.Record.Outcome, end.Outcome)
		}
	}
	// Reject: only a continuation has a question that stands.
	a := attempt(w.id())
	w.record(w.a, w.run(w.a, a), ask(n, "which?"))
	r := w.run(w.a, continuing(a, n, "this"))
	for range 2 {
		w.record(w.b, r, store.End{Event: store.Reject})
	}
	w.expect(w.a, again(a), store.Asked)
}

func wrongTokenFenced(w *world) {
	a := attempt(w.id())
	r := w.run(w.a, a)
	wrong := store.RunRef{ID: a.ID, Token: token()}
	for _, end := range []store.End{complete("forged"), noEffect("forged"), ask(nonce(), "forged"), {Event: store.Reject}, {Event: store.Lose}} {
		w.fenced("Record with another token", w.b.Record(w.ctx, wrong, end))
		w.expect(w.a, again(a), store.Joinable)
	}
	if res := w.expect(w.a, again(a), store.Joinable); res.Leased {
		w.fenced("Renew with another token", w.b.Renew(w.ctx, wrong, lease))
	}
	w.record(w.a, r, complete("done"))
	w.fenced("Record with another token after the end", w.b.Record(w.ctx, wrong, complete("forged")))
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
}

func absentFenced(w *world) {
	for _, id := range []store.ID{w.id(), {Principal: "p", Key: "unheld.key"}, {Principal: "p", Key: ".argument"}} {
		w.fenced("Record of an absent record", w.a.Record(w.ctx, store.RunRef{ID: id, Token: token()}, complete("x")))
	}
}

func lateWriteOfEarlierRound(w *world) {
	a := attempt(w.id())
	n := nonce()
	first := w.run(w.a, a)
	w.record(w.a, first, ask(n, "which?"))
	second := w.run(w.b, continuing(a, n, "this"))
	// The acknowledgement of the first write was lost, and it is repeated; and
	// the first run, which is over, says all sorts of other things.
	for _, end := range []store.End{ask(n, "which?"), noEffect("none"), complete("first"), {Event: store.Lose}, {Event: store.Reject}} {
		w.fenced("a late write of round one", w.a.Record(w.ctx, first, end))
		w.expect(w.a, again(a), store.Joinable)
	}
	w.record(w.b, second, complete("second"))
	w.fenced("a late write of round one", w.a.Record(w.ctx, first, ask(n, "which?")))
	w.expectKnown(w.a, again(a), store.Completed, []byte("second"))
}

func noEndAfterEnd(w *world) {
	ends := []store.End{complete("done"), noEffect("none")}
	for i, end := range ends {
		a := attempt(w.id())
		r := w.run(w.a, a)
		w.record(w.a, r, end)
		for _, late := range []store.End{ends[1-i], {Event: store.Lose}, ask(nonce(), "?"), {Event: store.Reject}} {
			w.fenced(late.Event.String()+" after "+end.Event.String(), w.a.Record(w.ctx, r, late))
		}
		state, _ := store.Next(store.Running, end.Event)
		w.expectKnown(w.b, again(a), state, end.Outcome)
	}
}

func nothingToReject(w *world) {
	a := attempt(w.id())
	r := w.run(w.a, a)
	if err := w.a.Record(w.ctx, r, store.End{Event: store.Reject}); err == nil {
		w.Error("a first run went back to a question that was never asked")
	}
	w.expect(w.b, again(a), store.Joinable)
	w.record(w.a, r, complete("done"))
	w.expectKnown(w.b, again(a), store.Completed, []byte("done"))
}

func lateEnd(w *world) {
	for _, end := range []store.End{complete("late"), noEffect("late")} {
		a := attempt(w.id())
		r := w.run(w.a, a)
		w.record(w.a, r, store.End{Event: store.Lose})
		if res := w.expect(w.b, again(a), store.Known); res.Record.State != store.Unknown || res.Record.Outcome != nil {
			w.Fatalf("a lost run is %v with %q, want unknown without an outcome", res.Record.State, res.Record.Outcome)
		}
		w.fenced("a question of a run that was given up", w.a.Record(w.ctx, r, ask(nonce(), "?")))
		w.record(w.a, r, end)
		state, _ := store.Next(store.Unknown, end.Event)
		w.expectKnown(w.b, again(a), state, []byte("late"))
	}
}

func onlyEnds(w *world) {
	ends := []store.Event{store.Complete, store.DeclareNoEffect, store.Ask, store.Reject, store.Lose}
	a := attempt(w.id())
	r := w.run(w.a, a)
	for _, e := range append(store.Events(), 0, 200) {
		if slices.Contains(ends, e) {
			continue
		}
		if err := w.a.Record(w.ctx, r, store.End{Event: e, Outcome: []byte("x")}); err == nil {
			w.Errorf("Record accepted the event %v", e)
		}
		w.expect(w.b, again(a), store.Joinable)
	}
}

func slicesAreCopied(w *world) {
	a := attempt(w.id())
	w.record(w.a, w.run(w.a, a), complete("done"))
	want := []byte("done")
	first := w.expect(w.a, again(a), store.Known).Record.Outcome
	w.expectKnown(w.a, again(a), store.Completed, want)
	if !slices.Equal(first, want) {
		w.Error("an outcome changed after it was returned")
	}
}
