package servercheck

import (
	"context"
	"encoding/json"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/rawmcp"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func capability() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/capability/settings", Section: "Capability", Level: check.Must,
			Title: "the capability has a keyNamespace, a retentionMs above zero and, if any, a boolean keyParam",
			Does:  "Reads capabilities.extensions of the handshake.",
			Why:   "A client that cannot read the settings makes no keys, and a lost response stays unknown.",
			Fix:   "Declare {\"keyNamespace\": 1–64 of A–Z a–z 0–9 _ ~ : -, \"retentionMs\": an integer above 0, \"keyParam\"?: boolean}.",
		}, Run: settingsAreWellFormed},
		{Info: check.Info{
			ID: "server/capability/both-handshakes", Section: "Capability", Level: check.Must,
			Title: "server/discover and initialize declare the same",
			Does:  "Connects once in each protocol revision that the server speaks and compares the settings.",
			Why:   "Clients of both generations call the same tools; one that does not see the capability must not retry.",
			Fix:   "Add the capability to the result of both methods.",
		}, Run: bothHandshakesDeclare},
	}
}

func settingsAreWellFormed(ctx context.Context, t *check.T, p *Peer) {
	p.on(ctx, t)
	if p.raw == nil {
		t.Skipf("the server does not declare the extension")
	}
	var s struct {
		KeyNamespace *string
		RetentionMs  *json.Number
		KeyParam     json.RawMessage
	}
	if err := json.Unmarshal(p.raw, &s); err != nil {
		t.Fatalf("the settings are %s: %v", p.raw, err)
	}
	if s.KeyNamespace == nil || schema.CheckNamespace(*s.KeyNamespace) != nil {
		t.Errorf("keyNamespace is no namespace: %s", p.raw)
	}
	if s.RetentionMs == nil {
		t.Errorf("there is no retentionMs: %s", p.raw)
	} else if n, err := s.RetentionMs.Int64(); err != nil || n <= 0 {
		t.Errorf("retentionMs is not an integer above zero: %s", p.raw)
	}
	if k := string(s.KeyParam); k != "" && k != "true" && k != "false" {
		t.Errorf("keyParam is not a boolean: %s", p.raw)
	}
}

func bothHandshakesDeclare(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t)
	if p.raw == nil {
		t.Skipf("the server does not declare the extension")
	}
	other := rawmcp.Legacy
	if s.conn.Revision() == rawmcp.Legacy {
		other = rawmcp.Modern
	}
	conn, err := p.Dial(s.ctx, other)
	if err != nil {
		t.Skipf("the server does not speak %s: %v", other, err)
	}
	defer conn.Close()
	raw := declared(conn.Handshake())
	theirs := settingsOf(raw)
	switch {
	case theirs == nil:
		t.Errorf("in %s the extension is declared as %s", other, orNothing(raw))
	case p.Process: // another process may have another namespace
		if mine := p.settings; mine != nil && (mine.RetentionMs != theirs.RetentionMs || mine.KeyParam != theirs.KeyParam) {
			t.Errorf("in %s the settings are %s, in %s %s", s.conn.Revision(), p.raw, other, raw)
		}
	case p.settings == nil || *p.settings != *theirs:
		t.Errorf("in %s the settings are %s, in %s %s", s.conn.Revision(), p.raw, other, raw)
	}
}

func orNothing(raw json.RawMessage) string {
	if raw == nil {
		return "nothing"
	}
	return string(raw)
}
