package clientretry_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// told is what a caller was told, in a word.
func told(err error) string {
	var unknown *clientretry.UnknownOutcomeError
	var notRun *clientretry.NotRunError
	var lost *clientretry.ResultLostError
	switch {
	case errors.As(err, &unknown):
		return "unknown"
	case errors.As(err, &notRun):
		return "notRun"
	case errors.As(err, &lost):
		return "resultLost"
	case err != nil:
		return "error"
	}
	return "result"
}

// play makes one call against a script, on a clock of its own, over both
// generations of the protocol.
type play struct {
	settings any // nil: declared()
	plain    bool
	opt      clientretry.Options
	script   script
	path     script
	context  func(*testing.T, *clientretry.Session, context.Context) context.Context
	params   *mcp.CallToolParams
}

type outcomeOf struct {
	err    error
	result *mcp.CallToolResult
	report clientretry.Report
	peer   *pipePeer
	took   time.Duration
}

func (p play) run(t *testing.T, check func(t *testing.T, o outcomeOf)) {
	t.Helper()
	for name, modern := range map[string]bool{"modern": true, "legacy": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				settings := p.settings
				if settings == nil && !p.plain {
					settings = declared()
				}
				peer := newPipePeer(modern, settings, p.script)
				peer.path = p.path
				s := open(t, peer, &p.opt)
				defer s.Close()
				ctx := t.Context()
				if p.context != nil {
					ctx = p.context(t, s, ctx)
				}
				params := p.params
				if params == nil {
					params = &mcp.CallToolParams{Name: "charge"}
				}
				ctx, report := clientretry.WithReport(ctx)
				began := time.Now()
				res, err := s.CallTool(ctx, params)
				check(t, outcomeOf{err, res, *report, peer, time.Since(began)})
			})
		})
	}
}

// each answers the n-th call with the n-th answer, the last one for ever.
func each(answers ...any) script {
	return func(c *toolCall) any {
		a := answers[min(c.N, len(answers))-1]
		if f, ok := a.(func(*toolCall) any); ok {
			return f(c)
		}
		return a
	}
}

func withMintedKey(t *testing.T, s *clientretry.Session, ctx context.Context) context.Context {
	key, err := s.MintKey()
	if err != nil {
		t.Error(err)
	}
	return clientretry.WithKey(ctx, key)
}

var proxied = &jsonrpc.Error{Code: -32000, Message: "upstream"}

func TestACallCarriesAKeyWhereTheServerReadsIt(t *testing.T) {
	for _, param := range []bool{true, false} {
		play{settings: declared("keyParam", param), script: each(done(false))}.run(t, func(t *testing.T, o outcomeOf) {
			c := o.peer.seen()[0]
			ns, local, err := schema.ParseKey(c.Key)
			if o.err != nil || err != nil || ns != "ns1" || len(local) < 26 || c.InParam != param || c.Attempt != 0 {
				t.Errorf("%v; key %q (%v), in the param %v", o.err, c.Key, err, c.InParam)
			}
			if o.report.Key != c.Key || !o.report.KeyHonoured || o.report.Attempts != 1 || o.report.Replayed || o.report.PathChecks != 0 {
				t.Errorf("report %+v", o.report)
			}
		})
	}
}

func TestAReSendHasTheSameKeyANewIDAndItsNumber(t *testing.T) {
	play{script: each(proxied, proxied, done(true))}.run(t, func(t *testing.T, o outcomeOf) {
		calls := o.peer.seen()
		if o.err != nil || len(calls) != 3 || !o.report.Replayed || !o.report.KeyHonoured || o.report.Attempts != 3 {
			t.Fatalf("%v, report %+v", o.err, o.report)
		}
		for i, c := range calls {
			if c.Key != calls[0].Key || i > 0 && (string(c.ID) == string(calls[i-1].ID) || c.Attempt != i+1) {
				t.Errorf("attempt %d: key %q, id %s, number %d", i+1, c.Key, c.ID, c.Attempt)
			}
		}
		if o.peer.pathChecks() != 2 || o.report.PathChecks != 2 || len(o.report.Losses) != 2 {
			t.Errorf("%d path checks, report %+v", o.peer.pathChecks(), o.report)
		}
	})
}

