package memory

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// model is the simplest thing that could remember calls: what the store says
// is compared with it, step by step. It has no namespaces, no bounds and no
// eviction; those are the store's own and are audited apart.
type model struct {
	records map[store.ID]*modelRecord
}

type modelRecord struct {
	state   store.State
	token   store.Token
	nonce   store.Nonce
	print   store.Fingerprint
	outcome string
	asked   bool // the run answers a question
}

// reserve says what an attempt must be answered when there is room.
func (m *model) reserve(a store.Attempt) (store.Verdict, *modelRecord) {
	r := m.records[a.ID]
	switch {
	case r == nil && a.Peek:
		return store.Free, nil
	case r == nil:
		r = &modelRecord{state: store.Running, token: a.Token, nonce: a.Nonce, print: a.Fingerprint}
		m.records[a.ID] = r
		return store.Run, r
	case r.print != a.Fingerprint:
		return store.Mismatch, r
	case r.state == store.Running && r.token == a.Token:
		return store.Run, r
	case r.state == store.Running:
		return store.Joinable, r
	case r.state != store.Waiting:
		return store.Known, r
	case a.Nonce == store.Nonce{} || a.Nonce != r.nonce:
		return store.Asked, r
	case a.Peek:
		return store.Free, r
	}
	r.state, r.token, r.asked = store.Running, a.Token, true
	return store.Run, r
}

// record says what a run is told of its end: nil when it is taken or repeated.
func (m *model) record(run store.RunRef, end store.End) error {
	r := m.records[run.ID]
	if r == nil || r.token != run.Token {
		return store.ErrFenced
	}
	next, allowed := store.Next(r.state, end.Event)
	after, _ := store.Next(store.Running, end.Event)
	switch {
	case !allowed && r.state == after && (end.Event != store.Ask || end.Nonce == r.nonce):
		return nil // told twice
	case !allowed:
		return store.ErrFenced
	case end.Event == store.Reject && !r.asked:
		return errNothingToReject
	}
	r.state = next
	switch end.Event {
	case store.Ask:
		r.nonce, r.outcome = end.Nonce, string(end.Outcome)
	case store.Complete, store.DeclareNoEffect:
		r.outcome = string(end.Outcome)
	}
	return nil
}

func draw[V any](t *rapid.T, g *rapid.Generator[V], what string) V { return g.Draw(t, what) }

// TestTheStoreAgreesWithASimpleModel drives both with the same random steps.
func TestTheStoreAgreesWithASimpleModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHarness(t, &Options{MaxResultBytes: 40, RotateEvery: time.Hour, ClosingFor: 1000 * time.Hour, Retention: 1000 * time.Hour})
		m := model{map[store.ID]*modelRecord{}}
		names := []string{h.namespace()}
		var tokens []store.Token
		small := rapid.IntRange(0, 2)
		id := func() store.ID {
			key := fmt.Sprintf("%s.k%d", rapid.SampledFrom(names).Draw(t, "namespace"), draw(t, small, "key"))
			if rapid.Bool().Draw(t, "by argument") {
				key = fmt.Sprintf(".arg:%d", draw(t, small, "key"))
			}
			return store.ID{Principal: fmt.Sprint(draw(t, small, "principal")), Key: key}
		}
		token := func() store.Token {
			if len(tokens) == 0 || draw(t, rapid.IntRange(0, 3), "new token") == 0 {
				tokens = append(tokens, h.token())
				return tokens[len(tokens)-1]
			}
			return rapid.SampledFrom(tokens).Draw(t, "token")
		}
		// A token belongs to one call: the middleware never uses it for two.
		owner := map[store.Token]store.ID{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { h.check() },
			"reserve": func(t *rapid.T) {
				a := store.Attempt{ID: id(), Token: token(), Fingerprint: store.Fingerprint{byte(draw(t, rapid.IntRange(0, 4), "print") / 4)},
					Nonce: store.Nonce{byte(draw(t, small, "nonce"))}, Peek: draw(t, rapid.IntRange(0, 4), "peek") == 0}
				if first, ok := owner[a.Token]; ok && first != a.ID {
					return
				}
				owner[a.Token] = a.ID
				got, err := h.Reserve(t.Context(), a)
				want, rec := m.reserve(a)
				if err != nil || got.Verdict != want {
					t.Fatalf("%+v: verdict %v, the model says %v (%+v)", a, got.Verdict, want, rec)
				}
				switch want {
				case store.Joinable, store.Asked, store.Known:
					if got.Record.State != rec.state {
						t.Fatalf("%+v: state %v, the model says %v", a, got.Record.State, rec.state)
					}
					if got.Record.Outcome != nil && string(got.Record.Outcome) != rec.outcome || want == store.Asked && string(got.Record.Outcome) != rec.outcome {
						t.Fatalf("%+v: outcome %q, the model says %q", a, got.Record.Outcome, rec.outcome)
					}
					if want == store.Joinable && got.Record.Token != rec.token {
						t.Fatalf("%+v: token %v, the model says %v", a, got.Record.Token, rec.token)
					}
				}
			},
			"record": func(t *rapid.T) {
				run := store.RunRef{ID: id(), Token: token()}
				if first, ok := owner[run.Token]; ok && rapid.Bool().Draw(t, "own") {
					run.ID = first
				}
				end := store.End{
					Event:   rapid.SampledFrom([]store.Event{store.Complete, store.DeclareNoEffect, store.Ask, store.Reject, store.Lose}).Draw(t, "event"),
					Nonce:   store.Nonce{byte(1 + draw(t, small, "nonce"))},
					Outcome: make([]byte, draw(t, rapid.IntRange(0, 15), "size")),
				}
				err := h.Record(t.Context(), run, end)
				if want := m.record(run, end); !errors.Is(err, want) {
					t.Fatalf("%v by %v: %v, the model says %v", end.Event, run, err, want)
				}
			},
			"rotate": func(t *rapid.T) {
				h.advance(time.Hour)
				if ns := h.namespace(); ns != names[len(names)-1] {
					names = append(names, ns)
				}
			},
		})
	})
}

