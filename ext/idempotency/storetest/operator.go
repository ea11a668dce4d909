package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func operatorTests() []contract {
	return []contract{
		{rule: "an operator's word is final, and the slow run is fenced (X28)", check: resolutionIsFinal},
		{rule: "only unknown outcomes are resolved", check: onlyUnknownIsResolved},
		{rule: "a run that died is listed and can be resolved though nobody asked for it", check: deadRunIsListed},
		{rule: "List says what is unknown, oldest first", check: listUnknown},
		{rule: "List selects by state and principal, and is bounded", check: listSelects},
		{rule: "List looks into every namespace that is held", config: times(), check: listNamespaces},
		{rule: "DeleteOutcomes leaves tombstones, of one principal alone", config: times(), check: deleteOutcomes},
	}
}

func (w *world) unknown(s store.Store, id store.ID) (store.Attempt, store.RunRef) {
	w.Helper()
	a := attempt(id)
	r := w.run(s, a)
	w.record(s, r, store.End{Event: store.Lose})
	return a, r
}

func resolutionIsFinal(w *world) {
	op := w.operator(w.b)
	for _, on := range []store.Event{store.ResolveCompleted, store.ResolveNoEffect} {
		for _, outcome := range [][]byte{[]byte("resolved"), nil} {
			a, r := w.unknown(w.a, w.id())
			if err := op.Resolve(w.ctx, a.ID, on, outcome); err != nil {
				w.Fatalf("Resolve: %v", err)
			}
			state, _ := store.Next(store.Unknown, on)
			for _, end := range []store.End{complete("slow"), noEffect("slow"), ask(nonce(), "slow"), {Event: store.Lose}} {
				w.fenced("the slow run's "+end.Event.String(), w.a.Record(w.ctx, r, end))
			}
			w.expectKnown(w.a, again(a), state, outcome)
			if err := op.Resolve(w.ctx, a.ID, on, outcome); !errors.Is(err, store.ErrNotUnknown) {
				w.Errorf("Resolve again: got error %v, want ErrNotUnknown", err)
			}
		}
	}
}

func onlyUnknownIsResolved(w *world) {
	op := w.operator(w.a)
	a, _ := w.unknown(w.a, w.id())
	for _, e := range append(store.Events(), 0, 200) {
		if e == store.ResolveCompleted || e == store.ResolveNoEffect {
			continue
		}
		if err := op.Resolve(w.ctx, a.ID, e, nil); err == nil {
			w.Errorf("Resolve accepted the event %v", e)
		}
	}
	w.expectKnown(w.b, again(a), store.Unknown, nil)
	for _, id := range []store.ID{{Principal: "another", Key: a.Key}, {Principal: "p", Key: "unheld.key"}, {Principal: "p", Key: ".k"}} {
		if err := op.Resolve(w.ctx, id, store.ResolveNoEffect, nil); !errors.Is(err, store.ErrNoRecord) {
			w.Errorf("Resolve of %+v: got error %v, want ErrNoRecord", id, err)
		}
	}
}

func deadRunIsListed(w *world) {
	op := w.operator(w.b)
	a := attempt(w.id())
	a.Lease = w.shortLease()
	r := w.leased(w.a, a)
	w.lapse(w.b, r, a.Lease)
	entries := w.list(op, store.Query{})
	if len(entries) != 1 || entries[0].ID != a.ID || entries[0].State != store.Unknown {
		w.Fatalf("List: %+v, want the run that died", entries)
	}
	if err := op.Resolve(w.ctx, a.ID, store.ResolveCompleted, []byte("resolved")); err != nil {
		w.Fatalf("Resolve: %v", err)
	}
	w.fenced("the slow run's end", w.a.Record(w.ctx, r, complete("slow")))
	w.expectKnown(w.a, again(a), store.Completed, []byte("resolved"))

	b := attempt(w.id())
	b.Lease = w.shortLease()
	r = w.leased(w.a, b)
	w.lapse(w.b, r, b.Lease)
	if err := op.Resolve(w.ctx, b.ID, store.ResolveNoEffect, nil); err != nil {
		w.Errorf("Resolve before List: %v", err)
	}
}

func (w *world) list(op store.Operator, q store.Query) []store.Entry {
	w.Helper()
	entries, err := op.List(w.ctx, q)
	if err != nil {
		w.Fatalf("List %+v: %v", q, err)
	}
	return entries
}

