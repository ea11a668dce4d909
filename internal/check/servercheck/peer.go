// Package servercheck has the checks of MCP servers, one file for each section
// of the SEP.
package servercheck

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
	"github.com/mcp-idempotency/mcp-idempotency/internal/rawmcp"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// Config says what server to check and what may be done with it.
type Config struct {
	// Dial connects to the server: over HTTP anew, on stdio to a process of its
	// own. Revision is empty for the one that the server prefers.
	Dial func(ctx context.Context, revision string) (rawmcp.Conn, error)
	// Other connects as another principal; nil when there is none.
	Other func(ctx context.Context) (rawmcp.Conn, error)
	// Process says that Dial starts a server, whose end is that of its memory.
	Process bool
	// Fixture says that the server has the tools of package fixture.
	Fixture bool
	// Tool may be called with Args, a JSON object. Empty: no tool may.
	Tool, Args string
	// Count tells how many effects the tool has had so far; nil when nobody
	// can tell.
	Count func(ctx context.Context, c rawmcp.Conn) (int, error)
}

// A Peer is the server under check.
type Peer struct {
	Config
	conn rawmcp.Conn

	// settings are what the server declares; nil when it is not extended or
	// they are not what they should be.
	settings *schema.ServerSettings
	raw      json.RawMessage // as declared; nil when not
	tools    []tool

	counting sync.Mutex // one check at a time counts a user's tool
}

type tool struct {
	Name        string                     `json:"name"`
	Description string                     `json:"description"`
	Meta        map[string]json.RawMessage `json:"_meta"`
}

// Connect makes the first connection and learns what the server says of itself.
// The error matches rawmcp.ErrUnreachable or rawmcp.ErrNotMCP when that is why.
func Connect(ctx context.Context, cfg Config) (*Peer, error) {
	conn, err := cfg.Dial(ctx, "")
	if err != nil {
		return nil, err
	}
	p := &Peer{Config: cfg, conn: conn}
	if cfg.Fixture {
		p.Tool = fixture.Effect
	}
	p.raw = declared(conn.Handshake())
	p.settings = settingsOf(p.raw)
	if p.tools, err = listTools(ctx, conn); err != nil {
		return nil, errors.Join(fmt.Errorf("tools/list: %w", err), conn.Close())
	}
	return p, nil
}

// Close ends the connection.
func (p *Peer) Close() error { return p.conn.Close() }

