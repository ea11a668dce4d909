package idempotency_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/golang/mock/gomock"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mockstore"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// newContent is content of a type that this SDK does not know.
type newContent struct {
	*mcp.TextContent
	json string
}

func (c newContent) MarshalJSON() ([]byte, error) { return []byte(c.json), nil }

// newResult is a result of a type that this SDK does not know, as middleware
// for tasks returns it.
type newResult struct {
	mcp.ResultBase
	Task json.RawMessage `json:"task"`
}

func results() map[string]func() (mcp.Result, error) {
	const big = `9007199254740993`
	tool := func(res *mcp.CallToolResult) func() (mcp.Result, error) {
		return func() (mcp.Result, error) { return res, nil }
	}
	raise := func(data string) func() (mcp.Result, error) {
		return func() (mcp.Result, error) {
			e := &jsonrpc.Error{Code: -32000, Message: "raised"}
			if data != "" {
				e.Data = json.RawMessage(data)
			}
			return nil, e
		}
	}
	size := int64(math.MaxInt64)
	meta := func() mcp.Meta {
		return mcp.Meta{"n": json.Number(big), "o": map[string]any{"x": []any{json.Number("1e400")}}}
	}
	return map[string]func() (mcp.Result, error){
		"nothing":          func() (mcp.Result, error) { return (*mcp.CallToolResult)(nil), nil },
		"empty":            tool(&mcp.CallToolResult{}),
		"empty text":       tool(&mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{}}}),
		"structured":       tool(&mcp.CallToolResult{StructuredContent: json.RawMessage(`{"n":` + big + `,"f":1.0,"e":1e400,"d":0.1000000000000000055511151231257827,"u":"\u00e9\u2028","z":null}`)}),
		"structured null":  tool(&mcp.CallToolResult{StructuredContent: json.RawMessage(`null`)}),
		"structured false": tool(&mcp.CallToolResult{StructuredContent: false}),
		"structured zero":  tool(&mcp.CallToolResult{StructuredContent: 0}),
		"structured text":  tool(&mcp.CallToolResult{StructuredContent: ""}),
		"structured list":  tool(&mcp.CallToolResult{StructuredContent: []any{}}),
		"meta":             tool(&mcp.CallToolResult{Meta: meta()}),
		"own marker":       tool(&mcp.CallToolResult{Meta: mcp.Meta{schema.ExtensionID: map[string]any{"replayed": "maybe"}}}),
		"content": tool(&mcp.CallToolResult{Content: []mcp.Content{
			&mcp.TextContent{Text: "é\u2028<&>", Meta: meta(), Annotations: &mcp.Annotations{Priority: 0.3, Audience: []mcp.Role{"user"}}},
			&mcp.ImageContent{Data: []byte{0, 255}, MIMEType: "image/png", Meta: meta()},
			&mcp.AudioContent{MIMEType: "audio/wav", Meta: meta()},
			&mcp.ResourceLink{URI: "a:b", Name: "n", Size: &size, Meta: meta(), Icons: []mcp.Icon{{Source: "x"}}},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "a:b", Blob: []byte{}, Meta: meta()}, Meta: meta()},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "a:b", Text: "t"}},
		}}),
		"content the SDK does not know": tool(&mcp.CallToolResult{
			Content:           []mcp.Content{newContent{json: `{"type":"video","n":` + big + `}`}, newContent{json: `{"type":"text","text":"t","extra":[1]}`}, &mcp.TextContent{Text: "x"}},
			StructuredContent: json.RawMessage(big), Meta: meta(),
		}),
		"content of sampling": tool(&mcp.CallToolResult{Content: []mcp.Content{
			//lint:ignore SA1019 deprecated, and still what a tool may return
			&mcp.ToolUseContent{ID: "1", Name: "n", Input: map[string]any{"n": json.Number(big)}},
			//lint:ignore SA1019 deprecated, and still what a tool may return
			&mcp.ToolResultContent{ToolUseID: "1", StructuredContent: json.RawMessage(big)},
		}}),
		"isError": tool(&mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "declined"}}, StructuredContent: json.RawMessage(`{"n":` + big + `}`)}),
		"another type": func() (mcp.Result, error) {
			return &newResult{ResultBase: mcp.ResultBase{Meta: meta()}, Task: json.RawMessage(`{"id":` + big + `}`)}, nil
		},
		"plain error":         func() (mcp.Result, error) { return nil, context.DeadlineExceeded },
		"error":               raise(""),
		"error with object":   raise(`{"n":` + big + `,"a":{"b":[1.0]}}`),
		"error with marker":   raise(`{"` + schema.ExtensionID + `":{"replayed":1}}`),
		"error with list":     raise(`[` + big + `]`),
		"error with text":     raise(`"t"`),
		"error with null":     raise(`null`),
		"error with 0 object": raise(`{}`),
		"error of the extension's own code": func() (mcp.Result, error) {
			return nil, &jsonrpc.Error{Code: schema.ErrorCode, Message: "from a server behind", Data: json.RawMessage(`{"reason":"noEffect","outcome":"neverRan"}`)}
		},
	}
}

