package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// harness drives a store by a clock that stands still until it is moved.
type harness struct {
	*Store
	t     reporter
	now   time.Time
	count uint16
}

// reporter is what a harness needs of a test, or of a property that is checked.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newHarness(t reporter, opt *Options) *harness {
	h := &harness{t: t, now: time.Unix(1_800_000_000, 0)}
	var o Options
	if opt != nil {
		o = *opt
	}
	o.Now = func() time.Time { return h.now }
	h.Store = New(&o)
	return h
}

func (h *harness) advance(d time.Duration) { h.now = h.now.Add(d) }

func (h *harness) namespace() string {
	ns, err := h.Current(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	return ns.Name
}

func (h *harness) token() (t store.Token) {
	h.count++
	t[14], t[15] = byte(h.count>>8), byte(h.count)
	return t
}

// attempt is one of the anonymous principal with a fresh token.
func (h *harness) attempt(key string) store.Attempt {
	return store.Attempt{ID: store.ID{Key: key}, Fingerprint: store.Fingerprint{1}, Token: h.token()}
}

func (h *harness) reserve(a store.Attempt) store.Reservation {
	h.t.Helper()
	r, err := h.Reserve(context.Background(), a)
	if err != nil {
		h.t.Fatal(err)
	}
	h.check()
	return r
}

// take reserves a key and fails if the attempt does not run.
func (h *harness) take(key string) store.Attempt {
	h.t.Helper()
	a := h.attempt(key)
	if r := h.reserve(a); r.Verdict != store.Run {
		h.t.Fatalf("%s: verdict %v, want Run", key, r.Verdict)
	}
	return a
}

func ref(a store.Attempt) store.RunRef { return store.RunRef{ID: a.ID, Token: a.Token} }

func (h *harness) record(a store.Attempt, event store.Event, outcome string) {
	h.t.Helper()
	end := store.End{Event: event, Outcome: []byte(outcome)}
	if event == store.Ask {
		end.Nonce = store.Nonce{1}
	}
	if err := h.Record(context.Background(), ref(a), end); err != nil {
		h.t.Fatalf("%v: %v", event, err)
	}
	h.check()
}

// finish takes a key and completes its call.
func (h *harness) finish(key, outcome string) {
	h.t.Helper()
	h.record(h.take(key), store.Complete, outcome)
}

// look peeks at a key.
func (h *harness) look(key string) store.Reservation {
	h.t.Helper()
	a := h.attempt(key)
	a.Peek = true
	return h.reserve(a)
}

func (h *harness) want(key string, want store.Verdict) {
	h.t.Helper()
	if r := h.look(key); r.Verdict != want {
		h.t.Errorf("%s: verdict %v, want %v", key, r.Verdict, want)
	}
}

// check compares what the store counts with what it holds.
func (h *harness) check() {
	h.t.Helper()
	if err := h.Store.audit(); err != nil {
		h.t.Fatal(err)
	}
}

func (s *Store) audit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var records int
	var bytes, questions int64
	for i, ns := range s.held {
		var sum counts
		for _, c := range ns.principals {
			if c.records <= 0 || c.open < 0 || c.open > c.records {
				return fmt.Errorf("a principal has %+v", c)
			}
			sum.records += c.records
			sum.open += c.open
		}
		live := 0
		for _, o := range ns.open {
			questions += int64(len(o.question))
			if !o.state.Final() {
				live++
			}
			if (o.state == store.Running) != (o.done != nil) {
				return fmt.Errorf("a record is %v and its channel %v", o.state, o.done)
			}
		}
		for _, v := range ns.outcomes.Values() {
			bytes += int64(len(v))
		}
		for _, d := range ns.outcomes.Keys() {
			if _, ok := ns.ended[d]; !ok {
				return errors.New("an outcome has no record")
			}
		}
		records += len(ns.open) + len(ns.ended)
		if int(sum.records) != len(ns.open)+len(ns.ended) || int(sum.open) != live {
			return fmt.Errorf("namespace %d has %d records and %d open, its principals %+v", i, len(ns.open)+len(ns.ended), live, sum)
		}
		if (i == 0) != ns.retired.IsZero() || i == 0 && ns.closed {
			return fmt.Errorf("namespace %d is retired at %v, closed %v", i, ns.retired, ns.closed)
		}
	}
	switch {
	case records != s.records:
		return fmt.Errorf("%d records are counted as %d", records, s.records)
	case bytes != s.bytes || bytes > s.opt.MaxResultBytes:
		return fmt.Errorf("%d bytes of outcomes are counted as %d, the limit is %d", bytes, s.bytes, s.opt.MaxResultBytes)
	case questions != s.questions:
		return fmt.Errorf("%d bytes of questions are counted as %d", questions, s.questions)
	case records > s.opt.MaxRecords:
		return fmt.Errorf("%d records, the limit is %d", records, s.opt.MaxRecords)
	}
	return nil
}
