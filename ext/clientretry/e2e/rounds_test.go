package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/internal/fault"
)

// transfers is the SDK's server with a tool that takes a deposit, asks two
// questions and then pays, behind a path that loses responses.
type transfers struct {
	deposits, payments atomic.Int64
	path               *fault.Server
}

func newTransfers(t testing.TB, extended, json bool, rules ...fault.Rule) *transfers {
	t.Helper()
	x := &transfers{}
	server := mcp.NewServer(&mcp.Implementation{Name: "transfers", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "transfer"}, x.transfer)
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: json})
	if extended {
		idem := idempotency.New(nil)
		idem.Install(server)
		h = idem.Handler(h)
	}
	ts := httptest.NewServer(h)
	path, err := fault.Serve(ts.URL, &fault.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	x.path = path
	t.Cleanup(func() { path.Close(); ts.CloseClientConnections(); ts.Close() })
	return x
}

func (x *transfers) transfer(_ context.Context, req *mcp.CallToolRequest, _ chargeIn) (*mcp.CallToolResult, any, error) {
	answer, answered := req.Params.InputResponses["q"].(*mcp.ElicitResult)
	switch {
	case !answered:
		x.deposits.Add(1)
		return question("1"), nil, nil
	case answer.Action != "accept":
		return nil, nil, idempotency.Reject(errors.New("an answer is needed"))
	case req.Params.RequestState == "1":
		return question("2"), nil, nil
	}
	return nil, map[string]any{"payment": x.payments.Add(1)}, nil
}

