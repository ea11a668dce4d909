package conformance

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/internal/everything"
)

// A variant makes a fresh everything-server and the HTTP handler around it.
type variant func(*mcp.StreamableHTTPOptions) (*mcp.Server, http.Handler)

// bare is the SDK alone.
func bare(opts *mcp.StreamableHTTPOptions) (*mcp.Server, http.Handler) {
	server := everything.New()
	return server, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts)
}

// broken differs from bare in one member of one tool's answer: it calls the
// failure of test_error_handling a success. It stands for a middleware that
// damages what passes through it.
func broken(opts *mcp.StreamableHTTPOptions) (*mcp.Server, http.Handler) {
	server, handler := bare(opts)
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if called, ok := res.(*mcp.CallToolResult); ok && called.IsError {
				called.IsError = false
			}
			return res, err
		}
	})
	return server, handler
}

// serve serves the variant on loopback until the test ends and returns the
// URL of its endpoint.
func serve(t *testing.T, build variant, m mode) string {
	t.Helper()
	server, handler := build(m.options())
	listener := httptest.NewServer(handler)
	t.Cleanup(func() {
		for session := range server.Sessions() {
			session.Close()
		}
		listener.CloseClientConnections()
		listener.Close()
	})
	return listener.URL + "/mcp"
}
