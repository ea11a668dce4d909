package clientretry_test

import (
	"errors"
	"fmt"
	"io"
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
