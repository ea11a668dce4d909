package servercheck

import (
	"context"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
)

func scope() []Check {
	return []Check{{Info: check.Info{
		ID: "server/scope/principal", Section: "Order of checks", Level: check.Must,
		Title: "another principal's key is another key",
		Does:  "Calls the tool as one principal, and with the same key as the other one (--other-header).",
		Why:   "A replay across principals hands one user's result to another.",
		Fix:   "Make the authenticated subject a part of what a record is found by.",
	}, Run: principalsAreApart}}
}

func principalsAreApart(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	if s.Other == nil {
		t.Skipf("needs a second identity: --other-header 'Authorization: …'")
	}
	sub, done := s.subject()
	defer done()
	key := s.key()
	s.wantMarked("the first principal's call", sub.call(key), false)
	other, end := s.another(s.Other)
	defer end()
	r := other.call(call{tool: sub.tool, key: key, args: sub.args})
	s.wantMarked("the other principal's call", r, false)
	sub.wantEffects(2)
}
