package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

const baselineFile = "baseline.json"

// baseline is what the bare server reached when the file was last written.
type baseline struct {
	Comment string                 `json:"comment"`
	Runs    map[string]expectation `json:"runs"` // by runName
}

// expectation is what a run has to give, exactly.
type expectation struct {
	Counts counts `json:"counts"`
	// Known has a reason for each scenario with a failure or a warning. The
	// keys are patterns as path.Match has them.
	Known map[string]string `json:"known,omitempty"`
}

func readBaseline() (baseline, error) {
	var b baseline
	content, err := os.ReadFile(baselineFile)
	if err != nil {
		return b, err
	}
	dec := json.NewDecoder(bytes.NewReader(content))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b); err != nil {
		return b, fmt.Errorf("%s: %w", baselineFile, err)
	}
	return b, nil
}

func (b baseline) write() error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(b); err != nil {
		return err
	}
	return os.WriteFile(baselineFile, buf.Bytes(), 0o644)
}

// problems compares a report with what was expected. A run that is better than
// expected is a problem as well: the file no longer guards what was gained.
func (e expectation) problems(r report) []string {
	var out []string
	if got := r.counts(); got != e.Counts {
		out = append(out, fmt.Sprintf("%+v, expected %+v", got, e.Counts))
	}
	used := map[string]bool{}
	for _, scenario := range slices.Sorted(maps.Keys(r)) {
		c := report{scenario: r[scenario]}.counts()
		if c.Failed == 0 && c.Warnings == 0 {
			continue
		}
		explained := false
		for pattern := range e.Known {
			if ok, err := path.Match(pattern, scenario); err == nil && ok {
				used[pattern], explained = true, true
			}
		}
		if !explained {
			out = append(out, fmt.Sprintf("scenario %s is not passed, and no reason is given", scenario))
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(e.Known)) {
		if !used[pattern] {
			out = append(out, fmt.Sprintf("the reason for %s is stale: no such scenario fails", pattern))
		}
	}
	return out
}

func TestBaselineHasEveryRunAndEveryReason(t *testing.T) {
	b, err := readBaseline()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range suites() {
		for _, m := range modes() {
			want = append(want, runName(s, m))
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(b.Runs)); !slices.Equal(got, want) {
		t.Errorf("runs in %s = %q, want %q", baselineFile, got, want)
	}
	for name, run := range b.Runs {
		if run.Counts.Passed == 0 {
			t.Errorf("%s: no pass is expected, so the run would prove nothing", name)
		}
		for pattern, reason := range run.Known {
			if _, err := path.Match(pattern, ""); err != nil {
				t.Errorf("%s: pattern %q: %v", name, pattern, err)
			}
			if strings.TrimSpace(reason) == "" {
				t.Errorf("%s: no reason for %s", name, pattern)
			}
		}
	}
}

func TestBaselineReportsWorseBetterAndUnexplainedRuns(t *testing.T) {
	r := report{
		"good":    {{ID: "a", Status: success}},
		"bad-one": {{ID: "b", Status: failure}, {ID: "c", Status: info}},
	}
	for name, test := range map[string]struct {
		expected expectation
		want     int
	}{
		"as expected":    {expectation{counts{Passed: 1, Failed: 1}, map[string]string{"bad-*": "why"}}, 0},
		"fewer passes":   {expectation{counts{Passed: 2}, map[string]string{"bad-*": "why"}}, 1},
		"more passes":    {expectation{counts{Failed: 2}, map[string]string{"bad-*": "why"}}, 1},
		"no reason":      {expectation{counts{Passed: 1, Failed: 1}, nil}, 1},
		"a stale reason": {expectation{counts{Passed: 1, Failed: 1}, map[string]string{"bad-*": "why", "good": "why"}}, 1},
	} {
		if got := test.expected.problems(r); len(got) != test.want {
			t.Errorf("%s: problems = %q, want %d", name, got, test.want)
		}
	}
}
