package check

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrBadExpectations is matched by the errors about a file of expected failures
// that can't be obeyed.
var ErrBadExpectations = errors.New("expected failures")

// Expectations are known failures: the reason of each, by the check's id.
type Expectations map[string]string

// ReadExpectations reads one expected failure a line: the id of a check, a
// space, and the reason. Empty lines and lines that start with # are skipped.
// known are the checks there are; an id that is none of them is an error, and
// so are an id without a reason and one that comes twice.
func ReadExpectations(r io.Reader, known []Info) (Expectations, error) {
	ids := map[string]bool{}
	for _, i := range known {
		ids[i.ID] = true
	}
	out := Expectations{}
	var errs []error
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, _ := strings.Cut(line, " ")
		switch reason = strings.TrimSpace(reason); {
		case !ids[id]:
			errs = append(errs, fmt.Errorf("%w: line %d: there is no check %q", ErrBadExpectations, n, id))
		case reason == "":
			errs = append(errs, fmt.Errorf("%w: line %d: %s has no reason; write it after the id", ErrBadExpectations, n, id))
		case out[id] != "":
			errs = append(errs, fmt.Errorf("%w: line %d: %s was named before", ErrBadExpectations, n, id))
		default:
			out[id] = reason
		}
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrBadExpectations, err))
	}
	return out, errors.Join(errs...)
}

// Expect marks failures and warnings that were expected, which then count for
// nothing, and returns the stale expectations: those of checks that ran and
// passed, in the order of the results.
func (r *Report) Expect(e Expectations) (stale []string) {
	for i := range r.Results {
		res := &r.Results[i]
		reason, expected := e[res.ID]
		switch {
		case !expected:
		case res.Status == Failed || res.Status == Warned:
			res.Expected = reason
		case res.Status == Passed:
			stale = append(stale, res.ID)
		}
	}
	return stale
}
