package store_test

import (
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func TestNextAgreesWithTheTableOnEveryPair(t *testing.T) {
	type pair struct {
		s store.State
		e store.Event
	}
	table := map[pair]store.State{}
	for _, tr := range store.Transitions() {
		if _, dup := table[pair{tr.From, tr.On}]; dup {
			t.Errorf("%v on %v is in the table twice", tr.From, tr.On)
		}
		table[pair{tr.From, tr.On}] = tr.To
	}
	for _, s := range store.States() {
		for _, e := range store.Events() {
			want, allowed := table[pair{s, e}]
			got, ok := store.Next(s, e)
			if ok != allowed || ok && got != want {
				t.Errorf("%v on %v: Next says %v %v, the table says %v %v", s, e, got, ok, want, allowed)
			}
		}
	}
}

func TestNoTransitionLeadsBackToAbsent(t *testing.T) {
	for _, tr := range store.Transitions() {
		if tr.To == store.Absent {
			t.Errorf("%v on %v reopens a key", tr.From, tr.On)
		}
	}
}