// Every outcome that a server can give, to a first attempt, after a loss, and
// for a key of the caller's.
func TestWhatTheCallerIsToldOfEachReason(t *testing.T) {
	for _, row := range []struct {
		reason               schema.Reason
		first, lost, callers string
	}{
		{schema.ReasonKeyMismatch, "notRun", "unknown", "notRun"},
		{schema.ReasonKeyRequired, "notRun", "unknown", "notRun"},
		{schema.ReasonKeyInvalid, "notRun", "unknown", "notRun"},
		{schema.ReasonPrincipalUnknown, "notRun", "unknown", "notRun"},
		{schema.ReasonCapacityExceeded, "notRun", "unknown", "notRun"},
		{schema.ReasonStoreUnavailable, "notRun", "unknown", "notRun"},
		{schema.ReasonNamespaceNotHeld, "notRun", "unknown", "unknown"},
		{schema.ReasonNamespaceClosed, "notRun", "notRun", "notRun"},
		{schema.ReasonNoEffect, "notRun", "notRun", "notRun"},
		{schema.ReasonStillRunning, "unknown", "unknown", "unknown"},
		{schema.ReasonResultUnavailable, "resultLost", "resultLost", "resultLost"},
		{schema.ReasonOutcomeUnknown, "unknown", "unknown", "unknown"},
		{"aNewReason", "unknown", "unknown", "unknown"}, // and no outcome
	} {
		t.Run(string(row.reason), func(t *testing.T) {
			for name, v := range map[string]struct {
				script script
				ctx    func(*testing.T, *clientretry.Session, context.Context) context.Context
				want   string
			}{
				"first":   {each(refusal(row.reason)), nil, row.first},
				"lost":    {each(proxied, refusal(row.reason)), nil, row.lost},
				"callers": {each(refusal(row.reason)), withMintedKey, row.callers},
			} {
				t.Run(name, func(t *testing.T) {
					play{script: v.script, context: v.ctx}.run(t, func(t *testing.T, o outcomeOf) {
						var rpc *jsonrpc.Error
						if told(o.err) != v.want || !errors.As(o.err, &rpc) {
							t.Errorf("told %v, want %s", o.err, v.want)
						}
						keys := o.peer.keys()
						if len(keys) > 0 && slices.ContainsFunc(keys, func(k string) bool { return k != keys[0] }) {
							t.Errorf("keys changed: %q", keys)
						}
						var notRun *clientretry.NotRunError
						if errors.As(o.err, &notRun) && notRun.Data == nil {
							t.Error("the error data is not handed on")
						}
					})
				})
			}
		})
	}
}

// X9: after a lost attempt that may have run, no refusal makes the call "not
// run", and no send without a key follows.
func TestNoRefusalAfterALossIsTakenForNotRun(t *testing.T) {
	for name, answer := range map[string]any{
		"keyMismatch":      refusal(schema.ReasonKeyMismatch),
		"invalid params":   &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "tool gone"},
		"method not found": &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "tool gone"},
		"keyUnsupported":   refusal(schema.ReasonKeyUnsupported),
		"keyRequired":      refusal(schema.ReasonKeyRequired),
		"capacity":         refusal(schema.ReasonCapacityExceeded, after(10)),
	} {
		t.Run(name, func(t *testing.T) {
			play{script: each(proxied, answer)}.run(t, func(t *testing.T, o outcomeOf) {
				if told(o.err) != "unknown" {
					t.Errorf("told %v", o.err)
				}
				for _, c := range o.peer.seen() {
					if c.Key == "" {
						t.Error("sent without a key")
					}
				}
			})
		})
	}
}

