package clientretry

import (
	"encoding/json"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// The table as a person reads it: what follows without a key, with one when
// nothing can have run, and with one when something may have.
var readable = map[eventKind][3]action{
	lost:              {giveUnknown, resend, resend},
	tooLarge:          {giveUnknown, giveUnknown, giveUnknown},
	unlisted:          {giveUnknown, giveUnknown, giveUnknown},
	cancelled:         {giveUnknown, giveUnknown, giveUnknown},
	cancelledBefore:   {giveNotRun, giveNotRun, giveUnknown},
	notSent:           {giveNotRun, resend, resend},
	dialFailed:        {giveNotRun, resend, resend},
	noConnection:      {giveNotRun, giveNotRun, giveUnknown},
	sessionEnded:      {giveNotRun, resend, resend},
	refused:           {giveNotRun, giveNotRun, giveUnknown},
	otherIdentity:     {giveNotRun, giveNotRun, giveUnknown},
	undeclared:        {giveNotRun, giveNotRun, giveUnknown},
	pathLost:          {giveUnknown, resend, resend},
	pathUnproven:      {giveUnknown, giveUnknown, giveUnknown},
	tooLate:           {giveUnknown, giveUnknown, giveUnknown},
	marked:            {give, give, give},
	unmarkedResult:    {give, give, giveDuplicate},
	unmarkedError:     {give, give, giveUnknown},
	undecodable:       {giveLostResult, giveLostResult, giveLostResult},
	extNotRun:         {giveNotRun, giveNotRun, giveUnknown},
	extNotRunWaiting:  {giveNotRun, resend, resend},
	extKeyUnsupported: {giveNotRun, dropKey, giveUnknown},
	extNotHeld:        {giveNotRun, remint, resend},
	extClosed:         {giveNotRun, remint, remint},
	extNeverRan:       {giveNotRun, giveNotRun, giveNotRun},
	extRunning:        {giveUnknown, giveUnknown, giveUnknown},
	extRunningWaiting: {giveUnknown, resend, resend},
	extCompleted:      {giveLostResult, giveLostResult, giveLostResult},
	extUnknown:        {giveUnknown, giveUnknown, giveUnknown},
}

func TestEveryRowOfTheDecisionTableIsAsTheSEPReads(t *testing.T) {
	if len(readable) != len(rules) {
		t.Errorf("%d rows here, %d in the table", len(readable), len(rules))
	}
	for e := range rules {
		want, ok := readable[eventKind(e)]
		if !ok || rules[e].says == "" {
			t.Errorf("row %d (%s) is not described", e, rules[e].says)
			continue
		}
		columns := [3]history{
			{},
			{keyed: true, minted: true, namespace: true},
			{keyed: true, minted: true, namespace: true, lost: true, resent: true},
		}
		for i, h := range columns {
			if got := decide(h, eventKind(e)).action; got != want[i] {
				t.Errorf("%q, column %d: action %d, want %d", rules[e].says, i, got, want[i])
			}
		}
	}
}

// histories are all that there can be.
func histories(yield func(history) bool) {
	for bits := range 1 << 9 {
		b := func(i int) bool { return bits&(1<<i) != 0 }
		h := history{keyed: b(0), again: b(1), minted: b(2), strict: b(3), lost: b(4), begun: b(5), resent: b(6), tried: b(7), namespace: b(8)}
		if h.minted && !h.keyed || h.again && h.keyed {
			continue
		}
		if !yield(h) {
			return
		}
	}
}

// neverRan: the server's word that no attempt ran or will.
func neverRan(e eventKind) bool { return e == extNeverRan || e == extClosed }

func TestNoHistoryMakesTheDecisionUnsafe(t *testing.T) {
	for h := range histories {
		for i := range rules {
			e := eventKind(i)
			d := decide(h, e)
			fail := func(what string) { t.Errorf("%q after %+v: %s (action %d)", rules[i].says, h, what, d.action) }
			switch {
			case d.action == dropKey && (h.open() || h.strict || !h.minted):
				fail("a send without a key follows one that may have run")
			case d.action == remint && !h.minted:
				fail("a key is made in the place of a caller's")
			case d.action == remint && (h.open() || h.strict) && e != extClosed:
				fail("a second key is made although the first may have run")
			case d.action == remint && h.begun:
				fail("a second key is made although a round of the first ran")
			case d.action == remint && !h.namespace:
				fail("a key is made in a namespace that nobody named")
			case d.action == giveNotRun && h.lost && !neverRan(e):
				fail("a lost call is reported as not run")
			case d.action == giveNotRun && h.begun && e != extNeverRan:
				fail("a call that has begun is reported as not run")
			case h.keyed && h.lost && e == unmarkedError && d.action == give:
				fail("an error that is no outcome settles a lost call")
			case !h.keyed && !h.again && sendsAgain(d.action):
				fail("an unkeyed call is sent again without the caller's word")
			case h.lost && !d.lost && !neverRan(e) && d.action != give:
				fail("a loss is forgotten")
			case h.strict && h.keyed && d.action == giveNotRun && rules[i].trusts:
				fail("a strict client believes a refusal")
			}
		}
	}
}

func sendsAgain(a action) bool { return a == resend || a == remint || a == dropKey }

func TestWhatIsNotClassifiedMayHaveRun(t *testing.T) {
	var none eventKind
	if none != lost || !rules[none].opens {
		t.Error("the zero event is not the ambiguous one")
	}
	var end roundEnd
	if end != pending {
		t.Error("the zero end of a round is not the ambiguous one")
	}
	var kind LossKind
	if kind != LossOther {
		t.Error("the zero kind of loss is not the unknown one")
	}
}

func TestNamespaceNotHeldAlternatesBetweenTheSameKeyAndANewOne(t *testing.T) {
	h := history{keyed: true, minted: true, namespace: true}
	if d := decide(h, extNotHeld); d != (decision{remint, false}) {
		t.Fatalf("first: %+v", d)
	}
	h.tried = true
	if d := decide(h, extNotHeld); d != (decision{resend, false}) {
		t.Errorf("after a new key: %+v, want it tried once more", d)
	}
	h.tried = false
	if d := decide(h, extNotHeld); d != (decision{remint, false}) {
		t.Errorf("then: %+v, want another new key", d)
	}
}

func TestExtensionErrorsAreSortedByOutcomeAndOnlyFourByReason(t *testing.T) {
	ms, negative := int64(5), int64(-5)
	for _, row := range schema.Reasons() {
		for _, wait := range []*int64{nil, &ms, &negative} {
			known := extensionEvent(schema.ErrorData{Reason: row.Reason, Outcome: row.Outcome, RetryAfterMs: wait})
			other := extensionEvent(schema.ErrorData{Reason: "somethingNew", Outcome: row.Outcome, RetryAfterMs: wait})
			special := row.Reason == schema.ReasonNamespaceNotHeld || row.Reason == schema.ReasonNamespaceClosed || row.Reason == schema.ReasonKeyUnsupported
			if !special && known != other {
				t.Errorf("%s is sorted as %d, an unknown reason with its outcome as %d", row.Reason, known, other)
			}
			if special && known == other {
				t.Errorf("%s is sorted like any reason", row.Reason)
			}
		}
		// A reason with an outcome that is not its own says nothing more.
		if got := extensionEvent(schema.ErrorData{Reason: row.Reason, Outcome: schema.OutcomeUnknown}); got != extUnknown {
			t.Errorf("%s with the outcome unknown is sorted as %d", row.Reason, got)
		}
	}
	for _, o := range []schema.Outcome{"", "retry", "NOTRUN"} {
		if got := extensionEvent(schema.ErrorData{Reason: schema.ReasonKeyMismatch, Outcome: o}); got != extUnknown {
			t.Errorf("the outcome %q is sorted as %d, not as unknown", o, got)
		}
	}
	if extensionEvent(schema.ErrorData{Outcome: schema.OutcomeNotRun, RetryAfterMs: &negative}) != extNotRun {
		t.Error("a negative retryAfterMs invites a re-send")
	}
}

func TestOnlyAnErrorThatAKeyHasCausedProvesThePath(t *testing.T) {
	for _, row := range schema.Reasons() {
		want := row.Reason != schema.ReasonKeyRequired && row.Reason != schema.ReasonPrincipalUnknown
		if got := provesPath(schema.ErrorData{Reason: row.Reason, Outcome: row.Outcome}); got != want {
			t.Errorf("%s proves the path: %v, want %v", row.Reason, got, want)
		}
	}
	for _, d := range []schema.ErrorData{{}, {Reason: "somethingNew", Outcome: schema.OutcomeNotRun}, {Reason: schema.ReasonKeyInvalid, Outcome: schema.OutcomeUnknown}} {
		if provesPath(d) {
			t.Errorf("%+v proves the path", d)
		}
	}
}

func TestInvalidSettingsCountAsNotDeclared(t *testing.T) {
	for text, want := range map[string]*schema.ServerSettings{
		`{"keyNamespace":"a","retentionMs":1}`:                           {KeyNamespace: "a", RetentionMs: 1},
		`{"keyNamespace":"a","retentionMs":3.6e6,"keyParam":true,"x":1}`: {KeyNamespace: "a", RetentionMs: 3600000, KeyParam: true},
		`{"keyNamespace":"a","retentionMs":1e300}`:                       {KeyNamespace: "a", RetentionMs: 1<<63 - 1},
		`{"keyNamespace":"a","retentionMs":0}`:                           nil,
		`{"keyNamespace":"a","retentionMs":-1}`:                          nil,
		`{"keyNamespace":"a","retentionMs":1.5}`:                         nil,
		`{"keyNamespace":"a","retentionMs":"1000"}`:                      nil,
		`{"keyNamespace":"a"}`:                                           nil,
		`{"retentionMs":1}`:                                              nil,
		`{"keyNamespace":"","retentionMs":1}`:                            nil,
		`{"keyNamespace":"a.b","retentionMs":1}`:                         nil,
		`{"keyNamespace":7,"retentionMs":1}`:                             nil,
		`{"keyNamespace":"a","retentionMs":1,"keyParam":"yes"}`:          nil,
		`[]`: nil, `null`: nil, `true`: nil, `"a"`: nil,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		got := readSettings(v)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}
