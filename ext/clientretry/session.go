package clientretry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// ErrNotDeclared is returned by [Session.MintKey] when the server does not
// declare the extension.
var ErrNotDeclared = errors.New("the server does not declare " + schema.ExtensionID)

// Retry adds keys and re-sends to the tool calls of a client. Make it with
// [New].
type Retry struct {
	client *mcp.Client
	opt    Options

	mu       sync.Mutex
	sessions map[*mcp.ClientSession]*Session
}

// New adds the layer to a client, once; sessions get it that are connected
// with [Retry.Connect]. opt may be nil. It panics on negative bounds.
//
// Sending middleware that was added to the client before runs for every
// attempt, middleware that is added later once for the whole call.
func New(client *mcp.Client, opt *Options) *Retry {
	r := &Retry{client: client, opt: opt.withDefaults(), sessions: map[*mcp.ClientSession]*Session{}}
	client.AddSendingMiddleware(r.middleware)
	return r
}

// Connect is [mcp.Client.Connect] with keys and re-sends.
func (r *Retry) Connect(ctx context.Context, t mcp.Transport, opts *mcp.ClientSessionOptions) (*Session, error) {
	s := &Session{retry: r, opts: opts, dial: r.opt.Dial}
	if http, ok := t.(*mcp.StreamableClientTransport); ok && s.dial == nil {
		s.dial = func(context.Context) (mcp.Transport, error) { return http, nil }
	}
	l, err := s.connect(ctx, t)
	if err != nil {
		return nil, err
	}
	s.ClientSession, s.live = l.session, l
	return s, nil
}

// Session is a connection to a server whose tool calls carry keys and survive
// lost responses. Its methods are those of the SDK's session. When the
// connection dies and can be made anew, the same Session goes on with it, and
// so does the embedded one for every request.
type Session struct {
	*mcp.ClientSession // the first connection; never changes

	retry *Retry
	opts  *mcp.ClientSessionOptions
	dial  func(context.Context) (mcp.Transport, error)

	mu     sync.Mutex // held while a connection is made
	live   *link
	closed bool
}

// link is one connection of a session.
type link struct {
	session  *mcp.ClientSession
	endpoint *endpoint

	mu          sync.Mutex
	settings    *schema.ServerSettings // nil when not declared
	proven      time.Time              // when keys last reached an extended server
	unsupported map[string]bool        // tools whose hint says so
}

// connect makes a connection and reads the capability off its handshake.
func (s *Session) connect(ctx context.Context, t mcp.Transport) (*link, error) {
	e := &endpoint{}
	var wrapped mcp.Transport
	if http, ok := t.(*mcp.StreamableClientTransport); ok {
		wrapped = wrapHTTP(http, e)
	} else {
		wrapped = &pipeTransport{inner: t, endpoint: e}
	}
	cs, err := s.retry.client.Connect(ctx, wrapped, s.opts)
	if err != nil {
		return nil, err
	}
	l := &link{session: cs, endpoint: e, settings: declaredBy(cs), unsupported: map[string]bool{}}
	s.retry.mu.Lock()
	s.retry.sessions[cs] = s
	s.retry.mu.Unlock()
	return l, nil
}

// declaredBy reads the extension's settings; nil when they are not there or
// not what they should be.
func declaredBy(cs *mcp.ClientSession) *schema.ServerSettings {
	init := cs.InitializeResult()
	if init == nil || init.Capabilities == nil {
		return nil
	}
	raw, ok := init.Capabilities.Extensions[schema.ExtensionID]
	if !ok {
		return nil
	}
	b, err := json.Marshal(raw)
	if err != nil {
		return nil
	}
	var settings schema.ServerSettings
	if json.Unmarshal(b, &settings) != nil || schema.CheckNamespace(settings.KeyNamespace) != nil || settings.RetentionMs <= 0 {
		return nil
	}
	return &settings
}

// current returns the live connection, made anew if it died and that can be
// done.
func (s *Session) current(ctx context.Context) (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("clientretry: %w", mcp.ErrConnectionClosed)
	}
	if !s.live.endpoint.broken() || s.dial == nil {
		return s.live, nil
	}
	t, err := s.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting again: %w", err)
	}
	l, err := s.connect(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("connecting again: %w", err)
	}
	s.retry.opt.Logger.Info("clientretry: connected again")
	old := s.live
	s.live = l
	if old.session != s.ClientSession {
		s.retry.forget(old.session)
	}
	// Its process or session is gone; what is left of it here goes too.
	_ = old.session.Close()
	return l, nil
}

func (r *Retry) forget(cs *mcp.ClientSession) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, cs)
}

// Close closes the session and every connection that it has made.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.retry.forget(s.ClientSession)
	s.retry.forget(s.live.session)
	err := s.live.session.Close()
	if s.live.session != s.ClientSession {
		_ = s.ClientSession.Close()
	}
	if s.live.endpoint.broken() {
		return nil // it could not be closed cleanly: it was dead
	}
	return err
}

// InitializeResult is that of the live connection.
func (s *Session) InitializeResult() *mcp.InitializeResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live.session.InitializeResult()
}

// CallTool calls a tool. Its errors are those of the SDK, and
// *[UnknownOutcomeError], *[NotRunError] and *[ResultLostError]. Unlike the
// SDK's it does not write into params.
func (s *Session) CallTool(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	var p mcp.CallToolParams
	if params != nil {
		p = *params
		p.Meta = maps.Clone(p.Meta)
	}
	return s.ClientSession.CallTool(ctx, &p)
}

// Declared returns what the server declares of the extension, and false when
// it does not.
func (s *Session) Declared() (schema.ServerSettings, bool) {
	s.mu.Lock()
	l := s.live
	s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settings == nil {
		return schema.ServerSettings{}, false
	}
	return *l.settings, true
}

// MintKey makes a key for a call that is to be made with [WithKey], so that it
// can be persisted before. It returns [ErrNotDeclared] when the server takes
// no keys.
func (s *Session) MintKey() (string, error) {
	settings, ok := s.Declared()
	if !ok {
		return "", ErrNotDeclared
	}
	return mint(settings.KeyNamespace), nil
}

// prove notes that keys reach an extended server over this connection.
func (l *link) prove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proven = time.Now()
}

func (l *link) provenSince(t time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proven.After(t)
}

// renamed notes a newer namespace of the server's.
func (l *link) renamed(ns string) {
	if schema.CheckNamespace(ns) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settings != nil {
		c := *l.settings
		c.KeyNamespace = ns
		l.settings = &c
	}
}

// milliseconds makes a duration of a number off the wire, which may be
// anything.
func milliseconds(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}