// addResults adds a tool for each result.
func addResults(f *fixture) {
	made := results()
	f.server.AddTool(&mcp.Tool{Name: "result", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		f.effects.Add(1)
		var in gateArgs
		if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
			return nil, err
		}
		res, err := made[in.Gate]()
		tool, _ := res.(*mcp.CallToolResult)
		return tool, err
	})
	// Inside the layer, so that it can return what no handler can.
	f.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if call, ok := req.(*mcp.CallToolRequest); ok && strings.Contains(string(call.Params.Arguments), "another type") {
				return made["another type"]()
			}
			return res, err
		}
	})
	f.idem.Install(f.server)
}

// newResultServer is a fixture with the layer outside of addResults.
func newResultServer(t *testing.T, c connector) *fixture {
	f := &fixture{t: t, clock: newClock(), server: mcp.NewServer(&mcp.Implementation{Name: "results", Version: "1"}, nil)}
	f.memory = memory.New(nil)
	f.idem = idempotency.New(&idempotency.Options{Store: f.memory})
	addResults(f)
	f.conn = c.connect(t, f.idem, f.server)
	return f
}

// unmarked are the results whose data has no room for the marker.
func unmarked(name string) bool {
	return name == "error with list" || name == "error with text" || name == "error with null"
}

// raisedCode is the code that an error of results is answered with. -32000
// stands for a lost response to a client, unless a marker says otherwise: where
// there is no room for one it becomes an internal error.
func raisedCode(name string) int {
	switch {
	case !strings.HasPrefix(name, "error"):
		return 0
	case unmarked(name), name == "error of the extension's own code":
		return jsonrpc.CodeInternalError
	}
	return -32000
}

// S2, S5, X20, X26: whatever the tool answered is replayed as the same JSON
// value, and runs once.
func TestAReplayEqualsTheRecordedAnswer(t *testing.T) {
	for _, c := range connectors() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newResultServer(t, c)
			for name := range results() {
				before := f.effects.Load()
				key, args := f.key(), `{"gate":"`+name+`"}`
				first := f.tool("result", key, args)
				second := f.tool("result", key, args)
				sameValue(t, first, second)
				if n := f.effects.Load() - before; n != 1 {
					t.Errorf("%s: %d runs", name, n)
				}
				a, b := first.marker(), second.marker()
				switch {
				case unmarked(name):
					if a != nil || b != nil {
						t.Errorf("%s is marked: %v", name, first)
					}
				case a == nil || a.Replayed || b == nil || !b.Replayed:
					t.Errorf("%s: marked %v and %v", name, a, b)
				}
				if code := raisedCode(name); code != 0 && (first.Error == nil || first.Error.Code != code) {
					t.Errorf("%s: %v, want the code %d", name, first, code)
				}
				wantEnvelope(t, name, f.revision(), first)
				wantEnvelope(t, name, f.revision(), second)
			}
		})
	}
}

