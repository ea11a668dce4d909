package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/internal/demo"
)

// TestMain is also the program: the demo starts its servers from its own file.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == demoServerName {
		os.Exit(run(context.Background(), os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
	}
	os.Exit(m.Run())
}

func sepcheck(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(ctx, args, streams{strings.NewReader(""), &out, &err})
	return code, out.String(), err.String()
}

func rows() []demo.Row {
	var rows []demo.Row
	for _, f := range demo.Faults() {
		for _, s := range demo.Stacks() {
			rows = append(rows, demo.Row{Fault: f, Stack: s, ToolCalls: 1, Charges: 1, Outcome: demo.OutcomeUnknown, SettleMs: 3})
		}
	}
	return rows
}

func TestWrongUseIsExitTwoAndNothingOnStandardOutput(t *testing.T) {
	for _, line := range []string{
		"", "dmo", "demo again", "demo --format xml", "demo --loud", "demo --timeout 0s", "demo --timeout soon", "--loud",
	} {
		code, out, errs := sepcheck(t.Context(), strings.Fields(line)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, "--help") {
			t.Errorf("sepcheck %s: exit %d\n%s%s", line, code, out, errs)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := sepcheck(t.Context(), "demo", "--dir", dir); code != exitUsage {
		t.Errorf("a folder in use: exit %d\n%s", code, errs)
	}
}

func TestAWordThatIsNearlyACommandIsAnsweredWithTheCommand(t *testing.T) {
	if _, _, errs := sepcheck(t.Context(), "dmo"); !strings.Contains(errs, "did you mean demo?") {
		t.Error(errs)
	}
}

func TestHelpNamesTheCommandsAndTheExitCodesAndHidesTheServer(t *testing.T) {
	for _, line := range []string{"--help", "demo --help", "help demo"} {
		code, out, _ := sepcheck(t.Context(), strings.Fields(line)...)
		if code != exitOK || !strings.Contains(out, "demo") || !strings.Contains(out, exitCodesHelp) || strings.Contains(out, demoServerName) {
			t.Errorf("sepcheck %s: exit %d\n%s", line, code, out)
		}
	}
}

func TestAPlantedDoubleChargeIsExitOne(t *testing.T) {
	for name, tc := range map[string]struct {
		plant  func([]demo.Row) []demo.Row
		runErr error
		want   int
		says   string
	}{
		"all well":     {func(r []demo.Row) []demo.Row { return r }, nil, exitOK, ""},
		"two charges":  {func(r []demo.Row) []demo.Row { r[3].Charges = 2; return r }, nil, exitFailed, "FAIL: eof, retry-extended: 2 charges"},
		"no charge":    {func(r []demo.Row) []demo.Row { r[3].Charges = 0; return r }, nil, exitFailed, "FAIL: eof, retry-extended: 0 charges"},
		"second call":  {func(r []demo.Row) []demo.Row { r[2].ToolCalls = 2; return r }, nil, exitFailed, "FAIL: eof, retry-plain: 2 calls"},
		"missing row":  {func(r []demo.Row) []demo.Row { return r[:23] }, nil, exitFailed, "FAIL: timeout, retry-extended: 0 rows"},
		"not finished": {func(r []demo.Row) []demo.Row { r[3].Charges = 2; return r }, errors.New("why"), exitFailed, "FAIL: eof, retry-extended: 2 charges"},
	} {
		var errs bytes.Buffer
		code := exitCode(&errs, conclude(&errs, tc.plant(rows()), tc.runErr))
		if code != tc.want || !strings.Contains(errs.String(), tc.says) {
			t.Errorf("%s: exit %d\n%s", name, code, errs.String())
		}
	}
}

func TestTheJSONHasExactlyTheDocumentedMembers(t *testing.T) {
	var out bytes.Buffer
	if err := write(&out, formatJSON, rows()[:1]); err != nil {
		t.Fatal(err)
	}
	want := `{"rows":[{"fault":"eof","stack":"plain","toolCalls":1,"charges":1,"outcome":"unknown","settleMs":3}]}`
	var got bytes.Buffer
	if err := json.Compact(&got, out.Bytes()); err != nil || got.String() != want {
		t.Errorf("%v\n got %s\nwant %s", err, got.String(), want)
	}
	out.Reset()
	if err := write(&out, formatJSON, nil); err != nil || strings.Contains(out.String(), "null") {
		t.Errorf("no rows: %s, %v", out.String(), err)
	}
}

func TestTheFootnoteAppearsOnlyWithTheRowThatItExplains(t *testing.T) {
	for _, f := range []format{formatTable, formatMarkdown} {
		all := rows() // every outcome is unknown
		var with, without bytes.Buffer
		if err := errors.Join(write(&with, f, all), write(&without, f, all[:8])); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(with.String(), "¹"); n != 2 {
			t.Errorf("%s: %d marks, want one in the table and one below\n%s", f, n, with.String())
		}
		if strings.Contains(without.String(), "¹") {
			t.Errorf("%s: a footnote without its row\n%s", f, without.String())
		}
	}
}

func TestAnInterruptedDemoIsExitOneAndSaysWhatIsMissing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, errs := sepcheck(ctx, "demo")
	if code != exitFailed || !strings.Contains(errs, "timeout, retry-extended: no row") {
		t.Errorf("exit %d\n%s", code, errs)
	}
}

func TestTheDemoRunsFromTheCommandLine(t *testing.T) {
	code, out, errs := sepcheck(t.Context(), "demo", "--format", "json")
	if code != exitOK {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	var got struct{ Rows []demo.Row }
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Rows) != 24 {
		t.Errorf("%d rows, %v", len(got.Rows), err)
	}
	if n := strings.Count(errs, "\n"); n != 24 || strings.Contains(errs, "\x1b") {
		t.Errorf("progress has %d lines, want one a row and no control characters:\n%s", n, errs)
	}
	wantREADME(t, got.Rows)
}

// wantREADME compares the README's table with what the demo found just now,
// but for the times, and for the number of calls where that depends on them.
func wantREADME(t *testing.T, rows []demo.Row) {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	inREADME := map[string][]string{}
	for line := range strings.Lines(string(readme)) {
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "¹", ""))
		}
		if len(cells) == 8 {
			inREADME[cells[1]+" "+cells[2]] = cells
		}
	}
	for _, r := range rows {
		cells := inREADME[fmt.Sprint(r.Fault, " ", r.Stack)]
		if cells == nil {
			t.Errorf("the README's table has no row for %s, %s", r.Fault, r.Stack)
			continue
		}
		if cells[4] != fmt.Sprint(r.Charges) || cells[5] != fmt.Sprint(r.Outcome) {
			t.Errorf("the README says %s charges and %q for %s, %s; the demo found %d and %q", cells[4], cells[5], r.Fault, r.Stack, r.Charges, r.Outcome)
		}
	}
}
