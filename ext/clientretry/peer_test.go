package clientretry_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A toolCall is a `tools/call` as a scripted peer saw it.
type toolCall struct {
	N       int // counts the calls that are no path checks, from 1
	ID      json.RawMessage
	Name    string
	Key     string // wherever it was
	InParam bool
	Attempt int
	State   string // requestState
	Body    []byte
	Header  http.Header // of HTTP
	At      time.Time
}

func (c *toolCall) pathCheck() bool { return c.Key == "!" }

// A script answers tool calls: with the raw JSON of a result, with a
// *jsonrpc.Error, or with nil, which is no answer at all.
type script func(c *toolCall) any

// brain is what scripted peers have in common: they speak wire JSON and know
// nothing of the SDK's server.
type brain struct {
	modern   bool
	settings any // of the extension; nil: not declared
	script   script
	path     script // answers path checks; nil: keyInvalid

	mu    sync.Mutex
	calls []*toolCall
	n     int
	tools []any // of tools/list
}

// play changes the script of a peer that is in use.
func (b *brain) play(s script) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = s
}

// list changes what tools/list answers.
func (b *brain) list(tools ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tools = tools
}

func declared(settings ...any) map[string]any {
	m := map[string]any{"keyNamespace": "ns1", "retentionMs": 3600000}
	for i := 0; i+1 < len(settings); i += 2 {
		m[settings[i].(string)] = settings[i+1]
	}
	return m
}

