package e2e_test

import (
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/internal/fault"
)

// optionsFor are options with which the loss itself settles the call, and not
// a timeout; but for the fault that is a silence.
func optionsFor(kind fault.Kind) *clientretry.Options {
	if kind == fault.Hang {
		return impatient()
	}
	return patient()
}

func TestALostResponseIsReplayedByAnExtendedServer(t *testing.T) {
	for _, kind := range httpFaults() {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			onEachServer(t, func(t *testing.T, stateless, json bool) {
				p := newPayments(t, true, stateless, json, fault.Rule{Tool: "charge", Nth: 1, Action: fault.Action{Kind: kind}})
				s := connect(t, p.path.URL, optionsFor(kind))
				res, report, err := charge(t, s)
				if err != nil {
					t.Fatalf("%v (losses %v)", err, report.Losses)
				}
				if res == nil || p.charges.Load() != 1 || p.calls() != 2 || report.Attempts != 2 || len(report.Losses) != 1 {
					t.Errorf("%d charges, %d calls, report %+v", p.charges.Load(), p.calls(), report)
				}
				if wantReplay := kind != fault.CutBefore; report.Replayed != wantReplay || !report.KeyHonoured {
					t.Errorf("replayed %v, want %v", report.Replayed, wantReplay)
				}
				if _, _, err := charge(t, s); err != nil {
					t.Errorf("the next call on the session: %v", err)
				}
			})
		})
	}
}

// K4.
func TestALostResponseOfAnUnextendedServerIsUnknownAtOnceAndNothingIsSentAgain(t *testing.T) {
	for _, kind := range httpFaults() {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			onEachServer(t, func(t *testing.T, stateless, json bool) {
				p := newPayments(t, false, stateless, json, fault.Rule{Tool: "charge", Nth: 1, Action: fault.Action{Kind: kind}})
				s := connect(t, p.path.URL, optionsFor(kind))
				_, report, err := charge(t, s)
				if u := (outcome{err: err, report: report}).wantUnknown(t); p.calls() != 1 || u.Attempts != 1 || u.Key != "" {
					t.Errorf("%d calls, report %+v", p.calls(), report)
				}
				if res, _, err := charge(t, s); err != nil || res == nil {
					t.Errorf("the next call on the session: %v", err)
				}
			})
		})
	}
}
