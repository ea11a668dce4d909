package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A run is an execution of a tool in this process.
type run struct {
	token store.Token
	done  chan struct{} // closed when the run has ended and blob is set

	// blob is the answer for those who joined; nil when the outcome is
	// unknown. Written once, before done is closed.
	blob []byte

	mu       sync.Mutex
	attached int  // attempts that wait for the run, the runner's own included
	abort    bool // cancel when nobody is attached
	cancel   context.CancelCauseFunc
}

var (
	errAbandoned = errors.New("nobody waits for the call any more")
	errTooLong   = errors.New("the call ran longer than it may")
	errFenced    = errors.New("the record was taken over while the call ran")
)

// register makes a run known before it is reserved, so that no duplicate can
// meet the reservation and not find the run.
func (m *Idempotency) register(token store.Token) *run {
	r := &run{token: token, done: make(chan struct{}), attached: 1}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[token] = r
	return r
}

func (m *Idempotency) unregister(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.runs, r.token)
}

// attach counts one more attempt that waits for the run; it returns nil when
// the run is not of this process.
func (m *Idempotency) attach(token store.Token) *run {
	m.mu.Lock()
	r := m.runs[token]
	m.mu.Unlock()
	if r != nil {
		r.mu.Lock()
		r.attached++
		r.mu.Unlock()
	}
	return r
}

// detach is the end of attach. The last to go cancels a run that may be
// aborted.
func (r *run) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attached--
	if r.attached == 0 && r.abort {
		r.cancel(errAbandoned)
	}
}

// execute runs the tool for a reservation and records how it ended.
func (c *call) execute(ctx context.Context, r *run, reserved store.Reservation) (mcp.Result, error) {
	c.continued = reserved.Continued
	ref := store.RunRef{ID: c.attempt.ID, Token: r.token}
	runCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	r.mu.Lock()
	r.cancel, r.abort = cancel, c.opt.OnDisconnect == Abort
	r.mu.Unlock()
	defer context.AfterFunc(ctx, r.detach)()
	defer c.limit(ref, cancel)()
	if reserved.Leased {
		defer c.keepLease(ref, cancel)()
	}

	var tx Transaction
	runCtx = context.WithValue(runCtx, enlistContext{}, &tx)
	ended := false
	defer func() {
		if !ended { // a panic, or the goroutine exits; it is not ours to stop
			c.Idempotency.opt.Logger.Error("idempotency: the tool did not return", "tool", c.req.Params.Name, "key", c.shortKey())
			end, a := store.End{Event: store.Lose}, answer{}
			if tx != nil {
				c.rollback(ctx, tx)
				end, a = undone(end, a)
			}
			c.conclude(ctx, r, ref, end, a.blob)
		}
	}()
	result, toolErr := c.handler(runCtx)
	end, a := c.ending(runCtx, result, toolErr)
	ended = true
	if tx != nil {
		if res, done, err := c.commit(ctx, r, tx, ref, end, a); done {
			return res, err
		}
		end, a = undone(end, a)
	}
	c.conclude(ctx, r, ref, end, a.blob)
	return a.res, a.err
}

// handler calls the tool, unless the call is also identified by an argument of
// the tool's own: then that record decides whether the tool runs.
func (c *call) handler(ctx context.Context) (mcp.Result, error) {
	if c.inner == "" {
		return c.next(context.WithValue(ctx, keyContext{}, c.attempt.ID), methodCallTool, c.request())
	}
	return c.within().serveUntil(ctx, endless)
}

// within is the same call as its key argument identifies it.
func (c *call) within() *call {
	in := &call{Idempotency: c.Idempotency, req: c.request(), next: c.next, opt: c.opt, state: c.state}
	in.attempt = c.attempt
	in.attempt.Key, in.attempt.Token, in.attempt.Nonce = c.inner, c.newToken(), store.Nonce{}
	if r, ok := unwrapState(c.state); ok && r.key == c.inner {
		in.attempt.Nonce, in.state = r.nonce, r.state
	}
	return in
}

// request is the request that the handler sees: without the round's wrapping.
func (c *call) request() *mcp.CallToolRequest {
	if c.req.Params.RequestState == c.state {
		return c.req
	}
	r, p := *c.req, *c.req.Params
	p.RequestState = c.state
	r.Params = &p
	return &r
}

