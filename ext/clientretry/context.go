package clientretry

import (
	"context"
	"crypto/rand"
	"strings"
	"sync/atomic"
	"time"
)

type (
	keyContext    struct{}
	reportContext struct{}
)

// WithKey gives the next CallTool with the returned context a key that the
// caller has made with [Session.MintKey] and, usually, persisted: whole, as it
// is. It is for one intended call, and the layer never replaces it by another.
// Where the server does not declare the capability, or the tool takes no keys,
// nothing is sent and the outcome is unknown: the key may have run before, and
// a call without it could run again.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyContext{}, key)
}

// Report is what became of a call on the wire. It is filled in when the call
// returns and must not be read before.
type Report struct {
	// Key is the whole key of the last attempt; empty when it had none.
	Key string
	// Attempts that were made. Path checks are counted in PathChecks.
	Attempts   int
	PathChecks int
	// Replayed is true when the answer came from the server's record.
	Replayed bool
	// KeyHonoured is true when the server's answer says that it knew the key.
	KeyHonoured bool
	// PossibleDuplicate is true when an attempt was sent again and answered by
	// a server that did not know the key: the tool may have run twice.
	PossibleDuplicate bool
	// Losses in their order.
	Losses []Loss
	// Elapsed is how long the call took, waits included.
	Elapsed time.Duration
	// SinceLoss is how long after its last loss the call returned; zero when
	// nothing was lost.
	SinceLoss time.Duration
}

// WithReport returns a context whose next CallTool fills in the report. A
// second CallTool with the same context leaves it as it is.
func WithReport(ctx context.Context) (context.Context, *Report) {
	s := &reportSlot{report: new(Report)}
	return context.WithValue(ctx, reportContext{}, s), s.report
}

type reportSlot struct {
	taken  atomic.Bool
	report *Report
}

// take returns the report if nobody has taken it before, else nil.
func (s *reportSlot) take() *Report {
	if s == nil || s.taken.Swap(true) {
		return nil
	}
	return s.report
}

// mint makes a key: the namespace, a dot, and 26 characters that hold 128
// random bits at least.
func mint(namespace string) string {
	return namespace + "." + strings.ToLower(rand.Text())
}
