package clientretry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func TestACallCarriesAKeyWhereTheServerReadsIt(t *testing.T) {
	for _, param := range []bool{true, false} {
		play{settings: declared("keyParam", param), script: each(done(false))}.run(t, func(t *testing.T, o outcomeOf) {
			c := o.peer.seen()[0]
			ns, local, err := schema.ParseKey(c.Key)
			if o.err != nil || err != nil || ns != "ns1" || len(local) < 26 || c.InParam != param || c.Attempt != 0 {
				t.Errorf("%v; key %q (%v), in the param %v", o.err, c.Key, err, c.InParam)
			}
			if o.report.Key != c.Key || !o.report.KeyHonoured || o.report.Attempts != 1 || o.report.Replayed || o.report.PathChecks != 0 {
				t.Errorf("report %+v", o.report)
			}
		})
	}
}

func TestAReSendHasTheSameKeyANewIDAndItsNumber(t *testing.T) {
	play{script: each(proxied, proxied, done(true))}.run(t, func(t *testing.T, o outcomeOf) {
		calls := o.peer.seen()
		if o.err != nil || len(calls) != 3 || !o.report.Replayed || !o.report.KeyHonoured || o.report.Attempts != 3 {
			t.Fatalf("%v, report %+v", o.err, o.report)
		}
		for i, c := range calls {
			if c.Key != calls[0].Key || i > 0 && (string(c.ID) == string(calls[i-1].ID) || c.Attempt != i+1) {
				t.Errorf("attempt %d: key %q, id %s, number %d", i+1, c.Key, c.ID, c.Attempt)
			}
		}
		if o.peer.pathChecks() != 2 || o.report.PathChecks != 2 || len(o.report.Losses) != 2 {
			t.Errorf("%d path checks, report %+v", o.peer.pathChecks(), o.report)
		}
	})
}

func TestAToolThatTakesNoKeysIsCalledWithoutOneAndNeverSentAgain(t *testing.T) {
	noKeys := func(last any) script {
		return func(c *toolCall) any {
			if c.Key != "" {
				return refusal(schema.ReasonKeyUnsupported)
			}
			return last
		}
	}
	play{script: noKeys(done()), opt: clientretry.Options{Attempts: 1}}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || len(o.peer.seen()) != 2 || o.report.Key != "" || o.report.KeyHonoured {
			t.Errorf("%v, keys %q, report %+v", o.err, o.peer.keys(), o.report)
		}
	})
	play{script: noKeys(proxied)}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 2 {
			t.Errorf("%v, keys %q", o.err, o.peer.keys())
		}
	})
	play{script: noKeys(done()), context: withMintedKey}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "notRun" || len(o.peer.seen()) != 1 {
			t.Errorf("a key that the caller gave was dropped: %v, keys %q", o.err, o.peer.keys())
		}
	})
	play{script: noKeys(done()), opt: clientretry.Options{Strict: true}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 {
			t.Errorf("strict: %v, keys %q", o.err, o.peer.keys())
		}
	})
}

func TestNamespaceNotHeldWithNothingLostGetsANewKeyInTheNewNamespace(t *testing.T) {
	held := func(ns string) script {
		return func(c *toolCall) any {
			if strings.HasPrefix(c.Key, ns+".") {
				return done(false)
			}
			return refusal(schema.ReasonNamespaceNotHeld, namespace(ns))
		}
	}
	play{script: held("ns2")}.run(t, func(t *testing.T, o outcomeOf) {
		keys := o.peer.keys()
		if o.err != nil || len(keys) != 2 || !strings.HasPrefix(keys[1], "ns2.") || o.report.Key != keys[1] || o.took != 0 {
			t.Errorf("%v, keys %q, %v", o.err, keys, o.took)
		}
		if c := o.peer.seen()[1]; c.Attempt != 0 {
			t.Errorf("the first attempt with a new key says that it is number %d", c.Attempt)
		}
	})
	// X1: a key that was handed out may have run elsewhere.
	play{script: held("ns2"), context: withMintedKey}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || slices.ContainsFunc(o.peer.keys(), func(k string) bool { return strings.HasPrefix(k, "ns2.") }) {
			t.Errorf("%v, keys %q", o.err, o.peer.keys())
		}
	})
	// X2: where a request may be delivered twice nothing is taken for granted.
	play{script: held("ns2"), opt: clientretry.Options{Strict: true}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || slices.ContainsFunc(o.peer.keys(), func(k string) bool { return strings.HasPrefix(k, "ns2.") }) {
			t.Errorf("strict: %v, keys %q", o.err, o.peer.keys())
		}
	})
	for _, bad := range []string{"", "a.b", strings.Repeat("x", 65), "é"} {
		play{script: each(refusal(schema.ReasonNamespaceNotHeld, namespace(bad)))}.run(t, func(t *testing.T, o outcomeOf) {
			if keys := o.peer.keys(); told(o.err) != "notRun" || len(keys) != 4 || keys[0] != keys[3] {
				t.Errorf("keyNamespace %q: %v, keys %q", bad, o.err, keys)
			}
		})
	}
}

