package servercheck

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// plain are what is told of servers without the extension.
func plain() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/plain/key-in-param", Section: "Request", Level: check.Observe,
			Title: "what a server without the extension does with params.idempotencyKey",
			Does:  "Calls a tool that does not exist with and without the param, and compares the answers.",
			Why:   "A server that rejects the param would be broken by a client that sends it unasked; clients must not.",
			Fix:   "Nothing: this is what the base protocol leaves open.",
		}, Run: unasked("param")},
		{Info: check.Info{
			ID: "server/plain/key-in-meta", Section: "Request", Level: check.Observe,
			Title: "what a server without the extension does with a key in _meta",
			Does:  "Calls a tool that does not exist with and without the key, and compares the answers.",
			Why:   "A server that rejects unknown members of _meta breaks more than this extension.",
			Fix:   "Nothing: this is what the base protocol leaves open.",
		}, Run: unasked("meta")},
		{Info: check.Info{
			ID: "server/plain/repeat", Section: "Client rules", Level: check.Observe,
			Title: "how often a server without the extension runs a call that is sent twice",
			Does:  "Calls the tool twice with the same arguments and key.",
			Why:   "A client must not send it again: this is what would happen.",
			Fix:   "Support the extension.",
		}, Run: repeatOnPlain},
		{Info: check.Info{
			ID: "server/plain/disconnect", Section: "Client rules", Level: check.Observe,
			Title: "whether work goes on in a server without the extension when the caller is gone",
			Does:  "Starts a slow call of the fixture's tool, leaves, and looks for its effect.",
			Why:   "The effect of a call whose response was lost may have happened.",
			Fix:   "Support the extension.",
		}, Run: disconnectOnPlain},
	}
}

func unasked(place string) func(context.Context, *check.T, *Peer) {
	return func(ctx context.Context, t *check.T, p *Peer) {
		s := p.on(ctx, t).plain()
		without := s.call(call{tool: noTool})
		with := s.call(call{tool: noTool, key: "sepcheck." + rand.Text(), place: place})
		if without.Error != nil && with.Error != nil && without.Error.Code == with.Error.Code {
			t.Observef("ignored: the answer is the same with and without it")
			return
		}
		t.Observef("noticed: %s without it, %s with it", without, with)
	}
}

func repeatOnPlain(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).plain()
	sub, done := s.subject()
	defer done()
	if sub.of == nil {
		t.Skipf("effects cannot be counted: say how, by --count-tool or --count-cmd")
	}
	for range 2 {
		s.call(call{tool: sub.tool, key: "sepcheck.abcdefghijklmnopqrstuvwxyz", args: sub.args, place: "meta"})
	}
	t.Observef("a call that was sent twice had %d effects", sub.of()-sub.base)
}

func disconnectOnPlain(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).plain().fixture()
	if s.Process {
		t.Skipf("a process on stdio cannot be left without ending it")
	}
	sub, done := s.labelled(fmt.Sprintf(`,"ms":%d,"then":"late"`, slow))
	defer done()
	leaver, end := s.another(s.fresh)
	defer end()
	leaving, leave := context.WithCancel(s.ctx)
	gone := make(chan error, 1)
	go func() {
		_, err := leaver.conn.Call(leaving, schema.MethodCallTool, s.params(call{tool: sub.tool, args: sub.args}))
		gone <- err
	}()
	sub.awaitEffect()
	leave()
	<-gone
	// That work has stopped is seen by its not going on.
	for over := time.After(2 * slow * time.Millisecond); ; {
		if s.effects(sub.label+"/late") > 0 {
			t.Observef("work went on when the caller had left; nobody will be told its result")
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-over:
			t.Observef("work stopped when the caller had left, after an effect")
			return
		}
	}
}
