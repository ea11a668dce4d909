package clientretry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// wiretap is a TCP path that keeps what clients have written.
type wiretap struct {
	url string
	ln  net.Listener

	mu   sync.Mutex
	sent map[int]*bytes.Buffer // by connection
}

func tap(t *testing.T, target string) *wiretap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{url: "http://" + ln.Addr().String(), ln: ln, sent: map[int]*bytes.Buffer{}}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go w.serve(c, n, strings.TrimPrefix(target, "http://"))
		}
	}()
	return w
}

func (w *wiretap) serve(c net.Conn, n int, target string) {
	defer c.Close()
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer up.Close()
	w.mu.Lock()
	w.sent[n] = &bytes.Buffer{}
	w.mu.Unlock()
	go func() { _, _ = io.Copy(c, up); c.Close() }()
	_, _ = io.Copy(up, io.TeeReader(c, writerFunc(func(b []byte) (int, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.sent[n].Write(b)
	})))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// requests returns the tool calls as they were sent, head and body, without
// what differs between two runs of the same client: the address, the session.
func (w *wiretap) requests() (calls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	varying := regexp.MustCompile(`(?m)^(Host|Mcp-Session-Id): .*\r$`)
	for _, b := range w.sent {
		for _, r := range strings.Split(b.String(), "POST / HTTP/1.1\r\n")[1:] {
			if strings.Contains(r, `"method":"tools/call"`) {
				calls = append(calls, varying.ReplaceAllString(r, ""))
			}
		}
	}
	return calls
}

// use makes the same calls with whatever makes calls.
func use(t *testing.T, call func(context.Context, *mcp.CallToolParams) (*mcp.CallToolResult, error)) {
	t.Helper()
	for _, p := range []*mcp.CallToolParams{
		{Name: "charge", Arguments: map[string]any{"amount": 1, "note": "a<b> \u2028 é"}},
		{Name: "charge", Meta: mcp.Meta{"trace": "x", "progressToken": "p1"}},
		{Name: "charge", Arguments: json.RawMessage(`{"big":9007199254740993,"a":[1,{"b":null}]}`)},
	} {
		if _, err := call(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnUnextendedServerGetsTheBytesOfAPlainClient(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		p := newHTTPPeer(t, modern, nil)
		impl := &mcp.Implementation{Name: "agent", Version: "1"}
		hc := func() *http.Client { return &http.Client{Transport: &http.Transport{}} }

		plain := tap(t, p.URL)
		ps, err := mcp.NewClient(impl, nil).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: plain.url, HTTPClient: hc()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ps.Close()
		use(t, ps.CallTool)

		layered := tap(t, p.URL)
		ls, err := clientretry.New(mcp.NewClient(impl, nil), nil).Connect(t.Context(),
			&mcp.StreamableClientTransport{Endpoint: layered.url, HTTPClient: hc()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ls.Close()
		use(t, ls.CallTool)

		want, got := plain.requests(), layered.requests()
		if len(want) != 3 || len(got) != 3 {
			t.Fatalf("%d and %d calls were captured", len(want), len(got))
		}
		for i := range want {
			if want[i] != got[i] {
				t.Errorf("call %d differs:\n%q\n%q", i, want[i], got[i])
			}
		}
	})
}

// On a pipe every message is compared, the handshake included.
func TestAnUnextendedServerOnAPipeGetsTheBytesOfAPlainClient(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		record := func(connect func(context.Context, mcp.Transport) (func(context.Context, *mcp.CallToolParams) (*mcp.CallToolResult, error), func() error)) string {
			peer := newPipePeer(modern, nil, each(done()))
			var out bytes.Buffer
			call, stop := connect(t.Context(), &writeLog{Transport: peer, out: &out})
			use(t, call)
			_ = stop()
			return out.String()
		}
		impl := &mcp.Implementation{Name: "agent", Version: "1"}
		want := record(func(ctx context.Context, tr mcp.Transport) (func(context.Context, *mcp.CallToolParams) (*mcp.CallToolResult, error), func() error) {
			s, err := mcp.NewClient(impl, nil).Connect(ctx, tr, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s.CallTool, s.Close
		})
		got := record(func(ctx context.Context, tr mcp.Transport) (func(context.Context, *mcp.CallToolParams) (*mcp.CallToolResult, error), func() error) {
			s, err := clientretry.New(mcp.NewClient(impl, nil), nil).Connect(ctx, tr, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s.CallTool, s.Close
		})
		if got != want || strings.Count(want, "tools/call") != 3 {
			t.Errorf("messages differ:\n%s\n%s", want, got)
		}
	})
}

// writeLog keeps the encoded messages that a client writes.
type writeLog struct {
	mcp.Transport
	mu  sync.Mutex
	out *bytes.Buffer
}

func (l *writeLog) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := l.Transport.Connect(ctx)
	return &writeLogConn{c, l}, err
}

type writeLogConn struct {
	mcp.Connection
	l *writeLog
}

func (c *writeLogConn) Write(ctx context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	c.l.mu.Lock()
	c.l.out.Write(append(b, '\n'))
	c.l.mu.Unlock()
	return c.Connection.Write(ctx, m)
}

// K8: net/http re-sends a POST with an Idempotency-Key header by itself when a
// kept connection drops, whoever has put the header there.
func TestNetHTTPDoesNotSendACallAgainByItself(t *testing.T) {
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key", "x-idempotency-key"} {
		t.Run(header, func(t *testing.T) {
			for _, settings := range []any{nil, declared()} {
				p := newHTTPPeer(t, true, settings)
				p.serve = func(c *toolCall, w http.ResponseWriter, _ *http.Request) bool {
					if c.Name == "charge" && c.N == 2 {
						panic(http.ErrAbortHandler) // on a kept connection, before any byte
					}
					return false
				}
				base := &http.Transport{MaxConnsPerHost: 1}
				hc := &http.Client{Transport: roundTripFunc(func(r *http.Request) (*http.Response, error) {
					r = r.Clone(r.Context())
					r.Header[header] = []string{"somebodys"}
					return base.RoundTrip(r)
				})}
				s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: hc}, &clientretry.Options{Attempts: 1})
				defer s.Close()
				if _, _, err := callCharge(t, s); err != nil {
					t.Fatal(err)
				}
				_, report, err := callCharge(t, s)
				if told(err) != "unknown" || len(p.seen()) != 2 || report.Attempts != 1 {
					t.Errorf("%v, %d calls reached the server, want 2", err, len(p.seen()))
				}
			}
		})
	}
}

