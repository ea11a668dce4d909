package servercheck

import (
	"context"
	"encoding/json"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func result() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/result/marker", Section: "Result", Level: check.Must,
			Title: "a result of a keyed call is marked, and replayed is false the first time",
			Does:  "Calls the tool with a new key.",
			Why:   "Without the marker a client takes it that its key was dropped on the way, and reports a possible duplicate.",
			Fix:   "Put {\"replayed\": false} into _meta[\"" + schema.ExtensionID + "\"] of the result.",
		}, Run: firstIsMarked},
		{Info: check.Info{
			ID: "server/result/unkeyed", Section: "Result", Level: check.Must,
			Title: "a call without a key is not marked and not deduplicated",
			Does:  "Calls the tool twice without a key.",
			Why:   "Two calls without a key are two calls; whoever marks one says that it may be sent again.",
			Fix:   "Leave calls without a key alone.",
		}, Run: unkeyedIsLeftAlone},
		{Info: check.Info{
			ID: "server/result/error-marker", Section: "Result", Level: check.Must,
			Title: "an error that the tool raised is marked in its data, and keeps its code",
			Does:  "Calls the fixture's tool so that it raises a JSON-RPC error with data.",
			Why:   "An unmarked error may be a proxy's, and is no proof that the call ended.",
			Fix:   "Add the marker to error.data where that is absent or an object.",
		}, Run: errorIsMarked},
	}
}

func firstIsMarked(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	s.wantMarked("a first attempt", sub.call(s.key()), false)
	sub.wantEffects(1)
}

func unkeyedIsLeftAlone(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	for range 2 {
		r := sub.call("")
		if r.Reason() == schema.ReasonKeyRequired {
			t.Skipf("the tool demands a key")
		}
		if _, ok := r.Marker(); ok {
			t.Errorf("a call without a key is marked: %s", r)
		}
	}
	sub.wantEffects(2)
}

func errorIsMarked(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	sub, done := s.labelled(`,"then":"error"`)
	defer done()
	r := sub.call(s.key())
	if r.Error == nil || r.Error.Code != fixture.Code {
		t.Fatalf("a tool that raises the error %d is answered %s", fixture.Code, r)
	}
	s.wantMarked("an error of the tool", r, false)
	var data struct{ Why string }
	if json.Unmarshal(r.Error.Data, &data) != nil || data.Why != "declined" {
		t.Errorf("the error's own data is lost: %s", r)
	}
}
