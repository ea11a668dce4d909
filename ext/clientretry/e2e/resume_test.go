package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

// primed is the beginning of a stream that can be resumed, soon.
const primed = "id: e-1\nretry: 5\ndata:\n\n"

// onResume answers GETs with a Last-Event-ID.
func (p *peer) onResume(h func(w http.ResponseWriter, r *http.Request, last string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume = h
}

func TestAnUnkeyedCallResumesItsStream(t *testing.T) {
	for name, first := range map[string]step{
		"after an end":                      events(primed),
		"after a reset":                     thenReset(events(primed)),
		"after progress":                    events(primed, "id: e-2\n"+message(progressData)),
		"after the response was cut":        events(primed, "id: e-2\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"res"),
		"after an id without a blank line":  events(primed, "id: e-2\n"),
		"with a later word on the delay":    events("id: e-1\nretry: 3600000\ndata:\n\n", "id: e-1\nretry: 5\ndata:\n\n"),
		"after a data line without newline": events(primed, "data: {}"),
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, nil, first, run)
				var gets atomic.Int64
				p.onResume(func(w http.ResponseWriter, r *http.Request, last string) {
					gets.Add(1)
					if last != "e-1" && last != "e-2" {
						t.Errorf("resumed after %q", last)
					}
					calls, _ := p.seen()
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprintf(w, "id: e-3\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", calls[0].ID, ok)
				})
				s := connectTo(t, p.url, patient())
				o := do(t, t.Context(), s, "charge")
				o.wantResult(t)
				if gets.Load() != 1 || len(o.report.Losses) != 0 {
					t.Errorf("%d resumptions, %+v", gets.Load(), o.report)
				}
				p.wantCalls(t, 1, 0)
				wantAlive(t, s, "charge")
			})
		})
	}
}

func TestAResumptionThatLeadsNowhereIsALossAndTheSessionLivesOn(t *testing.T) {
	stream := func(text string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, r *http.Request, last string) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, text)
		}
	}
	for name, resume := range map[string]func(http.ResponseWriter, *http.Request, string){
		"405": func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Error(w, "no", http.StatusMethodNotAllowed)
		},
		"500":                func(w http.ResponseWriter, r *http.Request, _ string) { http.Error(w, "no", 500) },
		"404":                func(w http.ResponseWriter, r *http.Request, _ string) { http.Error(w, "no", 404) },
		"a page":             func(w http.ResponseWriter, r *http.Request, _ string) { fmt.Fprint(w, "<html>") },
		"no progress":        stream("retry: 5\n\n"),
		"the same event":     stream(primed),
		"a malformed event":  stream("id: e-2\ndata: {\"x\n\n"),
		"a wrong response":   stream("id: e-2\ndata: {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}\n\nretry: 5\n\n"),
		"a connection reset": func(w http.ResponseWriter, r *http.Request, _ string) { abort(w) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, false, nil, events(primed), run)
			p.onResume(resume)
			s := connectTo(t, p.url, patient())
			do(t, t.Context(), s, "charge").wantUnknown(t)
			p.wantCalls(t, 1, 0)
			wantAlive(t, s, "charge")
			if err := s.Ping(t.Context(), nil); err != nil {
				t.Errorf("ping: %v", err)
			}
		})
	}
}

// A server may ask to be left alone for an hour; the attempt timeout stands.
func TestTheAttemptTimeoutHoldsWhileAStreamWaitsToBeResumed(t *testing.T) {
	for name, c := range map[string]struct {
		first  step
		resume func(http.ResponseWriter, *http.Request, string)
	}{
		"a delay that the server asks for": {events("id: e-1\nretry: 50000\ndata:\n\n"), nil},
		"the SDK's own delay":              {events("id: e-1\ndata:\n\n"), nil},
		"a resumed stream that is silent": {events(primed), func(w http.ResponseWriter, r *http.Request, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, false, nil, c.first, run)
			p.onResume(c.resume)
			opt := patient()
			opt.AttemptTimeout = 100 * time.Millisecond
			s := connectTo(t, p.url, opt)
			began := time.Now()
			do(t, t.Context(), s, "charge").wantUnknown(t)
			if d := time.Since(began); d > 10*time.Second { // the delays above are longer, the SDK's apart
				t.Errorf("settled after %v", d)
			}
			wantAlive(t, s, "charge")
		})
	}
}

// A delay that nobody can mean settles the call when it is seen.
func TestAnAbsurdDelayBeforeAResumptionIsALoss(t *testing.T) {
	p := newPeer(t, false, nil, events("id: e-1\nretry: 999999999999\ndata:\n\n"), run)
	s := connectTo(t, p.url, patient())
	do(t, t.Context(), s, "charge").wantUnknown(t)
	wantAlive(t, s, "charge")
}

func TestAKeyedCallIsSettledAtOnceAndSentAgain(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		for name, first := range map[string]step{
			"a reset":      thenReset(events("id: e-1\ndata:\n\n")),
			"an end":       events("id: e-1\ndata:\n\n"),
			"a cut event":  events("id: e-1\ndata: {\"json"),
			"no resumable": events(message(progressData)),
		} {
			p := newPeer(t, modern, declared("ns"), after(first), run)
			p.onResume(func(w http.ResponseWriter, r *http.Request, _ string) {
				t.Errorf("%s: the stream was resumed", name)
				http.Error(w, "no", http.StatusMethodNotAllowed)
			})
			s := connectTo(t, p.url, patient())
			o := do(t, t.Context(), s, "charge")
			o.wantResult(t)
			if p.runs() != 1 || !o.replayed() {
				t.Errorf("%s: %d runs, %+v", name, p.runs(), o.report)
			}
			wantAlive(t, s, "charge")
		}
	})
}

func TestTheCallersCancellationWhileAStreamWaitsToBeResumed(t *testing.T) {
	p := newPeer(t, false, nil, events("id: e-1\nretry: 50000\ndata:\n\n"), run)
	s := connectTo(t, p.url, patient())
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, s, "charge")
	p.await(t, "tools/call")
	cancel()
	(<-done).wantUnknown(t)
	wantAlive(t, s, "charge")
}

// The SDK's own server with an event store, behind a path that cuts the stream
// after its first event.
func TestResumptionAgainstTheSDKsServer(t *testing.T) {
	for _, extended := range []bool{false, true} {
		t.Run(fmt.Sprintf("extended=%v", extended), func(t *testing.T) {
			server := mcp.NewServer(&mcp.Implementation{Name: "store", Version: "1"}, nil)
			var charges atomic.Int64
			release := make(chan struct{})
			mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(ctx context.Context, req *mcp.CallToolRequest, _ chargeIn) (*mcp.CallToolResult, chargeOut, error) {
				n := charges.Add(1)
				<-release
				return nil, chargeOut{Receipt: n}, nil
			})
			var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
				&mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
			if extended {
				idem := idempotency.New(nil)
				idem.Install(server)
				h = idem.Handler(h)
			}
			var cut atomic.Bool
			ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost && isCharge(r) && cut.CompareAndSwap(false, true) {
					h.ServeHTTP(&cutter{ResponseWriter: w, after: func() { close(release) }}, r)
					return
				}
				h.ServeHTTP(w, r)
			}))
			t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
			s := connectTo(t, ts.URL, patient())
			o := do(t, t.Context(), s, "charge")
			o.wantResult(t)
			if charges.Load() != 1 {
				t.Errorf("%d charges", charges.Load())
			}
			if extended != (o.report.Attempts == 2) {
				t.Errorf("extended %v: %+v", extended, o.report)
			}
			wantAlive(t, s, "charge")
		})
	}
}
