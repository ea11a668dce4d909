package store

import (
	"context"
	"errors"
	"time"
)

// An Operator is what a store offers to those who run it, beside [Store]. It
// is optional.
type Operator interface {
	// List returns records in the states asked for, oldest change first.
	List(ctx context.Context, q Query) ([]Entry, error)

	// Resolve applies an operator's word, [ResolveCompleted] with an outcome
	// or [ResolveNoEffect], to a record of unknown outcome. It returns
	// [ErrNotUnknown] when the record is in another state, and [ErrNoRecord]
	// when there is none.
	Resolve(ctx context.Context, id ID, event Event, outcome []byte) error

	// DeleteOutcomes forgets the kept outcomes of a principal, in every
	// namespace, and returns how many; the tombstones stay, so that no key of
	// the principal runs again.
	DeleteOutcomes(ctx context.Context, principal string) (int, error)
}

// Errors of [Operator.Resolve].
var (
	ErrNotUnknown = errors.New("the record's outcome is not unknown")
	ErrNoRecord   = errors.New("there is no such record")
)

// Query selects records.
type Query struct {
	// States to list; empty means Unknown alone.
	States []State
	// Principal, when not nil, selects one principal's records.
	Principal *string
	// Limit bounds the answer; zero means 100.
	Limit int
}

// Entry is a record as an operator sees it.
type Entry struct {
	ID
	Namespace string
	State     State
	// Since is when the record came into its state, by the store's clock.
	Since time.Time
	// LeaseUntil is when a running record's lease passes.
	LeaseUntil time.Time
}
