package check

import "context"

// Level is how binding a rule is.
type Level string

const (
	// Must: breaking the rule fails the run.
	Must Level = "MUST"
	// Should: breaking the rule warns; it fails the run when that is strict.
	Should Level = "SHOULD"
	// Observe: no rule. The check tells what the peer does, and can't fail.
	Observe Level = "observation"
)

// Info says what a check is about. Every field is set: explain prints them all.
type Info struct {
	// ID is permanent: role/section/name, in lower case with hyphens.
	ID string `json:"id"`
	// Section is the heading of the SEP that states the rule.
	Section string `json:"section"`
	Level   Level  `json:"level"`
	// Title states the rule in one line, as a sentence without its full stop.
	Title string `json:"title"`
	// Does says in a few sentences what the check sends and what it looks at.
	Does string `json:"-"`
	// Why says what goes wrong for people when the rule is broken.
	Why string `json:"-"`
	// Fix says what to change in a peer that fails.
	Fix string `json:"-"`
}

// Check is one rule, tried against a peer of the type P.
type Check[P any] struct {
	Info
	// Run reports by t's methods. Returning without a report is a pass.
	Run func(ctx context.Context, t *T, peer P)
}

// Infos returns what the checks are about, in their order.
func Infos[P any](checks []Check[P]) []Info {
	out := make([]Info, len(checks))
	for i, c := range checks {
		out[i] = c.Info
	}
	return out
}
