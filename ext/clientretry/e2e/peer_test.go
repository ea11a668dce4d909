package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A peer is a scripted MCP server on a real socket. It answers the handshake,
// and a test says, call by call, what becomes of each `tools/call`. It shares
// no code with the library.
type peer struct {
	t   testing.TB
	url string
	ts  *httptest.Server

	mu       sync.Mutex
	modern   bool
	settings any // what it declares of the extension; nil: nothing
	tools    string
	calls    []wireCall     // every tools/call, path checks included
	methods  map[string]int // every other message
	ran      map[string]int // runs by key, as run counts them
	script   []step
	check    step // answers path checks; nil: as the SEP says
	sessions int
	resume   func(w http.ResponseWriter, r *http.Request, last string) // nil: 405
	onCall   func(wireCall)                                            // told of every tools/call; nil: nobody
	arrived  chan string                                               // every method, in order of arrival
	released chan struct{}                                             // closed by cleanup: ends what hangs
}

// wireCall is a `tools/call` as it came off the wire.
type wireCall struct {
	ID        json.RawMessage
	Tool      string
	Arguments string
	Key       string
	InParam   bool
	BothForms bool
	Attempt   int
	Session   string
	Header    http.Header
	Body      string
	At        time.Time
	path      string
}

// A step answers one call.
type step func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall)

const pathCheckTool = "idempotency_path_check"

func declared(namespace string) map[string]any {
	return map[string]any{"keyNamespace": namespace, "retentionMs": 3_600_000, "keyParam": true}
}

// newPeer starts a peer. settings nil makes an unextended one. The n-th call
// meets the n-th step, later ones the last.
func newPeer(t testing.TB, modern bool, settings any, script ...step) *peer {
	t.Helper()
	p := &peer{
		t: t, modern: modern, settings: settings, script: script, tools: `[]`,
		methods: map[string]int{}, ran: map[string]int{},
		arrived: make(chan string, 10_000), released: make(chan struct{}),
	}
	p.ts = httptest.NewServer(p)
	p.url = p.ts.URL
	t.Cleanup(p.close)
	return p
}

var closing sync.Map // peers that are closed

func (p *peer) close() {
	if _, again := closing.LoadOrStore(p, true); again {
		return
	}
	close(p.released)
	p.ts.CloseClientConnections()
	p.ts.Close()
}

// onGenerations runs a test with a modern and a legacy peer.
func onGenerations(t *testing.T, test func(t *testing.T, modern bool)) {
	for name, modern := range map[string]bool{"modern": true, "legacy": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, modern) })
	}
}

// ServeHTTP implements http.Handler.
func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		p.note("GET")
		p.mu.Lock()
		resume := p.resume
		p.mu.Unlock()
		if last := r.Header.Get("Last-Event-ID"); last != "" && resume != nil {
			resume(w, r, last)
			return
		}
		http.Error(w, "no stream here", http.StatusMethodNotAllowed)
		return
	case http.MethodDelete:
		p.note("DELETE")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		p.t.Errorf("the peer got %q: %v", body, err)
		return
	}
	if m.Method == schema.MethodCallTool {
		p.call(w, r, p.parse(m.ID, m.Params, r, body))
		return
	}
	p.note(m.Method)
	if len(m.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	p.handshake(w, m.Method, m.ID)
}

func (p *peer) note(method string) {
	p.mu.Lock()
	p.methods[method]++
	p.mu.Unlock()
	p.arrived <- method
}

func (p *peer) handshake(w http.ResponseWriter, method string, id json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	extensions := `{}`
	if p.settings != nil {
		b, err := json.Marshal(map[string]any{schema.ExtensionID: p.settings})
		if err != nil {
			p.t.Error(err)
		}
		extensions = string(b)
	}
	capabilities := `{"tools":{},"extensions":` + extensions + `}`
	switch {
	case method == "server/discover" && p.modern:
		writeJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":%s}}`, id, capabilities)
	case method == "initialize" && !p.modern:
		p.sessions++
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", p.sessions))
		writeJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"peer","version":"1"},"capabilities":%s}}`, id, capabilities)
	case method == "tools/list":
		writeJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","tools":%s}}`, id, p.tools)
	case method == "ping":
		writeJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
	default:
		writeJSON(w, 404, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, id)
	}
}

