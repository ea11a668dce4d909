package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// lostStatuses are those after which the SEP lets a client send again.
var lostStatuses = []int{408, 429, 500, 502, 503, 504}

func TestAStatusThatMayHideAnEffectIsALoss(t *testing.T) {
	for _, code := range lostStatuses {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, declared("ns"), after(status(code)), run)
				s := connectTo(t, p.url, patient())
				o := do(t, t.Context(), s, "charge")
				o.wantResult(t)
				o.wantLosses(t, clientretry.LossStatus)
				if l := o.report.Losses; len(l) == 1 && l[0].Status != code {
					t.Errorf("the loss has status %d", l[0].Status)
				}
				if !o.replayed() || p.runs() != 1 {
					t.Errorf("replayed %v, %d runs", o.replayed(), p.runs())
				}
				p.wantCalls(t, 2, 1)

				p = newPeer(t, modern, nil, status(code), run)
				s = connectTo(t, p.url, patient())
				u := do(t, t.Context(), s, "charge").wantUnknown(t)
				var loss *clientretry.Loss
				if !errors.As(u, &loss) || loss.Status != code || loss.Kind != clientretry.LossStatus {
					t.Errorf("the cause is %#v", u.Cause)
				}
				p.wantCalls(t, 1, 0)
				wantAlive(t, s, "charge")
			})
		})
	}
}

// A gateway's 502 is a loss also when it comes as JSON-RPC.
func TestAGatewaysStatusWithAJSONRPCBodyIsALoss(t *testing.T) {
	for _, code := range []int{408, 429, 502, 503, 504} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			p := newPeer(t, true, declared("ns"), after(jsonStatus(code, errorObject(-32603, "upstream failed", ""))), run)
			o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
			o.wantResult(t)
			o.wantLosses(t, clientretry.LossStatus)
			if !o.replayed() || p.runs() != 1 {
				t.Errorf("replayed %v, %d runs", o.replayed(), p.runs())
			}
		})
	}
}

// The SDK drops what a 500 says; the caller gets it all the same.
func TestA500WithAJSONRPCBodyIsTheServersOwnError(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared("ns")} {
			p := newPeer(t, modern, settings, jsonStatus(500, errorObject(-32011, "no funds", `{"balance":3}`)), run)
			s := connectTo(t, p.url, patient())
			e := wantCode(t, do(t, t.Context(), s, "charge"), -32011)
			if string(e.Data) != `{"balance":3}` {
				t.Errorf("the error's data is %s", e.Data)
			}
			p.wantCalls(t, 1, 0)
			wantAlive(t, s, "charge")
		}
	})
}

func TestARefusalWithAJSONRPCBodyIsTheServersOwnError(t *testing.T) {
	for _, code := range []int{400, 403, 404, 409, 413, 422} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			p := newPeer(t, true, declared("ns"), jsonStatus(code, errorObject(-32602, "no such argument", `{"name":"x"}`)), run)
			s := connectTo(t, p.url, patient())
			o := do(t, t.Context(), s, "charge")
			if code == 403 { // whatever it says, it is a refusal
				o.wantNotRun(t)
			} else if e := wantCode(t, o, -32602); string(e.Data) != `{"name":"x"}` {
				t.Errorf("the error's data is %s", e.Data)
			}
			p.wantCalls(t, 1, 0)
			wantAlive(t, s, "charge")
		})
	}
}

// Servers that cannot read a request do not know its id.
func TestARefusalWithAnErrorForNoIdDoesNotEndTheSession(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		for _, code := range []int{400, 422} {
			refuse := func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
				writeJSON(w, code, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no session header"}}`)
			}
			for _, settings := range []any{nil, declared("ns")} {
				p := newPeer(t, modern, settings, refuse, run)
				s := connectTo(t, p.url, patient())
				if o := do(t, t.Context(), s, "charge"); o.err == nil || !strings.Contains(o.err.Error(), "no session header") {
					t.Errorf("the caller got %v and %v", o.res, o.err)
				}
				p.wantCalls(t, 1, 0)
				wantAlive(t, s, "charge")
			}
		}
	})
}

