package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// X9. What an attempt is answered after a lost one that ran says nothing of
// the lost one.
func TestNoRefusalAfterALostAttemptMakesACallNotRun(t *testing.T) {
	for name, refusal := range map[string]step{
		"keyMismatch":           extension("keyMismatch", "notRun"),
		"keyInvalid":            extension("keyInvalid", "notRun"),
		"keyRequired":           extension("keyRequired", "notRun"),
		"keyUnsupported":        extension("keyUnsupported", "notRun"),
		"principalUnknown":      extension("principalUnknown", "notRun"),
		"capacityExceeded":      extension("capacityExceeded", "notRun", "retryAfterMs", "1"),
		"storeUnavailable":      extension("storeUnavailable", "notRun", "retryAfterMs", "0"),
		"namespaceNotHeld":      extension("namespaceNotHeld", "notRun", "keyNamespace", `"ns2"`),
		"an unknown reason":     extension("regionDraining", "notRun"),
		"-32602":                rpcError(-32602, "unknown tool", ""),
		"-32601":                rpcError(-32601, "no such method", ""),
		"-32602 with a status":  jsonStatus(400, errorObject(-32602, "bad arguments", "")),
		"-32000":                rpcError(-32000, "proxy", ""),
		"400":                   status(400),
		"401":                   status(401),
		"403":                   status(403),
		"405":                   status(405),
		"another loss":          status(502),
		"a page":                typed("text/html", "<html>"),
		"a session that ended":  status(404),
		"an error without code": typed("application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":0,"message":"m"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, declared("ns"), after(status(502)), refusal)
				s := connectTo(t, p.url, patient())
				o := do(t, t.Context(), s, "charge")
				u := o.wantUnknown(t)
				calls, _ := p.seen()
				if len(calls) < 2 || len(calls) > 4 || p.runs() != 1 || len(calls) != u.Attempts {
					t.Errorf("%d calls, %d runs, %d attempts", len(calls), p.runs(), u.Attempts)
				}
				for i, c := range calls {
					if c.Key != calls[0].Key || c.Key == "" {
						t.Errorf("attempt %d has the key %q", i+1, c.Key)
					}
				}
			})
		})
	}
}

func TestAnExtensionErrorIsHandledByItsOutcome(t *testing.T) {
	const unknown, notRun, lost = "unknown", "notRun", "lost"
	for _, c := range []struct {
		reason, outcome string
		more            []string
		want            string
		calls           int // 4 is as many as there are attempts
	}{
		{"keyMismatch", "notRun", nil, notRun, 1},
		{"keyInvalid", "notRun", nil, notRun, 1},
		{"principalUnknown", "notRun", nil, notRun, 1},
		{"capacityExceeded", "notRun", []string{"retryAfterMs", "1"}, notRun, 4},
		{"capacityExceeded", "notRun", nil, notRun, 1},
		{"storeUnavailable", "notRun", []string{"retryAfterMs", "0"}, notRun, 4},
		{"stillRunning", "inProgress", []string{"retryAfterMs", "1"}, unknown, 4},
		{"stillRunning", "inProgress", nil, unknown, 1},
		{"resultUnavailable", "completed", nil, lost, 1},
		{"noEffect", "neverRan", nil, notRun, 1},
		{"outcomeUnknown", "unknown", nil, unknown, 1},
		{"regionDraining", "notRun", []string{"retryAfterMs", "1"}, notRun, 4},
		{"regionDraining", "notRun", nil, notRun, 1},
		{"regionDraining", "neverRan", nil, notRun, 1},
		{"regionDraining", "inProgress", []string{"retryAfterMs", "1"}, unknown, 4},
		{"regionDraining", "completed", nil, lost, 1},
		{"regionDraining", "unknown", nil, unknown, 1},
		{"regionDraining", "halfway", nil, unknown, 1},
		{"keyMismatch", "halfway", []string{"retryAfterMs", "1"}, unknown, 1},
		// A reason with another outcome than its own is handled by the outcome.
		{"namespaceClosed", "unknown", []string{"keyNamespace", `"ns2"`}, unknown, 1},
		{"noEffect", "completed", nil, lost, 1},
		{"namespaceNotHeld", "completed", []string{"keyNamespace", `"ns2"`}, lost, 1},
	} {
		t.Run(c.reason+" "+c.outcome+fmt.Sprint(len(c.more)), func(t *testing.T) {
			p := newPeer(t, true, declared("ns"), extension(c.reason, c.outcome, c.more...))
			o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
			switch c.want {
			case unknown:
				o.wantUnknown(t)
			case notRun:
				n := o.wantNotRun(t)
				if n.Data == nil || string(n.Data.Reason) != c.reason {
					t.Errorf("the error's data is %+v", n.Data)
				}
			case lost:
				var l *clientretry.ResultLostError
				if !errors.As(o.err, &l) || l.Key != o.report.Key {
					t.Errorf("the caller got %v", o.err)
				}
			}
			calls, _ := p.seen() // what an unknown reason proves is not known: path checks may come
			if len(calls) != c.calls {
				t.Errorf("%d calls, want %d", len(calls), c.calls)
			}
			wantSameKey(t, calls)
		})
	}
}

