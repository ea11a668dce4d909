// Package mcptest is a client for tests that speaks to a server in bytes, so that
// nothing between the test and the wire has a mind of its own.
package mcptest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// Handler is a server's, with the extension, answering in plain JSON.
func Handler(idem *idempotency.Idempotency, server *mcp.Server) http.Handler {
	return idem.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
}

// Serve starts the server for the test and returns a client of it.
func Serve(t testing.TB, idem *idempotency.Idempotency, server *mcp.Server) *Client {
	ts := httptest.NewServer(Handler(idem, server))
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return New(t, ts.URL)
}

// A Client speaks to a server in bytes, over connections of its own: a test
// server that closes empties the default pool.
type Client struct {
	url  string
	http *http.Client
}

// New returns a client of the server at url.
func New(t testing.TB, url string) *Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &Client{url: url, http: &http.Client{Transport: transport}}
}

// A Reply is the answer to a tools/call.
type Reply struct {
	IsError           bool            `json:"isError"`
	StructuredContent json.RawMessage `json:"structuredContent"`
	Replayed          *bool           `json:"-"` // the marker
	Reason            string          `json:"-"` // of an error of the extension
	Raw               string          `json:"-"`
}

func (r Reply) String() string { return r.Raw }

// post sends a request.
func (c *Client) post(ctx context.Context, method, params string) ([]byte, error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":%s}`, rand.Text(), method, params)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", "2025-11-25")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", res.StatusCode, b)
	}
	return b, err
}

// Try makes one attempt. The error is a lost response.
func (c *Client) Try(ctx context.Context, tool, key, args string) (Reply, error) {
	params := fmt.Sprintf(`{"name":%q,"arguments":%s`, tool, args)
	if key != "" {
		params += fmt.Sprintf(`,"_meta":{%q:%q}`, schema.MetaKey, key)
	}
	b, err := c.post(ctx, "tools/call", params+"}")
	if err != nil {
		return Reply{}, err
	}
	var m struct {
		Result struct {
			Reply
			Meta map[string]json.RawMessage `json:"_meta"`
		}
		Error *struct{ Data schema.ErrorData }
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return Reply{}, fmt.Errorf("%w: %s", err, b)
	}
	r := m.Result.Reply
	r.Raw = string(b)
	if m.Error != nil {
		if r.Reason = string(m.Error.Data.Reason); r.Reason == "" {
			r.Reason = "another error"
		}
	}
	if raw, ok := m.Result.Meta[schema.ExtensionID]; ok {
		var marker schema.ResultMarker
		if err := json.Unmarshal(raw, &marker); err != nil {
			return Reply{}, err
		}
		r.Replayed = &marker.Replayed
	}
	return r, nil
}

// Call makes one attempt, which has to be answered.
func (c *Client) Call(t testing.TB, tool, key, args string) Reply {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := c.Try(ctx, tool, key, args)
	if err != nil {
		t.Errorf("calling %s: %v", tool, err)
	}
	return r
}

// Namespace asks the server what it declares.
func (c *Client) Namespace(ctx context.Context) (string, error) {
	b, err := c.post(ctx, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}`)
	if err != nil {
		return "", err
	}
	var m struct {
		Result struct {
			Capabilities struct {
				Extensions map[string]schema.ServerSettings
			}
		}
	}
	err = json.Unmarshal(b, &m)
	return m.Result.Capabilities.Extensions[schema.ExtensionID].KeyNamespace, err
}

// Key makes a key in the namespace that the server declares.
func (c *Client) Key(t testing.TB) string {
	ns, err := c.Namespace(context.Background())
	if err != nil || ns == "" {
		t.Errorf("namespace %q, %v", ns, err)
	}
	return ns + "." + rand.Text()
}
