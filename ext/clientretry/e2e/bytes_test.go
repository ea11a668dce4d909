package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// wiretap is a TCP path that keeps the bytes that a client has written, one
// text per connection, in the order in which they were made.
type wiretap struct {
	url string

	mu   sync.Mutex
	sent []*bytes.Buffer
}

func tap(t testing.TB, target string) *wiretap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{url: "http://" + ln.Addr().String()}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b := &bytes.Buffer{}
			w.mu.Lock()
			w.sent = append(w.sent, b)
			w.mu.Unlock()
			go w.carry(c, strings.TrimPrefix(target, "http://"), b)
		}
	}()
	return w
}

func (w *wiretap) carry(c net.Conn, target string, b *bytes.Buffer) {
	defer c.Close()
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer up.Close()
	go func() { _, _ = io.Copy(c, up); c.Close() }()
	_, _ = io.Copy(up, io.TeeReader(c, lockedWriter{&w.mu, b}))
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// requests returns what was sent, without the port of the tap.
func (w *wiretap) requests() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	host := strings.TrimPrefix(w.url, "http://")
	for _, b := range w.sent {
		all = append(all, strings.ReplaceAll(b.String(), host, "HOST"))
	}
	return all
}

// caller is what a plain and a layered session have in common.
type caller interface {
	CallTool(context.Context, *mcp.CallToolParams) (*mcp.CallToolResult, error)
	ListTools(context.Context, *mcp.ListToolsParams) (*mcp.ListToolsResult, error)
	Ping(context.Context, *mcp.PingParams) error
	Close() error
}

// wholeSession does with a session all that one can do, losses included. lose
// is how many of its calls, from the fourth on, are lost by the server.
func wholeSession(t testing.TB, s caller) {
	t.Helper()
	ctx := context.Background()
	if _, err := s.ListTools(ctx, nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range sessionCalls() {
		_, _ = s.CallTool(ctx, p) // what becomes of it is not the matter here
	}
	_ = s.Ping(ctx, nil) // 2026-07-28 has none
	if err := s.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

func sessionCalls() []*mcp.CallToolParams {
	return []*mcp.CallToolParams{
		{Name: "charge", Arguments: map[string]any{"amount": 1, "note": "a<b>&\u2028 é", "nested": map[string]any{"z": 1, "a": nil}}},
		{Name: "charge", Meta: mcp.Meta{"trace": "x", "progressToken": "p1"}},
		{Name: "charge", Arguments: json.RawMessage(`{"big":9007199254740993,"idempotencyKey":"mine","a":[1,{"b":1.50}]}`)},
		{Name: "lost"},
		{Name: "refused", Arguments: map[string]any{}},
		{Name: "charge", RequestState: "s"},
	}
}

// sessionScript answers them.
func sessionScript(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
	switch c.Tool {
	case "lost":
		status(502)(p, w, r, c)
	case "refused":
		rpcError(-32602, "unknown tool", "")(p, w, r, c)
	default:
		run(p, w, r, c)
	}
}

// connectPlain connects the bare SDK, connectLayered the SDK with the library.
func connectPlain(t testing.TB, tr mcp.Transport) caller {
	t.Helper()
	s, err := newClient(nil).Connect(context.Background(), tr, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func connectLayered(t testing.TB, tr mcp.Transport) caller {
	t.Helper()
	s, err := clientretry.New(newClient(nil), patient()).Connect(context.Background(), tr, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// overHTTP records a whole session, each request on a connection of its own.
func overHTTP(t testing.TB, modern bool, settings any, connect func(testing.TB, mcp.Transport) caller) []string {
	t.Helper()
	p := newPeer(t, modern, settings, sessionScript)
	w := tap(t, p.url)
	wholeSession(t, connect(t, &mcp.StreamableClientTransport{
		Endpoint: w.url, HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}))
	return w.requests()
}

func TestAnUnextendedServerSeesTheBytesOfTheBareSDK(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		want, got := overHTTP(t, modern, nil, connectPlain), overHTTP(t, modern, nil, connectLayered)
		wantSameTexts(t, want, got)
		if len(want) < 9 {
			t.Errorf("only %d requests were captured", len(want))
		}
	})
}

var (
	keyParam      = regexp.MustCompile(`"idempotencyKey":"ns\.[a-z0-9]+",?`)
	keyMeta       = regexp.MustCompile(`"io\.modelcontextprotocol/idempotencyKey":"ns\.[a-z0-9]+",?`)
	emptyMeta     = regexp.MustCompile(`"_meta":\{\},?`)
	contentLength = regexp.MustCompile(`Content-Length: \d+`)
)

// An extended server sees the same, and the key; of a lost call also the path
// check and the re-send.
func TestAnExtendedServerSeesTheSameBytesAndTheKey(t *testing.T) {
	for name, settings := range map[string]any{"param": declared("ns"), "_meta": map[string]any{"keyNamespace": "ns", "retentionMs": 3_600_000}} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				want := overHTTP(t, modern, settings, connectPlain)
				keys := 0
				var got []string
				for _, r := range overHTTP(t, modern, settings, connectLayered) {
					if strings.Contains(r, pathCheckTool) || strings.Contains(r, `"attempt":`) {
						continue
					}
					if k := keyParam.FindString(r) + keyMeta.FindString(r); k != "" && strings.Contains(r, `"method":"tools/call"`) {
						keys++
					}
					got = append(got, r)
				}
				if keys != len(sessionCalls()) {
					t.Errorf("%d keys for %d calls", keys, len(sessionCalls()))
				}
				strip := func(all []string) (out []string) {
					for _, r := range all {
						r = keyMeta.ReplaceAllString(keyParam.ReplaceAllString(r, ""), "")
						out = append(out, withoutIDs(contentLength.ReplaceAllString(emptyMeta.ReplaceAllString(r, ""), "Content-Length: N")))
					}
					return out
				}
				wantSameTexts(t, strip(want), strip(got))
			})
		})
	}
}

