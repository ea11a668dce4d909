package idempotency_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

const (
	modernRevision = "2026-07-28"
	legacyRevision = "2025-11-25"
)

// reply is a JSON-RPC response as it came over the wire.
type reply struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *wireError      `json:"error"`
	status int             // of HTTP; 0 on stdio
}

type wireError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// ext returns the extension error's data, or the zero value.
func (r reply) ext() schema.ErrorData {
	var d schema.ErrorData
	if r.Error != nil && r.Error.Code == schema.ErrorCode {
		_ = json.Unmarshal(r.Error.Data, &d)
	}
	return d
}

// marker returns the result's marker, or nil.
func (r reply) marker() *schema.ResultMarker {
	var holder struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	raw := r.Result
	if r.Error != nil {
		raw = json.RawMessage(`{"_meta":` + string(r.Error.Data) + `}`)
	}
	if json.Unmarshal(raw, &holder) != nil {
		return nil
	}
	var m schema.ResultMarker
	if b, ok := holder.Meta[schema.ExtensionID]; !ok || json.Unmarshal(b, &m) != nil {
		return nil
	}
	return &m
}

func (r reply) replayed() bool { m := r.marker(); return m != nil && m.Replayed }

func (r reply) String() string {
	b, _ := json.Marshal(r)
	return string(b)
}

// A conn speaks raw JSON-RPC to a server, so that tests choose every byte of
// the params.
type conn interface {
	// call sends one request and returns its response. It is safe for
	// concurrent use.
	call(ctx context.Context, method, params string) (reply, error)
	revision() string
}

// connector makes a conn to a server.
type connector struct {
	name    string
	connect func(t testing.TB, idem *idempotency.Idempotency, server *mcp.Server) conn
}

// connectors are all ways to reach a server that the SDK speaks.
func connectors() []connector {
	return []connector{
		{"http-modern-sse", httpConn(modernRevision, mcp.StreamableHTTPOptions{Stateless: true})},
		{"http-modern-json", httpConn(modernRevision, mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})},
		{"http-legacy-stateful-sse", httpConn(legacyRevision, mcp.StreamableHTTPOptions{})},
		{"http-legacy-stateful-json", httpConn(legacyRevision, mcp.StreamableHTTPOptions{JSONResponse: true})},
		{"http-legacy-stateless", httpConn(legacyRevision, mcp.StreamableHTTPOptions{Stateless: true})},
		{"stdio-modern", pipeConn(modernRevision)},
		{"stdio-legacy", pipeConn(legacyRevision)},
	}
}

// named are the connectors with a word in their names.
func named(word string) []connector {
	return slices.DeleteFunc(connectors(), func(c connector) bool { return !strings.Contains(c.name, word) })
}

// cancelling are the connectors over which a client's leaving reaches the
// handler's context.
func cancelling() []connector {
	propagate := mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}
	list := []connector{{"http-modern-propagating", httpConn(modernRevision, propagate)}}
	return append(append(list, named("stateful")...), named("stdio")...)
}

// onEach runs a test over every connector. opt makes the options of one of
// them; nil is for none.
func onEach(t *testing.T, opt func() *idempotency.Options, test func(t *testing.T, f *fixture)) {
	on(t, connectors(), opt, nil, test)
}

// on is onEach over some connectors, with options for the memory store, whose
// clock is the fixture's.
func on(t *testing.T, list []connector, opt func() *idempotency.Options, mem *memory.Options, test func(t *testing.T, f *fixture)) {
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var o *idempotency.Options
			if opt != nil {
				o = opt()
			}
			test(t, newFixtureStore(t, c, o, mem))
		})
	}
}

// requestMeta is the `_meta` that a revision demands.
func requestMeta(revision string) string {
	if revision != modernRevision {
		return ""
	}
	return `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}`
}

// withMeta adds the members that the revision demands to params.
func withMeta(revision, params string) string {
	meta := requestMeta(revision)
	if meta == "" {
		return params
	}
	if before, after, ok := strings.Cut(params, `"_meta":{`); ok {
		if !strings.HasPrefix(after, "}") {
			meta += ","
		}
		return before + `"_meta":{` + meta + after
	}
	meta = `{"_meta":{` + meta + `}`
	if strings.TrimSpace(params) == "{}" {
		return meta + "}"
	}
	return meta + "," + params[1:]
}

// pipeClient speaks over the bytes of a stdio transport.
type pipeClient struct {
	rev    string
	w      io.WriteCloser
	ids    atomic.Int64
	served chan struct{} // closed when the server is done

	handshake reply // to initialize

	writing sync.Mutex
	mu      sync.Mutex
	pending map[int64]chan reply // nil when the server hung up
}

var errHungUp = errors.New("the server closed the pipe")

func pipeConn(rev string) func(testing.TB, *idempotency.Idempotency, *mcp.Server) conn {
	return func(t testing.TB, idem *idempotency.Idempotency, server *mcp.Server) conn {
		return dialPipe(t, server, idem.Transport, rev)
	}
}

// dialPipe runs the server on a pair of pipes and connects to it. wrap is the
// adapter, if any.
func dialPipe(t testing.TB, server *mcp.Server, wrap func(mcp.Transport) mcp.Transport, rev string) *pipeClient {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	var transport mcp.Transport = &mcp.IOTransport{Reader: inR, Writer: outW}
	if wrap != nil {
		transport = wrap(transport)
	}
	c := &pipeClient{rev: rev, w: inW, pending: map[int64]chan reply{}, served: make(chan struct{})}
	go func() {
		defer close(c.served)
		_ = server.Run(ctx, transport)
		outW.Close()
	}()
	go c.read(outR)
	t.Cleanup(func() { inW.Close(); cancel(); outR.Close(); <-c.served })
	c.initialize(t)
	return c
}

func (c *pipeClient) initialize(t testing.TB) {
	if c.rev >= modernRevision {
		return
	}
	var err error
	c.handshake, err = c.call(t.Context(), "initialize", `{"protocolVersion":"`+c.rev+`","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}`)
	if err != nil {
		t.Fatal(err)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}`)
}

func (c *pipeClient) revision() string { return c.rev }

func (c *pipeClient) send(line string) {
	c.writing.Lock()
	defer c.writing.Unlock()
	fmt.Fprintln(c.w, line)
}

func (c *pipeClient) read(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			c.mu.Lock()
			for _, ch := range c.pending {
				close(ch)
			}
			c.pending = nil
			c.mu.Unlock()
			return
		}
		var m struct {
			reply
			ID int64 `json:"id"`
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		c.mu.Lock()
		ch := c.pending[m.ID]
		delete(c.pending, m.ID)
		c.mu.Unlock()
		if ch != nil {
			ch <- m.reply
		}
	}
}

func (c *pipeClient) call(ctx context.Context, method, params string) (reply, error) {
	id := c.ids.Add(1)
	ch := make(chan reply, 1)
	c.mu.Lock()
	if c.pending == nil {
		c.mu.Unlock()
		return reply{}, errHungUp
	}
	c.pending[id] = ch
	c.mu.Unlock()
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, withMeta(c.rev, params)))
	select {
	case r, ok := <-ch:
		if !ok {
			return reply{}, errHungUp
		}
		return r, nil
	case <-ctx.Done():
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
		return reply{}, ctx.Err()
	}
}
