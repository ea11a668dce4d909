package clientretry_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A httpFault is what a server, or something on the way, does with the response to a call.
type httpFault struct {
	kind  clientretry.LossKind
	serve func(c *toolCall, w http.ResponseWriter, r *http.Request)
}

func typed(w http.ResponseWriter, contentType string, status int) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
}

// resetConn ends the connection with a TCP reset.
func resetConn(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

func status(code int, body string) func(*toolCall, http.ResponseWriter, *http.Request) {
	return func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, "text/plain", code)
		_, _ = io.WriteString(w, body)
	}
}

func body(contentType, format string) func(*toolCall, http.ResponseWriter, *http.Request) {
	return func(c *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, contentType, http.StatusOK)
		_, _ = io.WriteString(w, strings.ReplaceAll(format, "$ID", string(c.ID)))
	}
}

const (
	sse       = "text/event-stream"
	jsonType  = "application/json"
	fullReply = `{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","content":[]}}`
)

// faultsOnTheWire are the ways to lose a response that internal/fault does not
// have. After each of them the plain SDK either ends its session or waits.
var faultsOnTheWire = map[string]httpFault{
	"408": {clientretry.LossStatus, status(408, "")}, "429": {clientretry.LossStatus, status(429, "")},
	"500": {clientretry.LossStatus, status(500, "oops")}, "502": {clientretry.LossStatus, status(502, "<html>")},
	"503": {clientretry.LossStatus, status(503, "")}, "504": {clientretry.LossStatus, status(504, "")},
	"502 with JSON-RPC body": {clientretry.LossStatus, status(502, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"x"}}`)},
	"202":                    {clientretry.LossMalformed, status(202, "")},
	"204":                    {clientretry.LossMalformed, status(204, "")},
	"304":                    {clientretry.LossMalformed, status(304, "")},
	"html":                   {clientretry.LossMalformed, body("text/html", "<html>log in</html>")},
	"no content type":        {clientretry.LossMalformed, body("", fullReply)},
	"empty json":             {clientretry.LossEOF, body(jsonType, "")},
	"json null":              {clientretry.LossMalformed, body(jsonType, "null")},
	"json array":             {clientretry.LossMalformed, body(jsonType, "["+fullReply+"]")},
	"json string id":         {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":"$ID","result":{}}`)},
	"json other id":          {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":99999,"result":{}}`)},
	"json no id":             {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","result":{}}`)},
	"json ID":                {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","ID":$ID,"Result":{}}`)},
	"json no version":        {clientretry.LossMalformed, body(jsonType, `{"id":$ID,"result":{}}`)},
	"json neither":           {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID}`)},
	"json null result":       {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"result":null}`)},
	"json both":              {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":""}}`)},
	"json request":           {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"method":"ping"}`)},
	"json cut":               {clientretry.LossMalformed, body(jsonType, fullReply[:40])},
	"json deep":              {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"result":`+strings.Repeat("[", 2000)+strings.Repeat("]", 2000)+`}`)},
	"sse empty":              {clientretry.LossEOF, body(sse, "")},
	"sse comment only":       {clientretry.LossEOF, body(sse, ": ping\n\n")},
	"sse other event":        {clientretry.LossEOF, body(sse, "event: x\ndata: "+fullReply+"\n\n")},
	"sse other id":           {clientretry.LossEOF, body(sse, "data: "+strings.ReplaceAll(fullReply, "$ID", "99999")+"\n\n")},
	"sse string id":          {clientretry.LossEOF, body(sse, "data: "+strings.ReplaceAll(fullReply, "$ID", `"$ID"`)+"\n\n")},
	"sse line":               {clientretry.LossMalformed, body(sse, "data\n\n")},
	"sse json":               {clientretry.LossMalformed, body(sse, "data: {\n\n")},
	"sse cut":                {clientretry.LossEOF, body(sse, "data: "+fullReply[:40])},
	"sse cut line":           {clientretry.LossEOF, body(sse, "dat")},
	"sse neither":            {clientretry.LossMalformed, body(sse, "data: {\"jsonrpc\":\"2.0\",\"id\":$ID}\n\n")},
	"sse both":               {clientretry.LossMalformed, body(sse, "data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{},\"error\":{\"code\":1,\"message\":\"\"}}\n\n")},
	"json promised longer": {clientretry.LossEOF, func(c *toolCall, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "500")
		body(jsonType, fullReply)(c, w, nil)
	}},
	"reset before headers": {clientretry.LossReset, func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := http.NewResponseController(w).Hijack()
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}},
	"close before headers": {clientretry.LossReset, func(*toolCall, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	"reset after headers": {clientretry.LossReset, func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, sse, 200)
		resetConn(w)
	}},
	"reset in a json body": {clientretry.LossReset, func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, jsonType, 200)
		_, _ = io.WriteString(w, fullReply[:20])
		resetConn(w)
	}},
	"no headers in time": {clientretry.LossTimeout, func(_ *toolCall, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	"no event in time": {clientretry.LossTimeout, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		typed(w, sse, 200)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}},
	"no end of the body in time": {clientretry.LossTimeout, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		typed(w, jsonType, 200)
		_, _ = io.WriteString(w, fullReply[:20])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}},
	"a redirect to a page": {clientretry.LossMalformed, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/login", http.StatusFound)
	}},
	"a redirect for ever": {clientretry.LossOther, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
	}},
}

