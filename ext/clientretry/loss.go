package clientretry

import (
	"fmt"
	"net/http"
	"time"
)

// LossKind says how a response was lost.
type LossKind uint8

// The kinds of loss. The zero value is one that could not be told.
const (
	LossOther      LossKind = iota
	LossTimeout             // the client's own attempt timeout
	LossReset               // the connection broke
	LossEOF                 // the stream or connection ended without the response
	LossMalformed           // what came is not a JSON-RPC response to the call
	LossStatus              // HTTP 408, 429, 500, 502, 503 or 504
	LossSession             // HTTP 404: the session has ended
	LossProxy               // JSON-RPC -32000 or -32001 without the marker
	LossNotSent             // the request did not leave: nothing can have run
	LossCancelled           // the caller's context ended
	LossPathCheck           // the path check was lost
	LossInProgress          // the server said that it still runs
)

// String returns a stable word for logs.
func (k LossKind) String() string {
	names := [...]string{"other", "timeout", "reset", "eof", "malformed", "status", "session", "proxy", "not-sent", "cancelled", "path-check", "in-progress"}
	if int(k) < len(names) {
		return names[k]
	}
	return "other"
}

// Loss is how an attempt lost its response. It is an error and the cause that
// [UnknownOutcomeError] gives.
type Loss struct {
	Kind LossKind
	// At is when the client saw it.
	At time.Time
	// Status is the HTTP status, or zero.
	Status int
	// RetryAfter is what the response's Retry-After asks for; negative when it
	// asks nothing.
	RetryAfter time.Duration
	// Err is the error below, or nil.
	Err error
}

// Error says what was seen.
func (l *Loss) Error() string {
	switch {
	case l.Kind == LossTimeout:
		return "response lost: none within the attempt timeout"
	case l.Status != 0 && l.Err == nil:
		return fmt.Sprintf("response lost: HTTP %d %s", l.Status, http.StatusText(l.Status))
	case l.Err != nil:
		return fmt.Sprintf("response lost (%s): %v", l.Kind, l.Err)
	}
	return fmt.Sprintf("response lost (%s)", l.Kind)
}

// Unwrap returns the error below.
func (l *Loss) Unwrap() error { return l.Err }

// HTTPError says that the server, or something before it, refused a request
// with a status and without a JSON-RPC body.
type HTTPError struct {
	Status int
	// Body is the beginning of what came with it, at most 512 bytes.
	Body string
}

// Error gives status and body.
func (e *HTTPError) Error() string {
	return fmt.Sprintf("HTTP %d %s: %s", e.Status, http.StatusText(e.Status), e.Body)
}
