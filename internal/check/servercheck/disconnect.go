package servercheck

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func disconnect() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/disconnect/runs-on", Section: "Record life cycle", Level: check.Should,
			Title: "a keyed call runs on when its caller is gone, and a repeat gets its result",
			Does:  "Starts a slow call of the fixture's tool, leaves in the middle, and sends the call again.",
			Why:   "A call that is given up half way leaves an effect of which nobody knows the end.",
			Fix:   "Run keyed calls on a context of their own.",
		}, Run: callersThatLeave(false)},
		{Info: check.Info{
			ID: "server/disconnect/cancelled", Section: "Record life cycle", Level: check.Should,
			Title: "notifications/cancelled counts like a caller who is gone",
			Does:  "Starts a slow call of the fixture's tool, sends notifications/cancelled, and sends the call again.",
			Why:   "SDKs send it at their timeout, and then retry.",
			Fix:   "Run keyed calls on a context of their own.",
		}, Run: callersThatLeave(true)},
	}
}

func callersThatLeave(cancelled bool) func(context.Context, *check.T, *Peer) {
	return func(ctx context.Context, t *check.T, p *Peer) {
		s := p.on(ctx, t).extended().fixture()
		sub, done := s.labelled(fmt.Sprintf(`,"ms":%d,"then":"late"`, slow))
		defer done()
		key := s.key()
		leaving, leave := context.WithCancel(s.ctx)
		defer leave()
		gone := make(chan error, 1)
		id := strconv.Quote("sepcheck-" + rand.Text())
		first, end := s, func() {}
		if !s.Process { // a connection that can be left
			first, end = s.another(s.fresh)
		}
		defer end()
		go func() {
			_, err := first.conn.CallID(leaving, id, schema.MethodCallTool, s.params(call{tool: sub.tool, key: key, args: sub.args}))
			gone <- err
		}()
		sub.awaitEffect()
		if cancelled {
			if err := first.conn.Notify(s.ctx, "notifications/cancelled", `{"requestId":`+id+`,"reason":"timeout"}`); err != nil {
				t.Brokenf("cancelling: %v", err)
			}
		}
		leave()
		if err := <-gone; err == nil {
			t.Brokenf("the call ended before its caller could leave")
		}
		r := sub.call(key)
		for r.Reason() == schema.ReasonStillRunning && s.ctx.Err() == nil {
			r = sub.call(key)
		}
		s.wantMarked("the call that is sent again", r, true)
		if r.Error != nil || isError(r) {
			t.Errorf("the call that is sent again is answered %s, want the result", r)
		}
		sub.wantEffects(1)
		if n := s.effects(sub.label + "/late"); n != 1 {
			t.Errorf("the tool was stopped in the middle: its second effect happened %d times", n)
		}
	}
}