func listUnknown(w *world) {
	op := w.operator(w.a)
	if entries := w.list(op, store.Query{}); len(entries) != 0 {
		w.Errorf("an empty store lists %+v", entries)
	}
	var want []store.ID
	for i := range 5 {
		id := w.id()
		if i%2 == 0 {
			id.Principal = ""
		}
		w.unknown(w.a, id)
		w.record(w.a, w.run(w.a, attempt(w.id())), complete("done"))
		want = append(want, id)
		if w.Advance != nil {
			w.advance(time.Second)
		}
	}
	entries := w.list(w.operator(w.b), store.Query{})
	var got []store.ID
	for i, e := range entries {
		got = append(got, e.ID)
		if e.State != store.Unknown || e.Namespace != w.namespace(w.a).Name || e.Since.IsZero() {
			w.Errorf("entry %+v", e)
		}
		if i > 0 && e.Since.Before(entries[i-1].Since) {
			w.Error("the entries are not ordered by their change")
		}
	}
	if w.Advance == nil { // changes of one instant have no order
		sort := func(a, b store.ID) int { return compare(a.Key, b.Key) }
		slices.SortFunc(got, sort)
		slices.SortFunc(want, sort)
	}
	if !slices.Equal(got, want) {
		w.Errorf("List: %v, want %v", got, want)
	}
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func listSelects(w *world) {
	op := w.operator(w.b)
	ns := w.namespace(w.a).Name
	for i := range 4 {
		for _, p := range []string{"", "p", "q"} {
			for _, end := range []store.End{{}, ask(nonce(), "?"), complete("x"), noEffect("x"), {Event: store.Lose}} {
				a := attempt(store.ID{Principal: p, Key: fmt.Sprintf("%s.%d-%v", ns, i, end.Event)})
				r := w.run(w.a, a)
				if end.Event != 0 {
					w.record(w.a, r, end)
				}
			}
		}
	}
	for _, s := range store.States()[1:] {
		if got := w.list(op, store.Query{States: []store.State{s}}); len(got) != 12 {
			w.Errorf("%d records are listed as %v, want 12", len(got), s)
		}
		for _, p := range []string{"", "p", "nobody"} {
			got := w.list(op, store.Query{States: []store.State{s}, Principal: &p})
			want := 4
			if p == "nobody" {
				want = 0
			}
			if len(got) != want {
				w.Errorf("%d records of %q are listed as %v, want %d", len(got), p, s, want)
			}
			for _, e := range got {
				if e.Principal != p || e.State != s || s == store.Running && e.LeaseUntil.IsZero() {
					w.Errorf("entry %+v", e)
				}
			}
		}
	}
	all := store.Query{States: store.States(), Limit: 7}
	if got := w.list(op, all); len(got) != 7 {
		w.Errorf("%d records are listed with a limit of 7", len(got))
	}
	if all.Limit = 1000; len(w.list(op, all)) != 60 {
		w.Errorf("%d records are listed, want 60", len(w.list(op, all)))
	}
	if got := w.list(op, store.Query{States: []store.State{store.Absent}}); len(got) != 0 {
		w.Errorf("absent records are listed: %+v", got)
	}
}

func listNamespaces(w *world) {
	op := w.operator(w.a)
	old := w.namespace(w.a).Name
	first, _ := w.unknown(w.a, w.id())
	current := w.rotated(old)
	second, _ := w.unknown(w.a, w.id())
	third, _ := w.unknown(w.a, store.ID{Principal: "p", Key: ".arg:third"})
	w.advance(time.Second)
	got := w.list(op, store.Query{})
	if len(got) != 3 || got[0].ID != first.ID || got[0].Namespace != old || got[1].Namespace != current || got[2].Namespace != current {
		w.Errorf("List: %+v", got)
	}
	for _, a := range []store.Attempt{first, second, third} {
		if err := op.Resolve(w.ctx, a.ID, store.ResolveNoEffect, []byte("none")); err != nil {
			w.Errorf("Resolve: %v", err)
		}
		w.expectKnown(w.b, again(a), store.NoEffect, []byte("none"))
	}
}

func deleteOutcomes(w *world) {
	op := w.operator(w.b)
	var mine []store.Attempt
	add := func(id store.ID, end store.End) store.Attempt {
		a := attempt(id)
		w.record(w.a, w.run(w.a, a), end)
		return a
	}
	fill := func() {
		for range 3 {
			mine = append(mine, add(w.id(), complete("secret")))
		}
	}
	fill()
	mine = append(mine, add(store.ID{Principal: "p", Key: ".arg:x"}, complete("secret")))
	add(w.id(), store.End{Event: store.Complete}) // had none
	theirs := add(store.ID{Principal: "pp", Key: w.id().Key}, complete("theirs"))
	running := attempt(w.id())
	w.run(w.a, running)
	want := 4
	if w.Advance != nil {
		w.rotated(w.namespace(w.a).Name)
		fill()
		want += 3
	}
	for i, n := range []int{want, 0} {
		if got, err := op.DeleteOutcomes(w.ctx, "p"); err != nil || got != n {
			w.Errorf("DeleteOutcomes, call %d: %d, %v; want %d", i+1, got, err, n)
		}
		for _, a := range mine {
			w.expectKnown(w.a, again(a), store.Completed, nil)
		}
	}
	w.expectKnown(w.a, again(theirs), store.Completed, []byte("theirs"))
	w.record(w.a, ref(running), complete("after"))
	w.expectKnown(w.b, again(running), store.Completed, []byte("after"))
}