func TestNamespaceClosedGetsANewKeyAlsoAfterALoss(t *testing.T) {
	play{script: each(proxied, refusal(schema.ReasonNamespaceClosed, namespace("ns2")), done(false))}.run(t, func(t *testing.T, o outcomeOf) {
		keys := o.peer.keys()
		if o.err != nil || len(keys) != 3 || keys[0] != keys[1] || !strings.HasPrefix(keys[2], "ns2.") || o.report.PossibleDuplicate {
			t.Errorf("%v, keys %q, %+v", o.err, keys, o.report)
		}
	})
	play{script: each(refusal(schema.ReasonNamespaceClosed, namespace("ns2"))), context: withMintedKey}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "notRun" || len(o.peer.keys()) != 1 {
			t.Errorf("a caller's key: %v, keys %q", o.err, o.peer.keys())
		}
	})
}

// X13: replicas without a shared store, strictly in turn.
func TestUnsharedReplicasInTurnSettleWithinTheAttempts(t *testing.T) {
	for replicas := 2; replicas <= 5; replicas++ {
		runs := map[string]int{}
		turn := 1
		s := func(c *toolCall) any {
			ns := "ns" + string(rune('1'+turn%replicas))
			turn++
			if !strings.HasPrefix(c.Key, ns+".") {
				return refusal(schema.ReasonNamespaceNotHeld, namespace(ns))
			}
			runs[c.Key]++
			return done(false)
		}
		play{script: s}.run(t, func(t *testing.T, o outcomeOf) {
			if replicas == 2 && o.err != nil {
				t.Errorf("two replicas: %v", o.err)
			}
			if got := told(o.err); got != "result" && got != "notRun" || len(o.peer.seen()) > 4 || len(runs) > 1 {
				t.Errorf("%d replicas: %v after %d calls, runs %v", replicas, o.err, len(o.peer.seen()), runs)
			}
			clear(runs)
			turn = 1
		})
	}
}

func TestAKeyOfTheCallersIsCheckedAndSentAsItIs(t *testing.T) {
	given := func(key string) func(*testing.T, *clientretry.Session, context.Context) context.Context {
		return func(_ *testing.T, _ *clientretry.Session, ctx context.Context) context.Context {
			return clientretry.WithKey(ctx, key)
		}
	}
	play{script: each(done(true)), context: given("old-ns.restored")}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || o.peer.keys()[0] != "old-ns.restored" {
			t.Errorf("%v, keys %q", o.err, o.peer.keys())
		}
	})
	for _, key := range []string{"nodot", "ns1.", ".x", "ns1.é", strings.Repeat("k", 300)} {
		play{script: each(done(false)), context: given(key)}.run(t, func(t *testing.T, o outcomeOf) {
			if told(o.err) != "notRun" || !errors.Is(o.err, schema.ErrKeyInvalid) || len(o.peer.seen()) != 0 {
				t.Errorf("key %q: %v, %d calls", key, o.err, len(o.peer.seen()))
			}
		})
	}
	play{plain: true, script: each(done()), context: given("ns1.x")}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 0 || o.report.Key != "ns1.x" {
			t.Errorf("unextended: %v, %d calls, %+v", o.err, len(o.peer.seen()), o.report)
		}
	})
	play{script: each(done(false)), params: &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{schema.MetaKey: "ns1.mine"}}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "notRun" || len(o.peer.seen()) != 0 {
			t.Errorf("a key in _meta: %v", o.err)
		}
	})
}

func TestTheCallersParamsStayAsTheyAre(t *testing.T) {
	params := &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{"mine": 1}}
	play{script: each(proxied, done(true)), params: params}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || len(params.Meta) != 1 || params.Arguments != nil {
			t.Errorf("%v, params are now %+v", o.err, params)
		}
	})
}

func TestAMemberOfTheCallersInMetaIsNotDoubled(t *testing.T) {
	p := newHTTPPeer(t, true, declared())
	p.script = each(proxied, done(true))
	s := openHTTP(t, p, quick())
	_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{
		"progressToken": "p", schema.ExtensionID: map[string]any{"attempt": 7}}})
	if calls := p.seen(); err != nil || len(calls) != 2 || calls[1].Attempt != 7 ||
		strings.Count(string(calls[1].Body), `"`+schema.ExtensionID+`":`) != 1 {
		t.Errorf("%v, %d calls, the last %s", err, len(calls), calls[len(calls)-1].Body)
	}
	for _, c := range p.calls {
		if c.pathCheck() && strings.Contains(string(c.Body), "progressToken") {
			t.Errorf("progress of the path check would be taken for the call's: %s", c.Body)
		}
	}
}

func TestAnUnkeyedCallIsSentAgainOnlyOnTheCallersWord(t *testing.T) {
	word := clientretry.Options{RetryUnkeyed: func(tool string) bool { return tool == "read" }}
	play{plain: true, opt: word, params: &mcp.CallToolParams{Name: "read"}, script: each(proxied, proxied, done())}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || len(o.peer.seen()) != 3 || o.report.PathChecks != 0 || !o.report.PossibleDuplicate {
			t.Errorf("%v, %+v", o.err, o.report)
		}
		for _, c := range o.peer.seen() {
			if c.Key != "" || c.Attempt != 0 {
				t.Errorf("an unextended server was sent key %q, attempt %d", c.Key, c.Attempt)
			}
		}
	})
	play{plain: true, opt: word, script: each(proxied, done())}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 {
			t.Errorf("another tool: %v, %d calls", o.err, len(o.peer.seen()))
		}
	})
}
