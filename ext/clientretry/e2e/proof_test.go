package e2e_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func TestAfterALossNothingIsSentAgainBeforeThePathIsProven(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		p := newPeer(t, modern, declared("ns"), after(status(502)), run)
		s := connectTo(t, p.url, patient())
		o := do(t, t.Context(), s, "charge")
		o.wantResult(t)
		calls, checks := p.seen()
		if len(calls) != 2 || len(checks) != 1 || checks[0].At.Before(calls[0].At) || checks[0].At.After(calls[1].At) || o.report.PathChecks != 1 {
			t.Fatalf("%d calls, %d path checks", len(calls), len(checks))
		}
		c := checks[0]
		if _, _, err := schema.ParseKey(c.Key); c.Key == "" || err == nil {
			t.Errorf("the path check has the key %q", c.Key)
		}
		if c.InParam != calls[1].InParam || c.Attempt != 0 || c.Arguments != "{}" {
			t.Errorf("the path check is %s", c.Body)
		}
		if o.report.Attempts != 2 || calls[0].Attempt != 0 || calls[1].Attempt != 2 {
			t.Errorf("%d attempts, announced as %d and %d", o.report.Attempts, calls[0].Attempt, calls[1].Attempt)
		}
	})
}

// X7, X8. Whatever but keyInvalid answers the path check, keys do not arrive.
func TestAPathThatIsNotProvenLeavesTheOutcomeUnknown(t *testing.T) {
	for name, check := range map[string]step{
		"unknown tool":          rpcError(-32602, "unknown tool", ""),
		"no such method":        rpcError(-32601, "no such method", ""),
		"internal error":        rpcError(-32603, "internal", ""),
		"a result":              answer(ok),
		"a marked result":       answer(okMarked),
		"a result with isError": answer(`{"isError":true,"content":[{"type":"text","text":"unknown tool"}]}`),
		"keyRequired":           extension("keyRequired", "notRun"),
		"an unknown reason":     extension("regionDraining", "notRun"),
		"principalUnknown":      extension("principalUnknown", "notRun"),
		"outcome alone":         rpcError(schema.ErrorCode, "", `{"outcome":"notRun"}`),
		"unreadable":            rpcError(schema.ErrorCode, "", `"keyInvalid"`),
		"keyInvalid elsewhere":  rpcError(-32602, "", `{"reason":"keyInvalid","outcome":"notRun"}`),
		"400":                   status(400),
		"401":                   status(401),
		"403":                   status(403),
		"404":                   status(405),
		"400 with JSON-RPC":     jsonStatus(400, errorObject(-32602, "unknown tool", "")),
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, declared("ns"), after(status(502)), run)
				p.check = check
				s := connectTo(t, p.url, patient())
				u := do(t, t.Context(), s, "charge").wantUnknown(t)
				p.wantCalls(t, 1, 1)
				if p.runs() != 1 || !strings.Contains(u.Error(), "no proof") {
					t.Errorf("%d runs, %v", p.runs(), u)
				}
				// The next call has no loss behind it and needs no proof.
				wantAlive(t, s, "charge")
			})
		})
	}
}

// X8. A gateway passes the capability on and drops the keys.
func TestAGatewayThatDropsKeysLeadsToOneRunAndAnUnknownOutcome(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		g := newGateway(t, !modern, nil)
		g.loseFirst = true
		s := connectTo(t, g.url, patient())
		if _, ok := s.Declared(); !ok {
			t.Fatal("the gateway hides the capability")
		}
		u := do(t, t.Context(), s, "charge").wantUnknown(t)
		if g.charges.Load() != 1 || u.Attempts != 1 || u.Key == "" {
			t.Errorf("%d charges, %+v", g.charges.Load(), u)
		}
	})
}

// Another call's refusal for want of a key shows that keys do not arrive.
func TestKeyRequiredIsNoProof(t *testing.T) {
	t.Parallel()
	p := newPeer(t, true, declared("ns"))
	p.check = rpcError(-32602, "unknown tool", "")
	lost, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.script = []step{func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		switch c.Tool {
		case "charge":
			first := false
			once.Do(func() { first = true })
			if !first {
				run(p, w, r, c)
				return
			}
			close(lost)
			<-proceed
			after(status(503, "Retry-After", "1"))(p, w, r, c)
		default:
			extension("keyRequired", "notRun")(p, w, r, c)
		}
	}}
	s := connectTo(t, p.url, patient())
	done := start(t.Context(), s, "charge")
	<-lost
	close(proceed)
	stop := make(chan struct{})
	var refused sync.WaitGroup
	refused.Go(func() { // all through the wait before the re-send
		for {
			select {
			case <-stop:
				return
			default:
				o := do(t, context.Background(), s, "other")
				if o.report.KeyHonoured {
					t.Error("keyRequired is taken for a key that arrived")
				}
			}
		}
	})
	o := <-done
	close(stop)
	refused.Wait()
	o.wantUnknown(t)
	if p.runs() != 1 {
		t.Errorf("%d runs", p.runs())
	}
}

