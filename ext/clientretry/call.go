package clientretry

import (
	"context"
	"errors"
	"fmt"
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

	given string // the caller's key
	noKey bool   // the server has said that the tool takes none
	key   string // the key in use; empty for none
	sends int    // attempts with it
	there int    // those of them that may have reached the server
	h     history

	identity  *identity
	limits    limits
	retention time.Duration // the shortest declared since the key was first sent; 0 for none
	started   time.Time
	since     time.Time // when an attempt was last lost, or a round ran
	round     time.Time // when the latest round was first sent; zero before
	used      int       // of Options.Attempts
	report    Report
}

// call makes a tool call: attempts, and a decision after each.
func (s *Session) call(ctx context.Context, next mcp.MethodHandler, params *mcp.CallToolParams) (mcp.Result, error) {
	opt := &s.retry.opt
	c := &call{s: s, opt: opt, next: next, params: params, identity: &identity{of: opt.Identity}, started: time.Now()}
	c.given, _ = ctx.Value(keyContext{}).(string)
	slot, _ := ctx.Value(reportContext{}).(*reportSlot)
	// Handlers of the client run under this context and may call tools of
	// their own: those are other calls.
	ctx = context.WithValue(context.WithValue(ctx, keyContext{}, nil), reportContext{}, nil)
	res, err := c.run(ctx)
	if out := slot.take(); out != nil {
		c.report.Key, c.report.Elapsed = c.key, time.Since(c.started)
		if n := len(c.report.Losses); n > 0 {
			c.report.SinceLoss = time.Since(c.report.Losses[n-1].At)
		}
		*out = c.report
	}
	return res, err
}

// event is what an attempt ended in.
type event struct {
	kind eventKind
	// wait is the server's Retry-After or retryAfterMs; negative for none.
	wait time.Duration
	// namespace is the one that the server named.
	namespace string
}

func plain(kind eventKind) event { return event{kind: kind, wait: -1} }

func (c *call) run(ctx context.Context) (mcp.Result, error) {
	if c.given != "" {
		if _, _, err := schema.ParseKey(c.given); err != nil {
			return nil, c.notRun(err)
		}
	}
	switch err := c.plan(c.s.now()); { // bounds hold from here on, for dialling too
	case errors.Is(err, errKeyNotTaken):
		return nil, c.unknown(err)
	case err != nil:
		return nil, c.notRun(err)
	}
	for {
		res, e, cause := c.once(ctx)
		h := c.h
		h.keyed, h.strict, h.namespace, h.resent = c.key != "", c.opt.Strict, e.namespace != "", c.there > 1
		d := decide(h, e.kind)
		c.h.lost = d.lost
		switch d.action {
		case give:
			return res, cause
		case giveDuplicate:
			c.duplicate()
			return res, cause
		case giveLostResult:
			return nil, &ResultLostError{Tool: c.params.Name, Key: c.key, Attempts: c.report.Attempts, Cause: cause}
		case giveNotRun:
			return nil, c.notRun(cause)
		case giveUnknown:
			return nil, c.unknown(cause)
		case remint:
			c.newKey(mint(e.namespace))
		case dropKey:
			c.newKey("")
			c.noKey = true
			continue // not a re-send: the refused attempt was none of the tool's
		case resend:
			c.h.tried = false
		}
		if err := c.pause(ctx, d.action, e.wait); err != nil {
			return nil, c.ended(fmt.Errorf("%w; before: %w", err, cause))
		}
	}
}

// newKey replaces the key by another, or by none.
func (c *call) newKey(key string) {
	c.key, c.sends, c.there, c.round, c.retention = key, 0, 0, time.Time{}, 0
	c.h.minted, c.h.tried = key != "", key != ""
	c.h.lost, c.h.begun = false, false
}

