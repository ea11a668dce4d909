package idempotency

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// join waits for the run that holds the key. done is false when the store has
// to be asked again: the run was of another process, or ran another round.
func (c *call) join(ctx context.Context, rec store.Record, deadline time.Time) (res mcp.Result, done bool, err error) {
	same := rec.Nonce == c.attempt.Nonce && rec.Answers == c.attempt.Answers
	if same && c.adopt(rec.Token) {
		c.attempt.Token = rec.Token
		return nil, false, nil
	}
	r, err := c.wait(ctx, rec, deadline)
	if err != nil {
		return nil, true, err
	}
	if r == nil || r.blob == nil || !same {
		// It ran elsewhere, or something else than what this attempt asks for,
		// or has no answer: the record knows.
		return nil, false, nil
	}
	res, err = decode(r.blob, modern(c.req))
	return res, true, err
}

// endless is the deadline of a wait that something else bounds.
var endless = time.Time{}

// wait returns when the run that holds the key has ended, with that run if it
// is of this process. The error is what to answer.
func (c *call) wait(ctx context.Context, rec store.Record, deadline time.Time) (*run, error) {
	wait := ctx
	if deadline != endless {
		defer c.waiters.Add(-1)
		if c.waiters.Add(1) > int64(c.Idempotency.opt.MaxWaiters) || !time.Now().Before(deadline) {
			return nil, c.stillRunning()
		}
		var cancel context.CancelFunc
		wait, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	r := c.attach(rec.Token)
	if r == nil {
		if err := c.Idempotency.opt.Store.Await(wait, c.attempt.ID, rec.Token); err != nil {
			return nil, c.waitEnded(ctx, wait, err)
		}
		return nil, nil
	}
	defer r.detach()
	select {
	case <-r.done:
		return r, nil
	case <-wait.Done():
		return nil, c.waitEnded(ctx, wait, wait.Err())
	}
}

// awaitInner does, for a call with a key and a key argument, what would be too
// late once the key is reserved: it waits for a run that another call with the
// same argument has under way, and refuses what that record does not allow. A
// key that was used before is left to its own record. The error is what to
// answer; nothing is recorded then.
func (c *call) awaitInner(ctx context.Context, deadline time.Time) error {
	outer, in := *c, c.within()
	outer.attempt.Peek, in.attempt.Peek = true, true
	if res, err := outer.reserve(ctx); err != nil || res.Verdict != store.Free {
		return c.unavailable(err)
	}
	for {
		res, err := in.reserve(ctx)
		switch {
		case err != nil:
			return c.unavailable(err)
		case res.Verdict == store.Mismatch, res.Verdict == store.NoRoom:
			_, err := in.answer(ctx, res)
			return err
		case res.Verdict != store.Joinable || c.orphaned(res.Record.Token):
			return nil
		}
		if _, err := in.wait(ctx, res.Record, deadline); err != nil {
			return err
		}
	}
}

func (m *Idempotency) orphaned(token store.Token) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.orphans[token]
	return ok
}

// adopt reports whether the token is one that this process reserved without
// learning of it: then nothing runs under it, and the caller may.
func (c *call) adopt(token store.Token) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.orphans[token]
	delete(c.orphans, token)
	return ok
}

func (c *call) waitEnded(ctx, wait context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // the caller is gone; the run goes on
	case wait.Err() != nil:
		return c.stillRunning()
	}
	c.Idempotency.opt.Logger.Error("idempotency: the store could not wait for a run", "key", c.shortKey(), "error", err)
	return c.stillRunning()
}

func (c *call) stillRunning() error {
	return extError(schema.ReasonStillRunning, c.Idempotency.opt.RetryAfter, "",
		"the call with key %s is running; send the same key again later for its result", c.shortKey())
}
