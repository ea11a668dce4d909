package idempotency_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// attempts is how many duplicates a connection is given at once: the full
// thousand on one of each kind.
func attempts(name string) int {
	if name == "http-modern-sse" || name == "stdio-modern" {
		return 1000
	}
	return 50
}

func TestConcurrentDuplicatesAreOneRunWithEqualAnswers(t *testing.T) {
	for _, c := range connectors() {
		t.Run(c.name, func(t *testing.T) {
			n := attempts(c.name)
			f := newFixture(t, c, nil)
			key := f.key()
			calls := make([]*pending, n)
			for i := range calls {
				calls[i] = f.start(t.Context(), "gated", key, `{"gate":"g"}`)
			}
			// All are attached before the run ends, so that each one joins.
			eventually(t, "all attempts attached", func() bool { return f.idem.Attached() == n })
			close(f.gate("g"))
			ran := 0
			for _, p := range calls {
				r := p.wait(t)
				sameValue(t, calls[0].reply, r)
				if r.marker() != nil && !r.replayed() {
					ran++
				}
			}
			f.wantEffects(1)
			if ran != 1 {
				t.Errorf("%d answers are marked as run, want 1", ran)
			}
			if r := f.tool("gated", key, `{"gate":"g"}`); !r.replayed() {
				t.Errorf("afterwards: %v", r)
			}
			if n := f.idem.Runs(); n != 0 || f.idem.Waiters() != 0 {
				t.Errorf("%d runs and %d waiters are left", n, f.idem.Waiters())
			}
		})
	}
}

func TestManyKeysWithDuplicatesRunOnceEach(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		const keys, duplicates = 32, 4
		ns := f.namespace()
		answers := make([][]*pending, keys)
		for range duplicates {
			for k := range keys {
				tool := []string{"charge", "declines", "raises", "large"}[k%4]
				answers[k] = append(answers[k], f.start(t.Context(), tool, fmt.Sprintf("%s.many-%d", ns, k), `{"amount":3}`))
			}
		}
		for k, group := range answers {
			ran := 0
			for _, p := range group {
				r := p.wait(t)
				sameValue(t, group[0].reply, r)
				if !r.replayed() {
					ran++
				}
			}
			if ran != 1 {
				t.Errorf("key %d: %d answers are marked as run, want 1", k, ran)
			}
		}
		f.wantEffects(keys)
	})
}

// X27: duplicates fill whatever pool there is, and the run still ends, also
// when it waits for another call to be served.
func TestWaitingDuplicatesDoNotStarveTheRun(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		key := f.key()
		const n = 150
		var calls []*pending
		for range n {
			calls = append(calls, f.start(t.Context(), "gated", key, `{"gate":"g"}`))
		}
		eventually(t, "all attempts attached", func() bool { return f.idem.Attached() == n })
		if r := f.tool("open", "", `{"gate":"g"}`); r.Error != nil {
			t.Fatal(r)
		}
		for _, p := range calls {
			if r := p.wait(t); r.Error != nil {
				t.Fatal(r)
			}
		}
		f.wantEffects(1)
	})
}

func TestDuplicatesBeyondTheBoundAreNotKeptWaiting(t *testing.T) {
	opt := func() *idempotency.Options { return &idempotency.Options{MaxWaiters: 2} }
	onEach(t, opt, func(t *testing.T, f *fixture) {
		key := f.key()
		run := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
		f.awaitEntered("g")
		var joined []*pending
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			joined = append(joined, f.start(ctx, "gated", key, `{"gate":"g"}`))
		}
		eventually(t, "two have joined", func() bool { return f.idem.Attached() == 3 })
		for range 5 {
			wantReason(t, f.tool("gated", key, `{"gate":"g"}`), schema.ReasonStillRunning)
		}
		first := f.finish(run, "g")
		for _, p := range joined {
			sameValue(t, first, p.wait(t))
		}
		// The bound is on those who wait, not on how many ever did.
		if r := f.tool("gated", key, `{"gate":"g"}`); !r.replayed() {
			t.Error(r)
		}
		f.wantEffects(1)
	})
}

func TestADuplicateThatLeavesMakesRoomForAnother(t *testing.T) {
	onCancelling(t, func() *idempotency.Options { return &idempotency.Options{MaxWaiters: 1} }, func(t *testing.T, f *fixture) {
		key := f.key()
		run := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
		f.awaitEntered("g")
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			joiner := f.start(ctx, "gated", key, `{"gate":"g"}`)
			eventually(t, "one has joined", func() bool { return f.idem.Attached() == 2 })
			wantReason(t, f.tool("gated", key, `{"gate":"g"}`), schema.ReasonStillRunning)
			leave(joiner, cancel)
			eventually(t, "it has left", func() bool { return f.idem.Attached() == 1 && f.idem.Waiters() == 0 })
		}
		f.finish(run, "g")
	})
}

// A duplicate is answered stillRunning when the limit passes, at a time that
// is neither before it nor long after.
func TestTheWaitLimitIsKept(t *testing.T) {
	const limit = 80 * time.Millisecond
	onEach(t, func() *idempotency.Options { return &idempotency.Options{WaitLimit: limit} }, func(t *testing.T, f *fixture) {
		key := f.key()
		run := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
		f.awaitEntered("g")
		start := time.Now()
		wantReason(t, f.tool("gated", key, `{"gate":"g"}`), schema.ReasonStillRunning)
		if took := time.Since(start); took < limit {
			t.Errorf("answered after %v", took)
		}
		f.finish(run, "g")
	})
}

// Many goroutines race for few keys, with every kind of tool, and every answer
// of a key is the same.
func TestRacingAttemptsNeverRunAKeyTwice(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		ns := f.namespace()
		var wg sync.WaitGroup
		var mu sync.Mutex
		answers := map[string]reply{}
		for g := range 8 {
			wg.Go(func() {
				for i := range 12 {
					key := fmt.Sprintf("%s.race-%d", ns, (g+i)%12)
					tool := []string{"charge", "declines", "no_effect", "raises"}[(g+i)%4]
					r, err := f.call(t.Context(), "tools/call", toolParams(tool, key, `{"amount":1}`))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if first, ok := answers[key]; ok {
						sameValue(t, first, r)
					}
					answers[key] = r
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		f.wantEffects(12)
	})
}