func newFaultyPeer(t *testing.T, modern bool, settings any, f httpFault) *httpPeer {
	p := newHTTPPeer(t, modern, settings)
	first := ""
	p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.pathCheck() || first != "" && first != string(c.ID) {
			return false
		}
		first = string(c.ID) // redirects bring the same one again
		p.mu.Unlock()
		defer p.mu.Lock()
		f.serve(c, w, r)
		return true
	}
	p.get = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/login" {
			typed(w, "text/html", 200)
			return
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
	return p
}

func quick() *clientretry.Options {
	return &clientretry.Options{AttemptTimeout: 300 * time.Millisecond, BackoffBase: time.Millisecond}
}

func TestEveryFaultIsALossOfTheCallAndNotOfTheSession(t *testing.T) {
	for name, f := range faultsOnTheWire {
		t.Run(name, func(t *testing.T) {
			generations(t, func(t *testing.T, modern bool) {
				for _, keyed := range []bool{true, false} {
					var settings any
					if keyed {
						settings = declared("keyParam", true)
					}
					p := newFaultyPeer(t, modern, settings, f)
					s := openHTTP(t, p, quick())
					_, report, err := callCharge(t, s)
					if want := map[bool]string{true: "result", false: "unknown"}[keyed]; told(err) != want {
						t.Fatalf("keyed %v: told %v, want %s", keyed, err, want)
					}
					if len(report.Losses) != 1 || report.Losses[0].Kind != f.kind {
						t.Errorf("keyed %v: losses %+v, want one of kind %s", keyed, report.Losses, f.kind)
					}
					attempts := map[bool]int{true: 2, false: 1}[keyed]
					if report.Attempts != attempts || !keyed && name != "a redirect for ever" && len(p.seen()) != 1 {
						t.Errorf("keyed %v: %d calls, report %+v", keyed, len(p.seen()), report)
					}
					if _, _, err := callCharge(t, s); err != nil {
						t.Errorf("keyed %v: the next call on the session: %v", keyed, err)
					}
					if p.dialled() != 1 {
						t.Errorf("keyed %v: %d handshakes, want the first to last", keyed, p.dialled())
					}
				}
			})
		})
	}
}

// What looks odd and is a response all the same.
func TestOddResponsesThatAreOnesAreTaken(t *testing.T) {
	for name, serve := range map[string]func(*toolCall, http.ResponseWriter, *http.Request){
		"error null":        body(jsonType, `{"jsonrpc":"2.0","id":$ID,"error":null,"result":{"resultType":"complete","content":[]}}`),
		"spaces":            body("Application/JSON; charset=utf-8", "\n "+fullReply+" \n"),
		"no blank line":     body(sse, "data: "+fullReply),
		"split data":        body(sse, "data: "+fullReply[:16]+"\ndata: "+fullReply[16:]+"\n\n"),
		"crlf":              body(sse, ": hi\r\nid: 7\r\nevent: message\r\ndata: "+fullReply+"\r\n\r\n"),
		"others before it":  body(sse, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\nevent: x\ndata: {\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":12345,\"result\":{}}\n\ndata: "+fullReply+"\n\n"),
		"rubbish behind it": body(sse, "data: "+fullReply+"\n\nrubbish\n\n"),
		"a temporary redirect": func(c *toolCall, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/moved" {
				body(jsonType, fullReply)(c, w, r)
				return
			}
			http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
		},
		"another session id": func(c *toolCall, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Mcp-Session-Id", "somebody-elses")
			body(jsonType, fullReply)(c, w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			generations(t, func(t *testing.T, modern bool) {
				p := newHTTPPeer(t, modern, declared("keyParam", true))
				p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool { serve(c, w, r); return true }
				s := openHTTP(t, p, quick())
				for range 2 {
					if _, report, err := callCharge(t, s); err != nil || report.Attempts != 1 {
						t.Errorf("%v, %+v", err, report)
					}
				}
				for _, c := range p.seen() {
					if c.Key == "" {
						t.Error("a request went out without its key")
					}
				}
				if p.dialled() != 1 {
					t.Errorf("%d handshakes", p.dialled())
				}
			})
		})
	}
}