// wantEnvelope checks the result type, which 2026-07-28 demands and earlier
// revisions do not have.
func wantEnvelope(t testing.TB, name, revision string, r reply) {
	t.Helper()
	if r.Result == nil || name == "another type" {
		return
	}
	var res struct {
		ResultType *string         `json:"resultType"`
		Content    json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(r.Result, &res); err != nil {
		t.Fatal(err)
	}
	if revision == modernRevision != (res.ResultType != nil && *res.ResultType == "complete") {
		t.Errorf("%s on %s: %v", name, revision, r)
	}
	if len(res.Content) == 0 || res.Content[0] != '[' {
		t.Errorf("%s: no content: %v", name, r)
	}
}

// The tool's error with the extension's code is not mistaken for the server's
// own word on this call.
func TestAnErrorWithTheExtensionsCodeIsTheToolsOwn(t *testing.T) {
	f := newResultServer(t, connectors()[0])
	for range 2 {
		r := f.tool("result", f.key(), `{"gate":"error of the extension's own code"}`)
		if r.Error == nil || r.Error.Code == schema.ErrorCode || r.marker() == nil {
			t.Error(r)
		}
	}
}

// X22: the record has no revision; the answer has that of the request.
func TestAReplayHasTheFormOfTheRequestsRevision(t *testing.T) {
	for _, from := range []string{modernRevision, legacyRevision} {
		opts := mcp.StreamableHTTPOptions{Stateless: true}
		f := newResultServer(t, connector{"http", httpConn(modernRevision, opts)})
		modern := f.conn.(*httpClient)
		legacy := &httpClient{url: modern.url, rev: legacyRevision, client: modern.client}
		other := legacyRevision
		first, second := conn(modern), conn(legacy)
		if from == legacyRevision {
			first, second, other = second, first, modernRevision
		}
		for name := range results() {
			key := f.key()
			a := toolAs(t, first, "result", key, `{"gate":"`+name+`"}`)
			b := toolAs(t, second, "result", key, `{"gate":"`+name+`"}`)
			sameValue(t, a, b)
			wantEnvelope(t, name, from, a)
			wantEnvelope(t, name, other, b)
		}
	}
}

// X22: a revision without input requests cannot be asked the question.
func TestAQuestionIsNotReplayedIntoARevisionWithoutQuestions(t *testing.T) {
	f := newFixture(t, connector{"http", httpConn(modernRevision, mcp.StreamableHTTPOptions{Stateless: true})}, nil)
	d := addDialog(f)
	modern := f.conn.(*httpClient)
	legacy := &httpClient{url: modern.url, rev: legacyRevision, client: modern.client}
	key := f.key()
	q := asQuestion(t, f.round(key, oneQuestion, "", ""))
	r := toolAs(t, legacy, "dialog", key, oneQuestion)
	if e := r.ext(); e.Reason != schema.ReasonStillRunning || e.RetryAfterMs != nil {
		t.Errorf("the legacy client got %v", r)
	}
	wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(3)), 3, false)
	if r := toolAs(t, legacy, "dialog", key, oneQuestion); !r.replayed() || !strings.Contains(string(r.Result), `"charged":3`) || strings.Contains(string(r.Result), "resultType") {
		t.Errorf("the legacy client got %v", r)
	}
	d.want(t, 1, 2, 3)
}

// An operator's word is replayed as if the tool had said it, in the form of
// the request's revision.
func TestAnOperatorsOutcomeIsReplayed(t *testing.T) {
	for _, bad := range []string{``, `1`, `{}`, `{"content":1}`, `{"content":[{"type":"video"}]}`, `{"content":[],"inputRequests":{},"resultType":"input_required"}`} {
		if out, err := idempotency.ResultOutcome(json.RawMessage(bad)); err == nil {
			t.Errorf("%s became %s", bad, out)
		}
	}
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, _ *memory.Store) {
			result, err := idempotency.ResultOutcome(json.RawMessage(`{"content":[{"type":"text","text":"by hand"}],"structuredContent":9007199254740993,"resultType":"complete"}`))
			if err != nil {
				t.Fatal(err)
			}
			known := func(state store.State, outcome []byte) store.Reservation {
				return store.Reservation{Verdict: store.Known, Record: store.Record{State: state, Outcome: outcome}}
			}
			m.Reserve(gomock.Any(), gomock.Any()).Return(known(store.Completed, result), nil).Times(1)
			m.Reserve(gomock.Any(), gomock.Any()).Return(known(store.NoEffect, idempotency.NoEffectOutcome("by hand")), nil).Times(1)
		})}
	}, func(t *testing.T, f *fixture) {
		r := f.tool("charge", f.key(), `{"amount":1}`)
		wantEnvelope(t, "by hand", f.revision(), r)
		if !r.replayed() || !strings.Contains(string(r.Result), `"structuredContent":9007199254740993`) {
			t.Error(r)
		}
		r = f.tool("charge", f.key(), `{"amount":1}`)
		if wantReason(t, r, schema.ReasonNoEffect); r.Error.Message != "by hand" {
			t.Error(r)
		}
		f.wantEffects(0)
	})
}

