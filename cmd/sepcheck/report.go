package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
)

// reporting are the flags of the commands that run checks.
type reporting struct {
	format   string
	strict   bool
	expected string
	trace    string
	opts     check.Options
}

func (r *reporting) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.format, "format", "table", "output: table, json, junit or markdown")
	f.BoolVar(&r.strict, "strict", false, "a broken SHOULD fails, too")
	f.StringVar(&r.expected, "expected-failures", "", "a file of known failures: on each line the id of a check and the reason")
	f.StringVar(&r.trace, "trace", "", "write what went over the wire in each check that failed to a file in this folder")
	f.DurationVar(&r.opts.Timeout, "check-timeout", check.DefaultTimeout, "give up a single check after this long")
	f.IntVar(&r.opts.Parallel, "parallel", check.DefaultParallel, "checks at a time")
}

// expectations reads the flags that can be wrong, before anything runs. known
// are the checks of the command.
func (r *reporting) expectations(cmd *cobra.Command, known []check.Info) (check.Expectations, error) {
	switch r.format {
	case "table", "json", "junit", "markdown":
	default:
		return nil, usageError{fmt.Errorf("--format is one of table, json, junit, markdown, not %q", r.format), cmd.CommandPath()}
	}
	if r.opts.Timeout <= 0 || r.opts.Parallel <= 0 {
		return nil, usageError{errors.New("--check-timeout and --parallel must be above zero"), cmd.CommandPath()}
	}
	if r.expected == "" {
		return nil, nil
	}
	f, err := os.Open(r.expected)
	if err != nil {
		return nil, usageError{err, cmd.CommandPath()}
	}
	defer f.Close()
	e, err := check.ReadExpectations(f, known)
	if err != nil {
		return nil, usageError{err, cmd.CommandPath()}
	}
	return e, nil
}

// progress says of each result as it comes that it is there, on a terminal; and
// nothing elsewhere, where the report says it all.
func (r *reporting) progress(cmd *cobra.Command) func(done, total int, res check.Result) {
	w := cmd.ErrOrStderr()
	if !isTerminal(w) {
		return nil
	}
	return func(done, total int, res check.Result) {
		fmt.Fprintf(w, "\r\x1b[K%d/%d %s %s", done, total, res.Status, res.ID)
		if done == total {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
}

// finish writes the report and the traces, and returns the command's error.
func (r *reporting) finish(cmd *cobra.Command, report *check.Report, expected check.Expectations) error {
	stale := report.Expect(expected)
	if r.trace != "" {
		if err := report.WriteTraces(r.trace); err != nil {
			return fmt.Errorf("writing the traces: %w", err)
		}
	}
	if err := r.write(cmd.OutOrStdout(), report); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	for _, id := range stale {
		fmt.Fprintf(cmd.ErrOrStderr(), "sepcheck: %s was expected to fail and passes; take it out of %s\n", id, r.expected)
	}
	if !report.OK(r.strict) || len(stale) > 0 {
		return errFailed
	}
	return nil
}

func (r *reporting) write(w io.Writer, report *check.Report) error {
	switch r.format {
	case "json":
		return report.WriteJSON(w)
	case "junit":
		return report.WriteJUnit(w, r.strict)
	case "markdown":
		return report.WriteMarkdown(w)
	}
	colour := isTerminal(w) && os.Getenv("NO_COLOR") == ""
	if colour {
		text.EnableColors()
	}
	return report.WriteTable(w, colour)
}

// isTerminal reports whether somebody may be looking.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
