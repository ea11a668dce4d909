package rawmcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// httpConn speaks Streamable HTTP.
type httpConn struct {
	url       string
	opt       Options
	client    *http.Client
	ids       atomic.Int64
	revision  string
	session   string // of [Legacy]; empty for none
	handshake Reply
}

// DialHTTP makes the handshake with the server at url. The error matches
// [ErrUnreachable] or [ErrNotMCP].
func DialHTTP(ctx context.Context, url string, opt *Options) (Conn, error) {
	c := &httpConn{url: url, opt: opt.withDefaults(), client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, Proxy: http.ProxyFromEnvironment},
		// A redirect would send a tool call again.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	var last error
	for _, h := range handshakes(c.opt.Revision) {
		c.revision = h.revision
		r, header, err := c.post(ctx, strconv.FormatInt(c.ids.Add(1), 10), h.method, h.params)
		switch {
		case err == nil && h.agreed(r):
			c.handshake, c.session = r, header.Get("Mcp-Session-Id")
			if h.revision == Legacy {
				err = c.Notify(ctx, "notifications/initialized", `{}`)
			}
			return c, err
		case err == nil:
			last = fmt.Errorf("%w: %s is answered %s", ErrNotMCP, h.method, r)
		case errors.Is(err, ErrNotMCP), errors.Is(err, ErrTooLong):
			last = err
		default:
			_ = c.Close()
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
	}
	_ = c.Close()
	return nil, last
}

func (c *httpConn) Revision() string { return c.revision }
func (c *httpConn) Handshake() Reply { return c.handshake }

func (c *httpConn) Close() error {
	c.client.CloseIdleConnections()
	return nil
}

func (c *httpConn) Call(ctx context.Context, method, params string) (Reply, error) {
	return c.CallID(ctx, strconv.FormatInt(c.ids.Add(1), 10), method, params)
}

func (c *httpConn) CallID(ctx context.Context, id, method, params string) (Reply, error) {
	r, _, err := c.post(ctx, id, method, params)
	return r, err
}

func (c *httpConn) Notify(ctx context.Context, method, params string) error {
	res, err := c.send(ctx, "", method, params)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, c.opt.MaxBytes))
	return res.Body.Close()
}

func (c *httpConn) send(ctx context.Context, id, method, params string) (*http.Response, error) {
	body := message(c.revision, id, method, params)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method != "initialize" {
		req.Header.Set("MCP-Protocol-Version", c.revision)
	}
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	if c.revision == Modern {
		req.Header.Set("Mcp-Method", method)
		var named struct{ Name string }
		if json.Unmarshal([]byte(params), &named) == nil && named.Name != "" {
			req.Header.Set("Mcp-Name", named.Name)
		}
	}
	for k, v := range c.opt.Header {
		req.Header.Set(k, v)
	}
	trace(ctx, "->", body)
	res, err := c.client.Do(req)
	if err != nil {
		trace(ctx, "--", err.Error())
		return nil, err
	}
	return res, nil
}

// post sends a request and reads its response, out of JSON or of a stream of
// events.
func (c *httpConn) post(ctx context.Context, id, method, params string) (Reply, http.Header, error) {
	res, err := c.send(ctx, id, method, params)
	if err != nil {
		return Reply{}, nil, err
	}
	defer res.Body.Close()
	body := &bounded{r: res.Body, left: c.opt.MaxBytes}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind == "text/event-stream" {
		r, err := readEvents(ctx, body, id)
		r.Status = res.StatusCode
		return r, res.Header, err
	}
	b, err := io.ReadAll(body)
	trace(ctx, "<-", fmt.Sprintf("HTTP %d %s %s", res.StatusCode, kind, b))
	if err != nil {
		return Reply{}, nil, err
	}
	r := Reply{Status: res.StatusCode}
	if json.Unmarshal(b, &r) != nil || r.Result == nil && r.Error == nil {
		return r, res.Header, fmt.Errorf("%w: HTTP %d, %s, %.100q", ErrNotMCP, res.StatusCode, kind, b)
	}
	return r, res.Header, nil
}

// readEvents reads a stream of events up to the response to the request with
// the id.
func readEvents(ctx context.Context, body io.Reader, id string) (Reply, error) {
	lines := bufio.NewReader(body)
	var data bytes.Buffer
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			trace(ctx, "--", "the stream ended: "+err.Error())
			if errors.Is(err, io.EOF) {
				err = errors.New("the stream ended without a response")
			}
			return Reply{}, err
		}
		line = strings.TrimRight(line, "\r\n")
		if text, ok := strings.CutPrefix(line, "data:"); ok {
			data.WriteString(strings.TrimPrefix(text, " "))
			continue
		}
		if line != "" || data.Len() == 0 {
			continue
		}
		trace(ctx, "<-", data.String())
		var r Reply
		if json.Unmarshal(data.Bytes(), &r) == nil && string(r.ID) == id && (r.Result != nil || r.Error != nil) {
			return r, nil
		}
		data.Reset()
	}
}

// bounded reads up to a limit and then fails.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, ErrTooLong
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
