package clientretry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A call is one CallTool with all its attempts.
type call struct {
	s      *Session
	opt    *Options
	next   mcp.MethodHandler
	params *mcp.CallToolParams

	given    string // the caller's key
	key      string // the key in use; empty for none
	sent     bool   // an attempt with it was on the wire
	h        history
	identity *identity

	deadline time.Time   // zero for none
	lostAt   time.Time   // the last loss
	rounds   []time.Time // when each round was first sent
	roundAt  time.Time   // when the round that the last attempt ended in was
	attempts int
	report   Report
}

var errNoProof = errors.New("a response was lost, and there is no proof that idempotency keys reach the server: nothing was sent again")

// call makes a tool call: attempts, and a decision after each.
func (s *Session) call(ctx context.Context, next mcp.MethodHandler, params *mcp.CallToolParams) (mcp.Result, error) {
	started := time.Now()
	c := &call{s: s, opt: &s.retry.opt, next: next, params: params, identity: &identity{of: s.retry.opt.Identity}}
	c.given, _ = ctx.Value(keyContext{}).(string)
	out, _ := ctx.Value(reportContext{}).(*Report)
	// Handlers of the client run under this context and may call tools of
	// their own: those are other calls.
	ctx = context.WithValue(context.WithValue(ctx, keyContext{}, nil), reportContext{}, nil)
	if c.opt.Deadline > 0 {
		c.deadline = started.Add(c.opt.Deadline)
	}
	res, err := c.run(ctx)
	c.report.Key, c.report.Attempts, c.report.Elapsed = c.key, c.attempts, time.Since(started)
	if out != nil {
		*out = c.report
	}
	return res, err
}

func (c *call) run(ctx context.Context) (mcp.Result, error) {
	if c.given != "" {
		if _, _, err := schema.ParseKey(c.given); err != nil {
			return nil, c.notRun(err)
		}
	}
	for {
		c.attempts++
		res, cause, e := c.once(ctx)
		if e == nil { // ended within
			return res, cause
		}
		d := decide(c.h, *e)
		c.h.open = d.open
		switch d.action {
		case give:
			return res, cause
		case giveDuplicate:
			c.report.PossibleDuplicate = true
			c.opt.Logger.Warn("clientretry: the tool may have run twice: a lost attempt, and an answer from a server that did not know the key",
				"tool", c.params.Name, "key", schema.ShortKey(c.key))
			return res, cause
		case giveLostResult:
			return nil, &ResultLostError{Tool: c.params.Name, Key: c.key, Attempts: c.attempts, Cause: cause}
		case giveNotRun:
			return nil, c.notRun(cause)
		case giveUnknown:
			return nil, c.unknown(cause)
		case remint:
			c.key, c.sent, c.h.fresh = mint(e.data.KeyNamespace), false, true
		case resend:
			c.h.fresh = false
		}
		if !c.mayGoOn(ctx, e.wait) {
			if ctx.Err() != nil {
				cause = fmt.Errorf("%w, after: %w", ctx.Err(), cause)
			}
			return nil, c.ended(cause)
		}
	}
}

// once makes one attempt. It returns no event when the call has ended within.
func (c *call) once(ctx context.Context) (mcp.Result, error, *event) {
	l, err := c.s.current(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, c.ended(err), nil
		}
		return nil, c.lose(Loss{Kind: LossNotSent, At: time.Now(), RetryAfter: -1, Err: err}), &event{kind: notSent, wait: -1}
	}
	if err := c.plan(l); err != nil {
		return nil, err, nil
	}
	if c.h.open && c.key != "" && !l.provenSince(c.lostAt) {
		proof, err := c.checkPath(ctx, l)
		switch {
		case ctx.Err() != nil:
			return nil, c.unknown(ctx.Err()), nil
		case proof == pathLost:
			return nil, c.lose(Loss{Kind: LossPathCheck, At: time.Now(), RetryAfter: -1, Err: err}), &event{kind: lost, wait: -1}
		case proof == pathUnproven:
			return nil, c.unknown(fmt.Errorf("%w (%w)", errNoProof, err)), nil
		}
	}
	a := c.attempt(l, c.key)
	res, err := c.next(context.WithValue(ctx, attemptContext{}, a), schema.MethodCallTool, c.request(l, c.params))
	l.noticed(err)
	e := c.classify(ctx, l, a, res, &err)
	return res, err, e
}

