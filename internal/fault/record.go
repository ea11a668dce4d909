package fault

import (
	"sync"
	"time"
)

// Fate is what became of a call on its way.
type Fate int

const (
	// Open: it is still on its way.
	Open Fate = iota
	// Delivered: the server's whole answer was passed on.
	Delivered
	// Faulted: it met the action in [Call.Action].
	Faulted
	// Abandoned: the client went away before the answer was passed on.
	Abandoned
	// UpstreamFailed: the server could not be reached, or ended its answer
	// early, without any rule saying so.
	UpstreamFailed
)

// String returns the fate as a word, as in "abandoned".
func (f Fate) String() string {
	switch f {
	case Open:
		return "open"
	case Delivered:
		return "delivered"
	case Faulted:
		return "faulted"
	case Abandoned:
		return "abandoned"
	case UpstreamFailed:
		return "upstream-failed"
	}
	return "unknown fate"
}

// Call is one JSON-RPC request or notification that a client sent, as the
// layer saw it. Rules apply to `tools/call` alone; everything is recorded.
type Call struct {
	// Seq counts everything recorded, from 1.
	Seq int
	// Nth counts the `tools/call` requests of this tool, from 1. Zero for
	// other methods.
	Nth    int
	Method string
	// Tool is the tool's name in a `tools/call`.
	Tool string
	// ID is the JSON-RPC id as raw JSON; empty for a notification.
	ID string
	// Key is the idempotency key from the params or from `_meta`; empty
	// without one. A key that is not a string is given as raw JSON.
	Key string
	// Action is what the rules chose for it.
	Action Action
	Fate   Fate

	// Received is when the whole request had been read.
	Received time.Time
	// Worked is when the server's whole answer had been read, for a call that
	// meets a fault after the work. Zero otherwise.
	Worked time.Time
	// Lost is when the fault was performed or, for an abandoned call, when
	// the client was seen to be gone. Zero otherwise.
	Lost time.Time
	// Settled is when the layer was done with it. Zero while it is open.
	Settled time.Time
}

// Phase says which moment of a call an [Event] reports.
type Phase int

const (
	// CallReceived: the whole request was read; nothing was forwarded yet.
	CallReceived Phase = iota
	// CallWorked: the server's whole answer was read; the fault comes next.
	CallWorked
	// CallLost: the fault is about to be performed, or the client is gone.
	CallLost
	// CallSettled: the layer is done with the call.
	CallSettled
)

// Event reports one moment of a call. The phases of one call come in order.
type Event struct {
	Phase Phase
	Call  Call
}

// recorder applies the rules and remembers what happened.
type recorder struct {
	rules  Rules
	notify func(Event)
	limit  int

	mu    sync.Mutex
	seq   int
	total int            // tools/call so far
	seen  map[string]int // tools/call so far, by tool
	calls []*Call        // the newest limit calls
}

func newRecorder(opts Options) *recorder {
	return &recorder{rules: opts.Rules, notify: opts.OnEvent, limit: opts.MaxCalls, seen: map[string]int{}}
}

// received records a message and returns its record and what it meets.
func (r *recorder) received(m message) (*Call, Action) {
	r.mu.Lock()
	r.seq++
	c := &Call{Seq: r.seq, Method: m.method, Tool: m.tool, ID: m.id, Key: m.key, Received: time.Now()}
	if m.isCall() {
		r.total++
		r.seen[m.tool]++
		c.Nth = r.seen[m.tool]
		c.Action = r.rules.pick(m.tool, c.Nth, r.total)
	}
	if len(r.calls) >= r.limit {
		r.calls = r.calls[1:]
	}
	r.calls = append(r.calls, c)
	action, snapshot := c.Action, *c
	r.mu.Unlock()
	r.tell(CallReceived, snapshot)
	return c, action
}

func (r *recorder) worked(c *Call) {
	r.update(c, CallWorked, func(now time.Time) { c.Worked = now })
}

// lost must be called before the fault is performed, so that no client can
// learn of its loss before the loss has a time. A call is lost once: what
// follows from a loss, a client that leaves for instance, changes nothing.
func (r *recorder) lost(c *Call, fate Fate) {
	r.mu.Lock()
	first := c.Fate == Open
	r.mu.Unlock()
	if first {
		r.update(c, CallLost, func(now time.Time) { c.Fate, c.Lost = fate, now })
	}
}

// settled closes the record. A fate that was decided before stays.
func (r *recorder) settled(c *Call, fate Fate) {
	r.update(c, CallSettled, func(now time.Time) {
		if c.Fate == Open {
			c.Fate = fate
		}
		c.Settled = now
	})
}

func (r *recorder) update(c *Call, p Phase, set func(now time.Time)) {
	r.mu.Lock()
	set(time.Now())
	snapshot := *c
	r.mu.Unlock()
	r.tell(p, snapshot)
}

func (r *recorder) tell(p Phase, c Call) {
	if r.notify != nil {
		r.notify(Event{Phase: p, Call: c})
	}
}

func (r *recorder) snapshot() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Call, len(r.calls))
	for i, c := range r.calls {
		out[i] = *c
	}
	return out
}