// once makes one attempt, or finds that none can be made.
func (c *call) once(ctx context.Context) (mcp.Result, event, error) {
	c.used++
	for look := 0; ; look++ {
		l, e, err := c.ready(ctx)
		if err != nil {
			return nil, e, err
		}
		a, res, err := c.send(ctx, l, c.params, c.key, c.sends+1)
		s := a.seen()
		// Where nothing has left the client the connection may have died
		// before, and the SDK says so only to the one who asks next.
		if err == nil || len(s.sent) > 0 || s.foreign || ctx.Err() != nil ||
			look >= 1 && l.endpoint.broken() == nil || look >= 2 {
			c.sent(s)
			return c.classify(ctx, l, s, res, err)
		}
	}
}

// ready finds a connection over which the next attempt may go out.
func (c *call) ready(ctx context.Context) (*link, event, error) {
	l, err := c.connection(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, plain(cancelledBefore), ctx.Err()
	case errors.Is(err, errNoWayBack):
		return nil, plain(noConnection), err
	default:
		return nil, plain(dialFailed), err
	}
	if err := c.plan(l); err != nil {
		return nil, plain(undeclared), err
	}
	if c.key == "" || !c.h.open() {
		return l, event{}, nil
	}
	if !l.provenSince(c.since) {
		if c.late() {
			return nil, plain(tooLate), errTooLate
		}
		if e, err := c.checkPath(ctx, l); err != nil {
			return nil, e, err
		}
	}
	if c.late() {
		return nil, plain(tooLate), errTooLate
	}
	return l, event{}, nil
}

var (
	errTooLate      = errors.New("the retention time of the key has passed: nothing was sent again")
	errUndeclared   = errors.New("the server no longer declares the extension: nothing was sent again")
	errKeyNotTaken  = errors.New("the caller's key may have run before, and the server takes no keys for this tool now: nothing was sent")
	errKeyInMeta    = errors.New("the call has a key in its _meta: give it with WithKey, so that it is sent as the server wants it")
	errNoMoreTries  = errors.New("no attempts left")
	errNoMoreTime   = errors.New("the next attempt would come too late")
	errSessionClose = errors.New("the session was closed")
)

// connection is the live one. Making it anew is bounded by what is left of the
// call.
func (c *call) connection(ctx context.Context) (*link, error) {
	if end := c.end(ctx); !end.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	return c.s.current(ctx)
}

// plan decides, before the first attempt and after every connection that was
// made anew, whether the call carries a key.
func (c *call) plan(l *link) error {
	settings := l.takes(c.params.Name)
	if c.sends > 0 {
		if c.key != "" {
			if settings = l.declared(); settings == nil {
				return errUndeclared
			}
			c.keep(settings)
		}
		return nil // the same key, whatever the namespace is now
	}
	if _, has := c.params.Meta[schema.MetaKey]; has && settings != nil {
		return errKeyInMeta
	}
	switch {
	case c.given != "":
		if c.key = c.given; settings == nil {
			return errKeyNotTaken
		}
	case settings == nil || c.noKey:
		c.key, c.h.minted = "", false
	case c.key == "" || !c.h.tried: // none of its own that waits to be sent
		c.key, c.h.minted = mint(settings.KeyNamespace), true
	}
	c.h.again = c.key == "" && c.opt.RetryUnkeyed != nil && c.opt.RetryUnkeyed(c.params.Name)
	c.limits = c.opt.limits(c.params.Name, c.key != "")
	if c.key != "" {
		c.keep(settings)
	}
	return nil
}

// keep notes how long the server keeps the key.
func (c *call) keep(s *schema.ServerSettings) {
	if d := milliseconds(s.RetentionMs); c.retention == 0 || d < c.retention {
		c.retention = d
	}
}

