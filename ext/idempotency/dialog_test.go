package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

// dialog is a tool that asks before it charges: it takes a deposit in its
// first round, asks as often as its arguments say, and charges the last
// answer.
type dialog struct {
	f *fixture

	mu       sync.Mutex
	deposits int
	rounds   int
	states   []string // of its own, as they reached it
	charged  []int64
}

type dialogArgs struct {
	Questions int    `json:"questions"`
	State     string `json:"state,omitempty"` // prefix of the tool's own state; "none" for no state at all
	Gate      string `json:"gate,omitempty"`  // to wait at in continuations
	EffectID  string `json:"effect_id,omitempty"`
}

func addDialog(f *fixture) *dialog {
	d := &dialog{f: f}
	mcp.AddTool(f.server, &mcp.Tool{Name: "dialog"}, d.call)
	return d
}

func (d *dialog) call(ctx context.Context, req *mcp.CallToolRequest, in dialogArgs) (*mcp.CallToolResult, any, error) {
	d.mu.Lock()
	d.rounds++
	d.states = append(d.states, req.Params.RequestState)
	d.mu.Unlock()
	answer, answered := req.Params.InputResponses["amount"].(*mcp.ElicitResult)
	if !answered {
		d.mu.Lock()
		d.deposits++
		d.mu.Unlock()
		return d.ask(in, 1), nil, nil
	}
	if in.Gate != "" {
		gate := d.f.gate(in.Gate)
		d.f.entered <- in.Gate
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-d.f.t.Context().Done(): // the test has failed
			return nil, nil, d.f.t.Context().Err()
		}
	}
	if answer.Action != "accept" {
		return nil, nil, idempotency.Reject(errors.New("an amount is needed"))
	}
	var at int
	_, _ = fmt.Sscanf(req.Params.RequestState, in.State+"-%d", &at)
	if at < in.Questions {
		return d.ask(in, at+1), nil, nil
	}
	amount := int64(answer.Content["amount"].(float64))
	d.mu.Lock()
	d.charged = append(d.charged, amount)
	d.mu.Unlock()
	d.f.effects.Add(1)
	return nil, map[string]any{"charged": amount}, nil
}

func (d *dialog) ask(in dialogArgs, at int) *mcp.CallToolResult {
	res := &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"amount": &mcp.ElicitParams{
		Message:         fmt.Sprintf("question %d", at),
		RequestedSchema: json.RawMessage(`{"type":"object","properties":{"amount":{"type":"number","maximum":9007199254740993}}}`),
	}}}
	switch in.State {
	case "none":
	case "same":
		res.RequestState = "same"
	default:
		res.RequestState = fmt.Sprintf("%s-%d", in.State, at)
	}
	return res
}

func (d *dialog) want(t testing.TB, deposits, rounds int, charged ...int64) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deposits != deposits || d.rounds != rounds || !slices.Equal(d.charged, charged) {
		t.Errorf("%d deposits, %d rounds, charged %v; want %d, %d, %v", d.deposits, d.rounds, d.charged, deposits, rounds, charged)
	}
}

func (d *dialog) lastState() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.states[len(d.states)-1]
}

// question is an input_required result.
type question struct {
	ResultType    string                     `json:"resultType"`
	RequestState  string                     `json:"requestState"`
	InputRequests map[string]json.RawMessage `json:"inputRequests"`
}

func asQuestion(t testing.TB, r reply) question {
	t.Helper()
	var q question
	if err := json.Unmarshal(r.Result, &q); err != nil || q.ResultType != "input_required" || q.RequestState == "" || r.marker() == nil {
		t.Fatalf("not a marked question: %v, %v", r, err)
	}
	return q
}

func accept(amount int) string {
	return fmt.Sprintf(`{"amount":{"action":"accept","content":{"amount":%d}}}`, amount)
}

const decline = `{"amount":{"action":"decline"}}`

// round is the params of a round: the first one when state is empty.
func roundParams(key, args, state, answers string) string {
	p := `{"name":"dialog","arguments":` + args
	if key != "" {
		p += fmt.Sprintf(`,"idempotencyKey":%q`, key)
	}
	if state != "" {
		p += fmt.Sprintf(`,"requestState":%q`, state)
	}
	if answers != "" {
		p += `,"inputResponses":` + answers
	}
	return p + "}"
}

func (f *fixture) round(key, args, state, answers string) reply {
	f.t.Helper()
	r, err := f.call(f.t.Context(), "tools/call", roundParams(key, args, state, answers))
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) startRound(key, args, state, answers string) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.reply, p.err = f.call(f.t.Context(), "tools/call", roundParams(key, args, state, answers))
	}()
	return p
}

// wantCharged checks the outcome of the dialog.
func wantCharged(t testing.TB, r reply, amount int, replayed bool) {
	t.Helper()
	var res struct {
		StructuredContent struct {
			Charged int `json:"charged"`
		} `json:"structuredContent"`
		ResultType string `json:"resultType"`
	}
	if err := json.Unmarshal(r.Result, &res); err != nil || res.StructuredContent.Charged != amount || res.ResultType != "complete" {
		t.Errorf("got %v, %v, want a charge of %d", r, err, amount)
	}
	if m := r.marker(); m == nil || m.Replayed != replayed {
		t.Errorf("marked %v, want replayed %v", r.marker(), replayed)
	}
}

// shedding is a tool that is busy for as long as busy says.
func shedding(f *fixture, busy *bool) mcp.ToolHandlerFor[chargeArgs, any] {
	return func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, any, error) {
		if *busy {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}}, nil, nil
		}
		return nil, receipt{Number: f.effects.Add(1)}, nil
	}
}
