package idempotency_test

import (
	"context"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// onCancelling runs a test over the connections on which leaving is noticed.
func onCancelling(t *testing.T, opt func() *idempotency.Options, test func(t *testing.T, f *fixture)) {
	on(t, cancelling(), opt, nil, test)
}

func withTools() *idempotency.Options { return &idempotency.Options{Tools: toolOptions()} }

// leave makes a caller go away, and waits until it has.
func leave(p *pending, cancel context.CancelFunc) {
	cancel()
	<-p.done
}

func TestARunOutlivesItsCaller(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		key := f.key()
		ctx, cancel := context.WithCancel(t.Context())
		run := f.start(ctx, "gated", key, `{"gate":"g"}`)
		f.awaitEntered("g")
		leave(run, cancel)
		retry := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
		eventually(t, "the retry has joined", func() bool { return f.idem.Waiters() == 1 })
		if r := f.finish(retry, "g"); !r.replayed() {
			t.Errorf("the retry got %v", r)
		}
		f.wantEffects(1)
	})
}

func TestARunEndsAndIsRecordedWithNobodyThere(t *testing.T) {
	onCancelling(t, nil, func(t *testing.T, f *fixture) {
		key := f.key()
		ctx, cancel := context.WithCancel(t.Context())
		run := f.start(ctx, "gated", key, `{"gate":"g"}`)
		f.awaitEntered("g")
		leave(run, cancel)
		eventually(t, "the caller is gone", func() bool { return f.idem.Attached() == 0 })
		close(f.gate("g"))
		eventually(t, "the run has ended", func() bool { return f.idem.Runs() == 0 })
		if r := f.tool("gated", key, `{"gate":"g"}`); !r.replayed() || r.Error != nil {
			t.Errorf("the retry got %v", r)
		}
		f.wantEffects(1)
	})
}

func TestJoinersSurviveTheRunnersDisconnect(t *testing.T) {
	onEach(t, withTools, func(t *testing.T, f *fixture) {
		for _, tool := range []string{"gated", "abortable"} {
			key := f.key()
			before := f.effects.Load()
			ctx, cancel := context.WithCancel(t.Context())
			run := f.start(ctx, tool, key, `{"gate":"`+tool+`"}`)
			f.awaitEntered(tool)
			var joiners []*pending
			for range 3 {
				joiners = append(joiners, f.start(t.Context(), tool, key, `{"gate":"`+tool+`"}`))
			}
			eventually(t, "three have joined", func() bool { return f.idem.Attached() == 4 })
			leave(run, cancel)
			close(f.gate(tool))
			for _, p := range joiners {
				if r := p.wait(t); !r.replayed() || r.Error != nil {
					t.Errorf("%s: a joiner got %v", tool, r)
				}
			}
			if n := f.effects.Load() - before; n != 1 {
				t.Errorf("%s: %d effects", tool, n)
			}
		}
	})
}

func TestTheRunnerAndOthersSurviveAJoinersDisconnect(t *testing.T) {
	onEach(t, withTools, func(t *testing.T, f *fixture) {
		for _, tool := range []string{"gated", "abortable"} {
			key := f.key()
			run := f.start(t.Context(), tool, key, `{"gate":"`+tool+`"}`)
			f.awaitEntered(tool)
			ctx, cancel := context.WithCancel(t.Context())
			leaver := f.start(ctx, tool, key, `{"gate":"`+tool+`"}`)
			stayer := f.start(t.Context(), tool, key, `{"gate":"`+tool+`"}`)
			eventually(t, "two have joined", func() bool { return f.idem.Attached() == 3 })
			leave(leaver, cancel)
			first := f.finish(run, tool)
			if first.replayed() {
				t.Errorf("%s: the runner got %v", tool, first)
			}
			sameValue(t, first, stayer.wait(t))
		}
		f.wantEffects(2)
	})
}

// X21, first half: nobody is left, the handler ends without a word, and what
// it returned is not replayed as an outcome.
func TestAnAbortedRunIsUnknownAndNotReplayed(t *testing.T) {
	onCancelling(t, withTools, func(t *testing.T, f *fixture) {
		key := f.key()
		ctx, cancel := context.WithCancel(t.Context())
		run := f.start(ctx, "abortable", key, `{"gate":"g"}`)
		f.awaitEntered("g")
		leave(run, cancel)
		eventually(t, "the run has ended", func() bool { return f.idem.Runs() == 0 })
		wantReason(t, f.tool("abortable", key, `{"gate":"g"}`), schema.ReasonOutcomeUnknown)
		f.wantEffects(0)
	})
}