func TestRefusalsAreDefiniteUnlessAnAttemptWasLost(t *testing.T) {
	rpc := `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad arguments","data":{"x":1}}}`
	for name, v := range map[string]struct {
		status int
		body   func(c *toolCall) string
		first  string // told to a first attempt
		code   int64
	}{
		"400":                          {400, func(*toolCall) string { return "no" }, "notRun", 0},
		"401":                          {401, func(*toolCall) string { return "who?" }, "notRun", 0},
		"403":                          {403, func(*toolCall) string { return "" }, "notRun", 0},
		"413":                          {413, func(*toolCall) string { return "big" }, "notRun", 0},
		"501":                          {501, func(*toolCall) string { return "" }, "notRun", 0},
		"400 with JSON-RPC error":      {400, func(c *toolCall) string { return fmt.Sprintf(rpc, c.ID) }, "error", -32602},
		"400 with id null":             {400, func(*toolCall) string { return fmt.Sprintf(rpc, "null") }, "error", -32602},
		"500 with JSON-RPC error":      {500, func(c *toolCall) string { return fmt.Sprintf(rpc, c.ID) }, "error", -32602},
		"400 with another call's body": {400, func(*toolCall) string { return fmt.Sprintf(rpc, "4711") }, "notRun", 0},
	} {
		t.Run(name, func(t *testing.T) {
			generations(t, func(t *testing.T, modern bool) {
				for _, extended := range []bool{false, true} {
					for _, lost := range []bool{false, true} {
						if lost && !extended {
							continue
						}
						var settings any
						if extended {
							settings = declared()
						}
						p := newHTTPPeer(t, modern, settings)
						p.serve = func(c *toolCall, w http.ResponseWriter, _ *http.Request) bool {
							switch {
							case c.pathCheck():
								return false
							case lost && c.N == 1:
								w.WriteHeader(502)
							case c.N <= 2:
								typed(w, "text/plain", v.status)
								_, _ = io.WriteString(w, v.body(c))
							default:
								return false
							}
							return true
						}
						s := openHTTP(t, p, quick())
						_, _, err := callCharge(t, s)
						want := v.first
						if lost {
							want = "unknown"
						}
						var rpcErr *jsonrpc.Error
						var httpErr *clientretry.HTTPError
						switch {
						case told(err) != want:
							t.Errorf("extended %v, lost %v: told %v, want %s", extended, lost, err, want)
						case v.code != 0 && (!errors.As(err, &rpcErr) || rpcErr.Code != v.code || len(rpcErr.Data) == 0):
							t.Errorf("the JSON-RPC error is gone: %v", err)
						case v.code == 0 && (!errors.As(err, &httpErr) || httpErr.Status != v.status):
							t.Errorf("the status is gone: %v", err)
						}
						if !lost { // the script refuses twice
							_, _, _ = callCharge(t, s)
						}
						if _, _, err := callCharge(t, s); err != nil || p.dialled() != 1 {
							t.Errorf("the next call: %v, %d handshakes", err, p.dialled())
						}
					}
				}
			})
		})
	}
}

