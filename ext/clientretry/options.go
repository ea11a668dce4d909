package clientretry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Options configure a [Retry]. The zero value of every field works; a nil
// *Options is the same as an empty one.
type Options struct {
	// Attempts bounds the attempts of one call, the first included; a path
	// check that is lost and a connection that cannot be made count too.
	// Default 4; 1 never re-sends. Negative is a mistake.
	Attempts int
	// AttemptTimeout is how long the client waits for the response to one
	// attempt, from when it is sent. What comes of it is decided as for any
	// other loss, and the server is not told to cancel. Default: 60 s for a
	// call with a key, which joins its own first attempt when it is sent
	// again; none for a call without, which could only be given up. Negative
	// is a mistake.
	AttemptTimeout time.Duration
	// ToolTimeouts overrides AttemptTimeout by tool name, for calls with and
	// without a key.
	ToolTimeouts map[string]time.Duration
	// Deadline bounds a whole call with all its attempts and waits. It is
	// looked at between attempts: an attempt that it finds under way is
	// settled by its own timeout, which is shortened to the deadline. In a
	// multi round-trip call it starts anew with every round, so that a user may
	// take time to answer. Default: for a call with a key 5 min, or Attempts
	// attempt timeouts when that is more; none for a call without. Negative:
	// only the caller's context bounds it.
	Deadline time.Duration

	// BackoffBase and BackoffMax shape the wait before the n-th re-send: a
	// random time between zero and BackoffBase·2ⁿ⁻¹, at most BackoffMax.
	// Where the server asks for a wait, it is that and a random part of
	// BackoffBase instead; a call that cannot wait so long ends at once.
	// Defaults 100 ms and 5 s. Negative is a mistake.
	BackoffBase time.Duration
	BackoffMax  time.Duration

	// Dial makes the transport of a new connection after one died, for
	// example a new process for a stdio server. Default: a copy of the first
	// transport when that is a *mcp.StreamableClientTransport; otherwise none,
	// and a connection that died stays dead. A Retry with Dial is for one
	// server.
	Dial func(context.Context) (mcp.Transport, error)
	// DialTimeout bounds one try to connect again, handshake included.
	// Default 30 s. Negative is a mistake.
	DialTimeout time.Duration

	// RetryUnkeyed is the caller's own word that a tool is safe to run twice,
	// such as a read: it is re-sent after a loss without a key where the
	// server takes none. Default: no tool is. Annotations do not count.
	RetryUnkeyed func(tool string) bool

	// Strict is for networks that may deliver a request twice. A refusal then
	// does not show that nothing ran: a second key for a call is never made,
	// and a keyed call that ends in notRun, or in a session that was gone, is
	// reported as unknown.
	Strict bool

	// Identity tells as whom an HTTP request is sent; a call is not re-sent
	// as somebody else. Default: issuer and subject when the Authorization
	// header holds a JWT, otherwise the header as it is. Needed when the
	// *http.Client adds the credentials, since this layer sits above it.
	Identity func(*http.Request) string

	// MaxResponseBytes bounds a response in application/json, which has to be
	// read whole before it can be told from a cut one. A larger one counts as
	// lost. Default 256 MiB; negative: no bound. A server-sent event is bounded
	// by the transport's MaxEventSize.
	MaxResponseBytes int64

	// Logger reports losses, re-sends and possible duplicates, with shortened
	// keys and without arguments and results. Default: none.
	Logger *slog.Logger
}

// withDefaults copies o and fills it in. It panics on negative bounds.
func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	c.Attempts = cmp.Or(c.Attempts, 4)
	c.BackoffBase = cmp.Or(c.BackoffBase, 100*time.Millisecond)
	c.BackoffMax = cmp.Or(c.BackoffMax, 5*time.Second)
	c.DialTimeout = cmp.Or(c.DialTimeout, 30*time.Second)
	c.MaxResponseBytes = cmp.Or(c.MaxResponseBytes, 256<<20)
	c.ToolTimeouts = maps.Clone(c.ToolTimeouts)
	bounds := map[string]time.Duration{
		"Attempts": time.Duration(c.Attempts), "AttemptTimeout": c.AttemptTimeout,
		"BackoffBase": c.BackoffBase, "BackoffMax": c.BackoffMax, "DialTimeout": c.DialTimeout,
	}
	for tool, d := range c.ToolTimeouts {
		bounds["ToolTimeouts["+tool+"]"] = d
	}
	for name, v := range bounds {
		if v < 0 {
			panic(fmt.Sprintf("clientretry.New: Options.%s is negative (%d)", name, v))
		}
	}
	if c.Identity == nil {
		c.Identity = authorization
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// limits are the time bounds of one call; zero is none.
type limits struct{ attempt, total time.Duration }

// limits of a call of a tool, with or without a key.
func (o *Options) limits(tool string, keyed bool) limits {
	l := limits{attempt: cmp.Or(o.ToolTimeouts[tool], o.AttemptTimeout), total: o.Deadline}
	if keyed {
		l.attempt = cmp.Or(l.attempt, time.Minute)
		l.total = cmp.Or(l.total, max(5*time.Minute, time.Duration(o.Attempts)*l.attempt))
	}
	l.total = max(l.total, 0)
	return l
}