func TestAToolThatTakesNoKeysIsCalledWithoutOneAndNeverSentAgain(t *testing.T) {
	noKeys := func(last any) script {
		return func(c *toolCall) any {
			if c.Key != "" {
				return refusal(schema.ReasonKeyUnsupported)
			}
			return last
		}
	}
	play{script: noKeys(done()), opt: clientretry.Options{Attempts: 1}}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || len(o.peer.seen()) != 2 || o.report.Key != "" || o.report.KeyHonoured {
			t.Errorf("%v, keys %q, report %+v", o.err, o.peer.keys(), o.report)
		}
	})
	play{script: noKeys(proxied)}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 2 {
			t.Errorf("%v, keys %q", o.err, o.peer.keys())
		}
	})
	play{script: noKeys(done()), context: withMintedKey}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "notRun" || len(o.peer.seen()) != 1 {
			t.Errorf("a key that the caller gave was dropped: %v, keys %q", o.err, o.peer.keys())
		}
	})
	play{script: noKeys(done()), opt: clientretry.Options{Strict: true}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 {
			t.Errorf("strict: %v, keys %q", o.err, o.peer.keys())
		}
	})
}

func TestNamespaceNotHeldWithNothingLostGetsANewKeyInTheNewNamespace(t *testing.T) {
	held := func(ns string) script {
		return func(c *toolCall) any {
			if strings.HasPrefix(c.Key, ns+".") {
				return done(false)
			}
			return refusal(schema.ReasonNamespaceNotHeld, namespace(ns))
		}
	}
	play{script: held("ns2")}.run(t, func(t *testing.T, o outcomeOf) {
		keys := o.peer.keys()
		if o.err != nil || len(keys) != 2 || !strings.HasPrefix(keys[1], "ns2.") || o.report.Key != keys[1] || o.took != 0 {
			t.Errorf("%v, keys %q, %v", o.err, keys, o.took)
		}
		if c := o.peer.seen()[1]; c.Attempt != 0 {
			t.Errorf("the first attempt with a new key says that it is number %d", c.Attempt)
		}
	})
	// X1: a key that was handed out may have run elsewhere.
	play{script: held("ns2"), context: withMintedKey}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || strings.Contains(strings.Join(o.peer.keys(), " "), "ns2") {
			t.Errorf("%v, keys %q", o.err, o.peer.keys())
		}
	})
	// X2: where a request may be delivered twice nothing is taken for granted.
	play{script: held("ns2"), opt: clientretry.Options{Strict: true}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || strings.Contains(strings.Join(o.peer.keys(), " "), "ns2") {
			t.Errorf("strict: %v, keys %q", o.err, o.peer.keys())
		}
	})
	for _, bad := range []string{"", "a.b", strings.Repeat("x", 65), "é"} {
		play{script: each(refusal(schema.ReasonNamespaceNotHeld, namespace(bad)))}.run(t, func(t *testing.T, o outcomeOf) {
			if keys := o.peer.keys(); told(o.err) != "notRun" || len(keys) != 4 || keys[0] != keys[3] {
				t.Errorf("keyNamespace %q: %v, keys %q", bad, o.err, keys)
			}
		})
	}
}

func TestNamespaceClosedGetsANewKeyAlsoAfterALoss(t *testing.T) {
	play{script: each(proxied, refusal(schema.ReasonNamespaceClosed, namespace("ns2")), done(false))}.run(t, func(t *testing.T, o outcomeOf) {
		keys := o.peer.keys()
		if o.err != nil || len(keys) != 3 || keys[0] != keys[1] || !strings.HasPrefix(keys[2], "ns2.") || o.report.PossibleDuplicate {
			t.Errorf("%v, keys %q, %+v", o.err, keys, o.report)
		}
	})
	play{script: each(refusal(schema.ReasonNamespaceClosed, namespace("ns2"))), context: withMintedKey}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "notRun" || len(o.peer.keys()) != 1 {
			t.Errorf("a caller's key: %v, keys %q", o.err, o.peer.keys())
		}
	})
}

