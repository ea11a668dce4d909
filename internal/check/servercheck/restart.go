package servercheck

import (
	"context"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func restart() []Check {
	return []Check{{Info: check.Info{
		ID: "server/restart/never-twice", Section: "Order of checks", Level: check.Must,
		Title: "a key from before a restart is replayed or refused, and never runs again",
		Does:  "On stdio: starts a process, calls the tool, ends the process, starts another, and sends the call again.",
		Why:   "A process that lost its records cannot know what ran; a new namespace says so.",
		Fix:   "Make a new keyNamespace whenever records may be missing.",
	}, Run: restartedServer}}
}

func restartedServer(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	if !s.Process {
		t.Skipf("only a server on stdio is started by sepcheck")
	}
	sub, done := s.subject()
	defer done()
	before, end := s.another(s.fresh)
	defer end()
	settings := settingsOf(declared(before.conn.Handshake()))
	if settings == nil {
		t.Brokenf("the second process does not declare the extension")
	}
	key := settings.KeyNamespace + s.key()[len(s.settings.KeyNamespace):]
	c := call{tool: sub.tool, key: key, args: sub.args}
	s.wantMarked("a call of the process before", before.call(c), false)
	end()
	after, endAfter := s.another(s.fresh)
	defer endAfter()
	r := after.call(c)
	if m, ok := r.Marker(); ok && m.Replayed {
		return // its records outlive it
	}
	switch r.Reason() {
	case schema.ReasonNamespaceNotHeld, schema.ReasonOutcomeUnknown, schema.ReasonResultUnavailable:
	default:
		t.Errorf("a key from before the restart is answered %s", r)
	}
}
