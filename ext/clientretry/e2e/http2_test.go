package e2e_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// http2Front serves a peer over HTTP/2.
func http2Front(t testing.TB, p *peer) *httptest.Server {
	ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("a request came over %s", r.Proto)
		}
		p.ServeHTTP(w, r)
	}))
	ts.EnableHTTP2 = true
	ts.StartTLS()
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return ts
}

func TestLossesOverHTTP2CostTheirCallAlone(t *testing.T) {
	for name, loss := range map[string]step{
		"a stream that is reset":                reset,
		"one that is reset after some progress": thenReset(events(message(progressData))),
		"an end":                                events(message(progressData)),
		"502":                                   status(502),
		"a silence":                             hang,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onGenerations(t, func(t *testing.T, modern bool) {
				for _, settings := range []any{nil, declared("ns")} {
					p := newPeer(t, modern, settings, after(loss), run)
					ts := http2Front(t, p)
					opt := patient()
					if name == "a silence" {
						opt = impatient()
					}
					s := connectTo(t, ts.URL, opt, func(tr *mcp.StreamableClientTransport) { tr.HTTPClient = ts.Client() })
					// Other calls share the connection, and notice nothing.
					var others sync.WaitGroup
					o := do(t, t.Context(), s, "charge")
					if settings == nil {
						o.wantUnknown(t)
						p.wantCalls(t, 1, 0)
					} else {
						o.wantResult(t)
						p.wantCalls(t, 2, 1)
					}
					if p.runs() != 1 {
						t.Errorf("%d runs", p.runs())
					}
					for range 5 {
						others.Go(func() { wantAlive(t, s, "charge") })
					}
					others.Wait()
				}
			})
		})
	}
}

func TestACallOverHTTP2ToAServerThatIsGoneWasNotSent(t *testing.T) {
	p := newPeer(t, true, nil, run)
	ts := http2Front(t, p)
	s := connectTo(t, ts.URL, patient(), func(tr *mcp.StreamableClientTransport) { tr.HTTPClient = ts.Client() })
	ts.CloseClientConnections()
	ts.Close()
	o := do(t, t.Context(), s, "charge")
	if o.err == nil {
		t.Fatal("a call to nobody succeeded")
	}
	p.wantCalls(t, 0, 0)
}
