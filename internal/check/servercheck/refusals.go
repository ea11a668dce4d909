package servercheck

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func refusals() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/errors/shape", Section: "Errors", Level: check.Must,
			Title: "an error of the extension has the code, a reason and the reason's outcome",
			Does:  "Provokes keyInvalid and namespaceNotHeld with a tool that does not exist, and reads the data.",
			Why:   "A client acts on the outcome; a wrong one makes it send again what ran, or give up what did not.",
			Fix:   fmt.Sprintf("Answer with the JSON-RPC error %d and data {reason, outcome, …} of the table.", schema.ErrorCode),
		}, Run: errorShape},
		{Info: check.Info{
			ID: "server/errors/http-200", Section: "Errors", Level: check.Must,
			Title: "over HTTP an error of the extension has the status 200",
			Does:  "Provokes keyInvalid and reads the status.",
			Why:   "Deployed clients lose the code and the data of an error on any other status.",
			Fix:   "Send extension errors as any JSON-RPC response, with status 200.",
		}, Run: errorStatus},
		{Info: check.Info{
			ID: "server/errors/namespace-not-held", Section: "Order of checks", Level: check.Must,
			Title: "a key of a namespace that the server does not hold is namespaceNotHeld, with the current one",
			Does:  "Calls a tool that does not exist with a key of a namespace that nobody has.",
			Why:   "This is what keeps a server that lost its records, or a replica without them, from running a call again.",
			Fix:   "Refuse every key whose namespace is not held completely, before the tool is looked for, and name the current namespace in keyNamespace.",
		}, Run: namespaceNotHeld},
		{Info: check.Info{
			ID: "server/errors/namespace-never-runs", Section: "Order of checks", Level: check.Must,
			Title: "a key of a namespace that the server does not hold never runs",
			Does:  "Calls the tool with a key of a namespace that nobody has.",
			Why:   "The call may have run where that namespace was held.",
			Fix:   "Check the namespace in the step that reserves the key.",
		}, Run: namespaceNeverRuns},
	}
}

// foreign is a key of a namespace that nobody has.
func foreign() string { return "sepcheck-" + rand.Text() + "." + rand.Text() }

func errorShape(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	s.wantReason("a malformed key", s.call(call{tool: noTool, key: "!"}), schema.ReasonKeyInvalid)
	s.wantReason("a foreign namespace", s.call(call{tool: noTool, key: foreign()}), schema.ReasonNamespaceNotHeld)
}

func errorStatus(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	r := s.call(call{tool: noTool, key: "!"})
	if r.Status == 0 {
		t.Skipf("not over HTTP")
	}
	if r.Status != 200 {
		t.Errorf("the status is %d: %s", r.Status, r)
	}
}

func namespaceNotHeld(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	r := s.call(call{tool: noTool, key: foreign()})
	s.wantReason("a foreign namespace", r, schema.ReasonNamespaceNotHeld)
	if data, _ := r.Extension(); schema.CheckNamespace(data.KeyNamespace) != nil {
		t.Errorf("keyNamespace does not name the current namespace: %s", r)
	}
}

func namespaceNeverRuns(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	s.wantReason("a foreign namespace", sub.call(foreign()), schema.ReasonNamespaceNotHeld)
	sub.wantEffects(0)
}
