package servercheck

import (
	"context"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func order() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/order/unknown-tool", Section: "Order of checks", Level: check.Must,
			Title: "a tool that does not exist is -32602 and spends no key",
			Does:  "Calls a tool that does not exist with a new key, and then the tool with the same key.",
			Why:   "A refusal that is recorded answers for a call that never ran.",
			Fix:   "Record nothing before the tool runs.",
		}, Run: unknownToolIsNotRecorded},
		{Info: check.Info{
			ID: "server/order/invalid-arguments", Section: "Order of checks", Level: check.Must,
			Title: "arguments that the tool does not take spend no key",
			Does:  "Calls the fixture's tool with a label that is a number, and then with the same key and a text.",
			Why:   "A model that corrects its arguments would be told that its key was used for something else.",
			Fix:   "Validate the arguments before the key is reserved.",
		}, Run: invalidArgumentsAreNotRecorded},
		{Info: check.Info{
			ID: "server/order/mismatch-arguments", Section: "Order of checks", Level: check.Must,
			Title: "a known key with other arguments is keyMismatch, and its record stays",
			Does:  "Calls the tool, calls it with one more argument under the same key, and calls it as at first.",
			Why:   "Answering with the first result would tell a model that something was done which was not.",
			Fix:   "Compare name and arguments of every attempt with those of the first.",
		}, Run: otherArgumentsMismatch},
		{Info: check.Info{
			ID: "server/order/mismatch-tool", Section: "Order of checks", Level: check.Must,
			Title: "a known key with another tool is keyMismatch",
			Does:  "Calls the fixture's tool, and another tool with the same key and arguments.",
			Why:   "A key names one call, not one value of arguments.",
			Fix:   "Make the tool's name a part of what is compared.",
		}, Run: otherToolMismatch},
		{Info: check.Info{
			ID: "server/order/mismatch-running", Section: "Order of checks", Level: check.Must,
			Title: "another request is keyMismatch while the first one still runs, at once",
			Does:  "Starts a slow call of the fixture's tool and sends another call with its key.",
			Why:   "Who waits for a result that is not its own waits for nothing.",
			Fix:   "Compare before joining.",
		}, Run: mismatchWhileRunning},
	}
}

func unknownToolIsNotRecorded(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	key := s.key()
	r := s.call(call{tool: noTool, key: key})
	if r.Error == nil || r.Error.Code != -32602 {
		t.Errorf("a tool that does not exist is answered %s, want the error -32602", r)
	}
	if s.Tool == "" {
		return // the rest calls a tool
	}
	sub, done := s.subject()
	defer done()
	s.wantMarked("the call with the key that was refused", sub.call(key), false)
	sub.wantEffects(1)
}

func invalidArgumentsAreNotRecorded(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	sub, done := s.labelled("")
	defer done()
	key := s.key()
	if r := s.call(call{tool: sub.tool, key: key, args: `{"label":5}`}); r.Error == nil && !isError(r) {
		t.Errorf("a label that is a number is answered %s, want an error", r)
	}
	s.wantMarked("the call with the key that was refused", sub.call(key), false)
	sub.wantEffects(1)
}

// otherArgs are the subject's arguments and one more member.
func (u *subject) otherArgs() string {
	if u.args == "{}" {
		return `{"sepcheck_other":1}`
	}
	return `{"sepcheck_other":1,` + u.args[1:]
}

func otherArgumentsMismatch(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	key := s.key()
	s.wantMarked("a first attempt", sub.call(key), false)
	s.wantReason("other arguments", s.call(call{tool: sub.tool, key: key, args: sub.otherArgs()}), schema.ReasonKeyMismatch)
	s.wantMarked("the first arguments again", sub.call(key), true)
	sub.wantEffects(1)
}

func otherToolMismatch(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	sub, done := s.labelled("")
	defer done()
	key := s.key()
	s.wantMarked("a first attempt", sub.call(key), false)
	s.wantReason("another tool", s.call(call{tool: fixture.Required, key: key, args: sub.args}), schema.ReasonKeyMismatch)
	sub.wantEffects(1)
}

func mismatchWhileRunning(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture()
	sub, done := s.labelled(fmt.Sprintf(`,"ms":%d`, slow))
	defer done()
	key := s.key()
	first := sub.start(key)
	sub.awaitEffect()
	s.wantReason("another request", s.call(call{tool: sub.tool, key: key, args: `{"label":"other"}`}), schema.ReasonKeyMismatch)
	select {
	case <-first:
		t.Errorf("the other request was answered only when the first was done")
	default:
	}
	s.wantMarked("the first attempt", <-first, false)
	sub.wantEffects(1)
}
