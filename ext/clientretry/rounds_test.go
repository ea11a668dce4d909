package clientretry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// question is an interim result that asks the user.
func question(state string) string {
	return fmt.Sprintf(`{"resultType":"input_required","requestState":%q,"_meta":{%q:{"replayed":false}},
		"inputRequests":{"sure":{"method":"elicitation/create","params":{"mode":"form","message":"sure?","requestedSchema":{"type":"object"}}}}}`,
		state, schema.ExtensionID)
}

// dialogue connects a client whose user takes the given time to answer.
func dialogue(t *testing.T, peer *pipePeer, opt *clientretry.Options, user func(n int) (time.Duration, error)) *clientretry.Session {
	t.Helper()
	asked := 0
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asked++
			wait, err := user(asked)
			time.Sleep(wait)
			return &mcp.ElicitResult{Action: "accept"}, err
		},
	})
	s, err := clientretry.New(client, opt).Connect(t.Context(), peer, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func atOnce(int) (time.Duration, error) { return 0, nil }

// byRound answers by what the request carries: the n-th time a first round
// comes, and the n-th time a continuation does.
func byRound(first, next []any) script {
	a, b := 0, 0
	return func(c *toolCall) any {
		if c.State == "" {
			a++
			return first[min(a, len(first))-1]
		}
		b++
		return next[min(b, len(next))-1]
	}
}

func TestOneKeySpansAllRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, declared(), byRound([]any{question("s1")}, []any{question("s2"), done(false)}))
		s := dialogue(t, peer, nil, atOnce)
		defer s.Close()
		report, _, err := call(t, s, "charge")
		keys := peer.keys()
		if err != nil || len(keys) != 3 || keys[0] != keys[1] || keys[1] != keys[2] || report.Attempts != 1 {
			t.Errorf("%v, keys %q, %+v", err, keys, report)
		}
	})
}

// X3: the response to a round is lost; the re-send starts again at the first,
// which the record answers with the latest question, or with the outcome.
func TestALostRoundIsSentAgainUnderTheSameKey(t *testing.T) {
	for name, v := range map[string]struct {
		script script
		calls  int
	}{
		"first":        {byRound([]any{proxied, question("s1")}, []any{done(false)}), 3},
		"continuation": {byRound([]any{question("s1")}, []any{proxied, done(false)}), 4},
		"outcome":      {byRound([]any{question("s1"), done(true)}, []any{proxied}), 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			peer := newPipePeer(true, declared(), v.script)
			s := dialogue(t, peer, nil, atOnce)
			defer s.Close()
			report, _, err := call(t, s, "charge")
			keys := peer.keys()
			if err != nil || len(keys) != v.calls || report.Attempts != 2 || report.PathChecks != 1 {
				t.Errorf("%s: %v, keys %q, %+v", name, err, keys, report)
			}
			for i, c := range peer.seen() {
				if c.Key != keys[0] {
					t.Errorf("%s: call %d has another key", name, i)
				}
			}
		})
	}
}

// A round that ran may have had an effect: nothing after it is "not run", and
// no other key follows.
func TestACallThatHasBegunIsNeverNotRun(t *testing.T) {
	for name, answer := range map[string]any{
		"namespaceNotHeld": refusal(schema.ReasonNamespaceNotHeld, namespace("ns2")),
		"namespaceClosed":  refusal(schema.ReasonNamespaceClosed, namespace("ns2")),
		"keyMismatch":      refusal(schema.ReasonKeyMismatch),
		"keyUnsupported":   refusal(schema.ReasonKeyUnsupported),
		"capacity":         refusal(schema.ReasonCapacityExceeded, after(5)),
	} {
		synctest.Test(t, func(t *testing.T) {
			peer := newPipePeer(true, declared(), byRound([]any{question("s1"), answer}, []any{answer}))
			s := dialogue(t, peer, nil, atOnce)
			defer s.Close()
			_, _, err := call(t, s, "charge")
			keys := peer.keys()
			if told(err) != "unknown" {
				t.Errorf("%s: %v", name, err)
			}
			for _, k := range keys {
				if k != keys[0] {
					t.Errorf("%s: keys %q", name, keys)
				}
			}
		})
	}
}

// X18: what the server says to a continuation is the call's error.
func TestARejectedContinuationIsToldAsItIs(t *testing.T) {
	rejected := &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState rejected"}
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, declared(), byRound([]any{question("s1")}, []any{rejected}))
		s := dialogue(t, peer, nil, atOnce)
		defer s.Close()
		_, _, err := call(t, s, "charge")
		var rpc *jsonrpc.Error
		if told(err) != "error" || !errors.As(err, &rpc) || rpc.Code != rejected.Code {
			t.Errorf("%v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, declared(), byRound([]any{question("s1")}, []any{proxied, rejected}))
		s := dialogue(t, peer, nil, atOnce)
		defer s.Close()
		if _, _, err := call(t, s, "charge"); told(err) != "unknown" {
			t.Errorf("after a loss: %v", err)
		}
	})
}

func TestAHandlerOfTheClientsThatFailsEndsTheCallWithItsError(t *testing.T) {
	no := errors.New("the user has gone home")
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			next := []any{done(false)}
			if lost {
				next = []any{proxied}
			}
			peer := newPipePeer(true, declared(), byRound([]any{question("s1")}, next))
			s := dialogue(t, peer, nil, func(n int) (time.Duration, error) {
				if n == 1 && lost {
					return 0, nil
				}
				return 0, no
			})
			defer s.Close()
			_, _, err := call(t, s, "charge")
			if want := map[bool]string{false: "error", true: "unknown"}[lost]; told(err) != want || !errors.Is(err, no) {
				t.Errorf("lost %v: %v", lost, err)
			}
		})
	}
}

// X17: the user's time is neither the attempt's nor the key's.
func TestTheTimeAUserTakesCountsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := byRound([]any{question("s1"), question("s1")}, []any{proxied, done(false)})
		peer := newPipePeer(true, declared("retentionMs", 60_000), func(c *toolCall) any {
			time.Sleep(10 * time.Second)
			return answer(c)
		})
		s := dialogue(t, peer, &clientretry.Options{Deadline: time.Minute}, func(int) (time.Duration, error) { return 3 * time.Hour, nil })
		defer s.Close()
		report, took, err := call(t, s, "charge")
		if err != nil || took < 6*time.Hour || report.Attempts != 2 {
			t.Errorf("%v after %v, %+v", err, took, report)
		}
	})
}

// A path that answers the first round and drops the key would run it again.
func TestACallThatHasBegunIsSentAgainOnlyOverAProvenPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, declared(), byRound([]any{question("s1")}, []any{done(false)}))
		peer.path = each(&jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown tool"})
		var broke bool
		s := dialogue(t, peer, &clientretry.Options{Dial: peer.dial}, func(int) (time.Duration, error) {
			if !broke {
				broke = true
				peer.last().die() // before the continuation is sent
				time.Sleep(time.Second)
			}
			return 0, nil
		})
		defer s.Close()
		report, _, err := call(t, s, "charge")
		if told(err) != "unknown" || len(peer.seen()) != 1 || report.PathChecks != 1 || strings.Contains(err.Error(), "not run") {
			t.Errorf("%v, keys %q, %+v", err, peer.keys(), report)
		}
	})
}
