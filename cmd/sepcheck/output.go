package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/mcp-idempotency/mcp-idempotency/internal/demo"
)

// format is the value of --format.
type format string

const (
	formatTable    format = "table"
	formatJSON     format = "json"
	formatMarkdown format = "markdown"
)

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	switch format(s) {
	case formatTable, formatJSON, formatMarkdown:
		*f = format(s)
		return nil
	}
	return errors.New("it is one of table, json, markdown")
}

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// write prints the rows as the format says.
func write(w io.Writer, f format, rows []demo.Row) error {
	switch f {
	case formatJSON:
		return writeJSON(w, rows)
	case formatMarkdown:
		return writeMarkdown(w, rows)
	}
	return writeTable(w, rows)
}

func writeJSON(w io.Writer, rows []demo.Row) error {
	if rows == nil {
		rows = []demo.Row{} // an empty list, not null
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Rows []demo.Row `json:"rows"`
	}{rows})
}

func writeMarkdown(w io.Writer, rows []demo.Row) error {
	t := newTable(rows, false)
	_, err := fmt.Fprintf(w, "%s\n%s", t.RenderMarkdown(), footnote(rows))
	return err
}

func writeTable(w io.Writer, rows []demo.Row) error {
	t := newTable(rows, true)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	_, err := fmt.Fprintf(w, "%s\n%s\n%s\n%s", t.Render(), footnote(rows), legend, lesson(rows))
	return err
}

// newTable sets the rows in a table; grouped names each fault once.
func newTable(rows []demo.Row, grouped bool) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"fault", "stack", "calls", "charges", "caller was told", "after the loss"})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 3, Align: text.AlignRight}, {Number: 4, Align: text.AlignRight}, {Number: 6, Align: text.AlignRight},
	})
	for i, r := range rows {
		name := r.Fault
		if grouped && i > 0 {
			if rows[i-1].Fault == name {
				name = ""
			} else {
				t.AppendSeparator()
			}
		}
		outcome := string(r.Outcome)
		if forgotten(r) {
			outcome += " ¹"
		}
		t.AppendRow(table.Row{name, r.Stack, r.ToolCalls, r.Charges, outcome, fmt.Sprintf("%d ms", r.SettleMs)})
	}
	return t
}

// forgotten reports whether a row shows a server whose records died with it.
func forgotten(r demo.Row) bool {
	return r.Fault == demo.FaultStdioKill && r.Stack == demo.StackRetryExtended && r.Outcome == demo.OutcomeUnknown
}

// footnote explains the one extended row without a result, if it is there.
func footnote(rows []demo.Row) string {
	for _, r := range rows {
		if forgotten(r) {
			return `
¹ The killed server kept its records in memory, so its successor cannot know
  whether the call ran. It refuses the old key instead of running it: the
  caller is told "unknown", and there is never a second charge. A store that
  outlives the process would have had the answer.
`
		}
	}
	return ""
}

const legend = `calls            lines for the tool in the server's log, written before anything else happens.
                 Before it sends again clientretry asks whether its keys arrive, with a call
                 of a tool that does not exist; these are logged too, and not counted here.
charges          lines in the server's ledger, read when the server has exited
caller was told  result: the tool's result          unknown: it may have run
                 replayed: the recorded result      error: not said whether it ran
                 failed: it did not run
after the loss   from the moment the answer was lost until the caller was told
`

// lesson says in words what the rows say in numbers.
func lesson(rows []demo.Row) string {
	if len(rows) == 0 {
		return ""
	}
	bare, plain := tally(rows, demo.StackPlain, func(r demo.Row) bool { return r.Charges > 0 && r.Outcome == demo.OutcomeError })
	twice, loop := tally(rows, demo.StackLoop, func(r demo.Row) bool { return r.Charges > 1 })
	said, alone := tally(rows, demo.StackRetryPlain, func(r demo.Row) bool { return r.ToolCalls == 1 && r.Outcome == demo.OutcomeUnknown })
	once, both := tally(rows, demo.StackRetryExtended, func(r demo.Row) bool { return r.Charges == 1 })
	answered, _ := tally(rows, demo.StackRetryExtended, func(r demo.Row) bool {
		return r.Outcome == demo.OutcomeResult || r.Outcome == demo.OutcomeReplayed
	})
	return fmt.Sprintf(`The plain client paid and then reported a bare error in %d of %d rows; the loop paid more than once
in %d of %d. Against a plain server clientretry sent one call and said "unknown" in %d of %d; against an
extended one the payment was made exactly once in %d of %d, and the caller had its result in %d of them.
A lost answer looks the same whether the work was done or not: to call again is safe only where both
sides can tell that it is the same call.
`, bare, plain, twice, loop, said, alone, once, both, answered)
}

// tally counts the rows of a stack, and those of them that f picks.
func tally(rows []demo.Row, s demo.Stack, f func(demo.Row) bool) (picked, all int) {
	for _, r := range rows {
		if r.Stack != s {
			continue
		}
		all++
		if f(r) {
			picked++
		}
	}
	return picked, all
}
