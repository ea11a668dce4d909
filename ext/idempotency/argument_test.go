package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// byArgument are options for tools that take their key from an argument.
func byArgument() *idempotency.Options {
	tools := toolOptions()
	for _, name := range []string{"any_id", "gated_id", "fails_id", "dialog"} {
		tools[name] = idempotency.ToolOptions{KeyArgument: "effect_id"}
	}
	tools["abort_id"] = idempotency.ToolOptions{KeyArgument: "effect_id", OnDisconnect: idempotency.Abort}
	return &idempotency.Options{Tools: tools}
}

type gatedID struct {
	Gate     string `json:"gate"`
	EffectID string `json:"effect_id,omitempty"`
}

func onArguments(t *testing.T, opt func() *idempotency.Options, mem *memory.Options, test func(t *testing.T, f *fixture)) {
	if opt == nil {
		opt = byArgument
	}
	on(t, connectors(), opt, mem, func(t *testing.T, f *fixture) {
		gated := func(ctx context.Context, req *mcp.CallToolRequest, in gatedID) (*mcp.CallToolResult, receipt, error) {
			return f.gated(ctx, req, gateArgs{Gate: in.Gate})
		}
		mcp.AddTool(f.server, &mcp.Tool{Name: "gated_id"}, gated)
		mcp.AddTool(f.server, &mcp.Tool{Name: "abort_id"}, gated)
		mcp.AddTool(f.server, &mcp.Tool{Name: "any_id", InputSchema: map[string]any{"type": "object"}},
			func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, receipt, error) {
				return nil, receipt{Number: f.effects.Add(1)}, nil
			})
		mcp.AddTool(f.server, &mcp.Tool{Name: "fails_id"}, func(_ context.Context, _ *mcp.CallToolRequest, in gatedID) (*mcp.CallToolResult, any, error) {
			f.effects.Add(1)
			switch in.Gate {
			case "raises":
				return nil, nil, &jsonrpc.Error{Code: -32000, Message: "raised"}
			case "no effect":
				return nil, nil, idempotency.NoEffect(errors.New("nothing to do"))
			case "unencodable":
				return nil, nil, &jsonrpc.Error{Code: 1, Data: []byte("{")}
			}
			return nil, nil, errors.New("declined")
		})
		test(t, f)
	})
}

func TestAnUnextendedClientIsProtectedByRepeatingAnArgument(t *testing.T) {
	onArguments(t, nil, nil, func(t *testing.T, f *fixture) {
		first := f.tool("by_argument", "", `{"amount":1,"effect_id":"e"}`)
		sameValue(t, first, f.tool("by_argument", "", `{"effect_id":"e","amount":1.0}`))
		wantReason(t, f.tool("by_argument", "", `{"amount":2,"effect_id":"e"}`), schema.ReasonKeyMismatch)
		f.wantEffects(1)
		// Another value, another tool, and no value are other calls.
		f.tool("by_argument", "", `{"amount":1,"effect_id":"f"}`)
		f.tool("required_argument", "", `{"amount":1,"effect_id":"e"}`)
		f.tool("by_argument", "", `{"amount":1}`)
		f.tool("by_argument", "", `{"amount":1}`)
		f.wantEffects(5)
	})
}

// C4: one effect, whichever way its key came.
func TestAKeyAndAnArgumentAreOneHistory(t *testing.T) {
	onArguments(t, nil, nil, func(t *testing.T, f *fixture) {
		for i, order := range [][]string{{"", "k1", "k2", ""}, {"k3", "", "k4", "k3"}} {
			args := fmt.Sprintf(`{"amount":1,"effect_id":"e-%d"}`, i)
			var first reply
			for j, name := range order {
				key := ""
				if name != "" {
					key = f.namespaceOf(t) + "." + name
				}
				r := f.tool("by_argument", key, args)
				if j == 0 {
					first = r
				}
				sameValue(t, first, r)
				if r.replayed() != (j > 0) {
					t.Errorf("%v, attempt %d: marked %v", order, j, r.marker())
				}
			}
			f.wantEffects(int64(i + 1))
		}
		// Each key has become a key of that call, with its arguments.
		key := f.namespaceOf(t) + ".k2"
		wantReason(t, f.tool("by_argument", key, `{"amount":1,"effect_id":"other"}`), schema.ReasonKeyMismatch)
	})
}

