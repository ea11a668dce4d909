package clientretry

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// Retry adds keys and re-sends to the tool calls of a client. Make it with
// [New].
type Retry struct {
	client *mcp.Client
	opt    Options

	mu       sync.RWMutex
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

// Connect is [mcp.Client.Connect] with keys and re-sends. The transport may be
// nil when there is [Options.Dial]. It keeps the values of ctx, and not its
// end, for connections that it makes later.
func (r *Retry) Connect(ctx context.Context, t mcp.Transport, opts *mcp.ClientSessionOptions) (*Session, error) {
	s := &Session{retry: r, dial: r.opt.Dial}
	if opts != nil {
		s.opts = *opts
	}
	if isHTTP(t) && s.dial == nil {
		s.dial = func(context.Context) (mcp.Transport, error) { return t, nil }
	}
	if t == nil {
		if s.dial == nil {
			return nil, fmt.Errorf("clientretry: neither a transport nor Options.Dial")
		}
		var err error
		if t, err = s.dial(ctx); err != nil {
			return nil, err
		}
	}
	// A handler that connects somewhere hands its call's context on, and
	// handlers of the server's requests run under the connection's: it inherits
	// neither an attempt nor a key or a report.
	for _, value := range []any{attemptContext{}, keyContext{}, reportContext{}} {
		ctx = context.WithValue(ctx, value, nil)
	}
	s.base, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	l, err := s.connect(ctx, t)
	if err != nil {
		s.stop()
		return nil, err
	}
	s.ClientSession, s.live = l.session, l
	r.add(l.session, s)
	return s, nil
}

func (r *Retry) add(cs *mcp.ClientSession, s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[cs] = s
}

func (r *Retry) forget(cs *mcp.ClientSession) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, cs)
}

func (r *Retry) session(cs *mcp.ClientSession) *Session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sessions[cs]
}

// Session is a connection to a server whose tool calls carry keys and survive
// lost responses. Its methods are those of the SDK's session. When the
// connection dies and can be made anew, the same Session goes on with it, and
// so does the embedded one for every request. What a server keeps per
// connection, such as subscriptions and the logging level, is not made anew.
type Session struct {
	*mcp.ClientSession // the first connection; never changes

	retry *Retry
	opts  mcp.ClientSessionOptions
	dial  func(context.Context) (mcp.Transport, error)
	base  context.Context // of connections; ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup // goroutines that Close waits for

	mu      sync.Mutex
	live    *link
	dialing *dialing // the connection that is being made; nil when none is
	closed  bool
}

// Close closes the session and every connection that it has made. Like the
// SDK's it waits for calls under way; those that wait for their next attempt
// end at once.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.tasks.Wait()
		return nil
	}
	s.closed = true
	live := s.live
	s.mu.Unlock()
	s.stop()

	dead := live.endpoint.broken() != nil
	err := live.close()
	s.retry.forget(live.session)
	if live.session != s.ClientSession {
		s.retry.forget(s.ClientSession)
	}
	s.tasks.Wait()
	if dead {
		return nil // it could not be closed cleanly
	}
	return err
}

// InitializeResult is that of the live connection.
func (s *Session) InitializeResult() *mcp.InitializeResult {
	return s.now().session.InitializeResult()
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
	settings := s.now().declared()
	if settings == nil {
		return schema.ServerSettings{}, false
	}
	return *settings, true
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

// now returns the newest connection, dead or not.
func (s *Session) now() *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}
