package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A Transaction is the open transaction of a tool's effect, in the database
// that also holds the records. Store packages implement it for their AddTool.
type Transaction interface {
	// Commit records the end of the run and commits, both or neither. It
	// returns [store.ErrFenced], with nothing committed, when the record does
	// not belong to the run any more. Any other error leaves open whether it
	// committed.
	Commit(ctx context.Context, run store.RunRef, end store.End) error
	// Rollback undoes the effect. It may be called after Commit, and then
	// does nothing.
	Rollback(ctx context.Context) error
}

// Transactional tells the middleware that a tool enlists its transaction, in
// the database of s, in every call, so that a run which died left no effect and
// the next attempt may run. Store packages call it in their AddTool. It panics
// when s is not the store of m, whose records would not be in the transaction.
func (m *Idempotency) Transactional(tool string, s store.Store) {
	if m.opt.Store != s {
		panic(fmt.Sprintf("idempotency: the transactions of tool %q are in another store than Options.Store", tool))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transactional[tool] = true
}

func (m *Idempotency) isTransactional(tool string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.transactional[tool]
}

type enlistContext struct{}

// Enlist hands the transaction of a running tool call to the middleware, which
// commits it together with the record, or rolls it back. It returns false when
// the call has no key: then the caller commits by itself.
func Enlist(ctx context.Context, tx Transaction) bool {
	slot, ok := ctx.Value(enlistContext{}).(*Transaction)
	if ok {
		*slot = tx
	}
	return ok
}

// commit ends a run whose effect is an open transaction. done is false when
// the effect is rolled back and the end is still to be recorded, as end says.
func (c *call) commit(ctx context.Context, r *run, tx Transaction, ref store.RunRef, end store.End, a answer) (res mcp.Result, done bool, err error) {
	tool, isTool := a.res.(*mcp.CallToolResult)
	if end.Event != store.Complete || a.err != nil || isTool && tool.IsError {
		c.rollback(ctx, tx)
		return nil, false, nil
	}
	sctx, cancel := c.storeContext(ctx)
	defer cancel()
	err = tx.Commit(sctx, ref, end)
	if err == nil {
		c.release(r, a.blob)
		return a.res, true, nil
	}
	c.rollback(ctx, tx)
	c.release(r, nil)
	if errors.Is(err, store.ErrFenced) {
		// Another attempt took the record over while this one was slow; its
		// effect stands and this one's is undone.
		c.attempt.Token = c.newToken()
		res, err = c.serve(ctx)
		return res, true, err
	}
	c.Idempotency.opt.Logger.Error("idempotency: not known whether the effect was committed; the record tells the next attempt",
		"tool", c.req.Params.Name, "key", c.shortKey(), "error", err)
	return nil, true, c.stillRunning()
}

func (c *call) rollback(ctx context.Context, tx Transaction) {
	sctx, cancel := c.storeContext(ctx)
	defer cancel()
	if err := tx.Rollback(sctx); err != nil {
		// The database undoes what is not committed when the connection ends.
		c.Idempotency.opt.Logger.Warn("idempotency: rolling back", "tool", c.req.Params.Name, "key", c.shortKey(), "error", err)
	}
}

// undone turns the end of a run that was rolled back without a word into the
// certainty that it had no effect.
func undone(end store.End, a answer) (store.End, answer) {
	if end.Event != store.Lose {
		return end, a
	}
	const message = "the call was cut short and its effect undone"
	blob := encodeNoEffect(message)
	return store.End{Event: store.DeclareNoEffect, Outcome: blob}, answer{err: noEffectError(message), blob: blob}
}
