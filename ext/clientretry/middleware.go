package clientretry

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

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
		s := r.session(cs)
		if s == nil { // not connected by this layer, or not yet
			return next(ctx, method, req)
		}
		if params, ok := req.GetParams().(*mcp.CallToolParams); ok && method == schema.MethodCallTool {
			return s.call(ctx, next, params)
		}
		return s.other(ctx, next, method, req)
	}
}

// other sends everything that is not a tool call over the live connection,
// once.
func (s *Session) other(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request) (mcp.Result, error) {
	l := s.now()
	if !strings.HasPrefix(method, "notifications/") {
		if made, err := s.current(ctx); err == nil {
			l = made
		} else if !errors.Is(err, errNoWayBack) { // else the SDK says it
			return nil, err
		}
	}
	res, err := next(ctx, method, l.request(req))
	l.noticed(err)
	if list, ok := res.(*mcp.ListToolsResult); ok && err == nil {
		l.learn(list.Tools)
	}
	return res, err
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
	if isClosed(err) {
		l.endpoint.die(err)
	}
}

// isClosed reports whether the SDK says that a connection is dead.
func isClosed(err error) bool {
	return errors.Is(err, mcp.ErrConnectionClosed) || errors.Is(err, mcp.ErrSessionMissing)
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