func TestAPlainRefusalIsDefiniteAndTheSessionLivesOn(t *testing.T) {
	for _, code := range []int{400, 401, 403, 404, 405, 413, 415, 501} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				if code == 404 && !modern {
					t.Skip("there it ends the session: see the next test")
				}
				for _, settings := range []any{nil, declared("ns")} {
					p := newPeer(t, modern, settings, status(code), run)
					s := connectTo(t, p.url, patient())
					n := do(t, t.Context(), s, "charge").wantNotRun(t)
					var refusal *clientretry.HTTPError
					if !errors.As(n, &refusal) || refusal.Status != code {
						t.Fatalf("the cause is %#v", n.Cause)
					}
					if !strings.HasPrefix(refusal.Body, "no: ") {
						t.Errorf("the body is %q", refusal.Body)
					}
					p.wantCalls(t, 1, 0)
					wantAlive(t, s, "charge")
				}
			})
		})
	}
}

func TestA404ThatEndsTheSessionLeadsToANewOneWithTheSameKey(t *testing.T) {
	for name, gone := range map[string]step{
		"plain":    status(404),
		"JSON-RPC": jsonStatus(404, errorObject(-32001, "Session not found", "")),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, false, declared("ns"), gone, run)
			s := connectTo(t, p.url, patient())
			o := do(t, t.Context(), s, "charge")
			o.wantResult(t)
			o.wantLosses(t, clientretry.LossSession)
			calls, _ := p.seen()
			if len(calls) != 2 || calls[0].Key == "" || calls[0].Key != calls[1].Key || calls[0].Session == calls[1].Session {
				t.Errorf("the server saw %+v", calls)
			}
			if p.count("initialize") != 2 || p.runs() != 1 {
				t.Errorf("%d sessions, %d runs", p.count("initialize"), p.runs())
			}
			wantAlive(t, s, "charge")
			if err := s.Ping(t.Context(), nil); err != nil {
				t.Errorf("ping: %v", err)
			}
		})
	}
	t.Run("unextended", func(t *testing.T) {
		p := newPeer(t, false, nil, status(404), run)
		s := connectTo(t, p.url, patient())
		do(t, t.Context(), s, "charge").wantNotRun(t)
		p.wantCalls(t, 1, 0)
		wantAlive(t, s, "charge")
		if p.count("initialize") != 2 {
			t.Errorf("%d sessions", p.count("initialize"))
		}
	})
}

// A status that nobody has said anything about may hide an effect, and is no
// licence to send again: 524 is a CDN that waited too long for its origin.
func TestAnUnlistedStatusIsNeverReportedAsNotRun(t *testing.T) {
	for _, code := range []int{499, 507, 520, 524, 599} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			for _, settings := range []any{nil, declared("ns")} {
				p := newPeer(t, true, settings, after(status(code)), run)
				s := connectTo(t, p.url, patient())
				do(t, t.Context(), s, "charge").wantUnknown(t)
				p.wantCalls(t, 1, 0)
				wantAlive(t, s, "charge")
			}
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Run("seconds", func(t *testing.T) {
		t.Parallel()
		p := newPeer(t, true, declared("ns"), after(status(503, "Retry-After", "1")), run)
		o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
		o.wantResult(t)
		_, checks := p.seen()
		calls := p.wantCalls(t, 2, 1)
		if d := checks[0].At.Sub(calls[0].At); d < time.Second {
			t.Errorf("asked again after %v", d)
		}
	})
	t.Run("a date", func(t *testing.T) {
		t.Parallel()
		at := time.Now().Add(2 * time.Second).UTC().Truncate(time.Second)
		p := newPeer(t, true, declared("ns"), after(status(429, "Retry-After", at.Format(http.TimeFormat))), run)
		do(t, t.Context(), connectTo(t, p.url, patient()), "charge").wantResult(t)
		_, checks := p.seen()
		if checks[0].At.Before(at) {
			t.Errorf("asked again at %v, the server asked for %v", checks[0].At, at)
		}
	})
	for name, value := range map[string]string{
		"garbage": "soon", "a date gone by": "Wed, 21 Oct 2015 07:28:00 GMT", "zero": "0", "negative": "-5", "no number at all": "99999999999999999999999",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, true, declared("ns"), after(status(503, "Retry-After", value)), run)
			do(t, t.Context(), connectTo(t, p.url, patient()), "charge").wantResult(t)
		})
	}
	t.Run("years end the call at once", func(t *testing.T) {
		for _, value := range []string{"99999999", "9223372036854775807", "Fri, 01 Jan 2100 00:00:00 GMT"} {
			p := newPeer(t, true, declared("ns"), after(status(503, "Retry-After", value)), run)
			opt := patient()
			opt.Deadline = time.Minute
			do(t, t.Context(), connectTo(t, p.url, opt), "charge").wantUnknown(t)
			p.wantCalls(t, 1, 0)
		}
	})
}

