package servercheck

import (
	"context"
	"fmt"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/rawmcp"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// slow is how long, in milliseconds, a slow call of the fixture's tool takes:
// long enough to send another message meanwhile.
const slow = 700

func join() []Check {
	return []Check{{Info: check.Info{
		ID: "server/join/one-run", Section: "Order of checks", Level: check.Must,
		Title: "duplicates that arrive while the call runs are one execution, with one answer",
		Does:  "Sends eight attempts with one key at once. With the fixture the tool takes a moment.",
		Why:   "A client's timeout is often shorter than the tool: its retry arrives while the first attempt runs.",
		Fix:   "Reserve the key in one atomic step, and let the others wait for the run or answer stillRunning.",
	}, Run: concurrentAttempts}}
}

// start sends an attempt, and hands its answer on.
func (u *subject) start(key string) <-chan rawmcp.Reply {
	answer := make(chan rawmcp.Reply, 1)
	go func() {
		r, err := u.s.conn.Call(u.s.ctx, schema.MethodCallTool, u.s.params(call{tool: u.tool, key: key, args: u.args}))
		if err != nil {
			u.s.t.Errorf("a response was lost: %v", err)
		}
		answer <- r
	}()
	return answer
}

// awaitEffect waits until the tool has had an effect, by asking.
func (u *subject) awaitEffect() {
	for u.of() == u.base {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-u.s.ctx.Done():
			u.s.t.Brokenf("the tool did not begin: %v", context.Cause(u.s.ctx))
		}
	}
}

func concurrentAttempts(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	if s.Fixture {
		sub, done = s.labelled(fmt.Sprintf(`,"ms":%d`, slow/2))
		defer done()
	}
	key := s.key()
	var answers []<-chan rawmcp.Reply
	for range 8 {
		answers = append(answers, sub.start(key))
	}
	var first rawmcp.Reply
	ran := 0
	for i, a := range answers {
		r := <-a
		if r.Reason() == schema.ReasonStillRunning {
			continue // allowed: it is told to come again
		}
		m, ok := r.Marker()
		if !ok {
			t.Errorf("attempt %d is answered without the marker: %s", i+1, r)
		} else if !m.Replayed {
			ran++
		}
		if first.Result == nil && first.Error == nil {
			first = r
		}
		s.sameAnswer(first, r)
	}
	if ran != 1 {
		t.Errorf("%d of eight attempts were told that theirs ran, want 1", ran)
	}
	sub.wantEffects(1)
}
