package e2e_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// silences are ways of a server not to answer while the connection stands.
func silences() map[string]step {
	return map[string]step{
		"no headers":          hang,
		"headers of a stream": thenHang(events("")),
		"a comment":           thenHang(events(": wait\n\n")),
		"a progress event":    thenHang(events(message(progressData))),
		"half an event":       thenHang(events("event: message\ndata: {\"json")),
		"half a body":         thenHang(flushed("application/json", `{"jsonrpc":"2.0","id":`)),
		"a status's body":     thenHang(flushed("text/plain", `wait`)),
	}
}

// impatient are options whose attempt timeout ends a call that hangs, and
// nothing else.
func impatient() *clientretry.Options {
	return &clientretry.Options{AttemptTimeout: time.Second, BackoffBase: time.Millisecond, BackoffMax: 5 * time.Millisecond}
}

func TestASilentServerIsLeftAtTheAttemptTimeoutAndIsNotToldToCancel(t *testing.T) {
	for name, silence := range silences() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onGenerations(t, func(t *testing.T, modern bool) {
				for _, settings := range []any{nil, declared("ns")} {
					p := newPeer(t, modern, settings, after(silence), run)
					s := connectTo(t, p.url, impatient())
					o := do(t, t.Context(), s, "charge")
					if settings == nil {
						u := o.wantUnknown(t)
						if errors.Is(u, context.DeadlineExceeded) || errors.Is(u, context.Canceled) {
							t.Errorf("the library's own timeout looks like the caller's: %v", u)
						}
						p.wantCalls(t, 1, 0)
					} else {
						o.wantResult(t)
						p.wantCalls(t, 2, 1)
					}
					if name != "a status's body" { // its content type settles it
						o.wantLosses(t, clientretry.LossTimeout)
					}
					if p.runs() != 1 {
						t.Errorf("%d runs", p.runs())
					}
					wantAlive(t, s, "charge")
					s.Close()
					if n := p.count("notifications/cancelled"); n != 0 {
						t.Errorf("%d notifications/cancelled", n)
					}
				}
			})
		})
	}
}

func TestTheCallersOwnCancellationIsToldToTheServer(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared("ns")} {
			p := newPeer(t, modern, settings, hang, run)
			s := connectTo(t, p.url, patient())
			ctx, cancel := context.WithCancel(t.Context())
			done := start(ctx, s, "charge")
			p.await(t, "tools/call")
			cancel()
			o := <-done
			u := o.wantUnknown(t)
			if !errors.Is(u, context.Canceled) {
				t.Errorf("the cause is %v", u.Cause)
			}
			o.wantLosses(t, clientretry.LossCancelled)
			p.await(t, "notifications/cancelled")
			p.wantCalls(t, 1, 0)
			wantAlive(t, s, "charge")
		}
	})
}

func TestTheCallersDeadlineInFlightLeavesTheOutcomeUnknown(t *testing.T) {
	p := newPeer(t, true, declared("ns"), hang)
	s := connectTo(t, p.url, patient())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if u := do(t, ctx, s, "charge").wantUnknown(t); !errors.Is(u, context.DeadlineExceeded) {
		t.Errorf("the cause is %v", u.Cause)
	}
}

func TestACallThatWasCancelledBeforeItWasSentDidNotRun(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared("ns")} {
			p := newPeer(t, modern, settings, run)
			s := connectTo(t, p.url, patient())
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			o := do(t, ctx, s, "charge")
			var unknown *clientretry.UnknownOutcomeError
			if errors.As(o.err, &unknown) || !errors.Is(o.err, context.Canceled) {
				t.Errorf("the caller got %v", o.err)
			}
			p.wantCalls(t, 0, 0)
			wantAlive(t, s, "charge")
		}
	})
}

func TestTheCallersCancellationDuringAWait(t *testing.T) {
	for name, c := range map[string]struct {
		first   step
		unknown bool
	}{
		"after a loss":     {status(503, "Retry-After", "60"), true},
		"after a refusal":  {extension("capacityExceeded", "notRun", "retryAfterMs", "60000"), false},
		"while it runs":    {extension("stillRunning", "inProgress", "retryAfterMs", "60000"), true},
		"of another store": {extension("storeUnavailable", "notRun", "retryAfterMs", "60000"), false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			p := newPeer(t, true, declared("ns"), c.first, run)
			// The log is where the wait begins to be seen from outside.
			s := connectTo(t, p.url, patient())
			done := start(ctx, s, "charge")
			p.await(t, "tools/call")
			cancel()
			o := <-done
			if !errors.Is(o.err, context.Canceled) {
				t.Errorf("the caller got %v", o.err)
			}
			var unknown *clientretry.UnknownOutcomeError
			if got := errors.As(o.err, &unknown); c.unknown && !got {
				t.Errorf("the caller got %v", o.err)
			}
			p.wantCalls(t, 1, 0)
		})
	}
}

func TestALateResponseAfterTheResendIsIgnored(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		for _, json := range []bool{true, false} {
			g := newGatedServer(t, stateless, json)
			s := connectTo(t, g.url, &clientretry.Options{AttemptTimeout: 150 * time.Millisecond, BackoffBase: time.Millisecond, Attempts: 1000, Deadline: time.Hour})
			done := start(t.Context(), s, "slow")
			for range 3 {
				g.await(t)
			}
			close(g.release)
			o := <-done
			o.wantResult(t)
			if n := g.ran.Load(); n != 1 {
				t.Errorf("%d runs", n)
			}
			if !o.replayed() {
				t.Error("the re-send was not answered by the first run")
			}
			wantAlive(t, s, "slow")
		}
	}
}

func TestAProgressNotificationArrivesWhileTheCallRuns(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared("ns")} {
			seen := make(chan struct{})
			p := newPeer(t, modern, settings, func(p *peer, w httpWriter, r *httpRequest, c wireCall) {
				events(message(progressData))(p, w, r, c)
				select {
				case <-seen: // a layer that buffers would stop here for ever
					events(message(response(okMarked)))(p, w, r, c)
				case <-r.Context().Done():
				}
			})
			client := newClient(&mcp.ClientOptions{ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { close(seen) }})
			s, err := clientretry.New(client, patient()).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: p.url}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			params := &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{"progressToken": "p"}}
			if _, err := s.CallTool(t.Context(), params); err != nil {
				t.Error(err)
			}
		}
	})
}
