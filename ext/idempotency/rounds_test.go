package idempotency_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// onModern runs a test over the connections with multi round-trip calls.
func onModern(t *testing.T, opt func() *idempotency.Options, mem *memory.Options, test func(t *testing.T, f *fixture, d *dialog)) {
	on(t, named("modern"), opt, mem, func(t *testing.T, f *fixture) { test(t, f, addDialog(f)) })
}

const oneQuestion, twoQuestions = `{"questions":1,"state":"s"}`, `{"questions":2,"state":"s"}`

// X3.
func TestALostQuestionIsAskedAgainAndNotRunAgain(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		lost := f.round(key, oneQuestion, "", "")
		again := f.round(key, oneQuestion, "", "")
		sameValue(t, lost, again)
		if lost.replayed() || !again.replayed() {
			t.Errorf("marked %v and %v", lost.marker(), again.marker())
		}
		q := asQuestion(t, again)
		if !strings.Contains(string(q.InputRequests["amount"]), "9007199254740993") {
			t.Errorf("the question lost digits: %s", q.InputRequests["amount"])
		}
		d.want(t, 1, 1)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(10)), 10, false)
		d.want(t, 1, 2, 10)
		if s := d.lastState(); s != "s-1" {
			t.Errorf("the tool saw the state %q", s)
		}
	})
}

func TestEveryRepeatAfterTheOutcomeGetsTheOutcome(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		q1 := asQuestion(t, f.round(key, twoQuestions, "", ""))
		q2 := asQuestion(t, f.round(key, twoQuestions, q1.RequestState, accept(1)))
		wantCharged(t, f.round(key, twoQuestions, q2.RequestState, accept(2)), 2, false)
		for _, again := range []reply{
			f.round(key, twoQuestions, "", ""),
			f.round(key, twoQuestions, q1.RequestState, accept(1)),
			f.round(key, twoQuestions, q2.RequestState, accept(2)),
			f.round(key, twoQuestions, q2.RequestState, accept(3)),
			f.round("", twoQuestions, q2.RequestState, accept(2)),
		} {
			wantCharged(t, again, 2, true)
		}
		d.want(t, 1, 3, 2)
	})
}

// A lost second question is asked again, whichever round's attempt asks.
func TestTheLatestQuestionAnswersEveryEarlierRound(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		q1 := asQuestion(t, f.round(key, twoQuestions, "", ""))
		second := f.round(key, twoQuestions, q1.RequestState, accept(1))
		q2 := asQuestion(t, second)
		if q2.RequestState == q1.RequestState {
			t.Error("two rounds have one state")
		}
		for _, again := range []reply{
			f.round(key, twoQuestions, "", ""),
			f.round(key, twoQuestions, q1.RequestState, accept(1)),
			f.round(key, twoQuestions, q1.RequestState, accept(7)),
			f.round("", twoQuestions, q1.RequestState, accept(1)),
		} {
			sameValue(t, second, again)
		}
		d.want(t, 1, 2)
	})
}

// X14: a continuation runs beside re-sends of the round before it, and these
// wait for its outcome.
func TestAContinuationIsNotLostBesideReSendsOfItsQuestion(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		const args = `{"questions":1,"state":"s","gate":"g"}`
		key := f.key()
		q := asQuestion(t, f.round(key, args, "", ""))
		run := f.startRound(key, args, q.RequestState, accept(20))
		f.awaitEntered("g")
		resend := f.startRound(key, args, "", "")
		eventually(t, "the re-send waits", func() bool { return f.idem.Waiters() == 1 })
		wantCharged(t, f.finish(run, "g"), 20, false)
		wantCharged(t, resend.wait(t), 20, true)
		d.want(t, 1, 2, 20)
	})
}

func TestTheSameAnswersTwiceAreOneExecution(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		const args = `{"questions":1,"state":"s","gate":"g"}`
		key := f.key()
		q := asQuestion(t, f.round(key, args, "", ""))
		var calls []*pending
		for range 50 {
			calls = append(calls, f.startRound(key, args, q.RequestState, accept(5)))
		}
		f.awaitEntered("g")
		eventually(t, "all attached", func() bool { return f.idem.Attached() == len(calls) })
		close(f.gate("g"))
		for _, p := range calls {
			sameValue(t, calls[0].wait(t), p.wait(t))
		}
		d.want(t, 1, 2, 5)
	})
}

