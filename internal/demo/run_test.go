package demo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

const serverArg = "demo-server"

// testServer starts this test binary as a payment server.
func testServer() []string { return []string{os.Args[0], serverArg} }

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serverArg {
		if err := ServerMain(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestALostAnswerCostsOneExecutionNotTwo is the demo itself, held to what it
// has to show.
func TestALostAnswerCostsOneExecutionNotTwo(t *testing.T) {
	rows, err := Run(t.Context(), &Options{Server: testServer()})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Judge(rows) {
		t.Error(p)
	}
	for i, r := range rows {
		f, s := Faults()[i/4], Stacks()[i%4]
		if r.Fault != f || r.Stack != s {
			t.Fatalf("row %d is %s, %s; want %s, %s", i, r.Fault, r.Stack, f, s)
		}
		want := map[Stack]Row{
			StackPlain:      {ToolCalls: 1, Charges: 1, Outcome: OutcomeError},
			StackLoop:       {ToolCalls: 2, Charges: 2, Outcome: OutcomeResult},
			StackRetryPlain: {ToolCalls: 1, Charges: 1, Outcome: OutcomeUnknown},
		}
		if w, ok := want[s]; ok && (r.ToolCalls != w.ToolCalls || r.Charges != w.Charges || r.Outcome != w.Outcome) {
			t.Errorf("%+v, want %+v", r, w)
		}
		allowed := []Outcome{OutcomeResult, OutcomeReplayed}
		if f == FaultStdioKill {
			allowed = []Outcome{OutcomeUnknown}
		}
		if s == StackRetryExtended && (r.Charges != 1 || !slices.Contains(allowed, r.Outcome)) {
			t.Errorf("%+v, want 1 charge and one of %v", r, allowed)
		}
		if r.SettleMs < 0 || r.SettleMs >= callTimeout.Milliseconds() {
			t.Errorf("%+v: told at a deadline and not at the loss", r)
		}
	}
}