// X21, second half: another attempt is attached; when it leaves too the run is
// aborted.
func TestARunIsAbortedOnlyWhenTheLastAttemptLeaves(t *testing.T) {
	onCancelling(t, withTools, func(t *testing.T, f *fixture) {
		key := f.key()
		ctx1, cancel1 := context.WithCancel(t.Context())
		ctx2, cancel2 := context.WithCancel(t.Context())
		run := f.start(ctx1, "abortable", key, `{"gate":"g"}`)
		f.awaitEntered("g")
		joiner := f.start(ctx2, "abortable", key, `{"gate":"g"}`)
		eventually(t, "one has joined", func() bool { return f.idem.Attached() == 2 })
		leave(run, cancel1)
		eventually(t, "the runner is gone", func() bool { return f.idem.Attached() == 1 })
		third := f.start(t.Context(), "abortable", key, `{"gate":"g"}`)
		eventually(t, "another has joined", func() bool { return f.idem.Attached() == 2 })
		leave(joiner, cancel2)
		eventually(t, "the joiner is gone", func() bool { return f.idem.Attached() == 1 })
		if r := f.finish(third, "g"); !r.replayed() {
			t.Errorf("the third attempt got %v", r)
		}
		f.wantEffects(1)

		key = f.key()
		ctx1, cancel1 = context.WithCancel(t.Context())
		ctx2, cancel2 = context.WithCancel(t.Context())
		run = f.start(ctx1, "abortable", key, `{"gate":"h"}`)
		f.awaitEntered("h")
		joiner = f.start(ctx2, "abortable", key, `{"gate":"h"}`)
		eventually(t, "one has joined", func() bool { return f.idem.Attached() == 2 })
		leave(run, cancel1)
		leave(joiner, cancel2)
		eventually(t, "the run has ended", func() bool { return f.idem.Runs() == 0 })
		wantReason(t, f.tool("abortable", key, `{"gate":"h"}`), schema.ReasonOutcomeUnknown)
		f.wantEffects(1)
	})
}

// A handler that is cancelled can still say what happened.
func TestACancelledHandlersWordIsItsOutcome(t *testing.T) {
	opt := func() *idempotency.Options {
		return &idempotency.Options{Default: idempotency.ToolOptions{OnDisconnect: idempotency.Abort}}
	}
	onCancelling(t, opt, func(t *testing.T, f *fixture) {
		mcp.AddTool(f.server, &mcp.Tool{Name: "undoes"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ gateArgs) (*mcp.CallToolResult, any, error) {
			f.entered <- "undoes"
			<-ctx.Done()
			return nil, nil, idempotency.NoEffect(ctx.Err())
		})
		mcp.AddTool(f.server, &mcp.Tool{Name: "finishes"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ gateArgs) (*mcp.CallToolResult, receipt, error) {
			f.entered <- "finishes"
			<-ctx.Done()
			return nil, receipt{Number: f.effects.Add(1)}, nil
		})
		for _, tool := range []string{"undoes", "finishes"} {
			key := f.key()
			ctx, cancel := context.WithCancel(t.Context())
			run := f.start(ctx, tool, key, `{"gate":""}`)
			f.awaitEntered(tool)
			leave(run, cancel)
			eventually(t, "the run has ended", func() bool { return f.idem.Runs() == 0 })
			r := f.tool(tool, key, `{"gate":""}`)
			if tool == "undoes" {
				wantReason(t, r, schema.ReasonNoEffect)
			} else if !r.replayed() || r.Error != nil {
				t.Errorf("%s: %v", tool, r)
			}
		}
		f.wantEffects(1)
	})
}

// A run that is told to go on does not see its callers leave; the limit is
// what ends it, and its late word replaces the unknown outcome.
func TestTheLateEndOfARunThatWasGivenUpIsItsOutcome(t *testing.T) {
	opt := func() *idempotency.Options { return &idempotency.Options{MaxExecution: 1} } // 1 ns
	onEach(t, opt, func(t *testing.T, f *fixture) {
		cause := make(chan error, 1)
		mcp.AddTool(f.server, &mcp.Tool{Name: "slow"}, func(ctx context.Context, _ *mcp.CallToolRequest, in gateArgs) (*mcp.CallToolResult, receipt, error) {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			<-f.gate(in.Gate)
			return nil, receipt{Number: f.effects.Add(1)}, nil
		})
		key := f.key()
		run := f.start(t.Context(), "slow", key, `{"gate":"g"}`)
		if err := <-cause; err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context ended with %v", err)
		}
		eventually(t, "given up", func() bool {
			// A duplicate from now on is not kept waiting.
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := f.start(ctx, "slow", key, `{"gate":"g"}`)
			eventually(t, "answered or waiting", func() bool {
				select {
				case <-p.done:
					return true
				default:
					return f.idem.Waiters() > 0
				}
			})
			select {
			case <-p.done:
				return p.reply.ext().Reason == schema.ReasonOutcomeUnknown
			default:
				return false
			}
		})
		first := f.finish(run, "g")
		if first.replayed() {
			t.Errorf("the runner got %v", first)
		}
		sameValue(t, first, f.tool("slow", key, `{"gate":"g"}`))
		f.wantEffects(1)
	})
}
