package clientretry_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

func TestProgressArrivesWhileTheCallRuns(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared()} {
			p := newHTTPPeer(t, modern, settings)
			got := make(chan struct{}, 10)
			p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool {
				typed(w, sse, 200)
				for i := range 5 {
					fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"t\",\"progress\":%d}}\n\n", i)
					_ = http.NewResponseController(w).Flush()
					select {
					case <-got: // and not before the client has it
					case <-r.Context().Done():
						return true
					}
				}
				_, _ = io.WriteString(w, "data: "+strings.ReplaceAll(fullReply, "$ID", string(c.ID))+"\n\n")
				return true
			}
			client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, &mcp.ClientOptions{
				ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { got <- struct{}{} },
			})
			s, err := clientretry.New(client, nil).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: &http.Client{Transport: &http.Transport{}}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, report, err := callCharge(t, s); err != nil || report.Attempts != 1 {
				t.Errorf("%v, %+v", err, report)
			}
		}
	})
}

// streams serves a call as an event stream that breaks off, and its
// resumptions as a test wants them.
type streams struct {
	first string // the stream of the call, $ID is its id
	reset bool   // the stream ends with a reset, not properly
	again func(n int, id string, w http.ResponseWriter, r *http.Request)

	mu   sync.Mutex
	id   string
	gets int
}

func (s *streams) attach(p *httpPeer) {
	p.serve = func(c *toolCall, w http.ResponseWriter, _ *http.Request) bool {
		s.mu.Lock()
		first := s.id == ""
		if first {
			s.id = string(c.ID)
		}
		s.mu.Unlock()
		if !first {
			return false
		}
		typed(w, sse, 200)
		_, _ = io.WriteString(w, strings.ReplaceAll(s.first, "$ID", s.id))
		if s.reset {
			resetConn(w)
		}
		return true
	}
	p.get = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Last-Event-ID") == "" || s.again == nil {
			w.WriteHeader(405)
			return
		}
		s.mu.Lock()
		s.gets++
		n, id := s.gets, s.id
		s.mu.Unlock()
		s.again(n, id, w, r)
	}
}

func (s *streams) resumed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets
}

const primed = "id: a_0\nretry: 10\nevent: prime\n\n"

func event(id, data string) string {
	return "id: " + id + "\nretry: 10\ndata: " + data + "\n\n"
}

func replyTo(id string) string { return strings.ReplaceAll(fullReply, "$ID", id) }

func TestACallWithoutAKeyIsResumedAndSettledWhenThatFails(t *testing.T) {
	stream := func(text string) func(int, string, http.ResponseWriter, *http.Request) {
		return func(_ int, id string, w http.ResponseWriter, _ *http.Request) {
			typed(w, sse, 200)
			_, _ = io.WriteString(w, strings.ReplaceAll(text, "$ID", id))
		}
	}
	code := func(c int) func(int, string, http.ResponseWriter, *http.Request) {
		return func(_ int, _ string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c) }
	}
	for name, v := range map[string]struct {
		again func(int, string, http.ResponseWriter, *http.Request)
		max   int // MaxRetries
		told  string
		kind  clientretry.LossKind
		gets  int
	}{
		"response":    {stream(event("a_1", fullReply)), 0, "result", 0, 1},
		"405":         {code(405), 0, "unknown", clientretry.LossResume, 1},
		"404":         {code(404), 0, "unknown", clientretry.LossResume, 1},
		"json":        {func(_ int, _ string, w http.ResponseWriter, _ *http.Request) { typed(w, jsonType, 200) }, 0, "unknown", clientretry.LossResume, 1},
		"one retry":   {code(503), 1, "unknown", clientretry.LossResume, 1},
		"no retries":  {nil, -1, "unknown", clientretry.LossEOF, 0},
		"malformed":   {stream("rubbish\n\n"), 0, "unknown", clientretry.LossMalformed, 1},
		"no progress": {stream(""), 0, "unknown", clientretry.LossEOF, 3},
		"same event":  {stream(primed), 0, "unknown", clientretry.LossEOF, 3},
		"progress then response": {func(n int, id string, w http.ResponseWriter, _ *http.Request) {
			typed(w, sse, 200)
			if n < 6 {
				_, _ = io.WriteString(w, fmt.Sprintf("id: a_%d\nretry: 10\n\n", n))
				return
			}
			_, _ = io.WriteString(w, event("a_9", replyTo(id)))
		}, 0, "result", 0, 6},
		"cut in an event": {func(n int, id string, w http.ResponseWriter, _ *http.Request) {
			typed(w, sse, 200)
			if n == 1 { // the id of an event that did not arrive must not be skipped
				_, _ = io.WriteString(w, "id: a_1\ndata: "+replyTo(id)[:30])
				return
			}
			_, _ = io.WriteString(w, event("a_1", replyTo(id)))
		}, 0, "result", 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newHTTPPeer(t, false, nil)
			st := &streams{first: primed, again: v.again}
			st.attach(p)
			s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, MaxRetries: v.max}, nil)
			defer s.Close()
			_, report, err := callCharge(t, s)
			if told(err) != v.told || st.resumed() != v.gets {
				t.Fatalf("%v after %d resumptions, %+v", err, st.resumed(), report)
			}
			if v.told == "unknown" && report.Losses[0].Kind != v.kind {
				t.Errorf("losses %+v", report.Losses)
			}
			if len(p.seen()) != 1 {
				t.Errorf("%d calls", len(p.seen()))
			}
			if _, _, err := callCharge(t, s); err != nil || p.dialled() != 1 {
				t.Errorf("the next call: %v, %d handshakes", err, p.dialled())
			}
		})
	}
}