// "Accept 20" is never taken for the run of "accept 10": it waits, and then
// gets what the record says, or runs.
func TestOtherAnswersNeverJoinTheRun(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		const args = `{"questions":1,"state":"s","gate":"g"}`
		for _, first := range []string{accept(10), decline} {
			key := f.key()
			q := asQuestion(t, f.round(key, args, "", ""))
			run := f.startRound(key, args, q.RequestState, first)
			f.awaitEntered("g")
			other := f.startRound(key, args, q.RequestState, accept(20))
			eventually(t, "the other waits", func() bool { return f.idem.Waiters() == 1 })
			close(f.gate("g"))
			if first == decline {
				if r := run.wait(t); !strings.Contains(string(r.Result), "an amount is needed") {
					t.Errorf("the rejected round got %v", r)
				}
				f.awaitEntered("g")
				wantCharged(t, other.wait(t), 20, false)
			} else {
				wantCharged(t, run.wait(t), 10, false)
				wantCharged(t, other.wait(t), 10, true)
			}
			f.mu.Lock()
			delete(f.gates, "g")
			f.mu.Unlock()
		}
		d.want(t, 2, 5, 10, 20)
	})
}

// X18: what the tool refuses leaves its question standing.
func TestARejectedContinuationCanBeMadeAgain(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		first := f.round(key, oneQuestion, "", "")
		q := asQuestion(t, first)
		for range 3 {
			r := f.round(key, oneQuestion, q.RequestState, decline)
			if m := r.marker(); m == nil || m.Replayed || !strings.Contains(string(r.Result), "an amount is needed") {
				t.Errorf("the rejected round got %v", r)
			}
			sameValue(t, first, f.round(key, oneQuestion, "", ""))
		}
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(4)), 4, false)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, decline), 4, true)
		d.want(t, 1, 5, 4)
	})
}

func TestAFirstRoundThatRejectsHadNoEffect(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, _ *dialog) {
		key := f.key()
		// Answers without a round: the tool meets them in a call that is new.
		r := f.round(key, oneQuestion, "", decline)
		wantReason(t, r, schema.ReasonNoEffect)
		wantReason(t, f.round(key, oneQuestion, "", decline), schema.ReasonNoEffect)
	})
}

// A tool may ask twice with one state of its own: the rounds differ by their
// nonces alone.
func TestAToolMayAskTwiceWithTheSameState(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		const args = `{"questions":2,"state":"same"}` // never counts its questions
		key := f.key()
		state := ""
		for i := range 4 {
			answers := ""
			if i > 0 {
				answers = accept(1)
			}
			r := f.round(key, args, state, answers)
			sameValue(t, r, f.round(key, args, state, answers))
			q := asQuestion(t, r)
			if q.RequestState == state {
				t.Error("the state did not change")
			}
			state = q.RequestState
		}
		d.want(t, 1, 4)
	})
}

// Empty input requests are load shedding: there is a round to come back with.
func TestAShedCallIsContinuedByItsNonce(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, _ *dialog) {
		busy := true
		mcp.AddTool(f.server, &mcp.Tool{Name: "sheds"}, shedding(f, &busy))
		key := f.key()
		params := func(state string) string {
			p := `{"name":"sheds","arguments":{"amount":1},"idempotencyKey":"` + key + `"`
			if state != "" {
				p += `,"requestState":"` + state + `","inputResponses":{}`
			}
			return p + `}`
		}
		first, err := f.call(t.Context(), "tools/call", params(""))
		if err != nil {
			t.Fatal(err)
		}
		q := asQuestion(t, first)
		if q.InputRequests == nil || len(q.InputRequests) != 0 {
			t.Errorf("the requests are %v", q.InputRequests)
		}
		again, _ := f.call(t.Context(), "tools/call", params(""))
		sameValue(t, first, again)
		if asQuestion(t, again).InputRequests == nil {
			t.Errorf("the replay lost its empty requests: %v", again)
		}
		busy = false
		r, err := f.call(t.Context(), "tools/call", params(q.RequestState))
		if err != nil || r.replayed() || !strings.Contains(string(r.Result), `"number":1`) {
			t.Errorf("%v, %v", r, err)
		}
		f.wantEffects(1)
	})
}