// plan decides, before the first attempt and after every connection that was
// made anew, whether the call carries a key.
func (c *call) plan(l *link) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	declared := l.settings != nil && !l.unsupported[c.params.Name]
	if c.sent {
		if c.key != "" && l.settings == nil {
			return c.ended(errors.New("the server no longer declares the extension: nothing was sent again"))
		}
		return nil // the same key, whatever the namespace is now
	}
	c.h.declared, c.h.strict = declared, c.opt.Strict
	c.h.again = !declared && c.opt.RetryUnkeyed != nil && c.opt.RetryUnkeyed(c.params.Name)
	switch {
	case !declared:
		c.key = ""
	case c.given != "":
		c.key = c.given
	case c.key == "" || !c.h.fresh:
		c.key, c.h.minted = mint(l.settings.KeyNamespace), true
	}
	return nil
}

// attempt makes what the transport needs to know of an attempt.
func (c *call) attempt(l *link, key string) *attempt {
	timeout := c.opt.timeout(c.params.Name)
	if !c.deadline.IsZero() {
		timeout = max(min(timeout, time.Until(c.deadline)), time.Millisecond)
	}
	a := &attempt{endpoint: l.endpoint, timeout: timeout, identity: c.identity}
	if key != "" {
		l.mu.Lock()
		a.key = wire.Key{Value: key, Param: l.settings.KeyParam, Attempt: c.attempts}
		l.mu.Unlock()
	}
	return a
}

func (c *call) request(l *link, params *mcp.CallToolParams) mcp.Request {
	return &mcp.ClientRequest[mcp.Params]{Session: l.session, Params: params}
}

// mayGoOn waits before the next attempt. It returns false when a bound forbids
// that one.
func (c *call) mayGoOn(ctx context.Context, asked time.Duration) bool {
	if c.attempts >= c.opt.Attempts {
		return false
	}
	wait := max(c.backoff(), min(asked, maxWait))
	at := time.Now().Add(wait)
	if !c.deadline.IsZero() && at.After(c.deadline) {
		return false
	}
	if settings, ok := c.s.Declared(); ok && c.h.open && !c.roundAt.IsZero() &&
		at.Sub(c.roundAt) >= milliseconds(settings.RetentionMs) {
		return false // the server may have forgotten the record
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// backoff is exponential with full jitter.
func (c *call) backoff() time.Duration {
	most := c.opt.BackoffMax
	if shift := c.attempts - 1; shift < 30 {
		most = min(most, c.opt.BackoffBase<<shift)
	}
	return rand.N(max(most, 1))
}

// lose notes a loss in the report and returns it as the cause.
func (c *call) lose(l Loss) error {
	c.report.Losses = append(c.report.Losses, l)
	if l.Kind != LossNotSent {
		c.lostAt = l.At
	}
	c.opt.Logger.Info("clientretry: response lost", "tool", c.params.Name, "key", schema.ShortKey(c.key),
		"attempt", c.attempts, "kind", l.Kind.String())
	return &l
}

// ended ends a call that a bound, or the caller, stopped.
func (c *call) ended(cause error) error {
	if c.h.open {
		return c.unknown(cause)
	}
	return c.notRun(cause)
}

func (c *call) unknown(cause error) error {
	return &UnknownOutcomeError{Tool: c.params.Name, Key: c.key, Attempts: c.attempts, Cause: cause}
}

func (c *call) notRun(cause error) error {
	e := &NotRunError{Tool: c.params.Name, Key: c.key, Attempts: c.attempts, Cause: cause}
	if data, ok := extensionData(cause); ok {
		e.Data = &data
	}
	return e
}

// The path check: a call of a tool that does not exist with a key that is
// malformed. Since a server with the extension checks the key first, the
// answer tells whether keys arrive, and nothing runs in either case.
const (
	pathCheckTool = "idempotency_path_check"
	pathCheckKey  = "invalid"
)

type pathProof uint8

const (
	pathUnproven pathProof = iota
	pathLost
	pathProven
)

func (c *call) checkPath(ctx context.Context, l *link) (pathProof, error) {
	c.report.PathChecks++
	meta := maps.Clone(c.params.Meta)
	delete(meta, "progressToken")
	params := &mcp.CallToolParams{Meta: meta, Name: pathCheckTool, Arguments: map[string]any{}}
	a := c.attempt(l, pathCheckKey)
	a.key.Attempt = 0
	_, err := c.next(context.WithValue(ctx, attemptContext{}, a), schema.MethodCallTool, c.request(l, params))
	l.noticed(err)
	if data, ok := extensionData(err); ok && data.Reason == schema.ReasonKeyInvalid {
		l.prove()
		return pathProven, nil
	}
	s := a.seen()
	switch {
	case s.changed:
		return pathUnproven, errIdentityChanged
	case s.loss != nil:
		return pathLost, s.loss
	case err != nil && (len(s.rounds) == 0 || s.waiting):
		return pathLost, err
	case err == nil:
		err = errors.New("the path check was answered with a result")
	}
	return pathUnproven, err
}
