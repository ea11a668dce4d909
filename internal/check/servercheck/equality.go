package servercheck

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func equality() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/equality/spelling", Section: "Equality", Level: check.Must,
			Title: "arguments are equal whatever the order of members and the spelling of strings and numbers",
			Does:  "Calls the fixture's tool with {…,\"extra\":{\"a\":1,\"b\":\"é\"}} and again with its members in another order, 1.0 for 1 and \\u00e9 for é.",
			Why:   "Clients and proxies write JSON anew; the same call must not become another.",
			Fix:   "Compare JSON values, or a digest of a canonical form, and not bytes.",
		}, Run: spellingIsIgnored},
		{Info: check.Info{
			ID: "server/equality/exact-numbers", Section: "Equality", Level: check.Must,
			Title: "integers above 2^53 are compared exactly",
			Does:  "Calls the fixture's tool with 9007199254740992 and, with the same key, 9007199254740993.",
			Why:   "Two ids that differ in their last digit must not be one call.",
			Fix:   "Do not compare numbers as 64-bit floating point (RFC 8785 does).",
		}, Run: numbersAreExact},
		{Info: check.Info{
			ID: "server/equality/duplicate-members", Section: "Equality", Level: check.Must,
			Title: "arguments with a repeated member are -32602",
			Does:  "Calls the fixture's tool with the label twice.",
			Why:   "Two readers may take them for different values.",
			Fix:   "Refuse repeated member names in the arguments of a keyed call.",
		}, Run: repeatedMembersAreRefused},
		{Info: check.Info{
			ID: "server/equality/meta", Section: "Equality", Level: check.Must,
			Title: "_meta is not compared",
			Does:  "Calls the tool twice with one key and different members in _meta.",
			Why:   "Every attempt has a progress token and a trace of its own.",
			Fix:   "Compare name and arguments alone.",
		}, Run: metaIsIgnored},
	}
}

func spellingIsIgnored(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	label, key := rand.Text(), s.key()
	first := fmt.Sprintf(`{"label":%q,"extra":{"a":1,"b":"é"}}`, label)
	again := fmt.Sprintf(` { "extra" : {"b":"\u00e9", "a":1.0} , "label":%q } `, label)
	s.wantMarked("a first attempt", s.call(call{tool: fixture.Effect, key: key, args: first}), false)
	s.wantMarked("the same arguments, spelled otherwise,", s.call(call{tool: fixture.Effect, key: key, args: again}), true)
	if n := s.effects(label); n != 1 {
		t.Errorf("the tool had %d effects, want 1", n)
	}
}

func numbersAreExact(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	label, key := rand.Text(), s.key()
	args := func(n string) string { return fmt.Sprintf(`{"label":%q,"extra":%s}`, label, n) }
	s.wantMarked("a first attempt", s.call(call{tool: fixture.Effect, key: key, args: args("9007199254740992")}), false)
	s.wantReason("the next integer", s.call(call{tool: fixture.Effect, key: key, args: args("9007199254740993")}), schema.ReasonKeyMismatch)
}

func repeatedMembersAreRefused(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	label := rand.Text()
	r := s.call(call{tool: fixture.Effect, key: s.key(), args: fmt.Sprintf(`{"label":%q,"label":%q}`, label, label)})
	if r.Error == nil || r.Error.Code != -32602 {
		t.Errorf("a repeated member is answered %s, want the error -32602", r)
	}
	if n := s.effects(label); n != 0 {
		t.Errorf("the tool had %d effects, want none", n)
	}
}

func metaIsIgnored(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	key := s.key()
	for i := range 2 {
		params := strings.TrimSuffix(s.params(call{tool: sub.tool, args: sub.args}), "}") +
			fmt.Sprintf(`,"_meta":{%q:%q,"progressToken":%d}}`, schema.MetaKey, key, i)
		s.wantMarked(fmt.Sprintf("attempt %d", i+1), s.callRaw(params), i > 0)
	}
	sub.wantEffects(1)
}
