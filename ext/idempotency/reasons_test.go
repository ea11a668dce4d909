package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A reasonCase produces one reason over a connection.
type reasonCase struct {
	reason  schema.Reason
	when    string
	opt     idempotency.Options
	memory  memory.Options
	produce func(t *testing.T, f *fixture) reply
	effects int64 // that are had when it is answered
}

func toolOptions() map[string]idempotency.ToolOptions {
	return map[string]idempotency.ToolOptions{
		"required":          {Key: schema.KeyRequired},
		"unsupported":       {Key: schema.KeyUnsupported},
		"by_argument":       {KeyArgument: "effect_id"},
		"required_argument": {Key: schema.KeyRequired, KeyArgument: "effect_id"},
		"abortable":         {OnDisconnect: idempotency.Abort},
	}
}

func reasonCases() []reasonCase {
	return []reasonCase{
		{reason: schema.ReasonKeyMismatch, when: "other arguments, finished", effects: 1, produce: func(t *testing.T, f *fixture) reply {
			key := f.key()
			f.tool("charge", key, `{"amount":1}`)
			return f.tool("charge", key, `{"amount":2}`)
		}},
		{reason: schema.ReasonKeyMismatch, when: "other tool, finished", effects: 1, produce: func(t *testing.T, f *fixture) reply {
			key := f.key()
			f.tool("charge", key, `{"amount":1}`)
			return f.tool("declines", key, `{"amount":1}`)
		}},
		{reason: schema.ReasonKeyMismatch, when: "other arguments, running", effects: 1, produce: func(t *testing.T, f *fixture) reply {
			key := f.key()
			run := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
			f.awaitEntered("g")
			r := f.tool("gated", key, `{"gate":"other"}`)
			f.finish(run, "g")
			return r
		}},
		{reason: schema.ReasonKeyMismatch, when: "other tool, running", effects: 1, produce: func(t *testing.T, f *fixture) reply {
			key := f.key()
			run := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
			f.awaitEntered("g")
			r := f.tool("abortable", key, `{"gate":"g"}`)
			f.finish(run, "g")
			return r
		}},
		{reason: schema.ReasonKeyMismatch, when: "a tool that does not exist, known key", effects: 1, produce: func(t *testing.T, f *fixture) reply {
			key := f.key()
			f.tool("charge", key, `{"amount":1}`)
			return f.tool("no_such_tool", key, `{"amount":1}`)
		}},
		{reason: schema.ReasonKeyRequired, when: "no key", produce: func(t *testing.T, f *fixture) reply {
			return f.tool("required", "", `{"amount":1}`)
		}},
		{reason: schema.ReasonKeyRequired, when: "no key argument", produce: func(t *testing.T, f *fixture) reply {
			return f.tool("required_argument", "", `{"amount":1}`)
		}},
		{reason: schema.ReasonKeyUnsupported, when: "a key", produce: func(t *testing.T, f *fixture) reply {
			return f.tool("unsupported", f.key(), `{"amount":1}`)
		}},
		{reason: schema.ReasonKeyInvalid, when: "malformed", produce: func(t *testing.T, f *fixture) reply {
			return f.tool("charge", "no-dot", `{"amount":1}`)
		}},
		{reason: schema.ReasonKeyInvalid, when: "malformed, a tool that does not exist: the path check", produce: func(t *testing.T, f *fixture) reply {
			return f.tool("no_such_tool", "!", `{}`)
		}},
		{reason: schema.ReasonPrincipalUnknown, when: "the function cannot tell",
			opt: idempotency.Options{Principal: func(context.Context, *mcp.CallToolRequest) (string, error) { return "", errors.New("no subject") }},
			produce: func(t *testing.T, f *fixture) reply {
				return f.tool("charge", f.key(), `{"amount":1}`)
			}},
		{reason: schema.ReasonNamespaceNotHeld, when: "never held", produce: func(t *testing.T, f *fixture) reply {
			r := f.tool("charge", "elsewhere.key-1", `{"amount":1}`)
			if got, want := r.ext().KeyNamespace, f.namespace(); got != want {
				t.Errorf("keyNamespace is %q, declared is %q", got, want)
			}
			return r
		}},
		{reason: schema.ReasonNamespaceNotHeld, when: "dropped after retention", effects: 1,
			memory: memory.Options{RotateEvery: time.Hour, ClosingFor: time.Hour, Retention: time.Hour},
			produce: func(t *testing.T, f *fixture) reply {
				key := f.key()
				f.tool("charge", key, `{"amount":1}`)
				for range 4 {
					f.clock.advance(time.Hour)
					f.namespace()
				}
				return f.tool("charge", key, `{"amount":1}`)
			}},
		{reason: schema.ReasonNamespaceClosed, when: "rotated and closed",
			memory: memory.Options{RotateEvery: time.Hour, ClosingFor: time.Hour},
			produce: func(t *testing.T, f *fixture) reply {
				key := f.key()
				f.clock.advance(time.Hour)
				current := f.namespace()
				f.clock.advance(time.Hour)
				if r := f.tool("charge", key, `{"amount":1}`); r.ext().KeyNamespace != current && r.ext().KeyNamespace != f.namespace() {
					t.Errorf("keyNamespace is not the current one: %v", r)
				}
				return f.tool("charge", key, `{"amount":1}`)
			}},
		{reason: schema.ReasonCapacityExceeded, when: "the store is full", effects: 1, memory: memory.Options{MaxRecords: 1},
			produce: func(t *testing.T, f *fixture) reply {
				f.tool("charge", f.key(), `{"amount":1}`)
				return f.tool("charge", f.key(), `{"amount":1}`)
			}},
		{reason: schema.ReasonStoreUnavailable, when: "the store does not answer", opt: idempotency.Options{Store: brokenStore{memory.New(nil)}},
			produce: func(t *testing.T, f *fixture) reply {
				return f.tool("charge", f.key(), `{"amount":1}`)
			}},
		{reason: schema.ReasonStillRunning, when: "no waiting", effects: 1, opt: idempotency.Options{WaitLimit: -1}, produce: stillRunning},
		{reason: schema.ReasonStillRunning, when: "waited", effects: 1, opt: idempotency.Options{WaitLimit: 20 * time.Millisecond}, produce: stillRunning},
		{reason: schema.ReasonResultUnavailable, when: "evicted", effects: 2, memory: memory.Options{MaxResultBytes: 300},
			produce: func(t *testing.T, f *fixture) reply {
				key := f.key()
				f.tool("charge", key, `{"amount":1}`)
				f.tool("large", f.key(), `{"amount":200}`)
				return f.tool("charge", key, `{"amount":1}`)
			}},
		// S3, S4: a result is kept whole or not at all, and its call never runs again.
		{reason: schema.ReasonResultUnavailable, when: "too large to keep", effects: 1, opt: idempotency.Options{MaxResultBytes: 1000},
			produce: func(t *testing.T, f *fixture) reply {
				key := f.key()
				if r := f.tool("large", key, `{"amount":2000}`); !strings.Contains(string(r.Result), strings.Repeat("x", 2000)) || r.replayed() {
					t.Errorf("the live caller did not get the large result: %v", r)
				}
				return f.tool("large", key, `{"amount":2000}`)
			}},
		{reason: schema.ReasonNoEffect, when: "first answer", effects: 1, produce: func(t *testing.T, f *fixture) reply {
			return f.tool("no_effect", f.key(), `{"amount":1}`)
		}},
		{reason: schema.ReasonNoEffect, when: "replayed", effects: 1, produce: func(t *testing.T, f *fixture) reply {
			key := f.key()
			f.tool("no_effect", key, `{"amount":1}`)
			return f.tool("no_effect", key, `{"amount":1}`)
		}},
		{reason: schema.ReasonOutcomeUnknown, when: "execution limit, the caller", opt: idempotency.Options{MaxExecution: 10 * time.Millisecond},
			produce: func(t *testing.T, f *fixture) reply {
				return f.tool("gated", f.key(), `{"gate":"g"}`)
			}},
		{reason: schema.ReasonOutcomeUnknown, when: "execution limit, afterwards", opt: idempotency.Options{MaxExecution: 10 * time.Millisecond},
			produce: func(t *testing.T, f *fixture) reply {
				key := f.key()
				f.tool("gated", key, `{"gate":"g"}`)
				return f.tool("gated", key, `{"gate":"g"}`)
			}},
	}
}

