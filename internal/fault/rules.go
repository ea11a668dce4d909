package fault

import (
	"errors"
	"fmt"
	"time"
)

// Action is what a call meets. The zero value forwards it untouched.
type Action struct {
	Kind Kind
	// RetryAfter is announced in whole seconds, rounded up, by the kinds that
	// answer with a status. Zero or less sends no Retry-After header.
	RetryAfter time.Duration
}

// Rule chooses the `tools/call` requests that meet an action.
type Rule struct {
	// Tool is the tool's name. Empty means every tool.
	Tool string
	// Nth counts the calls of Tool, from 1. Zero means every call.
	Nth    int
	Action Action
}

// Rules is a plan: the first rule that fits a call decides. Nil forwards
// everything, which makes the layer a recorder.
type Rules []Rule

// ErrBadRule is matched by the errors about rules that can't be obeyed.
var ErrBadRule = errors.New("bad fault rule")

// pick returns the action for the total-th call of all and the nth of its tool.
func (rs Rules) pick(tool string, nth, total int) Action {
	for _, r := range rs {
		count := total
		if r.Tool != "" {
			if r.Tool != tool {
				continue
			}
			count = nth
		}
		if r.Nth == 0 || r.Nth == count {
			return r.Action
		}
	}
	return Action{}
}

// check refuses rules that the transport can't obey, before the first call
// rather than in the middle of a test.
func (rs Rules) check(fits func(KindInfo) bool, transport string) error {
	for i, r := range rs {
		if r.Nth < 0 {
			return fmt.Errorf("%w: rule %d counts to %d; calls are counted from 1, and 0 means every call", ErrBadRule, i, r.Nth)
		}
		known := false
		for _, info := range Kinds() {
			if info.Kind != r.Action.Kind {
				continue
			}
			known = true
			if !fits(info) {
				return fmt.Errorf("%w: rule %d: the fault %q does not exist on %s", ErrBadRule, i, info.Name, transport)
			}
		}
		if !known {
			return fmt.Errorf("%w: rule %d: %v is no fault", ErrBadRule, i, r.Action.Kind)
		}
	}
	return nil
}
