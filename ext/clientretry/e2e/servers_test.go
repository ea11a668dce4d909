package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// gatedServer is the SDK's server with the extension and one tool, which runs
// until it is released.
type gatedServer struct {
	url     string
	ran     atomic.Int64
	release chan struct{}
	arrived chan struct{} // a tools/call of the tool has come in
}

func newGatedServer(t testing.TB, stateless, json bool) *gatedServer {
	g := &gatedServer{release: make(chan struct{}), arrived: make(chan struct{}, 10_000)}
	server := mcp.NewServer(&mcp.Implementation{Name: "gated", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "slow"}, func(context.Context, *mcp.CallToolRequest, chargeIn) (*mcp.CallToolResult, chargeOut, error) {
		n := g.ran.Add(1)
		<-g.release
		return nil, chargeOut{Receipt: n}, nil
	})
	idem := idempotency.New(nil)
	idem.Install(server)
	// Outside the extension's layer: sees every attempt.
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && p.Name == "slow" {
				g.arrived <- struct{}{}
			}
			return next(ctx, method, req)
		}
	})
	h := idem.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: stateless, JSONResponse: json}))
	ts := httptest.NewServer(h)
	g.url = ts.URL
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return g
}

func (g *gatedServer) await(t testing.TB) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-time.After(soon):
		t.Fatal("no call arrived")
	}
}

// gateway is a real extended server behind a proxy that passes the capability
// on and strips keys.
type gateway struct {
	url       string
	charges   atomic.Int64
	loseFirst bool // the first charge's response becomes a 502
}

func newGateway(t testing.TB, stateful bool, opt *idempotency.Options) *gateway {
	g := &gateway{}
	server := mcp.NewServer(&mcp.Implementation{Name: "behind", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(context.Context, *mcp.CallToolRequest, chargeIn) (*mcp.CallToolResult, chargeOut, error) {
		return nil, chargeOut{Receipt: g.charges.Add(1)}, nil
	})
	idem := idempotency.New(opt)
	idem.Install(server)
	h := idem.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: !stateful}))
	lost := false
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		stripped := stripKey(body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(stripped)), int64(len(stripped))
		if g.loseFirst && !lost && bytes.Contains(body, []byte(`"name":"charge"`)) {
			lost = true
			h.ServeHTTP(httptest.NewRecorder(), r)
			http.Error(w, "upstream timed out", http.StatusBadGateway)
			return
		}
		h.ServeHTTP(w, r)
	}))
	g.url = ts.URL
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return g
}

// stripKey removes a key from where it may be in a call.
func stripKey(body []byte) []byte {
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if d.Decode(&m) != nil {
		return body
	}
	params, _ := m["params"].(map[string]any)
	delete(params, schema.ParamKey)
	if meta, ok := params["_meta"].(map[string]any); ok {
		delete(meta, schema.MetaKey)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return body
	}
	return b
}

// serve serves a handler on a loopback port.
func serve(t testing.TB, h http.Handler) string {
	ts := httptest.NewServer(h)
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return ts.URL
}

// isCharge reports whether a request calls the tool charge. It leaves the body
// as it was.
func isCharge(r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Contains(body, []byte(`"name":"charge"`))
}

// cutter is a response of which the client gets the first write, and then the
// end of its connection.
type cutter struct {
	http.ResponseWriter
	once  sync.Once
	after func()
	cut   bool
}

// Write implements io.Writer.
func (c *cutter) Write(b []byte) (int, error) {
	if c.cut {
		return len(b), nil
	}
	n, err := c.ResponseWriter.Write(b)
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	c.cut = true
	if conn, _, herr := http.NewResponseController(c.ResponseWriter).Hijack(); herr == nil {
		_ = conn.Close()
	}
	c.once.Do(c.after)
	return n, err
}

// Flush implements http.Flusher.
func (c *cutter) Flush() {}

// peek reads a request's body and puts it back.
func peek(r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

func containsMethod(body []byte, method string) bool {
	var m struct {
		Method string `json:"method"`
	}
	return json.Unmarshal(body, &m) == nil && m.Method == method
}