func question(state string) *mcp.CallToolResult {
	return &mcp.CallToolResult{RequestState: state, InputRequests: mcp.InputRequestMap{"q": &mcp.ElicitParams{
		Message: "question " + state, RequestedSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"number"}}}`),
	}}}
}

// rounds returns the keys of the transfer's rounds as they went over the path.
func (x *transfers) keys() (keys []string) {
	for _, c := range x.path.Calls() {
		if c.Tool == "transfer" {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// user answers every question and counts them.
type user struct {
	asked  atomic.Int64
	before func(ctx context.Context, message string) error // nil: answers at once
}

func (u *user) options() *mcp.ClientOptions {
	return &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		u.asked.Add(1)
		if u.before != nil {
			if err := u.before(ctx, req.Params.Message); err != nil {
				return nil, err
			}
		}
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"n": 1}}, nil
	}}
}

func (u *user) connect(t testing.TB, url string, opt *clientretry.Options) *clientretry.Session {
	t.Helper()
	pool := &http.Transport{}
	t.Cleanup(pool.CloseIdleConnections)
	s, err := clientretry.New(newClient(u.options()), opt).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: pool}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// X3 and its like: whichever round is lost, nothing happens twice.
func TestALossInAnyRoundCostsNoSecondExecution(t *testing.T) {
	for round := 1; round <= 3; round++ {
		for _, kind := range httpFaults() {
			t.Run(fmt.Sprintf("round %d/%s", round, kind), func(t *testing.T) {
				t.Parallel()
				x := newTransfers(t, true, round%2 == 0, fault.Rule{Tool: "transfer", Nth: round, Action: fault.Action{Kind: kind}})
				opt := patient()
				if kind == fault.Hang {
					opt = impatient()
				}
				u := &user{}
				s := u.connect(t, x.path.URL, opt)
				o := do(t, t.Context(), s, "transfer")
				o.wantResult(t)
				if x.deposits.Load() != 1 || x.payments.Load() != 1 {
					t.Errorf("%d deposits, %d payments", x.deposits.Load(), x.payments.Load())
				}
				keys := x.keys()
				for _, key := range keys {
					if key != o.report.Key || key == "" {
						t.Errorf("the keys are %q", keys)
						break
					}
				}
				if o.report.Attempts != 2 || len(o.report.Losses) != 1 || !o.report.KeyHonoured {
					t.Errorf("%+v", o.report)
				}
				// The lost question is asked again, and only that.
				if asked := u.asked.Load(); asked > 3 {
					t.Errorf("the user was asked %d times", asked)
				}
				wantAlive(t, s, "transfer")
			})
		}
	}
}

func TestALossInEveryRoundCostsNoSecondExecution(t *testing.T) {
	x := newTransfers(t, true, false,
		fault.Rule{Tool: "transfer", Nth: 1, Action: fault.Action{Kind: fault.Reset}},       // the first question
		fault.Rule{Tool: "transfer", Nth: 3, Action: fault.Action{Kind: fault.Status502}},   // the second question
		fault.Rule{Tool: "transfer", Nth: 5, Action: fault.Action{Kind: fault.BrokenEvent}}, // the payment
	)
	u := &user{}
	s := u.connect(t, x.path.URL, patient())
	o := do(t, t.Context(), s, "transfer")
	o.wantResult(t)
	if x.deposits.Load() != 1 || x.payments.Load() != 1 || o.report.Attempts != 4 || !o.replayed() {
		t.Errorf("%d deposits, %d payments, %+v", x.deposits.Load(), x.payments.Load(), o.report)
	}
}

func TestALossInAnyRoundOfAnUnextendedServerIsUnknown(t *testing.T) {
	for round := 1; round <= 3; round++ {
		x := newTransfers(t, false, true, fault.Rule{Tool: "transfer", Nth: round, Action: fault.Action{Kind: fault.Reset}})
		u := &user{}
		s := u.connect(t, x.path.URL, patient())
		do(t, t.Context(), s, "transfer").wantUnknown(t)
		if n := len(x.keys()); n != round {
			t.Errorf("%d rounds were sent, want %d", n, round)
		}
		wantAlive(t, s, "transfer")
	}
}

// A round that ran has had its effects: the call is never "not run" any more.
func TestARefusedContinuationIsNotReportedAsNotRun(t *testing.T) {
	ask := answer(`{"resultType":"input_required","requestState":"s","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{}}}}}}`)
	for name, second := range map[string]step{
		"capacityExceeded": extension("capacityExceeded", "notRun"),
		"keyMismatch":      extension("keyMismatch", "notRun"),
		"namespaceNotHeld": extension("namespaceNotHeld", "notRun", "keyNamespace", `"ns2"`),
		"400":              status(400),
		"401":              status(401),
		"502":              status(502),
		"reset":            reset,
		"-32000":           rpcError(-32000, "gone", ""),
	} {
		for _, settings := range []any{nil, declared("ns")} {
			t.Run(fmt.Sprint(name, settings != nil), func(t *testing.T) {
				if settings == nil && (name == "capacityExceeded" || name == "keyMismatch" || name == "namespaceNotHeld") {
					t.Skip("means nothing from an unextended server")
				}
				p := newPeer(t, true, settings, ask, second)
				u := &user{}
				s := u.connect(t, p.url, patient())
				o := do(t, t.Context(), s, "transfer")
				o.wantUnknown(t)
				calls, _ := p.seen()
				for _, c := range calls {
					if c.Key != calls[0].Key {
						t.Errorf("the keys are %q and %q", calls[0].Key, c.Key)
					}
				}
			})
		}
	}
}

func TestAnErrorOfTheToolInAContinuationIsItsAnswer(t *testing.T) {
	ask := answer(`{"resultType":"input_required","requestState":"s","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{}}}}}}`)
	for _, settings := range []any{nil, declared("ns")} {
		p := newPeer(t, true, settings, ask, rpcError(-32011, "no funds", ""))
		s := (&user{}).connect(t, p.url, patient())
		wantCode(t, do(t, t.Context(), s, "transfer"), -32011)
		p.wantCalls(t, 2, 0)
	}
}

func TestAnErrorOfTheUsersHandlerIsReturned(t *testing.T) {
	busy := errors.New("the user has left")
	for _, extended := range []bool{false, true} {
		x := newTransfers(t, extended, true)
		u := &user{before: func(context.Context, string) error { return busy }}
		s := u.connect(t, x.path.URL, patient())
		o := do(t, t.Context(), s, "transfer")
		if !errors.Is(o.err, busy) || len(x.keys()) != 1 {
			t.Errorf("%v, %d rounds", o.err, len(x.keys()))
		}
	}
}

// X18.
func TestARejectedAnswerLetsTheCallerStartTheRoundAnew(t *testing.T) {
	x := newTransfers(t, true, true)
	var first sync.Once
	client := newClient(&mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		action := "accept"
		first.Do(func() { action = "decline" })
		return &mcp.ElicitResult{Action: action, Content: map[string]any{"n": 1}}, nil
	}})
	s, err := clientretry.New(client, patient()).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: x.path.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key, err := s.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	o := do(t, clientretry.WithKey(t.Context(), key), s, "transfer")
	if o.err == nil && !o.res.IsError {
		t.Fatalf("the rejected answer gave %+v", o.res)
	}
	// The same key again: asked again, no second deposit.
	do(t, clientretry.WithKey(t.Context(), key), s, "transfer").wantResult(t)
	if x.deposits.Load() != 1 || x.payments.Load() != 1 {
		t.Errorf("%d deposits, %d payments", x.deposits.Load(), x.payments.Load())
	}
}