// S7.
func TestAResultThatCannotBeEncodedIsStillAFinishedCall(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		bad := map[string]*mcp.CallToolResult{
			"nan":     {StructuredContent: math.NaN()},
			"channel": {StructuredContent: make(chan int)},
			"bytes":   {StructuredContent: json.RawMessage(`{"a":`)},
			"content": {Content: []mcp.Content{newContent{json: `{"a"`}}},
		}
		f.server.AddTool(&mcp.Tool{Name: "bad", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			f.effects.Add(1)
			var in gateArgs
			_ = json.Unmarshal(req.Params.Arguments, &in)
			if in.Gate == "error" {
				return nil, &jsonrpc.Error{Code: 1, Message: "m", Data: json.RawMessage(`{`)}
			}
			return bad[in.Gate], nil
		})
		before := int64(0)
		for _, name := range []string{"nan", "channel", "bytes", "content", "error"} {
			key, args := f.key(), `{"gate":"`+name+`"}`
			for range 2 {
				wantReason(t, f.tool("bad", key, args), schema.ReasonResultUnavailable)
			}
			before++
			f.wantEffects(before)
		}
	})
}

// S1.
func TestAHandlerMayChangeWhatItWasGiven(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		f.server.AddTool(&mcp.Tool{Name: "mutates", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range req.Params.Arguments {
				req.Params.Arguments[i] = ' '
			}
			req.Params.Name, req.Params.RequestState = "charge", "x"
			clear(req.Params.Meta)
			f.effects.Add(1)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "changed"}}}, nil
		})
		key := f.key()
		first := f.tool("mutates", key, `{"amount":1}`)
		sameValue(t, first, f.tool("mutates", key, `{"amount":1}`))
		wantReason(t, f.tool("mutates", key, `{"amount":2}`), schema.ReasonKeyMismatch)
		wantReason(t, f.tool("charge", key, `{"amount":1}`), schema.ReasonKeyMismatch)
		f.wantEffects(1)
	})
}

// A handler that keeps its result and returns it again shares nothing with
// those who were answered.
func TestAHandlersOwnResultIsNotWrittenInto(t *testing.T) {
	kept := &mcp.CallToolResult{Meta: mcp.Meta{"mine": true}, Content: []mcp.Content{&mcp.TextContent{Text: "kept"}}}
	onEach(t, nil, func(t *testing.T, f *fixture) {
		f.server.AddTool(&mcp.Tool{Name: "keeps", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			c := *kept
			return &c, nil
		})
		for range 3 {
			f.tool("keeps", f.key(), `{}`)
		}
	})
	t.Cleanup(func() {
		if len(kept.Meta) != 1 {
			t.Errorf("written into: %v", kept.Meta)
		}
	})
}

// E3: what a tool raises is its outcome, and stays it; a tool that knows of a
// failure that it had no effect says so, and the caller may begin anew.
func TestATransientErrorIsRecordedUnlessItHadNoEffect(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		healthy := false
		mcp.AddTool(f.server, &mcp.Tool{Name: "flaky"}, func(_ context.Context, _ *mcp.CallToolRequest, in gateArgs) (*mcp.CallToolResult, receipt, error) {
			err := error(&jsonrpc.Error{Code: -32503, Message: "upstream is down"})
			switch {
			case healthy:
				return nil, receipt{Number: f.effects.Add(1)}, nil
			case in.Gate == "knows":
				err = idempotency.NoEffect(err)
			}
			return nil, receipt{}, err
		})
		recorded, known := f.key(), f.key()
		first := f.tool("flaky", recorded, `{"gate":""}`)
		wantReason(t, f.tool("flaky", known, `{"gate":"knows"}`), schema.ReasonNoEffect)
		healthy = true
		sameValue(t, first, f.tool("flaky", recorded, `{"gate":""}`))
		wantReason(t, f.tool("flaky", known, `{"gate":"knows"}`), schema.ReasonNoEffect)
		if r := f.tool("flaky", f.key(), `{"gate":"knows"}`); r.Error != nil {
			t.Error(r)
		}
		f.wantEffects(1)
	})
}
