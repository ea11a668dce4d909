package demo

import "fmt"

// Problem says in what a row fails the extension: a retry-extended row that
// did not charge exactly once, a retry-plain row with a second call. It is
// empty for a row that does not; the rows of the other stacks show the
// problem and are not judged.
func (r Row) Problem() string {
	switch {
	case r.Stack == StackRetryExtended && r.Charges != 1:
		return fmt.Sprintf("%s, %s: %d charges, want exactly 1", r.Fault, r.Stack, r.Charges)
	case r.Stack == StackRetryPlain && r.ToolCalls > 1:
		return fmt.Sprintf("%s, %s: %d calls to a server without the extension, want no second one", r.Fault, r.Stack, r.ToolCalls)
	}
	return ""
}

// Judge returns the problems of the rows, and which rows are missing or there
// twice. Nothing means that the demo succeeded.
func Judge(rows []Row) []string {
	type cell struct {
		fault Fault
		stack Stack
	}
	var problems []string
	count := map[cell]int{}
	for _, r := range rows {
		count[cell{r.Fault, r.Stack}]++
		if p := r.Problem(); p != "" {
			problems = append(problems, p)
		}
	}
	for _, f := range Faults() {
		for _, s := range Stacks() {
			if n := count[cell{f, s}]; n != 1 {
				problems = append(problems, fmt.Sprintf("%s, %s: %d rows, want 1", f, s, n))
			}
		}
	}
	return problems
}