// A marked result of another call since the loss is proof enough.
func TestAnotherCallsAnswerProvesThePath(t *testing.T) {
	for name, proof := range map[string]step{
		"a marked result":      run,
		"a marked error":       rpcError(-32000, "raised", `{"`+schema.ExtensionID+`":{"replayed":false}}`),
		"an extension's error": extension("keyMismatch", "notRun"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, true, declared("ns"))
			p.check = func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
				t.Error("a path check was made all the same")
				honestCheck(p, w, r, c)
			}
			var once sync.Once
			p.script = []step{func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
				if c.Tool != "charge" {
					proof(p, w, r, c)
					return
				}
				first := false
				once.Do(func() { first = true })
				if first {
					after(status(503, "Retry-After", "1"))(p, w, r, c)
					return
				}
				run(p, w, r, c)
			}}
			losses := make(chan struct{}, 10)
			opt := patient()
			opt.Logger = onLoss(losses)
			s := connectTo(t, p.url, opt)
			done := start(t.Context(), s, "charge")
			<-losses
			do(t, t.Context(), s, "read")
			o := <-done
			o.wantResult(t)
			if o.report.PathChecks != 0 || p.runs() == 0 {
				t.Errorf("%+v", o.report)
			}
		})
	}
}

// What was proven before the loss is not proven after it.
func TestAnOlderProofDoesNotCount(t *testing.T) {
	p := newPeer(t, true, declared("ns"), run, after(status(502)), run)
	s := connectTo(t, p.url, patient())
	do(t, t.Context(), s, "charge").wantResult(t)
	do(t, t.Context(), s, "charge").wantResult(t)
	p.wantCalls(t, 3, 1)
}

func TestALostPathCheckIsMadeAgainAndCountsAsATry(t *testing.T) {
	for name, loss := range map[string]step{
		"502": status(502), "reset": reset, "a page": typed("text/html", "x"), "eof": events(""), "proxy": rpcError(-32001, "gone", ""),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, true, declared("ns"), after(status(502)), run)
			p.check = scripted(loss, loss, honestCheck)
			s := connectTo(t, p.url, patient())
			o := do(t, t.Context(), s, "charge")
			o.wantResult(t)
			o.wantLosses(t, clientretry.LossStatus, clientretry.LossPathCheck, clientretry.LossPathCheck)
			p.wantCalls(t, 2, 3)
			if o.report.Attempts != 2 || o.report.PathChecks != 3 {
				t.Errorf("%+v", o.report)
			}

			p = newPeer(t, true, declared("ns"), after(status(502)), run)
			p.check = loss
			o = do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
			if u := o.wantUnknown(t); u.Attempts != 1 {
				t.Errorf("%d attempts", u.Attempts)
			}
			p.wantCalls(t, 1, 3)
		})
	}
}

func TestAPathCheckThatEndsTheSessionIsMadeAgainOnTheNext(t *testing.T) {
	p := newPeer(t, false, declared("ns"), after(status(502)), run)
	p.check = scripted(status(404), honestCheck)
	o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
	o.wantResult(t)
	if calls := p.wantCalls(t, 2, 2); calls[0].Session == calls[1].Session || calls[0].Key != calls[1].Key || p.runs() != 1 {
		t.Errorf("%+v", calls)
	}
}

// A proof belongs to its connection: the next one may lead elsewhere.
func TestANewConnectionHasToBeProvenAnew(t *testing.T) {
	p := newPeer(t, false, declared("ns"), after(status(502)), status(404), run)
	s := connectTo(t, p.url, patient())
	do(t, t.Context(), s, "charge").wantResult(t)
	wantSameKey(t, p.wantCalls(t, 3, 2))
	if p.runs() != 1 {
		t.Errorf("%d runs", p.runs())
	}
}

func TestThePathCheckCarriesTheCallsMetaButNotItsProgressToken(t *testing.T) {
	p := newPeer(t, true, declared("ns"), after(status(502)), run)
	s := connectTo(t, p.url, patient())
	params := &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{"progressToken": "tok", "tenant": "t-17"}}
	if _, err := s.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	_, checks := p.seen()
	if len(checks) != 1 || strings.Contains(checks[0].Body, "progressToken") || !strings.Contains(checks[0].Body, "t-17") {
		t.Errorf("the path check is %s", checks[0].Body)
	}
}

func TestTheCallersCancellationDuringThePathCheckLeavesTheOutcomeUnknown(t *testing.T) {
	p := newPeer(t, true, declared("ns"), after(status(502)), run)
	p.check = hang
	s := connectTo(t, p.url, patient())
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, s, "charge")
	p.await(t, "check")
	cancel()
	o := <-done
	if u := o.wantUnknown(t); !errors.Is(u, context.Canceled) || u.Attempts != 1 {
		t.Errorf("%+v", u)
	}
	p.wantCalls(t, 1, 1)
}
