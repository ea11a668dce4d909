package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A call is one keyed `tools/call` on its way through the middleware.
type call struct {
	*Idempotency
	req  *mcp.CallToolRequest
	next mcp.MethodHandler
	opt  ToolOptions

	attempt store.Attempt
	state   string // the tool's own requestState
	// inner is the record key from the tool's own argument, for a call that
	// has a protocol key as well; empty otherwise.
	inner string
	// continued is true when the run answers a question of the tool's.
	continued bool

	refusal    mcp.Result // the answer when the call cannot reach its handler
	refusalErr error
}

// callTool is the server's side of a call: the order of the SEP's section
// "Order of checks".
func (m *Idempotency) callTool(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler) (mcp.Result, error) {
	opt := m.opt.tool(req.Params.Name)
	key, err := requestKey(req.Params.Meta, m.lifter.Name())
	continued, wrapped := unwrapState(req.Params.RequestState)
	if errors.Is(err, errNoKey) && wrapped {
		key, err = continued.key, nil
	}
	var inner string
	if err == nil || errors.Is(err, errNoKey) {
		argKey, argErr := argumentKey(req.Params.Name, opt.KeyArgument, req.Params.Arguments)
		switch {
		case errors.Is(argErr, errNoKey):
		case argErr != nil:
			err = argErr
		case err != nil:
			key, err = argKey, nil
		case argKey != key:
			inner = argKey
		}
	}
	if errors.Is(err, errNoKey) {
		return m.unkeyed(ctx, req, opt, next)
	}
	if m.opt.Authorize != nil {
		if err := m.opt.Authorize(ctx, req); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	c := &call{Idempotency: m, req: m.stripped(req), next: next, opt: opt, inner: inner}
	if err := c.prepare(ctx, key, continued, wrapped); err != nil {
		return nil, err
	}
	return c.serve(ctx)
}

// unkeyed passes a call without a key on, as if the extension were not there.
func (m *Idempotency) unkeyed(ctx context.Context, req *mcp.CallToolRequest, opt ToolOptions, next mcp.MethodHandler) (mcp.Result, error) {
	if opt.Key == schema.KeyRequired {
		if opt.KeyArgument != "" {
			return nil, extError(schema.ReasonKeyRequired, 0, "",
				"nothing was run: the tool %q needs its argument %q, which identifies the intended effect. Call it again with one, "+
					"and use the same value whenever you repeat this call.", req.Params.Name, opt.KeyArgument)
		}
		return nil, extError(schema.ReasonKeyRequired, 0, "",
			"nothing was run: the tool %q only takes calls with an idempotency key, which the client software sends (extension %s). "+
				"Use a client that supports it; no other arguments will help.", req.Params.Name, schema.ExtensionID)
	}
	return next(ctx, methodCallTool, req)
}

// stripped returns the request without the adapter's private member.
func (m *Idempotency) stripped(req *mcp.CallToolRequest) *mcp.CallToolRequest {
	if _, ok := req.Params.Meta[m.lifter.Name()]; !ok {
		return req
	}
	r, p := *req, *req.Params
	p.Meta = make(mcp.Meta, len(req.Params.Meta))
	for k, v := range req.Params.Meta {
		if k != m.lifter.Name() {
			p.Meta[k] = v
		}
	}
	r.Params = &p
	return &r
}

// prepare fills in the attempt, up to where the store is asked.
func (c *call) prepare(ctx context.Context, key string, continued round, wrapped bool) error {
	p := c.req.Params
	principal, err := c.Idempotency.opt.Principal(ctx, c.req)
	if err != nil {
		return extError(schema.ReasonPrincipalUnknown, 0, "", "nothing was run: %v", err)
	}
	if principal == "" && c.guessable(key) {
		return extError(schema.ReasonKeyInvalid, 0, "",
			"nothing was run: without authentication the part of an idempotency key after its namespace has to be random, and at least %d characters long",
			c.Idempotency.opt.MinAnonymousKey)
	}
	if len(p.Arguments) > c.Idempotency.opt.MaxArgumentBytes {
		return invalidParams("arguments have %d bytes; this server takes at most %d in a call with an idempotency key",
			len(p.Arguments), c.Idempotency.opt.MaxArgumentBytes)
	}
	fp, err := fingerprint(p.Name, p.Arguments)
	if err != nil {
		return invalidParams("%v", err)
	}
	c.attempt = store.Attempt{
		ID:          store.ID{Principal: principal, Key: key},
		Fingerprint: fp,
		Token:       c.newToken(),
		Lease:       c.Idempotency.opt.Lease,

		Transactional: c.isTransactional(p.Name),
	}
	if c.attempt.Answers, err = answersOf(p.InputResponses); err != nil {
		return invalidParams("inputResponses: %v", err)
	}
	c.state = p.RequestState
	if wrapped {
		if continued.key != key {
			return invalidParams("the requestState belongs to a call with another idempotency key; nothing was run")
		}
		c.attempt.Nonce, c.state = continued.nonce, continued.state
	}
	c.refusal, c.refusalErr = c.check(ctx)
	c.attempt.Peek = c.refusal != nil || c.refusalErr != nil
	return nil
}

// guessable reports whether a key is too short for an anonymous principal. Keys
// from a tool's own argument are as its author wants them.
func (c *call) guessable(key string) bool {
	ns, local, _ := strings.Cut(key, ".")
	return ns != "" && len(local) < c.Idempotency.opt.MinAnonymousKey
}

// check finds what the call would be refused for if its key were new. It is
// asked before the store, so that look-up and reserve are one step, and
// answered after it, so that a known key is replayed whatever became of the
// tool.
func (c *call) check(ctx context.Context) (mcp.Result, error) {
	if c.opt.Key == schema.KeyUnsupported {
		return nil, extError(schema.ReasonKeyUnsupported, 0, "",
			"nothing was run: the tool %q takes no idempotency keys; call it without one", c.req.Params.Name)
	}
	res, err := c.tools.check(ctx, c.req, c.next)
	if res != nil {
		res = markResult(res, false)
	}
	return res, err
}

// serve asks the store what the attempt is and acts on it, again after every
// wait for another run.
func (c *call) serve(ctx context.Context) (mcp.Result, error) {
	deadline := time.Now().Add(c.Idempotency.opt.WaitLimit)
	if c.inner != "" && !c.attempt.Peek {
		if err := c.awaitInner(ctx, deadline); err != nil {
			return nil, err
		}
	}
	return c.serveUntil(ctx, deadline)
}

// serveUntil is serve with a limit for all waits together.
func (c *call) serveUntil(ctx context.Context, deadline time.Time) (mcp.Result, error) {
	for {
		r := c.register(c.attempt.Token)
		res, err := c.reserve(ctx)
		if err != nil || res.Verdict != store.Run {
			c.unregister(r)
		}
		if err != nil {
			return nil, c.unavailable(err)
		}
		switch res.Verdict {
		case store.Run:
			return c.execute(ctx, r, res)
		case store.Joinable:
			answer, done, err := c.join(ctx, res.Record, deadline)
			if done || err != nil {
				return answer, err
			}
		default:
			return c.answer(ctx, res)
		}
	}
}

// reserve is one step of the store. A reservation whose acknowledgement was
// lost is asked for once more by its token; when that fails too the token is
// kept, so that a later attempt in this process takes the orphan over.
func (c *call) reserve(ctx context.Context) (store.Reservation, error) {
	try := func() (store.Reservation, error) {
		sctx, cancel := c.storeContext(ctx)
		defer cancel()
		return c.Idempotency.opt.Store.Reserve(sctx, c.attempt)
	}
	res, err := try()
	if err == nil || c.attempt.Peek {
		return res, err
	}
	if res, err = try(); err == nil {
		return res, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.orphans) < maxOrphans {
		c.orphans[c.attempt.Token] = struct{}{}
	}
	return res, err
}

// maxOrphans bounds the reservations that are remembered because their
// acknowledgement was lost. An orphan that is not remembered becomes an
// unknown outcome when its lease passes: safe, and less helpful.
const maxOrphans = 10_000

// answer turns every verdict that needs no run and no wait into an answer.
func (c *call) answer(ctx context.Context, res store.Reservation) (mcp.Result, error) {
	short := c.shortKey()
	switch res.Verdict {
	case store.Free:
		return c.refusal, c.refusalErr
	case store.Mismatch:
		return nil, extError(schema.ReasonKeyMismatch, 0, "",
			"nothing was run: the idempotency key %s was used before with another tool or other arguments; its record is unchanged", short)
	case store.NamespaceNotHeld:
		return nil, extError(schema.ReasonNamespaceNotHeld, 0, res.Current,
			"nothing was run: this server does not hold the records of the namespace of key %s and cannot tell whether the call ran before", short)
	case store.NamespaceClosed:
		return nil, extError(schema.ReasonNamespaceClosed, 0, res.Current,
			"nothing was run, and no call with the key %s ever ran: its namespace takes no new keys; make a key in the current one", short)
	case store.NoRoom:
		return nil, extError(schema.ReasonCapacityExceeded, max(res.RetryAfter, time.Millisecond), "",
			"nothing was run: the record store has no room to remember the key %s", short)
	case store.Asked:
		if !modern(c.req) {
			return nil, extError(schema.ReasonStillRunning, 0, "",
				"the call waits for input that was asked for on another protocol revision; continue it there")
		}
		return c.replay(ctx, res.Record)
	case store.Known:
		return c.replay(ctx, res.Record)
	}
	return nil, extError(schema.ReasonStoreUnavailable, c.Idempotency.opt.RetryAfter, "", "nothing was run: the record store gave no verdict")
}

// replay answers from a record that has ended or asks.
func (c *call) replay(_ context.Context, rec store.Record) (mcp.Result, error) {
	switch {
	case rec.State == store.Unknown:
		return nil, c.unknown()
	case rec.State == store.NoEffect && rec.Outcome == nil:
		return nil, noEffectError("the tool said that the call had no effect; its message is no longer kept")
	case rec.Outcome == nil:
		return nil, extError(schema.ReasonResultUnavailable, 0, "",
			"the call with key %s ran to its end, but its result is not kept; do not repeat it under a new key without checking its effect", c.shortKey())
	}
	res, err := decode(rec.Outcome, modern(c.req))
	if errors.Is(err, errBlob) {
		c.Idempotency.opt.Logger.Error("idempotency: record unreadable", "key", c.shortKey(), "error", err)
		return nil, extError(schema.ReasonResultUnavailable, 0, "", "the call with key %s ran to its end, but its record cannot be read", c.shortKey())
	}
	return res, err
}

// unavailable is the answer when the store could not be asked; nil for nil.
func (c *call) unavailable(err error) error {
	if err == nil {
		return nil
	}
	c.Idempotency.opt.Logger.Error("idempotency: store unavailable, call refused", "key", c.shortKey(), "error", err)
	return extError(schema.ReasonStoreUnavailable, c.Idempotency.opt.RetryAfter, "",
		"nothing was run: the record store does not answer; send the same key again later")
}

func (c *call) unknown() error {
	return extError(schema.ReasonOutcomeUnknown, 0, "",
		"a call with the key %s started and how it ended is not known; it was not run again. Check its effect before calling anew", c.shortKey())
}

// shortKey names the key in messages and logs.
func (c *call) shortKey() string {
	if strings.HasPrefix(c.attempt.Key, argumentPrefix) {
		return fmt.Sprintf("in its argument %q", c.opt.KeyArgument)
	}
	return schema.ShortKey(c.attempt.Key)
}

// storeContext bounds a step of the store, and keeps it from being cut short
// by a caller that goes away: half a reserve helps nobody.
func (m *Idempotency) storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if m.local {
		return ctx, func() {} // it does not look at it
	}
	return context.WithTimeout(context.WithoutCancel(ctx), m.opt.StoreTimeout)
}

// modern reports whether the request speaks a revision with multi round-trip
// results.
func modern(req *mcp.CallToolRequest) bool { return req.ProtocolVersion() >= "2026-07-28" }
