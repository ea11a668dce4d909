package demo

import (
	"strings"
	"testing"
)

// goodRows is what the demo shows when all is well.
func goodRows() []Row {
	var rows []Row
	for _, f := range Faults() {
		rows = append(rows,
			Row{f, StackPlain, 1, 1, OutcomeError, 1},
			Row{f, StackLoop, 2, 2, OutcomeResult, 5},
			Row{f, StackRetryPlain, 1, 1, OutcomeUnknown, 1},
			Row{f, StackRetryExtended, 2, 1, OutcomeReplayed, 9})
	}
	return rows
}

func TestTheJudgeSeesWhatSpeaksAgainstTheExtensionAndNothingElse(t *testing.T) {
	at := func(rows []Row, s Stack) *Row {
		for i := range rows {
			if rows[i].Stack == s {
				return &rows[i]
			}
		}
		return nil
	}
	for name, tc := range map[string]struct {
		change   func([]Row) []Row
		problems int
	}{
		"all well":                      {func(r []Row) []Row { return r }, 0},
		"the extended stack paid twice": {func(r []Row) []Row { at(r, StackRetryExtended).Charges = 2; return r }, 1},
		"the extended stack never paid": {func(r []Row) []Row { at(r, StackRetryExtended).Charges = 0; return r }, 1},
		"retry-plain called again":      {func(r []Row) []Row { at(r, StackRetryPlain).ToolCalls = 2; return r }, 1},
		"the loop was lucky":            {func(r []Row) []Row { at(r, StackLoop).Charges = 1; return r }, 0},
		"the plain client paid twice":   {func(r []Row) []Row { at(r, StackPlain).Charges = 2; return r }, 0},
		"a row is missing":              {func(r []Row) []Row { return r[1:] }, 1},
		"a row is there twice":          {func(r []Row) []Row { return append(r, r[0]) }, 1},
		"no rows":                       {func([]Row) []Row { return nil }, 24},
	} {
		if got := Judge(tc.change(goodRows())); len(got) != tc.problems {
			t.Errorf("%s: %d problems, want %d:\n%s", name, len(got), tc.problems, strings.Join(got, "\n"))
		}
	}
}
