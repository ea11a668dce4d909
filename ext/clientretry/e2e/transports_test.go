package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// A log of the wire, which people turn on when a call fails, changes nothing.
func TestALoggedTransportIsTreatedLikeTheOneThatItLogs(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		for name, loss := range map[string]step{"502": status(502), "a page": typed("text/html", "x"), "400": status(400), "reset": reset} {
			for _, settings := range []any{nil, declared("ns")} {
				p := newPeer(t, modern, settings, after(loss), run)
				var mu sync.Mutex
				var log bytes.Buffer
				tr := &mcp.LoggingTransport{Transport: &mcp.StreamableClientTransport{Endpoint: p.url}, Writer: lockedWriter{&mu, &log}}
				s, err := clientretry.New(newClient(nil), patient()).Connect(t.Context(), tr, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				o := do(t, t.Context(), s, "charge")
				switch {
				case name == "400":
					o.wantNotRun(t)
				case settings == nil:
					o.wantUnknown(t)
				default:
					if o.wantResult(t); p.runs() != 1 {
						t.Errorf("%s: %d runs", name, p.runs())
					}
				}
				wantAlive(t, s, "charge")
				mu.Lock()
				if !strings.Contains(log.String(), `"method":"tools/call"`) {
					t.Errorf("the log is %q", log.String())
				}
				mu.Unlock()
			}
		}
	})
}

// The timeout of a *http.Client is another timeout, and a loss like any.
func TestTheTimeoutOfAnHTTPClientIsALoss(t *testing.T) {
	for name, silence := range silences() {
		t.Run(name, func(t *testing.T) {
			for _, settings := range []any{nil, declared("ns")} {
				p := newPeer(t, true, settings, after(silence), run)
				s := connectTo(t, p.url, patient(), func(tr *mcp.StreamableClientTransport) {
					tr.HTTPClient = &http.Client{Transport: tr.HTTPClient.Transport, Timeout: 80 * time.Millisecond}
				})
				o := do(t, t.Context(), s, "charge")
				if settings == nil {
					u := o.wantUnknown(t)
					if errors.Is(u, context.Canceled) {
						t.Errorf("it looks like the caller's cancellation: %v", u)
					}
				} else if o.wantResult(t); p.runs() != 1 {
					t.Errorf("%d runs", p.runs())
				}
				wantAlive(t, s, "charge")
			}
		})
	}
}

// A transport below that fails in a way of its own.
type failing struct {
	http.RoundTripper
	mu  sync.Mutex
	err error // of the next tools/call
}

func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	err := f.err
	if err != nil && isMethod(r, "tools/call") {
		f.err = nil
		f.mu.Unlock()
		return nil, err
	}
	f.mu.Unlock()
	return f.RoundTripper.RoundTrip(r)
}

func TestAnErrorOfTheTransportBelowLeavesTheSessionAlive(t *testing.T) {
	boom := errors.New("token service unavailable")
	onGenerations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared("ns")} {
			p := newPeer(t, modern, settings, run)
			f := &failing{RoundTripper: &http.Transport{}}
			s := connectTo(t, p.url, patient(), func(tr *mcp.StreamableClientTransport) { tr.HTTPClient = &http.Client{Transport: f} })
			f.mu.Lock()
			f.err = boom
			f.mu.Unlock()
			o := do(t, t.Context(), s, "charge")
			if settings == nil {
				// It may have sent the request before it failed: nobody knows.
				if u := o.wantUnknown(t); !errors.Is(u, boom) {
					t.Errorf("the cause is %v", u.Cause)
				}
			} else {
				o.wantResult(t)
			}
			wantAlive(t, s, "charge")
		}
	})
}

func TestARedirectThatTheHTTPClientRefusesIsALoss(t *testing.T) {
	p := newPeer(t, true, nil, status(307, "Location", "/elsewhere"), run)
	s := connectTo(t, p.url, patient(), func(tr *mcp.StreamableClientTransport) {
		tr.HTTPClient.CheckRedirect = func(*http.Request, []*http.Request) error { return errors.New("no redirects here") }
	})
	do(t, t.Context(), s, "charge").wantUnknown(t)
	p.wantCalls(t, 1, 0)
	wantAlive(t, s, "charge")
}
