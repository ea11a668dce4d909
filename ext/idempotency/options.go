package idempotency

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// Options configure the middleware. The zero value of every field works; a nil
// *Options is the same as an empty one.
type Options struct {
	// Store remembers the records. Default: a fresh memory store with its
	// default bounds, which is honest after a crash but forgets.
	Store store.Store

	// Tools says, by tool name, how single tools treat keys. Names that the
	// server does not have do no harm.
	Tools map[string]ToolOptions
	// Default is for the tools that Tools does not name.
	Default ToolOptions

	// Principal tells whose record a call belongs to. It must be stable for a
	// subject (across token refreshes) and different for different subjects;
	// an empty string is the shared anonymous principal. An error refuses the
	// call with principalUnknown. Default: the UserID of the request's
	// auth.TokenInfo; without TokenInfo anonymous; with one whose UserID is
	// empty an error.
	Principal func(ctx context.Context, req *mcp.CallToolRequest) (string, error)

	// MinAnonymousKey is the shortest that the part of a key after its namespace
	// may be, in characters, when the principal is anonymous: whoever guesses
	// such a key reads its result. A shorter one is keyInvalid. Default 22,
	// which have room for 128 random bits; negative: 1, for a server that only
	// one client can reach.
	MinAnonymousKey int

	// Authorize is asked before every keyed call, so that a replay is
	// authorized like a first call. An error is the answer: return a
	// *jsonrpc.Error to set code and data. Default: none. Authorization in
	// middleware that is added to the server after Install needs no hook.
	Authorize func(ctx context.Context, req *mcp.CallToolRequest) error

	// AcceptOnly accepts keys without declaring the capability: the first
	// step of a roll-out over several replicas, and the last of a roll-back.
	// The second step is to declare, once every replica accepts.
	AcceptOnly bool

	// WaitLimit is how long a duplicate waits for the run that it joined
	// before it is answered stillRunning. Default 30 s; negative: not at all.
	WaitLimit time.Duration
	// MaxWaiters bounds the duplicates that wait at one time, over all keys;
	// one more is answered stillRunning at once. Default 4096.
	MaxWaiters int
	// RetryAfter is what stillRunning and storeUnavailable advise. Default 1 s.
	RetryAfter time.Duration

	// MaxExecution is how long a keyed call may run before its context is
	// cancelled and its outcome counts as unknown. Default 10 min; negative:
	// no limit. ToolOptions can set it per tool.
	MaxExecution time.Duration
	// Lease is how long a run that is not renewed counts as alive, in stores
	// that outlive the process. Runs renew three times as often. Default 30 s.
	Lease time.Duration
	// StoreTimeout bounds each step of the store. Default 5 s.
	StoreTimeout time.Duration

	// MaxResultBytes bounds a result that is kept for replay, in bytes of its
	// JSON. A larger one is delivered to those who wait for it, and afterwards
	// answered resultUnavailable. Default 8 MiB.
	MaxResultBytes int
	// MaxArgumentBytes bounds the arguments of a keyed call, in bytes of
	// their JSON; larger ones are refused with -32602. Default 1 MiB.
	MaxArgumentBytes int
	// MaxRequestBytes bounds a request body that [Idempotency.Handler] reads;
	// larger ones are answered 413. Default 4 MiB, as in the SDK: raise both
	// together. Negative: no limit.
	MaxRequestBytes int64

	// Logger reports what an operator should see: a store that fails, a run
	// whose outcome is unknown. Keys are shortened; arguments and results are
	// never logged. Default: none.
	Logger *slog.Logger
}

// ToolOptions say how one tool treats keys.
type ToolOptions struct {
	// Key is optional (the zero value), required or unsupported.
	Key schema.KeyUse
	// KeyArgument names an argument of the tool, for example "effect_id",
	// that identifies the intended effect. Clients that do not know the
	// extension get the guarantee by repeating it; it holds for as long as
	// the server's records do. Two calls with one value are one call, also
	// when they carry different keys; and anonymous callers share them, so that
	// one who guesses a value reads its result.
	KeyArgument string
	// OnDisconnect says what becomes of the run when its callers are gone.
	OnDisconnect Disconnect
	// MaxExecution overrides Options.MaxExecution for the tool when it is not
	// zero, and is then announced in the tool's hint when it is positive.
	MaxExecution time.Duration
}

// Disconnect says what a run does when nobody waits for it any more.
type Disconnect uint8

const (
	// RunOn lets it run to its end, so that a retry finds a result.
	RunOn Disconnect = iota
	// Abort cancels the handler's context, unless another attempt waits for
	// the same run. A handler that then returns an error without saying that
	// it had no effect leaves the outcome unknown.
	Abort
)

// withDefaults copies o and fills it in. It panics on what can only be a
// mistake in the program.
func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Store == nil {
		c.Store = memory.New(nil)
	}
	c.Tools = maps.Clone(c.Tools)
	for name, t := range c.Tools {
		t.check(name)
	}
	c.Default.check("(default)")
	if c.Principal == nil {
		c.Principal = tokenPrincipal
	}
	c.MinAnonymousKey = cmp.Or(c.MinAnonymousKey, 22)
	c.WaitLimit = cmp.Or(c.WaitLimit, 30*time.Second)
	c.MaxWaiters = cmp.Or(c.MaxWaiters, 4096)
	c.RetryAfter = cmp.Or(c.RetryAfter, time.Second)
	c.MaxExecution = cmp.Or(c.MaxExecution, 10*time.Minute)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.StoreTimeout = cmp.Or(c.StoreTimeout, 5*time.Second)
	c.MaxResultBytes = cmp.Or(c.MaxResultBytes, 8<<20)
	c.MaxArgumentBytes = cmp.Or(c.MaxArgumentBytes, 1<<20)
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, 4<<20)
	for name, v := range map[string]int64{
		"MaxWaiters": int64(c.MaxWaiters), "RetryAfter": int64(c.RetryAfter), "Lease": int64(c.Lease),
		"StoreTimeout": int64(c.StoreTimeout), "MaxResultBytes": int64(c.MaxResultBytes),
		"MaxArgumentBytes": int64(c.MaxArgumentBytes),
	} {
		if v < 0 {
			panic(fmt.Sprintf("idempotency.New: Options.%s is negative (%d)", name, v))
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (t ToolOptions) check(name string) {
	switch t.Key {
	case "", schema.KeyOptional, schema.KeyRequired, schema.KeyUnsupported:
	default:
		panic(fmt.Sprintf("idempotency.New: tool %s: Key is %q, not optional, required or unsupported", name, t.Key))
	}
	if t.OnDisconnect > Abort {
		panic(fmt.Sprintf("idempotency.New: tool %s: OnDisconnect is %d, not RunOn or Abort", name, t.OnDisconnect))
	}
}

func (o *Options) tool(name string) ToolOptions {
	t, ok := o.Tools[name]
	if !ok {
		t = o.Default
	}
	t.Key = cmp.Or(t.Key, schema.KeyOptional)
	return t
}

// hint is what `tools/list` says of the tool.
func (t ToolOptions) hint() schema.ToolHint {
	return schema.ToolHint{Key: t.Key, MaxExecutionMs: max(0, t.MaxExecution.Milliseconds())}
}