// note records a call.
func (b *brain) note(id, params json.RawMessage, body []byte, h http.Header) *toolCall {
	var p struct {
		Name         string
		Key          *string                    `json:"idempotencyKey"`
		Meta         map[string]json.RawMessage `json:"_meta"`
		RequestState string                     `json:"requestState"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		panic(err)
	}
	c := &toolCall{ID: id, Name: p.Name, State: p.RequestState, Body: body, Header: h, At: time.Now()}
	if p.Key != nil {
		c.Key, c.InParam = *p.Key, true
	} else if raw, ok := p.Meta[schema.MetaKey]; ok {
		_ = json.Unmarshal(raw, &c.Key)
	}
	var marker schema.RequestMarker
	_ = json.Unmarshal(p.Meta[schema.ExtensionID], &marker)
	c.Attempt = marker.Attempt
	b.mu.Lock()
	defer b.mu.Unlock()
	if !c.pathCheck() {
		b.n++
	}
	c.N = b.n
	b.calls = append(b.calls, c)
	return c
}

// seen returns the tool calls that were no path checks.
func (b *brain) seen() []*toolCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.calls), (*toolCall).pathCheck)
}

func (b *brain) pathChecks() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.calls) - b.n
}

// keys of the calls that were no path checks, in order.
func (b *brain) keys() (keys []string) {
	for _, c := range b.seen() {
		keys = append(keys, c.Key)
	}
	return keys
}

func (b *brain) answer(c *toolCall) any {
	if !c.pathCheck() {
		b.mu.Lock()
		s := b.script
		b.mu.Unlock()
		return s(c)
	}
	if b.path != nil {
		return b.path(c)
	}
	return refusal(schema.ReasonKeyInvalid)
}

// handshake answers everything that is not a tool call; nil for what it does
// not know.
func (b *brain) handshake(method string) any {
	capabilities := map[string]any{"tools": map[string]any{}}
	if b.settings != nil {
		capabilities["extensions"] = map[string]any{schema.ExtensionID: b.settings}
	}
	info := map[string]any{"name": "scripted", "version": "1"}
	switch {
	case method == "server/discover" && b.modern:
		return map[string]any{"resultType": "complete", "supportedVersions": []string{"2026-07-28"}, "capabilities": capabilities,
			"ttlMs": 0, "cacheScope": "private",
			"_meta": map[string]any{"io.modelcontextprotocol/serverInfo": info}}
	case method == "initialize":
		return map[string]any{"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
	case method == "tools/list":
		b.mu.Lock()
		tools := append([]any{}, b.tools...)
		b.mu.Unlock()
		return map[string]any{"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": tools}
	case method == "ping":
		return map[string]any{}
	}
	return nil
}

func response(id json.RawMessage, answer any) []byte {
	m := map[string]any{"jsonrpc": "2.0", "id": id}
	switch a := answer.(type) {
	case *jsonrpc.Error:
		m["error"] = a
	case string:
		m["result"] = json.RawMessage(a)
	default:
		m["result"] = a
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// done is the result of a tool, with the marker or without one.
func done(marker ...bool) string {
	meta := ""
	if len(marker) > 0 {
		meta = fmt.Sprintf(`,"_meta":{%q:{"replayed":%v}}`, schema.ExtensionID, marker[0])
	}
	return `{"resultType":"complete","content":[{"type":"text","text":"done"}]` + meta + `}`
}

// refusal is an extension error with the outcome of the SEP's table.
func refusal(reason schema.Reason, change ...func(*schema.ErrorData)) *jsonrpc.Error {
	outcome, _ := schema.OutcomeOf(reason)
	data := schema.ErrorData{Reason: reason, Outcome: outcome}
	for _, f := range change {
		f(&data)
	}
	return &jsonrpc.Error{Code: schema.ErrorCode, Message: string(reason), Data: raw(data)}
}

func after(ms int64) func(*schema.ErrorData) {
	return func(d *schema.ErrorData) { d.RetryAfterMs = &ms }
}

func namespace(ns string) func(*schema.ErrorData) {
	return func(d *schema.ErrorData) { d.KeyNamespace = ns }
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// httpPeer is a scripted server over HTTP.
type httpPeer struct {
	brain
	*httptest.Server
	// serve, when set, writes the HTTP response to a tool call itself. It
	// returns false to leave it to the script.
	serve func(c *toolCall, w http.ResponseWriter, r *http.Request) bool
	get   http.HandlerFunc // answers GET; nil: 405
	sse   bool             // script answers go out as events

	dials int // handshakes so far, guarded by brain.mu
}

func newHTTPPeer(t *testing.T, modern bool, settings any) *httpPeer {
	t.Helper()
	p := &httpPeer{brain: brain{modern: modern, settings: settings}}
	p.script = func(c *toolCall) any {
		if c.Key == "" {
			return done()
		}
		return done(false)
	}
	p.Server = httptest.NewServer(http.HandlerFunc(p.handle))
	t.Cleanup(func() { p.CloseClientConnections(); p.Server.Close() })
	return p
}

func (p *httpPeer) handle(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		if p.get != nil {
			p.get(w, r)
			return
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case http.MethodDelete:
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
	if err := json.Unmarshal(body, &m); err != nil || len(m.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if m.Method != schema.MethodCallTool {
		p.other(w, m.ID, m.Method)
		return
	}
	c := p.note(m.ID, m.Params, body, r.Header.Clone())
	if p.serve != nil && p.serve(c, w, r) {
		return
	}
	p.write(w, c)
}

func (p *httpPeer) other(w http.ResponseWriter, id json.RawMessage, method string) {
	w.Header().Set("Content-Type", "application/json")
	if method == "initialize" || method == "server/discover" && p.modern {
		p.mu.Lock()
		p.dials++
		n := p.dials
		p.mu.Unlock()
		if !p.modern {
			w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", n))
		}
	}
	answer := p.handshake(method)
	if answer == nil {
		answer = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "unknown method"}
	}
	_, _ = w.Write(response(id, answer))
}

// write gives the script's answer.
func (p *httpPeer) write(w http.ResponseWriter, c *toolCall) {
	answer := p.answer(c)
	switch {
	case answer == nil:
		panic(http.ErrAbortHandler)
	case p.sse:
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", response(c.ID, answer))
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(response(c.ID, answer))
	}
}

// dialled is the number of handshakes.
func (p *httpPeer) dialled() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// open connects a client of its own to a transport.
func open(t *testing.T, transport mcp.Transport, opt *clientretry.Options) *clientretry.Session {
	t.Helper()
	ownPool(t, transport)
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	s, err := clientretry.New(client, opt).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openHTTP connects to a scripted peer until the test ends.
func openHTTP(t *testing.T, p *httpPeer, opt *clientretry.Options) *clientretry.Session {
	t.Helper()
	s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL}, opt)
	t.Cleanup(func() { s.Close() })
	return s
}

func generations(t *testing.T, test func(t *testing.T, modern bool)) {
	for name, modern := range map[string]bool{"modern": true, "legacy": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, modern) })
	}
}

// callCharge calls the tool charge.
func callCharge(t *testing.T, s *clientretry.Session) (*mcp.CallToolResult, clientretry.Report, error) {
	t.Helper()
	ctx, report := clientretry.WithReport(t.Context())
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 1}})
	return res, *report, err
}

// ownPool gives an HTTP transport connections of its own: every test server
// that closes also closes idle ones of the default transport, under whoever
// takes one up just then.
func ownPool(t testing.TB, transport mcp.Transport) {
	if h, ok := transport.(*mcp.StreamableClientTransport); ok && h.HTTPClient == nil {
		pool := &http.Transport{}
		t.Cleanup(pool.CloseIdleConnections)
		h.HTTPClient = &http.Client{Transport: pool}
	}
}