func TestRetryAfterOfAStatusIsHonoured(t *testing.T) {
	for name, v := range map[string]struct {
		header  func() string
		least   time.Duration
		outcome string
	}{
		"seconds":  {func() string { return "1" }, time.Second, "result"},
		"a date":   {func() string { return time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat) }, 900 * time.Millisecond, "result"},
		"rubbish":  {func() string { return "soon" }, 0, "result"},
		"negative": {func() string { return "-5" }, 0, "result"},
		"years":    {func() string { return "999999999999" }, 0, "unknown"},
		"far date": {func() string { return "Fri, 31 Dec 9999 23:59:59 GMT" }, 0, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFaultyPeer(t, true, declared(), httpFault{serve: func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", v.header())
				w.WriteHeader(503)
			}})
			s := openHTTP(t, p, quick())
			began := time.Now()
			_, _, err := callCharge(t, s)
			if took := time.Since(began); told(err) != v.outcome || took < v.least || took > v.least+3*time.Second {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
}

// Nothing can have run where no connection was made; a reset shows nothing.
func TestOnlyAFailureToConnectIsKnownNotToHaveBeenSent(t *testing.T) {
	gone := func(t *testing.T, modern bool, settings any, opt *clientretry.Options) *clientretry.Session {
		p := newHTTPPeer(t, modern, settings)
		// A kept connection that is closed under a request shows nothing.
		hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: hc, DisableStandaloneSSE: true}, opt)
		t.Cleanup(func() { s.Close() })
		p.Listener.Close()
		return s
	}
	generations(t, func(t *testing.T, modern bool) {
		s := gone(t, modern, nil, quick())
		_, report, err := callCharge(t, s)
		if told(err) != "notRun" || len(report.Losses) != 1 || report.Losses[0].Kind != clientretry.LossNotSent {
			t.Errorf("%v, %+v", err, report)
		}
	})
	generations(t, func(t *testing.T, modern bool) {
		s := gone(t, modern, declared(), &clientretry.Options{BackoffBase: time.Millisecond, Attempts: 3})
		_, report, err := callCharge(t, s)
		if told(err) != "notRun" || report.Attempts != 3 {
			t.Errorf("%v, %+v", err, report)
		}
	})
}

// A transport that does not say when it got a connection has shown nothing.
func TestATransportThatDoesNotTellIsTakenForOneThatHasSent(t *testing.T) {
	p := newHTTPPeer(t, true, nil)
	fail := errors.New("dial tcp: connection refused") // a text is no evidence
	hc := &http.Client{Transport: roundTripFunc(func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("Mcp-Method") == schema.MethodCallTool {
			return nil, fail
		}
		return http.DefaultTransport.RoundTrip(r)
	})}
	s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: hc}, quick())
	defer s.Close()
	if _, _, err := callCharge(t, s); told(err) != "unknown" || !errors.Is(err, fail) {
		t.Errorf("%v", err)
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAnEventOrBodyWithoutEndIsBoundedAndNotAskedForAgain(t *testing.T) {
	flood := func(contentType, chunk string) func(*toolCall, http.ResponseWriter, *http.Request) bool {
		return func(_ *toolCall, w http.ResponseWriter, r *http.Request) bool {
			typed(w, contentType, 200)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, chunk); err != nil {
					break
				}
			}
			return true
		}
	}
	long := strings.Repeat("x", 4096)
	for name, serve := range map[string]func(*toolCall, http.ResponseWriter, *http.Request) bool{
		"line":  flood(sse, long),
		"lines": flood(sse, "data: "+long+"\n"),
		"json":  flood(jsonType, long),
	} {
		t.Run(name, func(t *testing.T) {
			for _, settings := range []any{nil, declared()} {
				p := newHTTPPeer(t, true, settings)
				p.serve = serve
				s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, MaxEventSize: 1 << 20},
					&clientretry.Options{MaxResponseBytes: 1 << 20})
				defer s.Close()
				_, report, err := callCharge(t, s)
				if told(err) != "unknown" || report.Attempts != 1 || report.Losses[0].Kind != clientretry.LossTooLarge {
					t.Errorf("%v, %+v", err, report)
				}
			}
		})
	}
}

// What was never sent cannot have run: the answer to the next attempt is no
// possible duplicate.
func TestAnAttemptThatFoundNoConnectionIsNoReasonToFearADuplicate(t *testing.T) {
	p := newHTTPPeer(t, true, declared())
	p.script = each(done())
	var n atomic.Int64
	base := &http.Transport{DisableKeepAlives: true}
	hc := &http.Client{Transport: roundTripFunc(func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("Mcp-Method") == schema.MethodCallTool && n.Add(1) == 1 {
			r = r.Clone(r.Context())
			r.URL.Host = "127.0.0.1:1"
		}
		return base.RoundTrip(r)
	})}
	s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: hc}, quick())
	defer s.Close()
	_, report, err := callCharge(t, s)
	if err != nil || report.Attempts != 2 || report.PathChecks != 0 || report.PossibleDuplicate {
		t.Errorf("%v, %+v", err, report)
	}
}