// Facts are what was learned of the server.
func (p *Peer) Facts() []check.Fact {
	type info struct{ Name, Version string }
	var who struct {
		ServerInfo info
		Meta       struct {
			ServerInfo info `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	_ = p.conn.Handshake().Decode(&who) // it may say nothing
	if who.ServerInfo.Name == "" {
		who.ServerInfo = who.Meta.ServerInfo
	}
	ext := "not declared"
	if p.raw != nil {
		ext = string(p.raw)
	}
	return []check.Fact{
		{Name: "server", Value: strings.TrimSpace(who.ServerInfo.Name + " " + who.ServerInfo.Version)},
		{Name: "protocol revision", Value: p.conn.Revision()},
		{Name: "extension", Value: ext},
		{Name: "tools", Value: fmt.Sprint(len(p.tools))},
	}
}

// declared returns the extension's settings in a handshake; nil when there are
// none.
func declared(r rawmcp.Reply) json.RawMessage {
	var res struct {
		Capabilities struct {
			Extensions map[string]json.RawMessage
		}
	}
	if r.Decode(&res) != nil {
		return nil
	}
	return res.Capabilities.Extensions[schema.ExtensionID]
}

func settingsOf(raw json.RawMessage) *schema.ServerSettings {
	var s schema.ServerSettings
	if raw == nil || json.Unmarshal(raw, &s) != nil || schema.CheckNamespace(s.KeyNamespace) != nil || s.RetentionMs <= 0 {
		return nil
	}
	return &s
}

func listTools(ctx context.Context, c rawmcp.Conn) (all []tool, err error) {
	params := `{}`
	for range 1000 { // a server that never ends its list is not waited for
		r, err := c.Call(ctx, "tools/list", params)
		if err != nil {
			return nil, err
		}
		if r.Error != nil && r.Error.Code == -32601 {
			return nil, nil // it has none
		}
		var page struct {
			Tools      []tool
			NextCursor string
		}
		if err := r.Decode(&page); err != nil {
			return nil, err
		}
		all = append(all, page.Tools...)
		if page.NextCursor == "" {
			return all, nil
		}
		params = fmt.Sprintf(`{"cursor":%q}`, page.NextCursor)
	}
	return nil, errors.New("the list does not end")
}

// A session is a check's view of the peer: one connection, whose frames are in
// the check's trace.
type session struct {
	*Peer
	t    *check.T
	ctx  context.Context
	conn rawmcp.Conn
}

// on begins a check on the peer's first connection.
func (p *Peer) on(ctx context.Context, t *check.T) *session {
	return &session{p, t, rawmcp.WithTrace(ctx, t.Frame), p.conn}
}

// extended skips the check when the server does not declare the extension.
func (s *session) extended() *session {
	if s.settings == nil {
		s.t.Skipf("the server does not declare the extension")
	}
	return s
}

// plain skips the check when the server declares the extension.
func (s *session) plain() *session {
	if s.raw != nil {
		s.t.Skipf("the server declares the extension")
	}
	return s
}

// fixture skips the check when the server does not have the fixture's tools.
func (s *session) fixture() *session {
	if !s.Fixture {
		s.t.Skipf("needs a server with the tools of 'sepcheck fixture', and --fixture")
	}
	return s
}

// modern skips the check on a revision without multi round-trip calls.
func (s *session) modern() *session {
	if s.conn.Revision() != rawmcp.Modern {
		s.t.Skipf("needs the protocol revision %s", rawmcp.Modern)
	}
	return s
}

// another is the same check on a connection of its own, closed with it.
func (s *session) another(dial func(context.Context) (rawmcp.Conn, error)) (*session, func()) {
	conn, err := dial(s.ctx)
	if err != nil {
		s.t.Brokenf("connecting once more: %v", err)
	}
	o := *s
	o.conn = conn
	return &o, func() { _ = conn.Close() }
}

// fresh dials as the peer does.
func (s *session) fresh(ctx context.Context) (rawmcp.Conn, error) {
	return s.Dial(ctx, s.conn.Revision())
}

// key mints a key in the declared namespace.
func (s *session) key() string { return s.settings.KeyNamespace + "." + rand.Text() }

// call is one attempt.
type call struct {
	tool, key, args string
	// place is where the key goes: "param", "meta", or empty for where the
	// server reads it.
	place string
	extra string // further members of params, with a comma before them
}

// params renders the call for a server that reads keys where it says.
func (s *session) params(c call) string {
	args := c.args
	if args == "" {
		args = `{}`
	}
	out := fmt.Sprintf(`{"name":%q,"arguments":%s`, c.tool, args)
	if c.key != "" {
		key, _ := json.Marshal(c.key) // a string always can be
		out += s.keyMember(c.place, string(key))
	}
	return out + c.extra + "}"
}

// keyMember is the key, raw JSON, as a member of params with a comma before it.
func (s *session) keyMember(place, key string) string {
	if place == "param" || place == "" && s.settings != nil && s.settings.KeyParam {
		return fmt.Sprintf(`,%q:%s`, schema.ParamKey, key)
	}
	return fmt.Sprintf(`,"_meta":{%q:%s}`, schema.MetaKey, key)
}

// raw sends a tools/call with the params. A lost response breaks the check.
func (s *session) callRaw(params string) rawmcp.Reply {
	r, err := s.conn.Call(s.ctx, schema.MethodCallTool, params)
	if err != nil {
		s.t.Brokenf("a response was lost: %v", err)
	}
	return r
}

func (s *session) call(c call) rawmcp.Reply { return s.callRaw(s.params(c)) }

// A subject is a tool that a check may call, with arguments of the check's own.
type subject struct {
	s     *session
	tool  string
	label string // of the fixture's tool
	args  string
	base  int
	of    func() int
}

// subject returns the tool to call, and skips the check when there is none. The
// caller calls done at the end of the check.
func (s *session) subject() (sub *subject, done func()) {
	if s.Fixture {
		return s.labelled("")
	}
	if s.Tool == "" {
		s.t.Skipf("calls a tool: say which one may be called, by --tool and --args, or --fixture")
	}
	s.counting.Lock()
	sub = &subject{s: s, tool: s.Tool, args: s.Args}
	if s.Count != nil {
		sub.of = func() int {
			n, err := s.Count(s.ctx, s.conn)
			if err != nil {
				s.t.Brokenf("counting effects: %v", err)
			}
			return n
		}
		sub.base = sub.of()
	}
	return sub, s.counting.Unlock
}

// labelled is the fixture's effect tool with a label of its own and further
// members of its arguments, with a comma before them.
func (s *session) labelled(members string) (*subject, func()) {
	label := rand.Text()
	return &subject{
		s: s, tool: fixture.Effect, label: label, args: fmt.Sprintf(`{"label":%q%s}`, label, members),
		of: func() int { return s.effects(label) },
	}, func() {}
}

// effects asks the fixture how many effects a label has had.
func (s *session) effects(label string) int {
	r := s.call(call{tool: fixture.Effects, args: fmt.Sprintf(`{"label":%q}`, label)})
	var res struct {
		StructuredContent struct{ Effects *int }
	}
	if err := r.Decode(&res); err != nil || res.StructuredContent.Effects == nil {
		s.t.Brokenf("%s is answered %s", fixture.Effects, r)
	}
	return *res.StructuredContent.Effects
}

// call calls the subject.
func (u *subject) call(key string) rawmcp.Reply {
	return u.s.call(call{tool: u.tool, key: key, args: u.args})
}

// wantEffects demands a number of effects since the check began, where they can
// be counted.
func (u *subject) wantEffects(n int) {
	if u.of == nil {
		u.s.t.Observef("effects were not counted: say how, by --count-tool or --count-cmd")
		return
	}
	if got := u.of() - u.base; got != n {
		u.s.t.Errorf("the tool had %d effects, want %d", got, n)
	}
}

// wantReason demands an error of the extension.
func (s *session) wantReason(what string, r rawmcp.Reply, reason schema.Reason) {
	data, ok := r.Extension()
	outcome, _ := schema.OutcomeOf(reason)
	if !ok || data.Reason != reason || data.Outcome != outcome {
		s.t.Errorf("%s is answered %s; want error %d with reason %s and outcome %s", what, r, schema.ErrorCode, reason, outcome)
	}
}

// wantMarked demands a result or a tool's error with the marker.
func (s *session) wantMarked(what string, r rawmcp.Reply, replayed bool) {
	m, ok := r.Marker()
	switch {
	case !ok:
		s.t.Errorf("%s is answered without the marker: %s", what, r)
	case m.Replayed != replayed:
		s.t.Errorf("%s is marked replayed: %t, want %t", what, m.Replayed, replayed)
	}
}
