package servercheck

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
	"github.com/mcp-idempotency/mcp-idempotency/internal/rawmcp"
)

func rounds() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/rounds/question-again", Section: "Multi round-trip calls", Level: check.Must,
			Title: "a question whose response was lost is asked again, and the round does not run again",
			Does:  "Calls the fixture's asking tool twice with one key, without an answer.",
			Why:   "The round before the question may have had an effect, a deposit for example.",
			Fix:   "Record the question, and answer every attempt that does not continue it with it.",
		}, Run: questionIsAskedAgain},
		{Info: check.Info{
			ID: "server/rounds/state", Section: "Multi round-trip calls", Level: check.Must,
			Title: "the question of a keyed call has a requestState of the server's, and takes it back",
			Does:  "Calls the fixture's asking tool with a key, answers it, and looks whether the tool got its answer.",
			Why:   "The state names the round: without it nobody can tell a continuation from a repeat.",
			Fix:   "Wrap the tool's requestState with a fresh nonce, and unwrap it for the tool.",
		}, Run: questionIsAnswered},
		{Info: check.Info{
			ID: "server/rounds/answered-twice", Section: "Multi round-trip calls", Level: check.Must,
			Title: "an answer that is given twice, or given anew after the call has ended, is one execution",
			Does:  "Calls the fixture's asking tool, answers 10, and answers 20 with the same requestState.",
			Why:   "A user who presses a button twice pays once.",
			Fix:   "Run a continuation only if it carries the nonce of the latest round.",
		}, Run: secondAnswerDoesNotRun},
	}
}

// ask begins a dialogue and returns the question.
func (s *session) ask(label, key string) (state string, r rawmcp.Reply) {
	r = s.call(call{tool: fixture.Ask, key: key, args: fmt.Sprintf(`{"label":%q}`, label)})
	var q struct {
		ResultType   string
		RequestState string
	}
	if err := r.Decode(&q); err != nil || q.ResultType != "input_required" {
		s.t.Fatalf("the asking tool is answered %s, want a question", r)
	}
	if q.RequestState == "" {
		s.t.Errorf("the question has no requestState: %s", r)
	}
	return q.RequestState, r
}

// answer continues a dialogue.
func (s *session) answer(label, key, state string, n int) rawmcp.Reply {
	return s.call(call{tool: fixture.Ask, key: key, args: fmt.Sprintf(`{"label":%q}`, label),
		extra: fmt.Sprintf(`,"requestState":%q,"inputResponses":{"n":{"action":"accept","content":{"n":%d}}}`, state, n)})
}

func questionIsAskedAgain(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture().modern()
	label, key := rand.Text(), s.key()
	_, first := s.ask(label, key)
	_, second := s.ask(label, key)
	s.wantMarked("the first question", first, false)
	s.wantMarked("the question that is asked again", second, true)
	s.sameAnswer(first, second)
	if n := s.effects(label); n != 1 {
		t.Errorf("the round ran %d times, want once", n)
	}
}

func questionIsAnswered(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture().modern()
	label, key := rand.Text(), s.key()
	state, _ := s.ask(label, key)
	if state == "asked" {
		t.Errorf("the requestState is the tool's own: it does not name the round")
	}
	s.wantMarked("the answer", s.answer(label, key, state, 10), false)
	if n := s.effects(label + "/10"); n != 1 {
		t.Errorf("the tool got its answer %d times, want once", n)
	}
}

func secondAnswerDoesNotRun(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended().fixture().modern()
	label, key := rand.Text(), s.key()
	state, _ := s.ask(label, key)
	first := s.answer(label, key, state, 10)
	for _, n := range []int{10, 20} {
		again := s.answer(label, key, state, n)
		s.wantMarked(fmt.Sprintf("the answer %d after the call has ended", n), again, true)
		s.sameAnswer(first, again)
	}
	if a, b := s.effects(label+"/10"), s.effects(label+"/20"); a != 1 || b != 0 {
		t.Errorf("the tool got the first answer %d times and the second %d times, want once and never", a, b)
	}
}
