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
	// Attempts bounds the attempts of one call, the first included. Default
	// 4; 1 never re-sends. Negative is a mistake.
	Attempts int
	// AttemptTimeout is how long the client waits for the response to one
	// attempt, from when it is sent. Default 60 s. Negative is a mistake.
	AttemptTimeout time.Duration
	// ToolTimeouts overrides AttemptTimeout by tool name.
	ToolTimeouts map[string]time.Duration
	// Deadline bounds a whole call with all its attempts and waits. It is
	// looked at between attempts: an attempt that it finds under way is
	// settled by its own timeout, which is shortened to the deadline. Default
	// 5 min; negative: only the caller's context bounds it.
	Deadline time.Duration

	// BackoffBase and BackoffMax shape the wait before the n-th re-send: a
	// random time between zero and BackoffBase·2ⁿ⁻¹, at most BackoffMax, and
	// not less than what the server asks for. Defaults 100 ms and 5 s.
	BackoffBase time.Duration
	BackoffMax  time.Duration

	// Dial makes the transport of a new connection after one died, for
	// example a new process for a stdio server. Default: a copy of the first
	// transport when that is a *mcp.StreamableClientTransport; otherwise none,
	// and a connection that died stays dead.
	Dial func(context.Context) (mcp.Transport, error)

	// RetryUnkeyed is the caller's own word that a tool is safe to run twice,
	// such as a read: it is re-sent after a loss without a key where the
	// server takes none. Default: no tool is. Annotations do not count.
	RetryUnkeyed func(tool string) bool

	// Strict never makes a second key for a call, for networks that may
	// deliver a request twice.
	Strict bool

	// Identity tells as whom an HTTP request is sent; a call is not re-sent
	// as somebody else. Default: issuer and subject when the Authorization
	// header holds a JWT, otherwise the header as it is. Needed when a
	// transport below adds credentials.
	Identity func(*http.Request) string

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
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, time.Minute)
	c.Deadline = cmp.Or(c.Deadline, 5*time.Minute)
	c.BackoffBase = cmp.Or(c.BackoffBase, 100*time.Millisecond)
	c.BackoffMax = cmp.Or(c.BackoffMax, 5*time.Second)
	c.ToolTimeouts = maps.Clone(c.ToolTimeouts)
	bounds := map[string]time.Duration{
		"Attempts": time.Duration(c.Attempts), "AttemptTimeout": c.AttemptTimeout,
		"BackoffBase": c.BackoffBase, "BackoffMax": c.BackoffMax,
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

// timeout is the attempt timeout of a tool.
func (o *Options) timeout(tool string) time.Duration {
	return cmp.Or(o.ToolTimeouts[tool], o.AttemptTimeout)
}