// X13: replicas without a shared store, strictly in turn.
func TestUnsharedReplicasInTurnSettleWithinTheAttempts(t *testing.T) {
	for replicas := 2; replicas <= 5; replicas++ {
		runs := map[string]int{}
		turn := 1
		s := func(c *toolCall) any {
			ns := "ns" + string(rune('1'+turn%replicas))
			turn++
			if !strings.HasPrefix(c.Key, ns+".") {
				return refusal(schema.ReasonNamespaceNotHeld, namespace(ns))
			}
			runs[c.Key]++
			return done(false)
		}
		play{script: s}.run(t, func(t *testing.T, o outcomeOf) {
			if replicas == 2 && o.err != nil {
				t.Errorf("two replicas: %v", o.err)
			}
			if got := told(o.err); got != "result" && got != "notRun" || len(o.peer.seen()) > 4 || len(runs) > 1 {
				t.Errorf("%d replicas: %v after %d calls, runs %v", replicas, o.err, len(o.peer.seen()), runs)
			}
			clear(runs)
			turn = 1
		})
	}
}

// X8: a gateway passes the capability on and drops the key.
func TestAPathThatDropsKeysIsFoundOutBeforeAnythingIsSentAgain(t *testing.T) {
	for name, path := range map[string]any{
		"unknown tool": &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown tool"},
		"a result":     done(),
		"keyRequired":  refusal(schema.ReasonKeyRequired),
		"no data":      &jsonrpc.Error{Code: schema.ErrorCode, Message: "?"},
	} {
		play{script: each(proxied, done()), path: each(path)}.run(t, func(t *testing.T, o outcomeOf) {
			if told(o.err) != "unknown" || len(o.peer.seen()) != 1 || o.report.PathChecks != 1 {
				t.Errorf("%s: %v, %d calls, %+v", name, o.err, len(o.peer.seen()), o.report)
			}
		})
	}
}

func TestALostPathCheckIsMadeAgainAndCountsAsAnAttempt(t *testing.T) {
	checks := 0
	flaky := func(*toolCall) any {
		if checks++; checks < 3 {
			return proxied
		}
		return refusal(schema.ReasonKeyInvalid)
	}
	play{script: each(proxied, done(true)), path: flaky}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || len(o.peer.seen()) != 2 || o.report.PathChecks != 3 || o.report.Attempts != 2 {
			t.Errorf("%v, %d calls, %+v", o.err, len(o.peer.seen()), o.report)
		}
		checks = 0
	})
	play{script: each(proxied, done(true)), path: each(proxied)}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 || o.report.PathChecks != 3 {
			t.Errorf("%v, %d calls, %+v", o.err, len(o.peer.seen()), o.report)
		}
	})
}

func TestAnAnswerToAnotherCallProvesThePath(t *testing.T) {
	for name, proof := range map[string]struct {
		answer any
		checks int
	}{
		"marked result":   {done(false), 0},
		"unmarked result": {done(), 1},
		"extension error": {refusal(schema.ReasonNoEffect), 0},
		"keyRequired":     {refusal(schema.ReasonKeyRequired), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				peer := newPipePeer(true, declared(), func(c *toolCall) any {
					if c.Name == "other" {
						return proof.answer
					}
					if attempts++; attempts == 1 {
						return proxied
					}
					return done(true)
				})
				s := open(t, peer, &clientretry.Options{BackoffBase: time.Hour, BackoffMax: time.Hour, Deadline: -1})
				defer s.Close()
				go func() {
					time.Sleep(time.Nanosecond) // after the loss, and before the re-send
					_, _ = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "other"})
				}()
				ctx, report := clientretry.WithReport(t.Context())
				if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"}); err != nil {
					t.Fatal(err)
				}
				if report.PathChecks != proof.checks || report.Attempts != 2 {
					t.Errorf("report %+v, want %d path checks", report, proof.checks)
				}
			})
		})
	}
}