// Without such a header the transport's own repair of a stale connection stays.
func TestAStaleKeptConnectionIsStillRepaired(t *testing.T) {
	p := newHTTPPeer(t, true, nil)
	s := openHTTP(t, p, nil)
	for range 3 {
		if _, _, err := callCharge(t, s); err != nil {
			t.Fatal(err)
		}
	}
}

// A body that is read to its end leaves the connection to the next call.
func TestConnectionsAreUsedAgainAfterAnEventStream(t *testing.T) {
	for _, events := range []bool{true, false} {
		p := newHTTPPeer(t, true, declared())
		p.sse = events
		var mu sync.Mutex
		fresh := 0
		ts := httptest.NewUnstartedServer(http.HandlerFunc(p.handle))
		ts.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			mu.Lock()
			defer mu.Unlock()
			if s == http.StateNew {
				fresh++
			}
		}
		ts.Start()
		defer ts.Close()
		hc := &http.Client{Transport: &http.Transport{}}
		defer hc.CloseIdleConnections()
		s := open(t, &mcp.StreamableClientTransport{Endpoint: ts.URL, HTTPClient: hc}, nil)
		defer s.Close()
		for range 20 {
			if _, _, err := callCharge(t, s); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		// The SDK reads the end of a stream after it has given the result out,
		// so that a call that follows at once may find the connection in use.
		if fresh > 5 {
			t.Errorf("events %v: %d connections for 20 calls", events, fresh)
		}
		mu.Unlock()
	}
}
