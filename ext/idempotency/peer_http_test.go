package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

type httpClient struct {
	url, rev, session, bearer string
	header                    http.Header // sent beside the usual ones
	client                    *http.Client
	ids                       atomic.Int64
}

func httpConn(rev string, opts mcp.StreamableHTTPOptions) func(testing.TB, *idempotency.Idempotency, *mcp.Server) conn {
	return func(t testing.TB, idem *idempotency.Idempotency, server *mcp.Server) conn {
		return dialHTTP(t, idem.Handler(sdkHandler(server, opts)), rev, opts, "")
	}
}

func sdkHandler(server *mcp.Server, opts mcp.StreamableHTTPOptions) http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &opts)
}

// dialHTTP serves h and connects to it. A bearer token is sent when not empty.
func dialHTTP(t testing.TB, h http.Handler, rev string, opts mcp.StreamableHTTPOptions, bearer string) *httpClient {
	ts := httptest.NewServer(h)
	c := &httpClient{url: ts.URL, rev: rev, bearer: bearer, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(func() { c.client.CloseIdleConnections(); ts.CloseClientConnections(); ts.Close() })
	if rev == legacyRevision && !opts.Stateless {
		c.initialize(t)
	}
	return c
}

// as is another client of the same server with another token.
func (c *httpClient) as(t testing.TB, bearer string) *httpClient {
	other := &httpClient{url: c.url, rev: c.rev, bearer: bearer, client: c.client}
	if c.session != "" {
		other.initialize(t)
	}
	return other
}

func (c *httpClient) revision() string { return c.rev }

func (c *httpClient) initialize(t testing.TB) {
	resp, err := c.post(t.Context(), "initialize", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+legacyRevision+
		`","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	c.session = resp.Header.Get("Mcp-Session-Id")
	resp.Body.Close()
	if resp, err = c.post(t.Context(), "", `{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}`); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func (c *httpClient) post(ctx context.Context, method, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", c.rev)
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	if c.rev == modernRevision && method != "" {
		req.Header.Set("Mcp-Method", method)
		var named struct {
			Params struct {
				Name string `json:"name"`
			} `json:"params"`
		}
		if json.Unmarshal([]byte(body), &named) == nil && named.Params.Name != "" {
			req.Header.Set("Mcp-Name", named.Params.Name)
		}
	}
	return c.client.Do(req)
}

func (c *httpClient) call(ctx context.Context, method, params string) (reply, error) {
	id := c.ids.Add(1)
	defer func() {
		if ctx.Err() != nil && c.session != "" { // as legacy clients do
			resp, err := c.post(context.Background(), "", fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
			if err == nil {
				resp.Body.Close()
			}
		}
	}()
	resp, err := c.post(ctx, method, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, withMeta(c.rev, params)))
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	return lastMessage(resp, body)
}

// lastMessage finds the response in a JSON or SSE body.
func lastMessage(resp *http.Response, body []byte) (reply, error) {
	raw := body
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		for line := range bytes.Lines(body) {
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				raw = data
			}
		}
	}
	r := reply{status: resp.StatusCode}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("status %d, body %q: %w", resp.StatusCode, body, err)
	}
	return r, nil
}
