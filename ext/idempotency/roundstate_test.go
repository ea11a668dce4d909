package idempotency_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func TestAContinuationWithoutItsKeyIsKnownByItsNonce(t *testing.T) {
	opt := func() *idempotency.Options {
		return &idempotency.Options{Tools: map[string]idempotency.ToolOptions{"dialog": {Key: schema.KeyRequired}}}
	}
	onModern(t, opt, nil, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		q := asQuestion(t, f.round(key, oneQuestion, "", ""))
		wantCharged(t, f.round("", oneQuestion, q.RequestState, accept(3)), 3, false)
		wantCharged(t, f.round(key, oneQuestion, "", ""), 3, true)
		d.want(t, 1, 2, 3)
	})
}

func TestAForgedRoundIsAnsweredWithTheLatestQuestion(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		key := f.key()
		first := f.round(key, oneQuestion, "", "")
		q := asQuestion(t, first)
		nonce, inKey, state, ok := idempotency.UnwrapState(q.RequestState)
		if !ok || inKey != key || state != "s-1" {
			t.Fatalf("the state is %q", q.RequestState)
		}
		nonce[3]++
		for _, forged := range []string{
			idempotency.WrapState(nonce, key, "s-1"), idempotency.WrapState([16]byte{}, key, "s-1"), "s-1", "idem1.", "idem1.x.y.z", q.RequestState[1:],
		} {
			sameValue(t, first, f.round(key, oneQuestion, forged, accept(9)))
		}
		other := f.round(f.key(), oneQuestion, q.RequestState, accept(9))
		if other.Error == nil || other.Error.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("another call's state: %v", other)
		}
		wantReason(t, f.round(key, twoQuestions, q.RequestState, accept(9)), schema.ReasonKeyMismatch)
		d.want(t, 1, 1)
		wantCharged(t, f.round(key, oneQuestion, q.RequestState, accept(9)), 9, false)
	})
}

// A key in a state is a key like any other: one that could not be sent is not
// a key, and the state is then not the extension's.
func TestAStateCannotBringInAKeyThatCouldNotBeSent(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		nonce := [16]byte{1}
		for _, key := range []string{"no dot", ".local", ".arg:x", ".arg:" + strings.Repeat("A", 44), f.namespaceOf(t) + "." + strings.Repeat("k", 300), "x.\n"} {
			state := idempotency.WrapState(nonce, key, "s-1")
			f.round("", oneQuestion, state, accept(1))
			if got := d.lastState(); got != state {
				t.Errorf("%q: the tool saw the state %q", key, got)
			}
		}
		if st := f.memory.Stats(); st.Records != 0 {
			t.Errorf("recorded: %+v", st)
		}
		// One that could be sent is treated as if it had been.
		state := idempotency.WrapState(nonce, "elsewhere.key", "s-1")
		wantReason(t, f.round("", oneQuestion, state, accept(1)), schema.ReasonNamespaceNotHeld)
	})
}

func TestTheToolsOwnStateReachesItUnwrapped(t *testing.T) {
	onModern(t, nil, nil, func(t *testing.T, f *fixture, d *dialog) {
		for state, want := range map[string]string{"none": "", "same": "same", "a.b.c": "a.b.c-1", "idem1.x": "idem1.x-1", "\u2028é": "\u2028é-1"} {
			args, _ := json.Marshal(map[string]any{"questions": 1, "state": state})
			key := f.key()
			q := asQuestion(t, f.round(key, string(args), "", ""))
			f.round(key, string(args), q.RequestState, accept(1))
			if got := d.lastState(); got != want {
				t.Errorf("state %q: the tool saw %q, want %q", state, got, want)
			}
		}
	})
}

func TestTheStateOnTheWireIsText(t *testing.T) {
	state := idempotency.WrapState([16]byte{0xff, 0xfe}, "ns.k~:", "the tool's own")
	for part := range strings.SplitSeq(strings.TrimSuffix(state, "the tool's own"), ".") {
		if _, err := base64.RawURLEncoding.DecodeString(part); err != nil && part != "idem1" {
			t.Errorf("%q: %v", part, err)
		}
	}
}