func TestConcurrentKeysAndArgumentsAreOneExecution(t *testing.T) {
	onArguments(t, nil, nil, func(t *testing.T, f *fixture) {
		ns := f.namespaceOf(t)
		const args = `{"gate":"g","effect_id":"e"}`
		var calls []*pending
		for i := range 60 {
			key := ""
			if i%3 != 0 {
				key = fmt.Sprintf("%s.k%d", ns, i%10)
			}
			calls = append(calls, f.start(t.Context(), "gated_id", key, args))
		}
		f.awaitEntered("g")
		close(f.gate("g"))
		ran := 0
		for _, p := range calls {
			r := p.wait(t)
			sameValue(t, calls[0].reply, r)
			if !r.replayed() {
				ran++
			}
		}
		if ran != 1 {
			t.Errorf("%d answers are marked as run", ran)
		}
		f.wantEffects(1)
	})
}

// A new key for an effect that is under way is told that, and is not spent.
func TestANewKeyForAnEffectUnderWayWaitsOrIsToldSo(t *testing.T) {
	opt := func() *idempotency.Options {
		o := byArgument()
		o.WaitLimit = 20 * time.Millisecond
		return o
	}
	onArguments(t, opt, nil, func(t *testing.T, f *fixture) {
		const args = `{"gate":"g","effect_id":"e"}`
		run := f.start(t.Context(), "gated_id", "", args)
		f.awaitEntered("g")
		key := f.key()
		wantReason(t, f.tool("gated_id", key, args), schema.ReasonStillRunning)
		wantReason(t, f.tool("gated_id", f.key(), `{"gate":"other","effect_id":"e"}`), schema.ReasonKeyMismatch)
		if st := f.memory.Stats(); st.Records != 1 {
			t.Errorf("recorded: %+v", st)
		}
		first := f.finish(run, "g")
		again := f.tool("gated_id", key, args)
		sameValue(t, first, again)
		if !again.replayed() {
			t.Error(again)
		}
		f.wantEffects(1)
	})
}

func TestANewKeyForAFullStoreIsNotSpent(t *testing.T) {
	mem := &memory.Options{MaxRecords: 2, MaxRecordsPerPrincipal: 2}
	onArguments(t, nil, mem, func(t *testing.T, f *fixture) {
		f.tool("charge", f.key(), `{"amount":1}`)
		f.tool("charge", f.key(), `{"amount":1}`)
		wantReason(t, f.tool("by_argument", f.key(), `{"amount":1,"effect_id":"e"}`), schema.ReasonCapacityExceeded)
		if st := f.memory.Stats(); st.Records != 2 {
			t.Errorf("recorded: %+v", st)
		}
	})
}

// Every kind of ending is the same whichever key asks, and the tool runs once.
func TestAllEndingsAreSharedByKeyAndArgument(t *testing.T) {
	onArguments(t, nil, nil, func(t *testing.T, f *fixture) {
		for _, how := range []string{"raises", "no effect", "unencodable", "declined"} {
			args := `{"gate":"` + how + `","effect_id":"` + how + `"}`
			before := f.effects.Load()
			key := f.key()
			first := f.tool("fails_id", key, args)
			for _, again := range []string{key, "", f.key(), key} {
				r := f.tool("fails_id", again, args)
				if r.Error != nil && first.Error != nil {
					r.Error.Message, first.Error.Message = "", "" // may name the key
				}
				sameValue(t, first, r)
				if r.marker() != nil && !r.replayed() {
					t.Errorf("%s: %v", how, r)
				}
			}
			if n := f.effects.Load() - before; n != 1 {
				t.Errorf("%s: %d runs", how, n)
			}
		}
	})
}