func TestUnkeyedRoundsAreUntouched(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		r := f.round("", oneQuestion, "", "")
		var q question
		if err := json.Unmarshal(r.Result, &q); err != nil || q.RequestState != "s-1" || r.marker() != nil {
			t.Fatalf("%v, %v", r, err)
		}
		if r := f.round("", oneQuestion, "s-1", accept(2)); r.marker() != nil || !strings.Contains(string(r.Result), `"charged":2`) {
			t.Error(r)
		}
		d.want(t, 1, 2, 2)
		if st := f.memory.Stats(); st.Records != 0 {
			t.Errorf("recorded: %+v", st)
		}
	})
}

// X15.
func TestAContinuationRunsInAClosedNamespace(t *testing.T) {
	mem := &memory.Options{RotateEvery: time.Hour, ClosingFor: time.Hour, Retention: 10 * time.Hour}
	onModern(t, nil, mem, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		q := asQuestion(t, f.round(key, oneQuestion, "", ""))
		for range 3 {
			f.clock.advance(time.Hour)
			f.namespace()
		}
		ns, _, _ := strings.Cut(key, ".")
		wantReason(t, f.round(ns+".new", oneQuestion, "", ""), schema.ReasonNamespaceClosed)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(6)), 6, false)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(6)), 6, true)
		d.want(t, 1, 2, 6)
	})
}

// X16.
func TestAbandonedQuestionsDoNotHoldTheirNamespaceForEver(t *testing.T) {
	mem := &memory.Options{RotateEvery: time.Hour, ClosingFor: time.Hour, Retention: time.Hour, MaxOpenPerPrincipal: 2}
	onModern(t, nil, mem, func(t *testing.T, f *fixture, _ *dialog) {
		key := f.key()
		q := asQuestion(t, f.round(key, oneQuestion, "", ""))
		asQuestion(t, f.round(f.key(), oneQuestion, "", ""))
		wantReason(t, f.round(f.key(), oneQuestion, "", ""), schema.ReasonCapacityExceeded)
		for range 4 {
			f.clock.advance(time.Hour)
			f.namespace()
		}
		wantReason(t, f.round(key, oneQuestion, q.RequestState, accept(1)), schema.ReasonNamespaceNotHeld)
		if st := f.memory.Stats(); st.Open != 0 {
			t.Errorf("open: %+v", st)
		}
		asQuestion(t, f.round(f.key(), oneQuestion, "", ""))
	})
}

// X17: each attempt of an open call keeps it for another retention, and its
// continuation can be lost and sent again.
func TestASlowUsersContinuationCanBeReSent(t *testing.T) {
	mem := &memory.Options{RotateEvery: time.Hour, ClosingFor: time.Hour, Retention: 2 * time.Hour}
	onModern(t, nil, mem, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		q := asQuestion(t, f.round(key, oneQuestion, "", ""))
		for range 6 { // longer than retention after the first attempt, shorter after the last
			f.clock.advance(90 * time.Minute)
			q = asQuestion(t, f.round(key, oneQuestion, "", ""))
		}
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(8)), 8, false)
		f.clock.advance(110 * time.Minute)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(8)), 8, true)
		d.want(t, 1, 2, 8)
	})
}

func TestAUserMayThinkLongerThanRetentionWhileTheNamespaceIsHeld(t *testing.T) {
	mem := &memory.Options{RotateEvery: 100 * time.Hour, Retention: time.Hour}
	onModern(t, nil, mem, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		q := asQuestion(t, f.round(key, oneQuestion, "", ""))
		f.clock.advance(5 * time.Hour)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(8)), 8, false)
		f.clock.advance(5 * time.Hour)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(8)), 8, true)
		d.want(t, 1, 2, 8)
	})
}

func TestAContinuationOfAToolThatIsGoneLeavesTheQuestionStanding(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		first := f.round(key, oneQuestion, "", "")
		q := asQuestion(t, first)
		f.server.RemoveTools("dialog")
		if r := f.round(key, oneQuestion, q.RequestState, accept(1)); r.Error == nil || r.Error.Code != jsonrpc.CodeInvalidParams {
			t.Error(r)
		}
		sameValue(t, first, f.round(key, oneQuestion, "", ""))
		mcp.AddTool(f.server, &mcp.Tool{Name: "dialog"}, d.call)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(1)), 1, false)
	})
}
