package clientretry

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// middleware is the one that New adds to the client.
func (r *Retry) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		cs, ok := req.GetSession().(*mcp.ClientSession)
		if !ok {
			return next(ctx, method, req)
		}
		r.mu.Lock()
		s := r.sessions[cs]
		r.mu.Unlock()
		if s == nil { // not connected by this layer, or not yet
			return next(ctx, method, req)
		}
		if params, ok := req.GetParams().(*mcp.CallToolParams); ok && method == schema.MethodCallTool {
			return s.call(ctx, next, params)
		}
		l, err := s.current(ctx)
		if err != nil {
			return nil, err
		}
		res, err := next(ctx, method, l.request(req))
		l.noticed(err)
		if list, ok := res.(*mcp.ListToolsResult); ok && err == nil {
			l.learn(list.Tools)
		}
		return res, err
	}
}

// request is the same request over this connection.
func (l *link) request(req mcp.Request) mcp.Request {
	if req.GetSession() == mcp.Session(l.session) {
		return req
	}
	return &mcp.ClientRequest[mcp.Params]{Session: l.session, Params: req.GetParams()}
}

// noticed marks the connection as dead when the SDK says so.
func (l *link) noticed(err error) {
	if errors.Is(err, mcp.ErrConnectionClosed) || errors.Is(err, mcp.ErrSessionMissing) {
		l.endpoint.die(err)
	}
}

// learn keeps what the tools' hints say.
func (l *link) learn(tools []*mcp.Tool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range tools {
		hint, _ := t.Meta[schema.ExtensionID].(map[string]any)
		use, _ := hint["key"].(string)
		l.unsupported[t.Name] = schema.KeyUse(use) == schema.KeyUnsupported
	}
}

// isReplayed reads the marker; ok is false when there is none.
func isReplayed(marker any) (replayed, ok bool) {
	m, _ := marker.(map[string]any)
	replayed, ok = m["replayed"].(bool)
	return replayed, ok
}

// errorMarker reads the marker in an error's data.
func errorMarker(data json.RawMessage) (replayed, ok bool) {
	var holder map[string]any
	if json.Unmarshal(data, &holder) != nil {
		return false, false
	}
	return isReplayed(holder[schema.ExtensionID])
}