// An answer is what a run's own caller gets, and the blob that others get.
type answer struct {
	res  mcp.Result
	err  error
	blob []byte
}

// ending reads how a run ended off what the handler returned (SEP, "Record
// life cycle").
func (c *call) ending(runCtx context.Context, res mcp.Result, err error) (store.End, answer) {
	said := err
	tool, isTool := res.(*mcp.CallToolResult)
	if err == nil && (res == nil || isTool && tool == nil) {
		tool, isTool = emptyResult(modern(c.req)), true // the tool ran, and said nothing
		res = tool
	}
	if err == nil && isTool {
		said = tool.GetError()
	}
	var none *NoEffectError
	var reject *RejectError
	switch {
	case c.inner != "" && isExtensionError(err):
		return c.innerEnding(err)
	case errors.As(said, &reject) && c.continued:
		return store.End{Event: store.Reject}, c.rejected(res, err)
	case errors.As(said, &none), errors.As(said, &reject):
		blob := encodeNoEffect(said.Error())
		return store.End{Event: store.DeclareNoEffect, Outcome: c.keep(blob)}, answer{err: noEffectError(said.Error()), blob: blob}
	case runCtx.Err() != nil && (err != nil || isTool && tool.IsError):
		c.Idempotency.opt.Logger.Warn("idempotency: the run was cancelled and did not say whether it had an effect",
			"tool", c.req.Params.Name, "key", c.shortKey(), "cause", context.Cause(runCtx))
		return store.End{Event: store.Lose}, answer{err: c.unknown()}
	case err != nil:
		raised := ownError(err)
		blob, encErr := encodeError(raised)
		if encErr != nil {
			return c.unencodable(encErr)
		}
		return store.End{Event: store.Complete, Outcome: c.keep(blob)}, answer{err: c.markedError(raised), blob: blob}
	case isTool && tool.NeedsInput():
		return c.asked(tool)
	}
	blob, encErr := encodeResult(res)
	if encErr != nil {
		return c.unencodable(encErr)
	}
	return store.End{Event: store.Complete, Outcome: c.keep(blob)}, answer{res: c.marked(res, blob), blob: blob}
}

// innerEnding ends a call whose tool is guarded by its argument's record too,
// when that record gave no result: the outer key takes over what is final in
// it, and is spent where nothing ran.
func (c *call) innerEnding(err error) (store.End, answer) {
	e := wireError(err)
	var data schema.ErrorData
	if json.Unmarshal(e.Data, &data) != nil {
		data.Outcome = schema.OutcomeUnknown
	}
	switch data.Outcome {
	case schema.OutcomeCompleted:
		return store.End{Event: store.Complete}, answer{err: e}
	case schema.OutcomeUnknown:
		return store.End{Event: store.Lose}, answer{err: e}
	}
	blob := encodeNoEffect(e.Message)
	return store.End{Event: store.DeclareNoEffect, Outcome: blob}, answer{err: noEffectError(e.Message), blob: blob}
}

// asked ends a run with a question: the call stays open for the one attempt
// that brings the nonce back.
func (c *call) asked(tool *mcp.CallToolResult) (store.End, answer) {
	nonce := newNonce()
	question := *tool
	question.RequestState = wrapState(nonce, c.attempt.Key, tool.RequestState)
	blob, err := encodeResult(&question)
	if err != nil {
		return c.unencodable(err)
	}
	return store.End{Event: store.Ask, Outcome: blob, Nonce: nonce}, answer{res: c.marked(&question, blob), blob: blob}
}

// rejected answers a continuation that the tool refused. It is not recorded:
// the question before it stands.
func (c *call) rejected(res mcp.Result, err error) answer {
	if err != nil {
		return answer{err: c.markedError(ownError(err))}
	}
	return answer{res: c.marked(res, nil)}
}