func stillRunning(t *testing.T, f *fixture) reply {
	key := f.key()
	run := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
	f.awaitEntered("g")
	r := f.tool("gated", key, `{"gate":"g"}`)
	f.finish(run, "g")
	return r
}

// brokenStore cannot be asked, but declares its namespace.
type brokenStore struct{ store.Store }

func (brokenStore) Reserve(context.Context, store.Attempt) (store.Reservation, error) {
	return store.Reservation{}, errors.New("connection refused")
}

func TestEveryReasonIsProducedOnEveryConnection(t *testing.T) {
	for _, c := range reasonCases() {
		t.Run(string(c.reason)+"/"+c.when, func(t *testing.T) {
			on(t, connectors(), func() *idempotency.Options {
				o := c.opt
				o.Tools = toolOptions()
				return &o
			}, &c.memory, func(t *testing.T, f *fixture) {
				wantReason(t, c.produce(t, f), c.reason)
				f.wantEffects(c.effects)
			})
		})
	}
}

func TestNoReasonIsWithoutATest(t *testing.T) {
	have := map[schema.Reason]bool{}
	for _, c := range reasonCases() {
		have[c.reason] = true
	}
	for _, r := range schema.Reasons() {
		if !have[r.Reason] {
			t.Errorf("no case produces %s", r.Reason)
		}
	}
}

// The extension errors say how long to wait, as the options say.
func TestRetryAfterIsTheOptions(t *testing.T) {
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{Store: brokenStore{memory.New(nil)}, RetryAfter: 1234 * time.Millisecond}
	}, func(t *testing.T, f *fixture) {
		r := f.tool("charge", f.key(), `{"amount":1}`)
		if d := r.ext(); d.RetryAfterMs == nil || *d.RetryAfterMs != 1234 {
			t.Errorf("retryAfterMs is not 1234: %v", r)
		}
	})
}
