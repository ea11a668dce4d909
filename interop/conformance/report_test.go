package conformance

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// check is one verdict of the official package. A scenario may give several
// under one id.
type check struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Status  string `json:"status"`
	Message string `json:"errorMessage"` // why it did not pass
}

// What a check can say. INFO is not a verdict: it notes a request that was
// sent or an event that came.
const (
	success = "SUCCESS"
	failure = "FAILURE"
	warning = "WARNING"
	skipped = "SKIPPED"
	info    = "INFO"
)

// report has the checks of a run by scenario.
type report map[string][]check

// counts says how often the package gave each verdict.
type counts struct {
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	Warnings int `json:"warnings"`
	Skipped  int `json:"skipped"`
}

func (r report) counts() counts {
	var c counts
	for _, checks := range r {
		for _, ch := range checks {
			switch ch.Status {
			case success:
				c.Passed++
			case failure:
				c.Failed++
			case warning:
				c.Warnings++
			case skipped:
				c.Skipped++
			}
		}
	}
	return c
}

// verdicts returns what the scenario's checks said and why, sorted, because the
// order of checks of concurrent requests is not fixed.
func (r report) verdicts(scenario string) []string {
	var out []string
	for _, ch := range r[scenario] {
		if ch.Status == info {
			continue
		}
		if ch.ID == "tasks-extension-advertised" {
			// Neither server has the tasks extension, and the check fails on
			// both; it words that differently if there is another extension.
			ch.Message = ""
		}
		out = append(out, fmt.Sprintf("%s %s: %s %s", ch.ID, ch.Name, ch.Status, ch.Message))
	}
	slices.Sort(out)
	return out
}

// A line of the summary, and the end of a result directory's name.
var (
	summaryLine = regexp.MustCompile(`(?m)^[✓✗] (\S+): (\d+) passed, (\d+) failed$`)
	timestamp   = regexp.MustCompile(`-\d{4}-\d\d-\d\dT[\d-]+Z$`)
)

// readReport reads the result files that a run left in dir and holds them
// against the summary in its output: a scenario missing in either, or counted
// differently, is an error and not a smaller report.
func readReport(dir, output string) (report, error) {
	found, err := readResults(dir)
	if err != nil {
		return nil, err
	}
	summary := summaryLine.FindAllStringSubmatch(output, -1)
	if len(summary) == 0 {
		return nil, fmt.Errorf("no summary in the output: the run broke off")
	}
	listed := map[string]bool{}
	for _, line := range summary {
		scenario, passed, failed := line[1], line[2], line[3]
		listed[scenario] = true
		if _, ok := found[scenario]; !ok {
			// A scenario that throws leaves no file; the package counts one failure.
			found[scenario] = []check{{ID: scenario, Name: scenario, Status: failure}}
		}
		c := report{scenario: found[scenario]}.counts()
		if strconv.Itoa(c.Passed) != passed || strconv.Itoa(c.Failed) != failed {
			return nil, fmt.Errorf("scenario %s: %d passed and %d failed in its file, %s and %s in the summary",
				scenario, c.Passed, c.Failed, passed, failed)
		}
	}
	for scenario := range found {
		if !listed[scenario] {
			return nil, fmt.Errorf("scenario %s has results but is not in the summary", scenario)
		}
	}
	return found, nil
}

// readResults reads every server-<scenario>-<time>/checks.json below dir.
func readResults(dir string) (report, error) {
	found := report{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		scenario, ok := strings.CutPrefix(timestamp.ReplaceAllString(entry.Name(), ""), "server-")
		if !ok {
			return nil, fmt.Errorf("unexpected result directory %s", entry.Name())
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name(), "checks.json"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var checks []check
		if err := json.Unmarshal(content, &checks); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		if _, twice := found[scenario]; twice {
			return nil, fmt.Errorf("scenario %s has two results", scenario)
		}
		found[scenario] = checks
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no results: %w", fs.ErrNotExist)
	}
	return found, nil
}

// differences lists the scenarios that did not come out the same, with the
// verdicts that only one side has.
func differences(bare, extended report) []string {
	scenarios := map[string]bool{}
	for scenario := range bare {
		scenarios[scenario] = true
	}
	for scenario := range extended {
		scenarios[scenario] = true
	}
	var out []string
	for scenario := range scenarios {
		b, e := bare.verdicts(scenario), extended.verdicts(scenario)
		if slices.Equal(b, e) {
			continue
		}
		out = append(out, fmt.Sprintf("%s\n\tbare only:     %q\n\textended only: %q",
			scenario, without(b, e), without(e, b)))
	}
	slices.Sort(out)
	return out
}

// without returns the elements of a that b has not, counting repetitions.
func without(a, b []string) []string {
	rest := slices.Clone(b)
	var out []string
	for _, s := range a {
		if i := slices.Index(rest, s); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
			continue
		}
		out = append(out, s)
	}
	return out
}
