package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// NoEffectError is a handler's word that its call had no effect and never
// will. Make it with [NoEffect].
type NoEffectError struct {
	// Err says why.
	Err error
}

// Error returns the reason alone, which is what the caller is told.
func (e *NoEffectError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NoEffectError) Unwrap() error { return e.Err }

// NoEffect wraps a handler's error to say that the call had no effect. For a
// keyed call that is recorded and replayed as the reason noEffect; the caller
// may try anew under a new key. An unkeyed call is answered with err as ever.
// It returns nil when err is nil.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return &NoEffectError{Err: err}
}

// RejectError is a handler's word that it refuses a continuation. Make it
// with [Reject].
type RejectError struct {
	// Err says why.
	Err error
}

// Error returns the reason alone.
func (e *RejectError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RejectError) Unwrap() error { return e.Err }

// Reject wraps a handler's error to say that it refused what a continuation of
// a multi round-trip call brought (its requestState or its answers) before it
// did anything. The question before it stands and can be answered again. In
// the first round it means what [NoEffect] means. It returns nil when err is
// nil.
func Reject(err error) error {
	if err == nil {
		return nil
	}
	return &RejectError{Err: err}
}

// extError makes one of the extension's errors (SEP, "Errors"). A retryAfter
// of zero is left out.
func extError(reason schema.Reason, retryAfter time.Duration, keyNamespace, format string, args ...any) *jsonrpc.Error {
	outcome, ok := schema.OutcomeOf(reason)
	if !ok {
		panic("idempotency: reason without an outcome: " + string(reason))
	}
	d := schema.ErrorData{Reason: reason, Outcome: outcome, KeyNamespace: keyNamespace}
	if retryAfter > 0 {
		ms := max(1, retryAfter.Milliseconds())
		d.RetryAfterMs = &ms
	}
	data, err := json.Marshal(d)
	if err != nil {
		panic(err) // strings and a number
	}
	return &jsonrpc.Error{Code: schema.ErrorCode, Message: fmt.Sprintf(format, args...), Data: data}
}

// isExtensionError reports whether err is one that extError made.
func isExtensionError(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && e.Code == schema.ErrorCode
}

func invalidParams(format string, args ...any) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}
