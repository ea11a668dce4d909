package clientretry

import (
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// UnknownOutcomeError says that a call may have run and that nobody can tell.
// Do not repeat the call under another key before its effect was checked.
type UnknownOutcomeError struct {
	Tool string
	// Key is the whole idempotency key; empty when the call had none.
	Key string
	// Attempts that were made, at least one.
	Attempts int
	// Cause is what the last attempt ended in.
	Cause error
}

// Error shortens the key.
func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("calling %q: the outcome is unknown after %s%s; it may have run, so check its effect before you call again: %v",
		e.Tool, attempts(e.Attempts), withKey(e.Key), e.Cause)
}

// Unwrap returns the cause.
func (e *UnknownOutcomeError) Unwrap() error { return e.Cause }

// NotRunError says that the call did not run and will not. It is safe to call
// again.
type NotRunError struct {
	Tool     string
	Key      string
	Attempts int
	// Data is the extension error's data when the server said so itself.
	Data *schema.ErrorData
	// Cause is what the last attempt ended in.
	Cause error
}

// Error shortens the key.
func (e *NotRunError) Error() string {
	return fmt.Sprintf("calling %q: it was not run (%s%s): %v", e.Tool, attempts(e.Attempts), withKey(e.Key), e.Cause)
}

// Unwrap returns the cause.
func (e *NotRunError) Unwrap() error { return e.Cause }

// ResultLostError says that the call ran to its end and that its result is not
// to be had any more. Do not repeat the call.
type ResultLostError struct {
	Tool     string
	Key      string
	Attempts int
	Cause    error
}

// Error shortens the key.
func (e *ResultLostError) Error() string {
	return fmt.Sprintf("calling %q: it ran, but its result is not kept any more%s; do not call again: %v", e.Tool, withKey(e.Key), e.Cause)
}

// Unwrap returns the cause.
func (e *ResultLostError) Unwrap() error { return e.Cause }

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

func withKey(key string) string {
	if key == "" {
		return " without a key"
	}
	return " with key " + schema.ShortKey(key)
}