// TestNoKeyRunsTwiceWhateverHappens is the promise itself, over rotations,
// full stores and evictions: a key runs again only as the next round of an
// open call; it is never answered as if it were new after it was; and within
// retention it is never forgotten.
func TestNoKeyRunsTwiceWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHarness(t, &Options{
			MaxRecords: 12, MaxRecordsPerPrincipal: 8, MaxOpenPerPrincipal: 4, MaxResultBytes: 60,
			RotateEvery: 10 * time.Hour, ClosingFor: 2 * time.Hour, Retention: 5 * time.Hour,
		})
		names := []string{h.namespace()}
		type life struct {
			run     *store.Attempt // under way
			ended   time.Time      // zero while not
			ran     int
			waiting bool
		}
		lives := map[store.ID]*life{}
		var inOrder []*life
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { h.check() },
			"attempt": func(t *rapid.T) {
				id := store.ID{Principal: fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "principal")),
					Key: fmt.Sprintf("%s.k%d", rapid.SampledFrom(names).Draw(t, "namespace"), rapid.IntRange(0, 6).Draw(t, "key"))}
				a := store.Attempt{ID: id, Token: h.token()}
				if rapid.Bool().Draw(t, "continue") {
					a.Nonce = store.Nonce{1}
				}
				r, err := h.Reserve(t.Context(), a)
				if err != nil {
					t.Fatal(err)
				}
				l := lives[id]
				switch {
				case r.Verdict == store.Run && l != nil && !(l.waiting && a.Nonce == store.Nonce{1}):
					t.Fatalf("%v runs again: %+v", id, l)
				case r.Verdict == store.Run:
					if l == nil {
						l = &life{}
						lives[id], inOrder = l, append(inOrder, l)
					}
					l.run, l.waiting, l.ran = &a, false, l.ran+1
				case r.Verdict == store.NamespaceClosed && l != nil:
					t.Fatalf("%v never ran, says the store: %+v", id, l)
				case r.Verdict == store.NamespaceNotHeld && l != nil:
					if l.run != nil || !l.ended.IsZero() && h.now.Sub(l.ended) < h.opt.Retention {
						t.Fatalf("%v is forgotten too early: %+v", id, l)
					}
				case l != nil && (r.Verdict == store.NoRoom || r.Verdict == store.Free):
					t.Fatalf("%v is known and is answered %v", id, r.Verdict)
				}
			},
			"end": func(t *rapid.T) {
				var running []*life
				for _, l := range inOrder {
					if l.run != nil {
						running = append(running, l)
					}
				}
				if len(running) == 0 {
					return
				}
				l := running[rapid.IntRange(0, len(running)-1).Draw(t, "run")]
				event := rapid.SampledFrom([]store.Event{store.Complete, store.DeclareNoEffect, store.Ask, store.Lose}).Draw(t, "event")
				end := store.End{Event: event, Nonce: store.Nonce{1}, Outcome: make([]byte, rapid.IntRange(0, 30).Draw(t, "size"))}
				if err := h.Record(t.Context(), ref(*l.run), end); err != nil {
					t.Fatalf("%v: %v", event, err)
				}
				l.run = nil
				if l.waiting = event == store.Ask; !l.waiting {
					l.ended = h.now
				}
			},
			"wait": func(t *rapid.T) {
				h.advance(time.Duration(rapid.IntRange(1, 180).Draw(t, "minutes")) * time.Minute)
				if ns := h.namespace(); ns != names[len(names)-1] {
					names = append(names, ns)
				}
			},
		})
	})
}