// unencodable ends a run whose answer cannot be put into JSON: it ran.
func (c *call) unencodable(err error) (store.End, answer) {
	c.Idempotency.opt.Logger.Error("idempotency: the tool's result cannot be encoded", "tool", c.req.Params.Name, "error", err)
	return store.End{Event: store.Complete}, answer{err: extError(schema.ReasonResultUnavailable, 0, "",
		"the tool ran to its end, but its result cannot be encoded")}
}

// keep returns the blob if it is small enough to be kept for replay.
func (c *call) keep(blob []byte) []byte {
	if len(blob) > c.Idempotency.opt.MaxResultBytes {
		return nil
	}
	return blob
}

// marked copies the result before it marks it: the handler may keep its own.
// A result that another record gave is marked as replayed already.
func (c *call) marked(res mcp.Result, blob []byte) mcp.Result {
	marker, _ := res.GetMeta()[schema.ExtensionID].(schema.ResultMarker)
	if tool, ok := res.(*mcp.CallToolResult); ok {
		copied := *tool
		res = &copied
	} else {
		res = &rawResult{body: blob[1:]}
	}
	return markResult(res, c.inner != "" && marker.Replayed)
}

// markedError is marked for errors that the tool raised.
func (c *call) markedError(e *jsonrpc.Error) *jsonrpc.Error {
	var data schema.ToolErrorData
	_ = json.Unmarshal(e.Data, &data) // data need not be an object
	return markError(e, c.inner != "" && data.Marker != nil && data.Marker.Replayed)
}

// conclude records the end and wakes those who joined.
func (c *call) conclude(ctx context.Context, r *run, ref store.RunRef, end store.End, blob []byte) {
	if err := c.record(ctx, ref, end); err != nil {
		c.Idempotency.opt.Logger.Error("idempotency: the end of a call was not recorded; later attempts get an unknown outcome",
			"tool", c.req.Params.Name, "key", c.shortKey(), "end", end.Event.String(), "error", err)
	}
	c.release(r, blob)
}

// release wakes those who joined a run, with its answer or, when that is nil,
// to look at the record.
func (m *Idempotency) release(r *run, blob []byte) {
	r.blob = blob
	m.unregister(r)
	close(r.done)
}

// record writes the end of a run. It is tried again on an error, which a
// compare-and-set makes harmless.
func (m *Idempotency) record(ctx context.Context, ref store.RunRef, end store.End) error {
	var err error
	for range 3 {
		sctx, cancel := m.storeContext(ctx)
		err = m.opt.Store.Record(sctx, ref, end)
		cancel()
		if err == nil || errors.Is(err, store.ErrFenced) {
			return err
		}
	}
	return err
}

// limit gives the run up when it has run for as long as it may.
func (c *call) limit(ref store.RunRef, cancel context.CancelCauseFunc) (stop func()) {
	limit := c.Idempotency.opt.MaxExecution
	if c.opt.MaxExecution != 0 {
		limit = c.opt.MaxExecution
	}
	if limit < 0 {
		return func() {}
	}
	return c.watchdog.after(limit, func() {
		cancel(fmt.Errorf("%w (%v)", errTooLong, limit))
		if c.attempt.Transactional {
			return // what it did is undone, or it commits in time
		}
		// Those who ask from now on learn that nobody knows. If the tool ends
		// after all, its word replaces this.
		if err := c.record(context.Background(), ref, store.End{Event: store.Lose}); err != nil && !errors.Is(err, store.ErrFenced) {
			c.Idempotency.opt.Logger.Error("idempotency: could not give up a run", "key", c.shortKey(), "error", err)
		}
	})
}

// keepLease renews the lease until the run ends. A run that has lost its
// record goes on, but is told by its context.
func (c *call) keepLease(ref store.RunRef, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(max(c.Idempotency.opt.Lease/3, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			sctx, done := context.WithTimeout(ctx, c.Idempotency.opt.StoreTimeout)
			err := c.Idempotency.opt.Store.Renew(sctx, ref, c.Idempotency.opt.Lease)
			done()
			if errors.Is(err, store.ErrFenced) {
				cancel(errFenced)
				return
			}
			if err != nil && ctx.Err() == nil {
				c.Idempotency.opt.Logger.Warn("idempotency: lease not renewed", "key", c.shortKey(), "error", err)
			}
		}
	}()
	return func() { end(); <-gone }
}
