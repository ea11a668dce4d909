package clientretry_test

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// pipePeer is a scripted server over a connection in memory, on the clock of
// the bubble it is used in. Each Connect is a new connection.
type pipePeer struct {
	brain
	// block, when set, is waited for before a tool call is read.
	block chan struct{}

	conns []*pipePeerConn // guarded by brain.mu
}

func newPipePeer(modern bool, settings any, s script) *pipePeer {
	return &pipePeer{brain: brain{modern: modern, settings: settings, script: s}}
}

// Connect implements mcp.Transport.
func (p *pipePeer) Connect(context.Context) (mcp.Connection, error) {
	c := &pipePeerConn{p: p, out: make(chan jsonrpc.Message, 100), closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
	return c, nil
}

func (p *pipePeer) last() *pipePeerConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[len(p.conns)-1]
}

// dial is an Options.Dial.
func (p *pipePeer) dial(context.Context) (mcp.Transport, error) { return p, nil }

type pipePeerConn struct {
	p      *pipePeer
	out    chan jsonrpc.Message
	once   sync.Once
	closed chan struct{}
	gone   sync.Once
}

// die ends the connection from the server's side.
func (c *pipePeerConn) die() { c.gone.Do(func() { close(c.out) }) }

func (c *pipePeerConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m, ok := <-c.out:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-c.closed:
		return nil, io.EOF
	}
}

func (c *pipePeerConn) Write(_ context.Context, m jsonrpc.Message) error {
	req, ok := m.(*jsonrpc.Request)
	if !ok || !req.IsCall() {
		return nil
	}
	if req.Method != schema.MethodCallTool {
		answer := c.p.handshake(req.Method)
		if answer == nil {
			answer = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "unknown method"}
		}
		c.send(req.ID, answer)
		return nil
	}
	if c.p.block != nil {
		select {
		case <-c.p.block:
		case <-c.closed:
			return io.ErrClosedPipe
		}
	}
	call := c.p.note(raw(req.ID.Raw()), req.Params, nil, nil)
	go func() {
		if answer := c.p.answer(call); answer != nil {
			c.send(req.ID, answer)
		}
	}()
	return nil
}

func (c *pipePeerConn) send(id jsonrpc.ID, answer any) {
	defer func() { _ = recover() }() // the connection has died meanwhile
	resp := &jsonrpc.Response{ID: id}
	if e, ok := answer.(*jsonrpc.Error); ok {
		resp.Error = e
	} else if s, ok := answer.(string); ok {
		resp.Result = json.RawMessage(s)
	} else {
		resp.Result = raw(answer)
	}
	c.out <- resp
}

func (c *pipePeerConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *pipePeerConn) SessionID() string { return "" }