// A path check that is lost waits as long as the server asks, too.
func TestRetryAfterOfALostPathCheckIsHonoured(t *testing.T) {
	t.Parallel()
	p := newPeer(t, true, declared("ns"), after(status(502)), run)
	n := 0
	p.check = func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		if n++; n == 1 {
			status(503, "Retry-After", "1")(p, w, r, c)
			return
		}
		honestCheck(p, w, r, c)
	}
	do(t, t.Context(), connectTo(t, p.url, patient()), "charge").wantResult(t)
	_, checks := p.seen()
	if len(checks) != 2 || checks[1].At.Sub(checks[0].At) < time.Second {
		t.Errorf("%d path checks", len(checks))
	}
}

func TestARedirectKeepsTheKeyAndIsOneAttempt(t *testing.T) {
	for _, code := range []int{307, 308} {
		onGenerations(t, func(t *testing.T, modern bool) {
			p := newPeer(t, modern, declared("ns"))
			p.script = []step{status(code, "Location", p.url+"/elsewhere"), after(status(502)), status(code, "Location", "/again"), run}
			s := connectTo(t, p.url, patient())
			o := do(t, t.Context(), s, "charge")
			o.wantResult(t)
			calls := p.wantCalls(t, 4, 1)
			for i, c := range calls {
				if c.Key != calls[0].Key || c.Key == "" {
					t.Errorf("request %d has the key %q", i, c.Key)
				}
			}
			if calls[1].path != "/elsewhere" || string(calls[1].ID) != string(calls[0].ID) || o.report.Attempts != 2 || p.runs() != 1 {
				t.Errorf("%s after %s, report %+v, %d runs", calls[1].path, calls[0].path, o.report, p.runs())
			}
			wantAlive(t, s, "charge")
		})
	}
}

// What a target of a redirect refuses, it refuses for the first time.
func TestARefusalAfterARedirectIsStillDefinite(t *testing.T) {
	p := newPeer(t, true, declared("ns"), status(307, "Location", "/elsewhere"), status(405), run)
	s := connectTo(t, p.url, patient())
	do(t, t.Context(), s, "charge").wantNotRun(t)
	wantAlive(t, s, "charge")
}

// 302 and 303 turn a POST into a GET, whose answer is nobody's.
func TestARedirectThatDropsTheCallIsNoAnswerAndTheSessionLivesOn(t *testing.T) {
	for _, code := range []int{301, 302, 303} {
		for _, settings := range []any{nil, declared("ns")} {
			p := newPeer(t, true, settings, after(status(code, "Location", "/signin")), run)
			s := connectTo(t, p.url, patient())
			o := do(t, t.Context(), s, "charge")
			var notRun *clientretry.NotRunError
			if errors.As(o.err, &notRun) {
				t.Errorf("%d: the caller is told %v", code, o.err)
			}
			if settings == nil {
				o.wantUnknown(t)
			}
			if p.runs() != 1 {
				t.Errorf("%d: %d runs", code, p.runs())
			}
			wantAlive(t, s, "charge")
		}
	}
}

func TestRedirectsWithoutEndAreALoss(t *testing.T) {
	p := newPeer(t, true, nil, status(307, "Location", "/round"))
	s := connectTo(t, p.url, patient())
	do(t, t.Context(), s, "charge").wantUnknown(t)
	if err := s.Ping(t.Context(), nil); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestAForeignSessionIdInAResponseDoesNotEndTheSession(t *testing.T) {
	p := newPeer(t, false, nil, func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		w.Header().Set("Mcp-Session-Id", "somebody-elses")
		run(p, w, r, c)
	}, run)
	s := connectTo(t, p.url, patient())
	o := do(t, t.Context(), s, "charge")
	if o.err != nil {
		o.wantUnknown(t)
	}
	wantAlive(t, s, "charge")
}

func TestAServerThatIsNotThereWasNotSentAnything(t *testing.T) {
	for name, settings := range map[string]any{"extended": declared("ns"), "unextended": nil} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, true, settings, run)
			s := connectTo(t, p.url, patient(), func(tr *mcp.StreamableClientTransport) { tr.HTTPClient = nil })
			p.close()
			o := do(t, t.Context(), s, "charge")
			n := o.wantNotRun(t)
			var loss *clientretry.Loss
			if !errors.As(n, &loss) || loss.Kind != clientretry.LossNotSent {
				t.Errorf("the cause is %#v", n.Cause)
			}
			if want := map[bool]int{true: 4, false: 1}[settings != nil]; o.report.Attempts != want {
				t.Errorf("%d attempts, want %d", o.report.Attempts, want)
			}
			p.wantCalls(t, 0, 0)
		})
	}
}
