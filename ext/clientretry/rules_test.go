package clientretry_test

import (
	"context"
	"errors"
	"slices"
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

func isCanceled(err error) bool { return errors.Is(err, context.Canceled) }
