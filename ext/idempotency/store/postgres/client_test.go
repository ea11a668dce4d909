package postgres

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

// handler is a server's, answering in plain JSON.
func handler(idem *idempotency.Idempotency, server *mcp.Server) http.Handler {
	return idem.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
}

func serve(t testing.TB, idem *idempotency.Idempotency, server *mcp.Server) *client {
	ts := httptest.NewServer(handler(idem, server))
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return newClient(t, ts.URL)
}

// A client speaks to a server in bytes, over connections of its own: a test
// server that closes empties the default pool.
type client struct {
	url  string
	http *http.Client
}

func newClient(t testing.TB, url string) *client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{url: url, http: &http.Client{Transport: transport}}
}

// A reply is the answer to a tools/call.
type reply struct {
	IsError           bool            `json:"isError"`
	StructuredContent json.RawMessage `json:"structuredContent"`
	replayed          *bool           // the marker
	reason            string          // of an error of the extension
	raw               string
}

func (r reply) String() string { return r.raw }

func (c *client) post(ctx context.Context, method, params string) ([]byte, error) {
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

// try makes one attempt. The error is a lost response.
func (c *client) try(ctx context.Context, tool, key, args string) (reply, error) {
	params := fmt.Sprintf(`{"name":%q,"arguments":%s`, tool, args)
	if key != "" {
		params += fmt.Sprintf(`,"_meta":{%q:%q}`, schema.MetaKey, key)
	}
	b, err := c.post(ctx, "tools/call", params+"}")
	if err != nil {
		return reply{}, err
	}
	var m struct {
		Result struct {
			reply
			Meta map[string]json.RawMessage `json:"_meta"`
		}
		Error *struct{ Data schema.ErrorData }
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return reply{}, fmt.Errorf("%w: %s", err, b)
	}
	r := m.Result.reply
	r.raw = string(b)
	if m.Error != nil {
		if r.reason = string(m.Error.Data.Reason); r.reason == "" {
			r.reason = "another error"
		}
	}
	if raw, ok := m.Result.Meta[schema.ExtensionID]; ok {
		var marker schema.ResultMarker
		if err := json.Unmarshal(raw, &marker); err != nil {
			return reply{}, err
		}
		r.replayed = &marker.Replayed
	}
	return r, nil
}

func (c *client) call(t testing.TB, tool, key, args string) reply {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := c.try(ctx, tool, key, args)
	if err != nil {
		t.Errorf("calling %s: %v", tool, err)
	}
	return r
}

// namespace asks the server what it declares.
func (c *client) namespace(ctx context.Context) (string, error) {
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

func (c *client) key(t testing.TB) string {
	ns, err := c.namespace(context.Background())
	if err != nil || ns == "" {
		t.Errorf("namespace %q, %v", ns, err)
	}
	return ns + "." + rand.Text()
}