func TestAnUnknownEffectIsUnknownToEveryKey(t *testing.T) {
	opt := func() *idempotency.Options {
		o := byArgument()
		o.MaxExecution = 10 * time.Millisecond
		return o
	}
	onArguments(t, opt, nil, func(t *testing.T, f *fixture) {
		const args = `{"gate":"g","effect_id":"e"}`
		key := f.key()
		wantReason(t, f.tool("gated_id", key, args), schema.ReasonOutcomeUnknown)
		for _, again := range []string{key, "", f.key()} {
			wantReason(t, f.tool("gated_id", again, args), schema.ReasonOutcomeUnknown)
		}
		f.wantEffects(0)
	})
}

func TestAnArgumentsValueIsTakenAsItIs(t *testing.T) {
	onArguments(t, nil, nil, func(t *testing.T, f *fixture) {
		different := []string{
			`"1"`, `1`, `"#1"`, `"\"1"`, `-1`, `"-1"`, `0`, `10`, `9007199254740992`, `9007199254740993`, `"a"`, `"A"`, `" "`, `"é"`, `"e\u0301"`, `"` + strings.Repeat("é", 255) + `"`,
		}
		for i, v := range different {
			if r := f.tool("any_id", "", `{"effect_id":`+v+`}`); r.Error != nil || r.replayed() {
				t.Errorf("%s: %v", v, r)
			}
			f.wantEffects(int64(i + 1))
		}
		for v, same := range map[string]string{`"\u0061"`: `"a"`, `"\u00e9"`: `"é"`} {
			if r := f.tool("any_id", "", `{"effect_id":`+v+`}`); !r.replayed() {
				t.Errorf("%s and %s: %v", v, same, r)
			}
		}
		f.wantEffects(int64(len(different)))
	})
}

func TestABadArgumentIsNoKey(t *testing.T) {
	onArguments(t, nil, nil, func(t *testing.T, f *fixture) {
		for _, v := range []string{`""`, `1.5`, `1.0`, `1e3`, `-0`, `true`, `{}`, `[]`, `["a"]`, `"` + strings.Repeat("x", 256) + `"`} {
			for _, key := range []string{"", f.key()} {
				wantReason(t, f.tool("any_id", key, `{"effect_id":`+v+`}`), schema.ReasonKeyInvalid)
			}
		}
		f.wantEffects(0)
		for _, args := range []string{`{"effect_id":"a","effect_id":"b"}`, `{"effect_id":"\ud800"}`} {
			if r := f.tool("any_id", "", args); r.Error == nil || r.Error.Code != jsonrpc.CodeInvalidParams {
				t.Errorf("%s: %v", args, r)
			}
		}
		if st := f.memory.Stats(); st.Records != 0 {
			t.Errorf("recorded: %+v", st)
		}
		// Null is no value.
		f.tool("any_id", "", `{"effect_id":null}`)
		f.tool("any_id", "", `{"effect_id":null}`)
		f.wantEffects(2)
		wantReason(t, f.tool("required_argument", "", `{"amount":1,"effect_id":null}`), schema.ReasonKeyRequired)
	})
}

// A value holds for as long as the records do, over rotations.
func TestAnArgumentOutlivesTheNamespaceItWasUsedIn(t *testing.T) {
	mem := &memory.Options{RotateEvery: time.Hour, ClosingFor: time.Hour, Retention: 10 * time.Hour}
	onArguments(t, nil, mem, func(t *testing.T, f *fixture) {
		const args = `{"amount":1,"effect_id":"e"}`
		f.tool("by_argument", "", args)
		for range 11 {
			f.clock.advance(time.Hour)
			if r := f.tool("by_argument", "", args); !r.replayed() {
				t.Fatalf("%v", r)
			}
		}
		f.wantEffects(1)
	})
}