// A caller that makes the rounds by itself gives one key to all of them.
func TestACallersOwnLoopOverRoundsUnderOneKey(t *testing.T) {
	x := newTransfers(t, true, true,
		fault.Rule{Tool: "transfer", Nth: 2, Action: fault.Action{Kind: fault.Reset}})
	opts := (&user{}).options()
	opts.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
	s, err := clientretry.New(newClient(opts), patient()).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: x.path.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key, err := s.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	params := &mcp.CallToolParams{Name: "transfer", Arguments: map[string]any{"amount": 1}}
	for round := 1; ; round++ {
		res, err := s.CallTool(clientretry.WithKey(t.Context(), key), params)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if !res.NeedsInput() {
			break
		}
		params.RequestState = res.RequestState
		params.InputResponses = mcp.InputResponseMap{"q": &mcp.ElicitResult{Action: "accept", Content: map[string]any{"n": 1}}}
	}
	if x.deposits.Load() != 1 || x.payments.Load() != 1 {
		t.Errorf("%d deposits, %d payments", x.deposits.Load(), x.payments.Load())
	}
}

func TestACallFromWithinAQuestionIsAnotherCall(t *testing.T) {
	x := newTransfers(t, true, true, fault.Rule{Tool: "read", Nth: 1, Action: fault.Action{Kind: fault.Reset}})
	var s *clientretry.Session
	var nested sync.Map
	u := &user{before: func(ctx context.Context, message string) error {
		// The handler's context is the call's: it must not carry its key.
		ctx, report := clientretry.WithReport(ctx)
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "read"})
		if err == nil {
			return fmt.Errorf("the nested call of a tool that does not exist succeeded")
		}
		nested.Store(message, *report)
		return nil
	}}
	s = u.connect(t, x.path.URL, patient())
	key, err := s.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	o := do(t, clientretry.WithKey(t.Context(), key), s, "transfer")
	o.wantResult(t)
	if o.report.Key != key || o.report.Attempts != 1 || len(o.report.Losses) != 0 {
		t.Errorf("the outer call: %+v", o.report)
	}
	keys := map[string]bool{key: true}
	for _, m := range []string{"question 1", "question 2"} {
		v, found := nested.Load(m)
		if !found {
			t.Fatalf("no nested call in %q", m)
		}
		r := v.(clientretry.Report)
		if r.Key == "" || keys[r.Key] {
			t.Errorf("the nested call in %q: %+v", m, r)
		}
		keys[r.Key] = true
	}
	if x.deposits.Load() != 1 || x.payments.Load() != 1 {
		t.Errorf("%d deposits, %d payments", x.deposits.Load(), x.payments.Load())
	}
}