func TestAnUnmarkedAnswerIsReturnedAndSaidToBeOne(t *testing.T) {
	play{script: each(done())}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || o.report.KeyHonoured || o.report.PossibleDuplicate {
			t.Errorf("first attempt: %v, %+v", o.err, o.report)
		}
	})
	play{script: each(proxied, done())}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || o.result == nil || o.report.KeyHonoured || !o.report.PossibleDuplicate {
			t.Errorf("re-send: %v, %+v", o.err, o.report)
		}
	})
}

// X20: −32000 is a tool's own answer if it carries the marker.
func TestAMarkedErrorIsTheToolsAnswerWhateverItsCode(t *testing.T) {
	marked := &jsonrpc.Error{Code: -32000, Message: "no funds", Data: raw(map[string]any{
		"balance": 3, schema.ExtensionID: map[string]any{"replayed": false}})}
	play{script: each(marked)}.run(t, func(t *testing.T, o outcomeOf) {
		var rpc *jsonrpc.Error
		if told(o.err) != "error" || !errors.As(o.err, &rpc) || rpc.Code != -32000 || len(o.peer.seen()) != 1 || !o.report.KeyHonoured {
			t.Errorf("%v, %d calls, %+v", o.err, len(o.peer.seen()), o.report)
		}
	})
	play{plain: true, script: each(proxied)}.run(t, func(t *testing.T, o outcomeOf) {
		var rpc *jsonrpc.Error
		if told(o.err) != "unknown" || !errors.As(o.err, &rpc) || rpc.Code != -32000 || len(o.peer.seen()) != 1 {
			t.Errorf("unextended: %v, %d calls", o.err, len(o.peer.seen()))
		}
	})
}

func TestAToolsOwnErrorsAreReturnedAsTheSDKWould(t *testing.T) {
	own := &jsonrpc.Error{Code: -31999, Message: "no funds", Data: raw(map[string]int{"balance": 3})}
	for _, plain := range []bool{true, false} {
		play{plain: plain, script: each(own)}.run(t, func(t *testing.T, o outcomeOf) {
			var rpc *jsonrpc.Error
			if told(o.err) != "error" || !errors.As(o.err, &rpc) || rpc.Code != own.Code || string(rpc.Data) != string(own.Data) {
				t.Errorf("plain %v: %v", plain, o.err)
			}
		})
	}
	play{plain: true, script: each(`{"resultType":"complete","content":[],"isError":true}`)}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || !o.result.IsError {
			t.Errorf("%v, %+v", o.err, o.result)
		}
	})
}

func TestAServersOwnUseOfTheErrorCodeMeansNothingWithoutTheCapability(t *testing.T) {
	play{plain: true, script: each(refusal(schema.ReasonCapacityExceeded, after(1)))}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "error" || len(o.peer.seen()) != 1 {
			t.Errorf("%v, %d calls", o.err, len(o.peer.seen()))
		}
	})
}

func TestRetryAfterMsIsHonouredAndBounded(t *testing.T) {
	play{script: each(refusal(schema.ReasonCapacityExceeded, after(7000)), done(false))}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || o.took < 7*time.Second || o.took > 7*time.Second+100*time.Millisecond || o.peer.keys()[0] != o.peer.keys()[1] {
			t.Errorf("%v after %v", o.err, o.took)
		}
	})
	for _, ms := range []int64{math.MaxInt64, 1000 * 3600 * 24 * 365 * 10, 301_000} {
		play{script: each(refusal(schema.ReasonCapacityExceeded, after(ms)))}.run(t, func(t *testing.T, o outcomeOf) {
			if told(o.err) != "notRun" || o.took != 0 {
				t.Errorf("asked to wait %d ms: %v after %v, want an end at once", ms, o.err, o.took)
			}
		})
	}
	play{script: each(refusal(schema.ReasonStillRunning, after(math.MaxInt64))), opt: clientretry.Options{Deadline: -1}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || o.took > time.Hour {
			t.Errorf("%v after %v", o.err, o.took)
		}
	})
}

