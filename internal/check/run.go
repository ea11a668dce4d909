package check

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
)

// Defaults of [Options].
const (
	DefaultParallel = 8
	DefaultTimeout  = 15 * time.Second
)

// Options of [Run]. Nil and the zero value work.
type Options struct {
	// Parallel is how many checks run at a time. Zero means [DefaultParallel].
	Parallel int
	// Timeout bounds one check. Zero means [DefaultTimeout].
	Timeout time.Duration
	// Progress is told of each result as it comes, one call at a time. Nil:
	// nobody is told.
	Progress func(done, total int, r Result)
}

// Result is how one check ended.
type Result struct {
	Info
	Status Status `json:"status"`
	// Detail says why, in a sentence. Empty for a pass.
	Detail string `json:"detail,omitempty"`
	// Notes say what else was seen.
	Notes []string `json:"notes,omitempty"`
	// Ms is how long the check took, in milliseconds.
	Ms int64 `json:"ms"`
	// Trace is what went over the wire.
	Trace []Frame `json:"-"`
	// Expected is the reason by which the failure was expected; set by
	// [Report.Expect].
	Expected string `json:"expected,omitempty"`
}

// Run runs the checks against the peer, several at a time, and returns their
// results in the order of the checks. When ctx ends, checks that have not begun
// are reported as [Broken]; it returns when the others have come to their end.
func Run[P any](ctx context.Context, checks []Check[P], peer P, opts *Options) []Result {
	o := opts.withDefaults()
	results := make([]Result, len(checks))
	done := make(chan Result)
	go func() {
		defer close(done)
		var g errgroup.Group
		g.SetLimit(o.Parallel)
		for i, c := range checks {
			g.Go(func() error {
				results[i] = one(ctx, c, peer, o.Timeout)
				done <- results[i]
				return nil
			})
		}
		_ = g.Wait() // no check returns an error
	}()
	count := 0
	for r := range done {
		count++
		if o.Progress != nil {
			o.Progress(count, len(checks), r)
		}
	}
	return results
}

func (o *Options) withDefaults() Options {
	var out Options
	if o != nil {
		out = *o
	}
	if out.Parallel <= 0 {
		out.Parallel = DefaultParallel
	}
	if out.Timeout <= 0 {
		out.Timeout = DefaultTimeout
	}
	return out
}

// one runs a check on a goroutine of its own, which T's methods may end.
func one[P any](ctx context.Context, c Check[P], peer P, timeout time.Duration) Result {
	begin := time.Now()
	t := newT(c.Level)
	if ctx.Err() != nil {
		t.status, t.detail = Broken, "not run: "+context.Cause(ctx).Error()
		return result(c.Info, t, begin)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the check took longer than %v", timeout))
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				t.report(Broken, fmt.Sprintf("sepcheck itself failed in this check: %v", p))
				t.Frame("--", string(debug.Stack()))
			}
		}()
		c.Run(ctx, t, peer)
	}()
	<-ended
	if ctx.Err() != nil && t.status == "" {
		// Whatever the check thinks, its evidence is incomplete.
		t.report(Broken, context.Cause(ctx).Error())
	}
	return result(c.Info, t, begin)
}

func result(info Info, t *T, begin time.Time) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	status, detail := t.status, t.detail
	switch {
	case status != "":
	case info.Level == Observe:
		status, detail = Broken, "sepcheck saw nothing that it could tell"
	default:
		status = Passed
	}
	return Result{Info: info, Status: status, Detail: detail, Notes: t.notes, Ms: time.Since(begin).Milliseconds(), Trace: t.trace}
}