// send passes one request through the SDK.
func (c *call) send(ctx context.Context, l *link, params *mcp.CallToolParams, key string, n int) (*attempt, mcp.Result, error) {
	inner, cancel := context.WithCancel(ctx)
	a := &attempt{endpoint: l.endpoint, identity: c.identity, timeout: c.timeout(), abort: cancel}
	defer a.close()
	if key != "" {
		a.key = wire.Key{Value: key, Attempt: n}
		if _, has := params.Meta[schema.ExtensionID]; has {
			a.key.Attempt = 0 // the caller has the member, and JSON takes one
		}
		if s := l.declared(); s != nil {
			a.key.Param = s.KeyParam
		}
	}
	req := &mcp.ClientRequest[mcp.Params]{Session: l.session, Params: params}
	res, err := c.next(context.WithValue(inner, attemptContext{}, a), schema.MethodCallTool, req)
	if !a.seen().interim { // else it may be a handler's own error, of another connection
		l.noticed(err)
	}
	return a, res, err
}

// sent notes what an attempt has put on the wire.
func (c *call) sent(s seen) {
	if len(s.sent) == 0 {
		return
	}
	c.report.Attempts++
	c.report.KeyHonoured, c.report.Replayed = false, false // it is the last answer that counts
	c.sends++
	if s.loss == nil || s.loss.Kind != LossNotSent {
		c.there++
	}
	for i, at := range s.sent {
		// A first round is the same one in every attempt; what follows it
		// carries an answer that was given anew.
		if i > 0 || c.round.IsZero() {
			c.round = at
		}
	}
	if (s.begun || s.interim) && !c.h.begun {
		c.h.begun, c.since = true, time.Now()
	}
}

// window is when the latest round was first sent, from which on its time
// bounds count; the start of the call before that.
func (c *call) window() time.Time {
	if c.round.IsZero() {
		return c.started
	}
	return c.round
}

// timeout gives the attempt timeout of the i-th round of the next attempt: for
// the first not more than is left of the call, for the others all of it, since
// their time begins with the answer that they carry.
func (c *call) timeout() func(i int) time.Duration {
	window, limits := c.window(), c.limits
	return func(i int) time.Duration {
		left := limits.total
		if left > 0 && i == 0 {
			left = max(time.Until(window.Add(left)), time.Millisecond)
		}
		switch {
		case left == 0:
			return limits.attempt
		case limits.attempt == 0:
			return left
		}
		return min(limits.attempt, left)
	}
}

// end is when the call has to be over, by its own bounds and by the caller's;
// zero for never.
func (c *call) end(ctx context.Context) time.Time {
	end, _ := ctx.Deadline()
	if c.limits.total > 0 {
		end = earlier(end, c.window().Add(c.limits.total))
	}
	return end
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// late reports whether the server may have forgotten the key by now.
func (c *call) late() bool {
	return c.retention > 0 && !c.round.IsZero() && time.Since(c.window()) >= c.retention
}

// pause waits before the next attempt. It returns an error when a bound
// forbids that one, and does not wait for it in vain.
func (c *call) pause(ctx context.Context, next action, asked time.Duration) error {
	if c.used >= c.opt.Attempts {
		return errNoMoreTries
	}
	if err := c.s.stranded(); err != nil {
		return err
	}
	wait := c.backoff()
	switch {
	case asked >= 0:
		wait = min(asked, maxWait) + rand.N(max(c.opt.BackoffBase, 1))
	case next == remint:
		wait = 0
	}
	at := time.Now().Add(wait)
	if end := c.end(ctx); !end.IsZero() && at.After(end) {
		return errors.Join(ctx.Err(), errNoMoreTime)
	}
	if c.h.open() && c.retention > 0 && !c.round.IsZero() && at.Sub(c.window()) >= c.retention {
		return errTooLate
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.s.base.Done():
		return fmt.Errorf("%w: %w", errSessionClose, mcp.ErrConnectionClosed)
	}
}

// backoff is exponential with full jitter.
func (c *call) backoff() time.Duration {
	most := c.opt.BackoffMax
	if shift := c.used - 1; shift < 30 {
		most = min(most, c.opt.BackoffBase<<shift)
	}
	return rand.N(max(most, 1))
}