func TestACallWithAKeyIsNotResumedButSentAgainAtOnce(t *testing.T) {
	for name, st := range map[string]*streams{
		"reset":           {first: primed, reset: true},
		"end, no polling": {first: "id: a_0\nevent: prime\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newHTTPPeer(t, false, declared())
			st.again = func(int, string, http.ResponseWriter, *http.Request) { t.Error("the stream was resumed") }
			st.attach(p)
			s := openHTTP(t, p, quick())
			_, report, err := callCharge(t, s)
			if err != nil || len(p.seen()) != 2 || report.Elapsed > 900*time.Millisecond {
				t.Errorf("%v, %d calls, %+v", err, len(p.seen()), report)
			}
		})
	}
}

// SEP-1699: a server that closes the stream itself and asks to be polled gets
// what it wants. When that fails the call is sent again after all.
func TestAServerThatAsksToBePolledIsPolledAlsoForACallWithAKey(t *testing.T) {
	p := newHTTPPeer(t, false, declared())
	st := &streams{first: primed, again: func(_ int, id string, w http.ResponseWriter, _ *http.Request) {
		typed(w, sse, 200)
		_, _ = io.WriteString(w, event("a_1", replyTo(id)))
	}}
	st.attach(p)
	s := openHTTP(t, p, nil)
	if _, report, err := callCharge(t, s); err != nil || len(p.seen()) != 1 || st.resumed() != 1 || report.Attempts != 1 {
		t.Errorf("%v, %d calls, %d resumptions", err, len(p.seen()), st.resumed())
	}

	p = newHTTPPeer(t, false, declared())
	st = &streams{first: primed, again: func(_ int, _ string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(405) }}
	st.attach(p)
	s = openHTTP(t, p, quick())
	if _, report, err := callCharge(t, s); err != nil || len(p.seen()) != 2 || report.Losses[0].Kind != clientretry.LossResume {
		t.Errorf("%v, %d calls, %+v", err, len(p.seen()), report)
	}
}

func TestTheAttemptTimeoutAlsoEndsTheWaitBetweenTwoStreams(t *testing.T) {
	p := newHTTPPeer(t, false, nil)
	st := &streams{first: "id: a_0\nretry: 50000\nevent: prime\n\n"}
	st.attach(p)
	s := openHTTP(t, p, quick())
	_, report, err := callCharge(t, s)
	if told(err) != "unknown" || report.Elapsed > 5*time.Second || report.Losses[0].Kind != clientretry.LossTimeout {
		t.Errorf("%v, %+v", err, report)
	}
	if _, _, err := callCharge(t, s); err != nil {
		t.Errorf("the next call: %v", err)
	}

	// A delay that nobody can want is not waited for at all.
	p = newHTTPPeer(t, false, nil)
	st = &streams{first: "id: a_0\nretry: 99999999999\nevent: prime\n\n"}
	st.attach(p)
	s = openHTTP(t, p, nil)
	if _, report, err := callCharge(t, s); told(err) != "unknown" || report.Elapsed > 5*time.Second {
		t.Errorf("%v, %+v", err, report)
	}
}

// The client's own timeout must not cancel what it is going to join.
func TestTheAttemptTimeoutDoesNotTellTheServerToCancel(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		var mu sync.Mutex
		var methods []string
		p := newHTTPPeer(t, modern, declared())
		p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool {
			if c.pathCheck() || c.N > 1 {
				return false
			}
			<-r.Context().Done()
			return true
		}
		hc := &http.Client{Transport: roundTripFunc(func(r *http.Request) (*http.Response, error) {
			if r.GetBody != nil {
				b, _ := r.GetBody()
				text, _ := io.ReadAll(b)
				mu.Lock()
				methods = append(methods, string(text))
				mu.Unlock()
			}
			return http.DefaultTransport.RoundTrip(r)
		})}
		s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: hc}, quick())
		_, report, err := callCharge(t, s)
		if err != nil || report.Losses[0].Kind != clientretry.LossTimeout {
			t.Errorf("%v, %+v", err, report)
		}
		s.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, m := range methods {
			if strings.Contains(m, "notifications/cancelled") {
				t.Errorf("sent %s", m)
			}
		}
	})
}

func TestTheCallersEndLeavesAnUnknownOutcome(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared()} {
			p := newHTTPPeer(t, modern, settings)
			ctx, cancel := context.WithCancel(t.Context())
			p.serve = func(_ *toolCall, _ http.ResponseWriter, r *http.Request) bool {
				cancel()
				<-r.Context().Done()
				return true
			}
			s := openHTTP(t, p, nil)
			ctx, report := clientretry.WithReport(ctx)
			_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"})
			if told(err) != "unknown" || !isCanceled(err) || len(p.seen()) != 1 || report.Losses[0].Kind != clientretry.LossCancelled {
				t.Errorf("%v, %+v", err, report)
			}
			_, err = s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"})
			if told(err) != "notRun" || !isCanceled(err) || len(p.seen()) != 1 {
				t.Errorf("a call that was never sent: %v", err)
			}
		}
	})
}