// withoutIDs removes the JSON-RPC ids, which path checks and re-sends move on.
func withoutIDs(r string) string {
	return regexp.MustCompile(`"id":\d+`).ReplaceAllString(r, `"id":N`)
}

func wantSameTexts(t testing.TB, want, got []string) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%d requests without the library, %d with it", len(want), len(got))
	}
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			t.Errorf("request %d differs:\n%q\n%q", i, want[i], got[i])
		}
	}
}

// overStdio records what a whole session writes to a real process.
func overStdio(t testing.TB, how string, connect func(testing.TB, mcp.Transport) caller) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+how, childDir+"="+t.TempDir(), "GORACE=atexit_sleep_ms=0")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var sent bytes.Buffer
	tee := struct {
		io.Writer
		io.Closer
	}{io.MultiWriter(lockedWriter{&mu, &sent}, in), in}
	wholeSession(t, connect(t, &mcp.IOTransport{Reader: out, Writer: tee}))
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	return sent.String()
}

func TestAnUnextendedServerOnStdioSeesTheBytesOfTheBareSDK(t *testing.T) {
	for _, how := range []string{"modern", "legacy", "sdk"} {
		t.Run(how, func(t *testing.T) {
			want, got := overStdio(t, how, connectPlain), overStdio(t, how, connectLayered)
			if want != got {
				t.Errorf("the bytes differ:\n%s\n%s", want, got)
			}
			if n := strings.Count(want, "\n"); n < 9 {
				t.Errorf("only %d messages were captured", n)
			}
		})
	}
}

func TestAnExtendedServerOnStdioSeesTheSameBytesAndTheKey(t *testing.T) {
	for _, how := range []string{"extended modern", "extended legacy"} {
		t.Run(how, func(t *testing.T) {
			want, got := overStdio(t, how, connectPlain), overStdio(t, how, connectLayered)
			if n := len(keyParam.FindAllString(got, -1)); n != len(sessionCalls()) {
				t.Errorf("%d keys for %d calls", n, len(sessionCalls()))
			}
			if stripped := keyParam.ReplaceAllString(got, ""); stripped != want {
				t.Errorf("more differs than the keys:\n%s\n%s", want, stripped)
			}
		})
	}
}

// headerAdder is a transport below the SDK that adds a header, as people do.
type headerAdder struct {
	http.RoundTripper
	name string
}

func (h headerAdder) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(h.name, "fixed")
	return h.RoundTripper.RoundTrip(r)
}

// K8. net/http sends a POST with such a header again by itself when a kept
// connection drops, though the server has done its work.
func TestNetHTTPSendsNoCallAgainBehindTheLibrarysBack(t *testing.T) {
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		onGenerations(t, func(t *testing.T, modern bool) {
			for _, bare := range []bool{true, false} {
				p := newPeer(t, modern, nil, after(func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
					conn, _, err := http.NewResponseController(w).Hijack()
					if err == nil {
						_ = conn.Close() // after the work, before the answer
					}
				}), run)
				pool := &http.Transport{}
				t.Cleanup(pool.CloseIdleConnections)
				tr := &mcp.StreamableClientTransport{Endpoint: p.url, HTTPClient: &http.Client{Transport: headerAdder{pool, header}}}
				connect := connectLayered
				if bare {
					connect = connectPlain
				}
				s := connect(t, tr)
				_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge"})
				calls, _ := p.seen()
				if bare {
					if err != nil || len(calls) != 2 || string(calls[0].ID) != string(calls[1].ID) {
						t.Errorf("%s: net/http has changed: %d calls, %v. Then the library's guard is not needed any more", header, len(calls), err)
					}
				} else if len(calls) != 1 || p.runs() != 1 {
					t.Errorf("%s: %d calls with the library, %d runs", header, len(calls), p.runs())
				} else {
					outcome{err: err, report: clientretry.Report{Attempts: 1}}.wantUnknown(t)
				}
				_ = s.Close()
			}
		})
	}
}

// Reading a stream to its end is what lets its connection be used again.
func TestTheLibraryNeedsNoMoreConnectionsThanTheBareSDK(t *testing.T) {
	for name, s := range map[string]step{"JSON": answer(ok), "SSE": events(message(response(ok)))} {
		onGenerations(t, func(t *testing.T, modern bool) {
			count := func(connect func(testing.TB, mcp.Transport) caller) int {
				p := newPeer(t, modern, nil, s)
				w := tap(t, p.url)
				pool := &http.Transport{}
				t.Cleanup(pool.CloseIdleConnections)
				c := connect(t, &mcp.StreamableClientTransport{Endpoint: w.url, HTTPClient: &http.Client{Transport: pool}})
				for range 20 {
					if _, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge"}); err != nil {
						t.Error(err)
					}
				}
				_ = c.Close()
				return len(w.requests())
			}
			if bare, layered := count(connectPlain), count(connectLayered); layered > bare+2 {
				t.Errorf("%s: %d connections for 20 calls, the bare SDK makes %d", name, layered, bare)
			}
		})
	}
}
