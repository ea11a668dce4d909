package idempotency

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// Methods of MCP that the middleware touches.
const (
	methodInitialize = "initialize"
	methodDiscover   = "server/discover"
	methodListTools  = "tools/list"
	methodCallTool   = schema.MethodCallTool
)

// Idempotency is the middleware with its state. One serves any number of
// servers and connections, which then share its records. Make it with [New].
type Idempotency struct {
	opt     Options
	lifter  *wire.Lifter
	adapter string // the secret by which requests from Handler are known
	tools   toolChecker

	tokenBase [8]byte // random, so that tokens of other processes differ
	tokens    atomic.Uint64

	// piped is set once Transport has wrapped a byte transport, whose
	// requests cannot say themselves that the adapter saw them.
	piped atomic.Bool

	waiters atomic.Int64 // duplicates that wait now

	watchdog watchdog // of the execution limits
	local    bool     // the store's steps never block

	mu            sync.Mutex
	runs          map[store.Token]*run     // of this process, under way
	orphans       map[store.Token]struct{} // perhaps reserved, never started
	transactional map[string]bool          // tools that enlist their transaction
}

// New returns the middleware. opt may be nil. It panics on options that can
// only be a mistake: a negative bound, or a ToolOptions.Key that is no
// [schema.KeyUse].
func New(opt *Options) *Idempotency {
	m := &Idempotency{
		opt:           opt.withDefaults(),
		lifter:        wire.NewLifter(),
		adapter:       rand.Text(),
		runs:          map[store.Token]*run{},
		orphans:       map[store.Token]struct{}{},
		transactional: map[string]bool{},
	}
	_, m.local = m.opt.Store.(store.Local)
	_, _ = rand.Read(m.tokenBase[:]) // never fails
	return m
}

// Install adds the middleware to a server. Middleware added before stays
// inside it and runs once per execution; middleware added later is outside
// and sees every attempt. Authorization and rate limits belong outside: an
// error from inside counts as raised by the tool.
func (m *Idempotency) Install(server *mcp.Server) {
	server.AddReceivingMiddleware(m.Middleware())
}

// Middleware returns what Install adds, for those who order middleware by
// themselves.
func (m *Idempotency) Middleware() mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch method {
			case methodCallTool:
				if call, ok := req.(*mcp.CallToolRequest); ok {
					return m.callTool(ctx, call, next)
				}
			case methodInitialize, methodDiscover:
				res, err := next(ctx, method, req)
				if err != nil {
					return nil, err
				}
				return m.declare(ctx, req, res), nil
			case methodListTools:
				res, err := next(ctx, method, req)
				if err != nil {
					return nil, err
				}
				return m.decorate(res), nil
			}
			return next(ctx, method, req)
		}
	}
}

func (m *Idempotency) newToken() (t store.Token) {
	copy(t[:8], m.tokenBase[:])
	binary.BigEndian.PutUint64(t[8:], m.tokens.Add(1))
	return t
}