// parse reads a call. Both forms of the key at once are noted.
func (p *peer) parse(id, params json.RawMessage, r *http.Request, body []byte) wireCall {
	var v struct {
		Name      string                     `json:"name"`
		Arguments json.RawMessage            `json:"arguments"`
		Key       *string                    `json:"idempotencyKey"`
		Meta      map[string]json.RawMessage `json:"_meta"`
	}
	if err := json.Unmarshal(params, &v); err != nil {
		p.t.Errorf("the peer got params %s: %v", params, err)
	}
	c := wireCall{
		ID: id, Tool: v.Name, Arguments: string(v.Arguments), Header: r.Header.Clone(), Body: string(body),
		At: time.Now(), Session: r.Header.Get("Mcp-Session-Id"), path: r.URL.Path,
	}
	if v.Key != nil {
		c.Key, c.InParam = *v.Key, true
	}
	if raw, ok := v.Meta[schema.MetaKey]; ok {
		c.BothForms = c.InParam
		if err := json.Unmarshal(raw, &c.Key); err != nil {
			p.t.Errorf("the key in _meta is %s", raw)
		}
	}
	if raw, ok := v.Meta[schema.ExtensionID]; ok {
		var marker schema.RequestMarker
		if err := json.Unmarshal(raw, &marker); err != nil {
			p.t.Errorf("the request's marker is %s", raw)
		}
		c.Attempt = marker.Attempt
	}
	return c
}

func (p *peer) call(w http.ResponseWriter, r *http.Request, c wireCall) {
	p.mu.Lock()
	p.calls = append(p.calls, c)
	n := 0
	for _, earlier := range p.calls {
		if earlier.Tool != pathCheckTool {
			n++
		}
	}
	onCall := p.onCall
	check := p.check
	var s step
	if n > 0 && len(p.script) > 0 {
		s = p.script[min(n, len(p.script))-1]
	}
	p.mu.Unlock()
	if onCall != nil {
		onCall(c)
	}
	if c.Tool == pathCheckTool {
		p.arrived <- "check"
		if check == nil {
			check = honestCheck
		}
		s = check
	} else {
		p.arrived <- schema.MethodCallTool
	}
	if s == nil {
		s = answer(ok)
	}
	s(p, w, r, c)
}

// honestCheck is what the SEP has a server answer to a path check.
func honestCheck(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
	p.mu.Lock()
	extended := p.settings != nil
	p.mu.Unlock()
	if extended && c.Key != "" {
		if _, _, err := schema.ParseKey(c.Key); err == nil {
			p.t.Errorf("the path check has a well-formed key, %q", c.Key)
		}
		extension("keyInvalid", "notRun")(p, w, r, c)
		return
	}
	rpcError(-32602, "unknown tool", "")(p, w, r, c)
}

// seen returns the calls so far, path checks apart.
func (p *peer) seen() (calls, checks []wireCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.Tool == pathCheckTool {
			checks = append(checks, c)
		} else {
			calls = append(calls, c)
		}
	}
	return calls, checks
}

func (p *peer) count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.methods[method]
}

// await waits until a message of this method has come in.
func (p *peer) await(t testing.TB, method string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case got := <-p.arrived:
			if got == method {
				return
			}
		case <-late:
			t.Fatalf("%s never arrived", method)
		}
	}
}

func writeJSON(w http.ResponseWriter, status int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, format, args...) // a client that is gone is no trouble
}

// abort resets the connection under a response.
func abort(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // gone already is as good
	}
	_ = conn.Close()
}