func TestAServerThatIsForEverInProgressIsGivenUp(t *testing.T) {
	play{script: each(refusal(schema.ReasonStillRunning, after(1000))), opt: clientretry.Options{Attempts: 1000, Deadline: 20 * time.Second}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || o.took > 20*time.Second || len(o.peer.seen()) > 21 {
			t.Errorf("%v after %v and %d calls", o.err, o.took, len(o.peer.seen()))
		}
		if o.report.PathChecks != 0 {
			t.Error("an extension error is proof enough")
		}
	})
}

func TestANamespaceThatIsAlwaysAnotherOneIsGivenUp(t *testing.T) {
	n := 0
	play{script: func(*toolCall) any {
		n++
		return refusal(schema.ReasonNamespaceNotHeld, namespace("ns"+strings.Repeat("x", n%20)))
	}}.run(t, func(t *testing.T, o outcomeOf) {
		keys := o.peer.keys()
		if told(o.err) != "notRun" || len(keys) != 4 {
			t.Fatalf("%v, keys %q", o.err, keys)
		}
		if keys[0] == keys[1] || keys[1] != keys[2] || keys[2] == keys[3] {
			t.Errorf("keys %q, want a new one, the same again, another new one", keys)
		}
	})
}

func TestNothingIsSentAgainAfterTheRetentionTime(t *testing.T) {
	play{settings: declared("retentionMs", 1000), script: each(refusal(schema.ReasonStillRunning, after(400))),
		opt: clientretry.Options{Attempts: 100}}.run(t, func(t *testing.T, o outcomeOf) {
		calls := o.peer.seen()
		if told(o.err) != "unknown" || calls[len(calls)-1].At.Sub(calls[0].At) >= time.Second || len(calls) < 2 {
			t.Errorf("%v, last call after %v", o.err, calls[len(calls)-1].At.Sub(calls[0].At))
		}
	})
	// The path check takes its time, too.
	play{settings: declared("retentionMs", 1000), script: each(proxied), path: func(*toolCall) any {
		time.Sleep(2 * time.Second)
		return refusal(schema.ReasonKeyInvalid)
	}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 {
			t.Errorf("%v after %d calls", o.err, len(o.peer.seen()))
		}
	})
}

func TestBackoffIsJitteredExponentialAndCapped(t *testing.T) {
	play{script: each(proxied), opt: clientretry.Options{Attempts: 9, BackoffBase: time.Second, BackoffMax: 4 * time.Second}}.run(t, func(t *testing.T, o outcomeOf) {
		calls := o.peer.seen()
		if len(calls) != 9 {
			t.Fatalf("%d calls", len(calls))
		}
		most, distinct := time.Second, map[time.Duration]bool{}
		for i := 1; i < len(calls); i++ {
			wait := calls[i].At.Sub(calls[i-1].At)
			if distinct[wait] = true; wait < 0 || wait > most {
				t.Errorf("wait %d is %v, more than %v", i, wait, most)
			}
			most = min(2*most, 4*time.Second)
		}
		if len(distinct) < 4 {
			t.Errorf("waits %v are not random", distinct)
		}
	})
}

func TestACallThatCannotWaitEndsWhenTheLossIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, declared(), each(refusal(schema.ReasonStillRunning, after(5000))))
		s := open(t, peer, nil)
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"})
		if told(err) != "unknown" || time.Since(began) != 0 {
			t.Errorf("%v after %v, though the next attempt could not come before the deadline", err, time.Since(began))
		}
	})
}

