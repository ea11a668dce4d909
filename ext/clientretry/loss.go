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
	LossTooLarge            // the response exceeds what the client reads
	LossResume              // a broken stream could not be taken up again
)

// String returns a stable word for logs.
func (k LossKind) String() string {
	names := [...]string{"other", "timeout", "reset", "eof", "malformed", "status", "session", "proxy",
		"not-sent", "cancelled", "path-check", "in-progress", "too-large", "resume"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[LossOther]
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

// newLoss is a loss that asks for no particular wait.
func newLoss(kind LossKind, err error) *Loss {
	return &Loss{Kind: kind, At: time.Now(), RetryAfter: -1, Err: err}
}

// Error says what was seen.
func (l *Loss) Error() string {
	what := "response lost"
	switch l.Kind {
	case LossNotSent:
		what = "the request was not sent"
	case LossSession:
		what = "the server has ended the session"
	case LossTimeout:
		return "response lost: none within the attempt timeout"
	}
	switch {
	case l.Status != 0 && l.Err == nil:
		return fmt.Sprintf("%s: HTTP %d %s", what, l.Status, http.StatusText(l.Status))
	case l.Err != nil:
		return fmt.Sprintf("%s (%s): %v", what, l.Kind, l.Err)
	}
	return fmt.Sprintf("%s (%s)", what, l.Kind)
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
	if e.Body == "" {
		return fmt.Sprintf("HTTP %d %s", e.Status, http.StatusText(e.Status))
	}
	return fmt.Sprintf("HTTP %d %s: %s", e.Status, http.StatusText(e.Status), e.Body)
}