func TestADialogueIsOneWhicheverKeyContinuesIt(t *testing.T) {
	on(t, named("modern"), byArgument, nil, func(t *testing.T, f *fixture) {
		d := addDialog(f)
		const args = `{"questions":2,"state":"s","effect_id":"e"}`
		key := f.key()
		q1 := asQuestion(t, f.round(key, args, "", ""))
		// The same effect, asked for without the key: the same question.
		bare := f.round("", args, "", "")
		if !bare.replayed() {
			t.Error(bare)
		}
		q1bare := asQuestion(t, bare)
		q2 := asQuestion(t, f.round(key, args, q1.RequestState, accept(1)))
		// The other's answer comes too late for its question.
		late := asQuestion(t, f.round("", args, q1bare.RequestState, accept(5)))
		wantCharged(t, f.round("", args, late.RequestState, accept(2)), 2, false)
		wantCharged(t, f.round(key, args, q2.RequestState, accept(3)), 2, true)
		wantCharged(t, f.round(f.key(), args, "", ""), 2, true)
		if s := d.lastState(); s != "s-2" {
			t.Errorf("the tool saw the state %q", s)
		}
		d.want(t, 1, 3, 2)
	})
}

// A run that may be aborted is held by whoever waits for its effect.
func TestARunIsHeldByThoseWhoWaitForItsArgument(t *testing.T) {
	on(t, cancelling(), byArgument, nil, func(t *testing.T, f *fixture) {
		mcp.AddTool(f.server, &mcp.Tool{Name: "abort_id"}, func(ctx context.Context, req *mcp.CallToolRequest, in gatedID) (*mcp.CallToolResult, receipt, error) {
			return f.gated(ctx, req, gateArgs{Gate: in.Gate})
		})
		const args = `{"gate":"g","effect_id":"e"}`
		ctx, cancel := context.WithCancel(t.Context())
		run := f.start(ctx, "abort_id", f.key(), args)
		f.awaitEntered("g")
		held := f.idem.Attached()
		joiner := f.start(t.Context(), "abort_id", "", args)
		eventually(t, "the other has joined", func() bool { return f.idem.Attached() == held+1 })
		leave(run, cancel)
		eventually(t, "the runner is gone", func() bool { return f.idem.Attached() < held+1 })
		if r := f.finish(joiner, "g"); !r.replayed() {
			t.Error(r)
		}
		f.wantEffects(1)
	})
}

// K3: the guarantee does not stop at this server.
func TestTheKeyForAnAPIDownstreamIsThatOfTheEffect(t *testing.T) {
	onArguments(t, nil, nil, func(t *testing.T, f *fixture) {
		seen := map[string]int{}
		down := func(ctx context.Context, _ *mcp.CallToolRequest, _ chargeArgs) (*mcp.CallToolResult, any, error) {
			for _, step := range []string{"pay", "mail"} {
				if key, ok := idempotency.DownstreamKey(ctx, step); ok {
					seen[key]++
					if len(key) != 43 || strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
						t.Errorf("key %q", key)
					}
				}
			}
			return nil, nil, nil
		}
		mcp.AddTool(f.server, &mcp.Tool{Name: "charge"}, down)
		mcp.AddTool(f.server, &mcp.Tool{Name: "by_argument"}, down)
		f.tool("charge", "", `{"amount":1}`)
		if len(seen) != 0 {
			t.Error("an unkeyed call has a key")
		}
		f.tool("charge", f.key(), `{"amount":1}`)
		f.tool("charge", f.key(), `{"amount":1}`)
		if len(seen) != 4 {
			t.Errorf("two calls of two steps have %d keys", len(seen))
		}
		f.tool("by_argument", f.key(), `{"amount":1,"effect_id":"e"}`)
		if len(seen) != 6 {
			t.Errorf("a third call has %d new keys", len(seen)-4)
		}
	})
}
