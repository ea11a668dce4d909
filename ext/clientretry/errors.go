package clientretry

import (
	"errors"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// ErrNotDeclared is returned by [Session.MintKey] when the server does not
// declare the extension.
var ErrNotDeclared = errors.New("the server does not declare " + schema.ExtensionID)

// UnknownOutcomeError says that a call may have run and that nobody can tell.
// Do not repeat the call under another key before its effect was checked. The
// same key may be sent again, to the same server and within its retention
// time: see [WithKey].
type UnknownOutcomeError struct {
	Tool string
	// Key is the whole idempotency key; empty when the call had none.
	Key string
	// Attempts that were made.
	Attempts int
	// Cause is what the last attempt ended in; often a *[Loss].
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
	// Cause is what the last attempt ended in, among others an *[HTTPError].
	Cause error
}

// Error shortens the key.
func (e *NotRunError) Error() string {
	return fmt.Sprintf("calling %q: it was not run (%s%s), so it is safe to call again: %v",
		e.Tool, attempts(e.Attempts), withKey(e.Key), e.Cause)
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
	return fmt.Sprintf("calling %q: it ran (%s%s), but its result is not to be had, so do not call again: %v",
		e.Tool, attempts(e.Attempts), withKey(e.Key), e.Cause)
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
