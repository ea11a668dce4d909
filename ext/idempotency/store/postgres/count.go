package postgres

import "math/rand/v2"

// exact is up to which bound records are counted one by one; see
// migrations/0004_bounds.sql.
const exact = 4096

// countingStep is n for a bound where one record in n is counted, as n.
func countingStep(bound int) int64 { return max(1, int64(bound)/exact) }

// drawn is what one record adds to a count: mostly nothing.
func drawn(step int64) int64 {
	if rand.Int64N(step) == 0 {
		return step
	}
	return 0
}
