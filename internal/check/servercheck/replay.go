package servercheck

import (
	"context"
	"encoding/json"
	"reflect"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
	"github.com/mcp-idempotency/mcp-idempotency/internal/rawmcp"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func replay() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/replay/equal", Section: "Order of checks", Level: check.Must,
			Title: "a repeat is answered with the first result, and the tool does not run again",
			Does:  "Calls the tool twice with one key and compares the results as JSON values, but for the marker.",
			Why:   "This is the promise: a retry costs nothing.",
			Fix:   "Record the result, and answer every later attempt with it, marked replayed: true.",
		}, Run: replayIsEqual},
		{Info: check.Info{
			ID: "server/replay/other-connection", Section: "Order of checks", Level: check.Must,
			Title: "a repeat over another connection is answered with the first result",
			Does:  "Calls the tool, connects anew, and sends the call again.",
			Why:   "The client whose response was lost has often lost its connection, too.",
			Fix:   "Keep records by principal and key, and not by session.",
		}, Run: replayOnAnotherConnection},
		{Info: check.Info{
			ID: "server/replay/is-error", Section: "Order of checks", Level: check.Must,
			Title: "a result with isError is recorded and replayed like any other",
			Does:  "Calls the fixture's tool so that it returns isError, twice with one key.",
			Why:   "A tool that has failed after its effect must not run again because it failed.",
			Fix:   "Record results whatever they say.",
		}, Run: replayOf("isError", func(r rawmcp.Reply) bool { return isError(r) }, "a result with isError")},
		{Info: check.Info{
			ID: "server/replay/raised-error", Section: "Order of checks", Level: check.Must,
			Title: "a JSON-RPC error that the tool raised is recorded and replayed",
			Does:  "Calls the fixture's tool so that it raises an error, twice with one key.",
			Why:   "A tool that has failed after its effect must not run again because it failed.",
			Fix:   "Record the error with its code and data.",
		}, Run: replayOf("error", func(r rawmcp.Reply) bool { return r.Error != nil && r.Error.Code == fixture.Code }, "the tool's error")},
		{Info: check.Info{
			ID: "server/replay/no-effect", Section: "Record life cycle", Level: check.Must,
			Title: "a tool's word that it had no effect is recorded, and every attempt is told noEffect",
			Does:  "Calls the fixture's tool so that it says so, twice with one key.",
			Why:   "If the key were open again, an attempt still on its way would run after everybody was told that none had.",
			Fix:   "Record noEffect as an end of the call.",
		}, Run: noEffectIsRecorded},
	}
}

func isError(r rawmcp.Reply) bool {
	var res struct{ IsError bool }
	return r.Decode(&res) == nil && res.IsError
}

// sameAnswer demands that two answers are equal as JSON values but for the
// marker.
func (s *session) sameAnswer(first, second rawmcp.Reply) {
	a, b := withoutMarker(first), withoutMarker(second)
	if !reflect.DeepEqual(a, b) {
		s.t.Errorf("the answers differ: %s and %s", first, second)
	}
}

func withoutMarker(r rawmcp.Reply) any {
	b, _ := json.Marshal(r) // it came as JSON
	var v map[string]any
	_ = json.Unmarshal(b, &v)
	delete(v, "id")
	drop := func(holder any) {
		if m, ok := holder.(map[string]any); ok {
			delete(m, schema.ExtensionID)
		}
	}
	if res, ok := v["result"].(map[string]any); ok {
		drop(res["_meta"])
		if m, ok := res["_meta"].(map[string]any); ok && len(m) == 0 {
			delete(res, "_meta")
		}
	}
	if e, ok := v["error"].(map[string]any); ok {
		drop(e["data"])
	}
	return v
}

func replayIsEqual(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	key := s.key()
	first, second := sub.call(key), sub.call(key)
	s.wantMarked("a first attempt", first, false)
	s.wantMarked("a second attempt", second, true)
	s.sameAnswer(first, second)
	sub.wantEffects(1)
}

func replayOnAnotherConnection(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	if s.Process {
		t.Skipf("each connection on stdio is a process of its own")
	}
	sub, done := s.subject()
	defer done()
	key := s.key()
	first := sub.call(key)
	other, end := s.another(s.fresh)
	defer end()
	second := other.call(call{tool: sub.tool, key: key, args: sub.args})
	s.wantMarked("a second attempt", second, true)
	s.sameAnswer(first, second)
	sub.wantEffects(1)
}

func replayOf(then string, expected func(rawmcp.Reply) bool, what string) func(context.Context, *check.T, *Peer) {
	return func(ctx context.Context, t *check.T, p *Peer) {
		s := p.on(ctx, t).extended().fixture()
		sub, done := s.labelled(`,"then":"` + then + `"`)
		defer done()
		key := s.key()
		first, second := sub.call(key), sub.call(key)
		if !expected(first) {
			t.Fatalf("the tool is answered %s, want %s", first, what)
		}
		s.wantMarked("a second attempt", second, true)
		s.sameAnswer(first, second)
		sub.wantEffects(1)
	}
}

func noEffectIsRecorded(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	sub, done := s.labelled(`,"then":"noEffect"`)
	defer done()
	key := s.key()
	for _, what := range []string{"a first attempt", "a second attempt"} {
		s.wantReason(what, sub.call(key), schema.ReasonNoEffect)
	}
	sub.wantEffects(0)
}
