package clientretry

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

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
	return &pipeConn{
		Connection: conn, endpoint: t.endpoint,
		incoming: make(chan received), closed: make(chan struct{}), pending: map[jsonrpc.ID]*pendingCall{},
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

	mu      sync.Mutex
	pending map[jsonrpc.ID]*pendingCall
}

type received struct {
	msg jsonrpc.Message
	err error
}

type pendingCall struct {
	a     *attempt
	timer *time.Timer
}

// Write implements mcp.Connection.
func (c *pipeConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	a := c.endpoint.attemptOf(ctx)
	req, ok := msg.(*jsonrpc.Request)
	if a == nil || !ok || req.Method != schema.MethodCallTool || !req.IsCall() {
		return c.Connection.Write(ctx, msg)
	}
	if a.keyed() {
		params, err := wire.InsertParams(req.Params, a.key)
		if err != nil {
			return err
		}
		keyed := *req
		keyed.Params = params
		req = &keyed
	}
	c.mu.Lock()
	c.pending[req.ID] = &pendingCall{a: a, timer: time.AfterFunc(a.timeout, func() { c.expire(req.ID) })}
	c.mu.Unlock()
	a.sending(nil)
	if err := c.Connection.Write(ctx, req); err != nil {
		// Part of it may be on the way.
		c.forget(req.ID)
		a.lose(Loss{Kind: LossReset, RetryAfter: -1, Err: err})
		if ctx.Err() == nil {
			c.endpoint.die(err)
		}
		return err
	}
	return nil
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
			if p := c.forget(resp.ID); p != nil {
				p.a.answered()
			}
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

// died records that every call under way has lost its response, as soon as the
// connection shows it.
func (c *pipeConn) died(err error) {
	c.endpoint.die(err)
	kind := LossReset
	if errors.Is(err, io.EOF) {
		kind = LossEOF
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.pending {
		p.timer.Stop()
		p.a.lose(Loss{Kind: kind, RetryAfter: -1, Err: err})
		delete(c.pending, id)
	}
}

// forget ends the watch over a call that was answered, or not sent.
func (c *pipeConn) forget(id jsonrpc.ID) *pendingCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[id]
	if p != nil {
		p.timer.Stop()
		delete(c.pending, id)
	}
	return p
}

// expire settles a call whose attempt timeout passed, without the SDK telling
// the server to cancel it. A response that comes later finds no call and is
// ignored by the SDK.
func (c *pipeConn) expire(id jsonrpc.ID) {
	p := c.forget(id)
	if p == nil {
		return
	}
	p.a.lose(Loss{Kind: LossTimeout, RetryAfter: -1, Err: errAttemptTimeout})
	resp := &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "clientretry: response lost"}}
	select {
	case c.incoming <- received{msg: resp}:
	case <-c.closed:
	}
}

// Close implements mcp.Connection.
func (c *pipeConn) Close() error {
	err := c.Connection.Close()
	c.close.Do(func() { close(c.closed) })
	c.died(io.EOF)
	return err
}
