package store

import (
	"context"
	"errors"
	"strings"
	"time"
)

// A Store remembers idempotency records.
//
// Every method is one atomic, linearizable step: no follower reads, no cached
// namespace state. An error says that the store could not do its step or
// cannot tell whether it did; the middleware then answers storeUnavailable
// before a run, and reports the result unrecorded after one. What a store
// decides (a mismatch, a namespace not held, no room) is a value, not an
// error.
//
// A store must be safe for concurrent use.
type Store interface {
	// Current returns the namespace that takes new keys, as the capability
	// declares it.
	Current(ctx context.Context) (Namespace, error)

	// Reserve looks the attempt's key up and, when it is new and its
	// namespace takes new keys, reserves it for the attempt's token: one
	// step (SEP, "Order of checks"). A Reserve that is repeated with the same
	// token, because its answer was lost, answers [Run] again.
	Reserve(ctx context.Context, a Attempt) (Reservation, error)

	// Renew extends the lease of a run by d from now. It returns [ErrFenced]
	// when the record no longer belongs to the run. Stores without leases
	// return nil; those are stores whose Record cannot fail, since a run whose
	// end is not recorded would be running for ever.
	Renew(ctx context.Context, run RunRef, d time.Duration) error

	// Record applies the end of a run to its record, by compare-and-set on
	// the run's token and the table of [Transitions]. It returns [ErrFenced]
	// when another run or an operator has decided meanwhile, or the run has had
	// another end; repeating the same Record is not an error. A Reject by a run
	// that answers no question is an error, and changes nothing.
	Record(ctx context.Context, run RunRef, end End) error

	// Await returns when the record of id is no longer running under the
	// token, or when ctx ends. It does not return early without reason, and
	// may return late by the store's polling interval.
	Await(ctx context.Context, id ID, token Token) error
}

// Local marks a store whose steps, Await apart, never wait for anything
// outside the process and never look at their context, so that there is no
// need to bound them.
type Local interface {
	Store
	Local()
}

// ErrFenced says that a record does not belong to the run any more: another
// attempt took over, or an operator has resolved it.
var ErrFenced = errors.New("the record belongs to another run or is resolved")

// Namespace is the set of keys that a store declares.
type Namespace struct {
	// Name is 1–64 characters of the key alphabet without the dot.
	Name string
	// Retention is fixed when the namespace is made. Positive.
	Retention time.Duration
}

// ID names a record: another principal's key is another key.
type ID struct {
	// Principal is opaque to the store; empty for the anonymous one.
	Principal string
	// Key is the whole key, namespace included. A key that starts with its
	// dot has no namespace: a tool takes it from its arguments.
	Key string
}

// Namespace returns the part of the key before its first dot. When it is empty
// the key is looked up in every namespace that is held, and a new one goes
// into the current.
func (id ID) Namespace() string {
	ns, _, _ := strings.Cut(id.Key, ".")
	return ns
}

// Token names one run. It is unique over all processes that share a store.
type Token [16]byte

// Fingerprint is how requests are compared. Stores only test it for equality.
type Fingerprint [32]byte

// Nonce names one round of a multi round-trip call. The zero value is none.
type Nonce [16]byte

// Attempt is one keyed request.
type Attempt struct {
	ID
	// Fingerprint of the request.
	Fingerprint Fingerprint
	// Token for the run, should this attempt become one.
	Token Token
	// Lease is how long the run is taken to be alive without a Renew.
	Lease time.Duration
	// Nonce of the round that the attempt continues, or zero.
	Nonce Nonce
	// Answers fingerprints what the attempt answers to that round.
	Answers Fingerprint
	// Peek asks to look up without reserving.
	Peek bool
	// Transactional says that the run records its end in the transaction of
	// its effect, by its token. When its lease passes, the next attempt takes
	// the record over and runs, instead of meeting an unknown outcome.
	Transactional bool
}

// Verdict is what Reserve decided.
type Verdict uint8

const (
	// Run: the key is reserved for this attempt, which now runs the tool.
	Run Verdict = iota + 1
	// Joinable: another run holds the key; Record says which.
	Joinable
	// Known: the call has ended; Record says how.
	Known
	// Asked: the call is open and this attempt does not continue it; Record
	// holds the latest question.
	Asked
	// Mismatch: the key is known with another fingerprint.
	Mismatch
	// NamespaceNotHeld: the store does not completely hold the key's
	// namespace.
	NamespaceNotHeld
	// NamespaceClosed: the namespace is held, takes no new keys, and the key
	// is not in it.
	NamespaceClosed
	// NoRoom: the store cannot promise to remember this key.
	NoRoom
	// Free: a Peek found that the attempt would run.
	Free
)

// Reservation is the answer to Reserve.
type Reservation struct {
	Verdict Verdict
	// Record is set for Joinable, Known and Asked.
	Record Record
	// Current is the namespace that takes new keys now; set for
	// NamespaceNotHeld and NamespaceClosed.
	Current string
	// RetryAfter is when room is expected; set for NoRoom. Positive.
	RetryAfter time.Duration
	// Continued is true for Run when the record had asked and the attempt
	// carried the nonce.
	Continued bool
	// Leased is true for Run when the store watches the lease, so that the
	// run must renew it.
	Leased bool
}

// Record is what a store keeps of a call.
type Record struct {
	State State
	// Token of the run, for Running and Unknown.
	Token Token
	// Nonce and Answers of the running round, or Nonce of the question.
	Nonce   Nonce
	Answers Fingerprint
	// Outcome is what End.Outcome was, or nil when it was nil or is not kept
	// any more. Read only.
	Outcome []byte
}

// RunRef names a run to Renew and Record.
type RunRef struct {
	ID
	Token Token
}

// End is how a run ended.
type End struct {
	// Event is one of Complete, DeclareNoEffect, Ask, Reject and Lose.
	Event Event
	// Outcome is opaque to the store: what to replay. Nil when it is not to
	// be kept. The store may keep the slice; the caller does not change it.
	Outcome []byte
	// Nonce of the new round, for Ask.
	Nonce Nonce
}