func TestAKeyOfTheCallersIsCheckedAndSentAsItIs(t *testing.T) {
	given := func(key string) func(*testing.T, *clientretry.Session, context.Context) context.Context {
		return func(_ *testing.T, _ *clientretry.Session, ctx context.Context) context.Context {
			return clientretry.WithKey(ctx, key)
		}
	}
	play{script: each(done(true)), context: given("old-ns.restored")}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || o.peer.keys()[0] != "old-ns.restored" {
			t.Errorf("%v, keys %q", o.err, o.peer.keys())
		}
	})
	for _, key := range []string{"nodot", "ns1.", ".x", "ns1.é", strings.Repeat("k", 300)} {
		play{script: each(done(false)), context: given(key)}.run(t, func(t *testing.T, o outcomeOf) {
			if told(o.err) != "notRun" || !errors.Is(o.err, schema.ErrKeyInvalid) || len(o.peer.seen()) != 0 {
				t.Errorf("key %q: %v, %d calls", key, o.err, len(o.peer.seen()))
			}
		})
	}
	play{plain: true, script: each(done()), context: given("ns1.x")}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || o.peer.keys()[0] != "" || o.report.KeyHonoured || o.report.Key != "" {
			t.Errorf("unextended: %v, keys %q, %+v", o.err, o.peer.keys(), o.report)
		}
	})
	play{script: each(done(false)), params: &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{schema.MetaKey: "ns1.mine"}}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "notRun" || len(o.peer.seen()) != 0 {
			t.Errorf("a key in _meta: %v", o.err)
		}
	})
}

func TestTheCallersParamsStayAsTheyAre(t *testing.T) {
	params := &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{"mine": 1}}
	play{script: each(proxied, done(true)), params: params}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || len(params.Meta) != 1 || params.Arguments != nil {
			t.Errorf("%v, params are now %+v", o.err, params)
		}
	})
}

func TestAMemberOfTheCallersInMetaIsNotDoubled(t *testing.T) {
	mine := &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{schema.ExtensionID: map[string]any{"attempt": 7}}}
	play{script: each(proxied, done(true)), params: mine}.run(t, func(t *testing.T, o outcomeOf) {
		if calls := o.peer.seen(); o.err != nil || len(calls) != 2 || calls[1].Attempt != 7 {
			t.Errorf("%v, %d calls, the last with %+v", o.err, len(calls), calls[len(calls)-1])
		}
	})
}

func TestAnUnkeyedCallIsSentAgainOnlyOnTheCallersWord(t *testing.T) {
	word := clientretry.Options{RetryUnkeyed: func(tool string) bool { return tool == "read" }}
	play{plain: true, opt: word, params: &mcp.CallToolParams{Name: "read"}, script: each(proxied, proxied, done())}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || len(o.peer.seen()) != 3 || o.report.PathChecks != 0 || !o.report.PossibleDuplicate {
			t.Errorf("%v, %+v", o.err, o.report)
		}
		for _, c := range o.peer.seen() {
			if c.Key != "" || c.Attempt != 0 {
				t.Errorf("an unextended server was sent key %q, attempt %d", c.Key, c.Attempt)
			}
		}
	})
	play{plain: true, opt: word, script: each(proxied, done())}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 {
			t.Errorf("another tool: %v, %d calls", o.err, len(o.peer.seen()))
		}
	})
}

func TestAttemptsOneNeverReSends(t *testing.T) {
	play{script: each(proxied, done(true)), opt: clientretry.Options{Attempts: 1}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 || o.peer.pathChecks() != 0 {
			t.Errorf("%v, %d calls", o.err, len(o.peer.seen()))
		}
	})
}

func TestTheMessagesShortenTheKeyAndSayWhatToDo(t *testing.T) {
	play{script: each(proxied), opt: clientretry.Options{Attempts: 1}}.run(t, func(t *testing.T, o outcomeOf) {
		var unknown *clientretry.UnknownOutcomeError
		if !errors.As(o.err, &unknown) || unknown.Key != o.peer.keys()[0] || unknown.Attempts != 1 || unknown.Tool != "charge" {
			t.Fatalf("%+v", unknown)
		}
		text := o.err.Error()
		if strings.Contains(text, unknown.Key) || !strings.Contains(text, schema.ShortKey(unknown.Key)) || !strings.Contains(text, "check its effect") {
			t.Errorf("message: %s", text)
		}
		var loss *clientretry.Loss
		if !errors.As(o.err, &loss) || loss.Kind != clientretry.LossProxy || loss.At.IsZero() {
			t.Errorf("cause %+v", loss)
		}
	})
}

func isCanceled(err error) bool { return errors.Is(err, context.Canceled) }
