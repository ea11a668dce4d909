package servercheck

import (
	"context"
	"encoding/json"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func hint() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/hint/shape", Section: "Tool hint", Level: check.Must,
			Title: "a tool's hint has a key of optional, required or unsupported",
			Does:  "Reads _meta of every tool in tools/list.",
			Why:   "A client that misreads the hint sends a key to a tool that takes none, or none to one that wants it.",
			Fix:   "Write {\"key\": \"optional\" | \"required\" | \"unsupported\", \"maxExecutionMs\"?: integer}.",
		}, Run: hintsAreWellFormed},
		{Info: check.Info{
			ID: "server/hint/description", Section: "Tool hint", Level: check.Should,
			Title: "a tool with a hint says in its description what a repeat does",
			Does:  "Looks for a description on every tool that has a hint.",
			Why:   "Models read descriptions, and not _meta.",
			Fix:   "Add a sentence, such as: a call repeated with the same idempotency key returns the first result.",
		}, Run: hintedToolsAreDescribed},
		{Info: check.Info{
			ID: "server/hint/required", Section: "Errors", Level: check.Must,
			Title: "a tool that demands a key answers keyRequired without one",
			Does:  "Calls the fixture's tool that demands a key, without one and with one.",
			Why:   "A tool that runs without the key that it demands runs unprotected.",
			Fix:   "Refuse the call before anything runs.",
		}, Run: keyIsRequired},
		{Info: check.Info{
			ID: "server/hint/unsupported", Section: "Errors", Level: check.Must,
			Title: "a tool that takes no keys answers keyUnsupported to one",
			Does:  "Calls the fixture's tool that takes no keys, with one.",
			Why:   "A key that is taken and forgotten makes the client believe that it may send again.",
			Fix:   "Refuse the call before anything runs.",
		}, Run: keyIsUnsupported},
	}
}

func (s *session) hints() map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, tool := range s.tools {
		if h, ok := tool.Meta[schema.ExtensionID]; ok {
			out[tool.Name] = h
		}
	}
	if len(out) == 0 {
		s.t.Skipf("no tool has a hint")
	}
	return out
}

func hintsAreWellFormed(ctx context.Context, t *check.T, p *Peer) {
	for name, raw := range p.on(ctx, t).extended().hints() {
		var h struct {
			Key            schema.KeyUse
			MaxExecutionMs *int64
		}
		err := json.Unmarshal(raw, &h)
		switch h.Key {
		case schema.KeyOptional, schema.KeyRequired, schema.KeyUnsupported:
			if err == nil && (h.MaxExecutionMs == nil || *h.MaxExecutionMs > 0) {
				continue
			}
		}
		t.Errorf("the hint of %s is %s", name, raw)
	}
}

func hintedToolsAreDescribed(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	hints := s.hints()
	for _, tool := range p.tools {
		if _, ok := hints[tool.Name]; ok && tool.Description == "" {
			t.Errorf("%s has a hint and no description", tool.Name)
		}
	}
}

func keyIsRequired(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	sub, done := s.labelled("")
	defer done()
	sub.tool = fixture.Required
	s.wantReason("a call without the key that is demanded", sub.call(""), schema.ReasonKeyRequired)
	sub.wantEffects(0)
	s.wantMarked("the call with a key", sub.call(s.key()), false)
	sub.wantEffects(1)
}

func keyIsUnsupported(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	s.wantReason("a key to a tool that takes none", s.call(call{tool: fixture.Effects, key: s.key(), args: `{"label":"x"}`}), schema.ReasonKeyUnsupported)
}
