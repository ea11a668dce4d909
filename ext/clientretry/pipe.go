package clientretry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// pipeTransport wraps a transport that is one connection, as stdio is.
type pipeTransport struct {
	inner    mcp.Transport
	endpoint *endpoint
}

// Connect implements mcp.Transport.
func (t *pipeTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := t.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if kind := fmt.Sprintf("%T", conn); kind == "*mcp.streamableClientConn" {
		// The SDK finds out about it by an interface that no wrapper can have.
		_ = conn.Close()
		return nil, fmt.Errorf("clientretry: %T connects over HTTP: pass the *mcp.StreamableClientTransport itself", t.inner)
	}
	return &pipeConn{
		Connection: conn, endpoint: t.endpoint,
		incoming: make(chan received), closed: make(chan struct{}), pending: map[jsonrpc.ID]*round{},
	}, nil
}

// pipeConn writes the key into `tools/call` requests, settles calls whose
// attempt timeout passes, and sees when the connection dies.
type pipeConn struct {
	mcp.Connection
	endpoint *endpoint

	start    sync.Once
	incoming chan received // from the pump and from timeouts
	close    sync.Once
	closed   chan struct{}
	closeErr error

	mu      sync.Mutex
	pending map[jsonrpc.ID]*round
}

type received struct {
	msg jsonrpc.Message
	err error
}

// Write implements mcp.Connection.
func (c *pipeConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	a := c.endpoint.attemptOf(ctx)
	req, ok := msg.(*jsonrpc.Request)
	if a == nil || !ok || req.Method != schema.MethodCallTool || !req.IsCall() {
		return c.Connection.Write(ctx, msg)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.endpoint.broken(); err != nil {
		return fmt.Errorf("%w: %w", mcp.ErrConnectionClosed, err)
	}
	if a.keyed() {
		params, err := wire.InsertParams(req.Params, a.key)
		if err != nil {
			return fmt.Errorf("writing the idempotency key: %w", err)
		}
		keyed := *req
		keyed.Params = params
		req = &keyed
	}
	r := a.begin(req.ID)
	c.mu.Lock()
	c.pending[req.ID] = r
	c.mu.Unlock()
	r.onWire(func() { c.expire(r) })
	return c.write(ctx, r, req)
}

// write hands the request to the pipe. A peer that does not read can block it
// for ever, so it is not waited for any longer than the call is.
func (c *pipeConn) write(ctx context.Context, r *round, req *jsonrpc.Request) error {
	written := make(chan error, 1)
	go func() { written <- c.Connection.Write(ctx, req) }()
	select {
	case err := <-written:
		if err == nil {
			return nil
		}
		c.forget(r.id)
		if ctx.Err() == nil {
			// Part of it, or all, may be on the way.
			r.lose(newLoss(LossReset, err))
			c.endpoint.die(err)
		}
		return err
	case <-r.settled:
		return nil // the SDK has been told, or is about to be
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Read implements mcp.Connection.
func (c *pipeConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	c.start.Do(func() { go c.pump(context.WithoutCancel(ctx)) })
	select {
	case r := <-c.incoming:
		return r.msg, r.err
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pump reads until the connection ends, which Close brings about.
func (c *pipeConn) pump(ctx context.Context) {
	for {
		msg, err := c.Connection.Read(ctx)
		if err != nil {
			c.died(err)
		} else if resp, ok := msg.(*jsonrpc.Response); ok {
			msg = c.response(resp)
		}
		select {
		case c.incoming <- received{msg, err}:
		case <-c.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

// response notes the response to a call. One that comes too late finds no
// call, here nor in the SDK.
func (c *pipeConn) response(resp *jsonrpc.Response) *jsonrpc.Response {
	r := c.forget(resp.ID)
	if r == nil {
		return resp
	}
	if !wellFormed(resp) {
		l := newLoss(LossMalformed, fmt.Errorf("%w: neither result nor error, or both", errMalformed))
		r.lose(l)
		return syntheticResponse(resp.ID, l)
	}
	r.answer(resp)
	return resp
}

// died records that every call under way has lost its response, as soon as the
// connection shows it.
func (c *pipeConn) died(err error) {
	c.endpoint.die(err)
	kind := LossReset
	if errors.Is(err, io.EOF) {
		kind = LossEOF
	}
	c.mu.Lock()
	lost := c.pending
	c.pending = map[jsonrpc.ID]*round{}
	c.mu.Unlock()
	for _, r := range lost {
		r.lose(newLoss(kind, err))
	}
}

// forget ends the watch over a call that was answered, or not sent.
func (c *pipeConn) forget(id jsonrpc.ID) *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.pending[id]
	delete(c.pending, id)
	return r
}

// expire settles a call whose attempt timeout passed, without the SDK telling
// the server to cancel it.
func (c *pipeConn) expire(r *round) {
	if c.forget(r.id) == nil {
		return
	}
	l := newLoss(LossTimeout, errAttemptTimeout)
	r.lose(l)
	select {
	case c.incoming <- received{msg: syntheticResponse(r.id, l)}:
	case <-c.closed:
	}
}

// Close implements mcp.Connection. When the connection has died, what is left
// of it may be a process that takes its time to end: nothing waits for it here,
// since the SDK calls this with its lock held; [Session.Close] does.
func (c *pipeConn) Close() error {
	dead := c.endpoint.broken() != nil
	c.close.Do(func() {
		close(c.closed)
		if dead {
			c.endpoint.closing.Go(func() { _ = c.Connection.Close() })
			return
		}
		c.closeErr = c.Connection.Close()
	})
	c.died(io.EOF)
	return c.closeErr
}
