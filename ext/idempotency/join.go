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
	defer c.waiters.Add(-1)
	if c.waiters.Add(1) > int64(c.Idempotency.opt.MaxWaiters) || !time.Now().Before(deadline) {
		return nil, true, c.stillRunning()
	}
	wait, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()

	r := c.attach(rec.Token)
	if r == nil {
		if err := c.Idempotency.opt.Store.Await(wait, c.attempt.ID, rec.Token); err != nil {
			return nil, true, c.waitEnded(ctx, wait, err)
		}
		return nil, false, nil
	}
	defer r.detach()
	select {
	case <-r.done:
	case <-wait.Done():
		return nil, true, c.waitEnded(ctx, wait, wait.Err())
	}
	if r.blob == nil || !same {
		// It ran something else than what this attempt asks for, or has no
		// answer: the record knows.
		return nil, false, nil
	}
	res, err = decode(r.blob, true)
	return res, true, err
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