func TestAnUnreadableExtensionErrorIsUnknown(t *testing.T) {
	for name, data := range map[string]string{
		"no data": "", "null": "null", "a text": `"notRun"`, "a list": `["notRun"]`, "empty": `{}`,
		"an outcome that is a number": `{"reason":"keyMismatch","outcome":1}`,
		"a reason that is a list":     `{"reason":[],"outcome":"notRun"}`,
		"a wait that is a text":       `{"reason":"capacityExceeded","outcome":"notRun","retryAfterMs":"soon"}`,
		"a wait that is beyond":       `{"reason":"capacityExceeded","outcome":"notRun","retryAfterMs":1e400}`,
		"a namespace that is a map":   `{"reason":"namespaceNotHeld","outcome":"notRun","keyNamespace":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, true, declared("ns"), rpcError(schema.ErrorCode, "odd", data), run)
			s := connectTo(t, p.url, patient())
			do(t, t.Context(), s, "charge").wantUnknown(t)
			wantAlive(t, s, "charge")
		})
	}
}

// X20. The tool itself raises what proxies use for a lost response.
func TestAToolsOwnProxyCodeIsAnAnswerWhenItIsMarked(t *testing.T) {
	mark := fmt.Sprintf(`{%q:{"replayed":false},"why":"x"}`, schema.ExtensionID)
	for _, code := range []int{-32000, -32001, -32603, schema.ErrorCode} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			p := newPeer(t, true, declared("ns"), after(rpcError(code, "raised", mark)), run)
			o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
			wantCode(t, o, int64(code))
			if !o.report.KeyHonoured || o.report.Replayed || len(o.report.Losses) != 0 {
				t.Errorf("%+v", o.report)
			}
			p.wantCalls(t, 1, 0)
		})
	}
}

func TestAnUnmarkedProxyCodeIsALoss(t *testing.T) {
	for _, code := range []int{-32000, -32001} {
		for name, data := range map[string]string{"no data": "", "data": `{"why":"x"}`, "text": `"x"`, "a marker of a wrong type": fmt.Sprintf(`{%q:{"replayed":"no"}}`, schema.ExtensionID)} {
			t.Run(fmt.Sprint(code, name), func(t *testing.T) {
				p := newPeer(t, true, declared("ns"), after(rpcError(code, "upstream gone", data)), run)
				o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
				o.wantResult(t)
				o.wantLosses(t, clientretry.LossProxy)
				if !o.replayed() || p.runs() != 1 {
					t.Errorf("%d runs, %+v", p.runs(), o.report)
				}
				p = newPeer(t, true, nil, rpcError(code, "upstream gone", data))
				do(t, t.Context(), connectTo(t, p.url, patient()), "charge").wantUnknown(t)
				p.wantCalls(t, 1, 0)
			})
		}
	}
}

func TestAnyOtherErrorIsTheServersAnswer(t *testing.T) {
	for _, code := range []int{-32602, -32601, -32603, -32002, -31000, 0, 7} {
		for _, settings := range []any{nil, declared("ns")} {
			p := newPeer(t, true, settings, rpcError(code, "no", `{"why":"x"}`), run)
			s := connectTo(t, p.url, patient())
			if e := wantCode(t, do(t, t.Context(), s, "charge"), int64(code)); string(e.Data) != `{"why":"x"}` {
				t.Errorf("the data is %s", e.Data)
			}
			p.wantCalls(t, 1, 0)
		}
	}
}

// An unextended server may use the code for something else.
func TestTheExtensionsCodeMeansNothingFromAnUnextendedServer(t *testing.T) {
	p := newPeer(t, true, nil, extension("capacityExceeded", "notRun", "retryAfterMs", "0"), run)
	wantCode(t, do(t, t.Context(), connectTo(t, p.url, patient()), "charge"), schema.ErrorCode)
	p.wantCalls(t, 1, 0)
}

func TestAResultThatSaysIsErrorIsAnAnswer(t *testing.T) {
	failed := `{"resultType":"complete","isError":true,"content":[{"type":"text","text":"declined"}],"_meta":{"` + schema.ExtensionID + `":{"replayed":true}}}`
	p := newPeer(t, true, declared("ns"), after(status(502)), answer(failed))
	o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
	if res := o.wantResult(t); !res.IsError || !o.replayed() {
		t.Errorf("%+v, %+v", res, o.report)
	}
}

func TestAnUnmarkedResultToAResendIsAPossibleDuplicate(t *testing.T) {
	for name, meta := range map[string]string{
		"none": "", "another": `,"_meta":{"other":true}`,
		"a marker that is a text":      `,"_meta":{"` + schema.ExtensionID + `":"replayed"}`,
		"a marker without its member":  `,"_meta":{"` + schema.ExtensionID + `":{}}`,
		"a marker of a wrong type":     `,"_meta":{"` + schema.ExtensionID + `":{"replayed":1}}`,
		"a marker that says null":      `,"_meta":{"` + schema.ExtensionID + `":{"replayed":null}}`,
		"a marker in another spelling": `,"_meta":{"` + schema.ExtensionID + `":{"Replayed":true}}`,
	} {
		t.Run(name, func(t *testing.T) {
			unmarked := `{"resultType":"complete","content":[]` + meta + `}`
			p := newPeer(t, true, declared("ns"), after(status(502)), answer(unmarked))
			o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
			o.wantResult(t)
			if r := o.report; !r.PossibleDuplicate || r.Replayed || r.KeyHonoured {
				t.Errorf("%+v", r)
			}
			// The first attempt's answer is nobody's duplicate.
			p = newPeer(t, true, declared("ns"), answer(unmarked))
			o = do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
			o.wantResult(t)
			if r := o.report; r.PossibleDuplicate || r.KeyHonoured {
				t.Errorf("%+v", r)
			}
		})
	}
}

// X11. The attempt that hung arrives after everyone was told "no effect".
func TestNoEffectEndsTheCallAndANewCallHasANewKey(t *testing.T) {
	p := newPeer(t, true, declared("ns"), reset, extension("noEffect", "neverRan"), run)
	s := connectTo(t, p.url, patient())
	n := do(t, t.Context(), s, "charge").wantNotRun(t)
	if n.Data == nil || n.Data.Outcome != schema.OutcomeNeverRan {
		t.Errorf("%+v", n.Data)
	}
	do(t, t.Context(), s, "charge").wantResult(t)
	calls := p.wantCalls(t, 3, 1)
	if calls[0].Key != calls[1].Key || calls[2].Key == calls[0].Key {
		t.Errorf("the keys are %q, %q, %q", calls[0].Key, calls[1].Key, calls[2].Key)
	}
}

func TestAToolThatTakesNoKeysGetsNoneAndIsNotSentAgain(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		p := newPeer(t, modern, declared("ns"), after(status(502)), run)
		p.tools = `[{"name":"charge","inputSchema":{"type":"object"},"_meta":{"` + schema.ExtensionID + `":{"key":"unsupported"}}},
			{"name":"pay","inputSchema":{"type":"object"},"_meta":{"` + schema.ExtensionID + `":{"key":"optional"}}}]`
		s := connectTo(t, p.url, patient())
		if _, err := s.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		o := do(t, t.Context(), s, "charge")
		o.wantUnknown(t)
		if c := p.wantCalls(t, 1, 0); c[0].Key != "" || o.report.Key != "" {
			t.Errorf("the key is %q", c[0].Key)
		}
		if o := do(t, t.Context(), s, "pay"); !o.report.KeyHonoured {
			t.Errorf("the other tool: %+v", o.report)
		}
	})
}

func TestKeyUnsupportedLeadsToOneSendWithoutAKey(t *testing.T) {
	p := newPeer(t, true, declared("ns"), extension("keyUnsupported", "notRun"), after(status(502)), run)
	s := connectTo(t, p.url, patient())
	o := do(t, t.Context(), s, "charge")
	o.wantUnknown(t)
	calls := p.wantCalls(t, 2, 0)
	if calls[0].Key == "" || calls[1].Key != "" {
		t.Errorf("the keys are %q and %q", calls[0].Key, calls[1].Key)
	}
	// What the server said of the tool is remembered.
	do(t, t.Context(), s, "charge").wantResult(t)
	if calls := p.wantCalls(t, 3, 0); calls[2].Key != "" {
		t.Errorf("the key is %q", calls[2].Key)
	}
}

func TestAReadMayBeSentAgainWithoutAKeyOnItsCallersWord(t *testing.T) {
	opt := patient()
	opt.RetryUnkeyed = func(tool string) bool { return tool == "read" }
	for name, loss := range map[string]step{"502": status(502), "reset": reset, "a page": typed("text/html", "x"), "proxy": rpcError(-32000, "gone", "")} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, true, nil, loss, loss, run)
			s := connectTo(t, p.url, opt)
			o := do(t, t.Context(), s, "read")
			o.wantResult(t)
			if r := o.report; r.Attempts != 3 || !r.PossibleDuplicate || r.Key != "" {
				t.Errorf("%+v", r)
			}
			for _, c := range p.wantCalls(t, 3, 0) {
				if c.Attempt != 0 || strings.Contains(c.Body, "idempotency") {
					t.Errorf("an unkeyed attempt says %s", c.Body)
				}
			}
		})
	}
	p := newPeer(t, true, nil, status(502))
	do(t, t.Context(), connectTo(t, p.url, opt), "charge").wantUnknown(t)
	p.wantCalls(t, 1, 0)
	p = newPeer(t, true, nil, status(502))
	do(t, t.Context(), connectTo(t, p.url, opt), "read").wantUnknown(t)
	p.wantCalls(t, 4, 0)
}

// Towards an extended server a read has a key like any other call.
func TestAReadHasAKeyWhereTheServerTakesOne(t *testing.T) {
	opt := patient()
	opt.RetryUnkeyed = func(string) bool { return true }
	p := newPeer(t, true, declared("ns"), after(status(502)), run)
	o := do(t, t.Context(), connectTo(t, p.url, opt), "read")
	o.wantResult(t)
	if p.runs() != 1 || !o.replayed() {
		t.Errorf("%d runs, %+v", p.runs(), o.report)
	}
}

func TestAnnotationsLicenseNothing(t *testing.T) {
	p := newPeer(t, true, nil, status(502), run)
	p.tools = `[{"name":"charge","inputSchema":{"type":"object"},"annotations":{"idempotentHint":true,"readOnlyHint":true}}]`
	s := connectTo(t, p.url, patient())
	if _, err := s.ListTools(t.Context(), &mcp.ListToolsParams{}); err != nil {
		t.Fatal(err)
	}
	do(t, t.Context(), s, "charge").wantUnknown(t)
	p.wantCalls(t, 1, 0)
}

func wantSameKey(t testing.TB, calls []wireCall) {
	t.Helper()
	ids := map[string]bool{}
	for i, c := range calls {
		if c.Key == "" || c.Key != calls[0].Key {
			t.Errorf("attempt %d has the key %q", i+1, c.Key)
		}
		id := c.Session + " " + string(c.ID) // a new session of the SDK counts anew
		if ids[id] {
			t.Errorf("attempt %d has the JSON-RPC id %s again", i+1, c.ID)
		}
		ids[id] = true
	}
}

// K5. What is sent again is tools/call; of any other method nobody knows what
// it does.
func TestNoOtherMethodIsSentAgain(t *testing.T) {
	for name, request := range map[string]func(*clientretry.Session) error{
		"tools/list": func(s *clientretry.Session) error { _, err := s.ListTools(t.Context(), nil); return err },
		"prompts/get": func(s *clientretry.Session) error {
			_, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "p"})
			return err
		},
		"resources/read": func(s *clientretry.Session) error {
			_, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "x:y"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, declared("ns"), run)
				var sent atomic.Int64
				front := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost && isMethod(r, name) {
						sent.Add(1)
						panic(http.ErrAbortHandler) // the connection breaks
					}
					p.ServeHTTP(w, r)
				}))
				s := connectTo(t, front, patient())
				if err := request(s); err == nil {
					t.Error("a lost response was taken for an answer")
				}
				if n := sent.Load(); n != 1 {
					t.Errorf("sent %d times", n)
				}
			})
		})
	}
}
