package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Report is what a run found.
type Report struct {
	// Subject names what was checked: a URL or a command line.
	Subject string `json:"subject"`
	// Facts are what the peer says of itself, in the order they are shown.
	Facts   []Fact   `json:"facts,omitempty"`
	Results []Result `json:"results"`
}

// Fact is one thing that was learned of the peer.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Count returns how many results have the status and were not expected.
func (r *Report) Count(s Status) (n int) {
	for _, res := range r.Results {
		if res.Status == s && res.Expected == "" {
			n++
		}
	}
	return n
}

// OK reports whether no MUST is broken and every check could be made; when
// strict, no SHOULD is broken either.
func (r *Report) OK(strict bool) bool {
	return r.Count(Failed) == 0 && r.Count(Broken) == 0 && (!strict || r.Count(Warned) == 0)
}

// Summary is one line with the counts.
func (r *Report) Summary() string {
	var parts []string
	for _, s := range []struct {
		status Status
		word   string
	}{
		{Passed, "passed"}, {Failed, "failed"}, {Warned, "warned"}, {Broken, "could not be made"},
		{Observed, "observed"}, {Skipped, "skipped"},
	} {
		if n := r.Count(s.status); n > 0 || s.status == Passed {
			parts = append(parts, fmt.Sprintf("%d %s", n, s.word))
		}
	}
	if n := r.expected(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed as expected", n))
	}
	return fmt.Sprintf("%d checks: %s", len(r.Results), strings.Join(parts, ", "))
}

func (r *Report) expected() (n int) {
	for _, res := range r.Results {
		if res.Expected != "" {
			n++
		}
	}
	return n
}

// WriteTraces writes what went over the wire in each check that failed, warned
// or could not be made, to a file in dir, which is made: one JSON object a line.
// The file is named by the check's id with dots for slashes.
func (r *Report) WriteTraces(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, res := range r.Results {
		if len(res.Trace) == 0 || res.Status != Failed && res.Status != Warned && res.Status != Broken {
			continue
		}
		name := filepath.Join(dir, strings.ReplaceAll(res.ID, "/", ".")+".jsonl")
		if err := writeTrace(name, res.Trace); err != nil {
			return err
		}
	}
	return nil
}

func writeTrace(name string, frames []Frame) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, f := range frames {
		if err := enc.Encode(f); err != nil {
			return err
		}
	}
	return os.WriteFile(name, []byte(b.String()), 0o666)
}
