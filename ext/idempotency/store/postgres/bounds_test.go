package postgres

import (
	"math"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Above 4096 a count is sampled: it is right on average, and within a few
// percent at the bound.
func TestSampledCountsAreCloseToTheTruth(t *testing.T) {
	const bound = 1_000_000
	step := countingStep(bound)
	if step < 100 || countingStep(exact) != 1 || countingStep(0) != 1 {
		t.Fatalf("steps %d, %d, %d", step, countingStep(exact), countingStep(0))
	}
	var counted int64
	for range bound {
		counted += drawn(step)
	}
	if off := math.Abs(float64(counted)/bound - 1); off > 0.08 { // five standard deviations
		t.Errorf("%d of %d records were counted", counted, bound)
	}
}

// A principal that is full, as its sampled count says, is refused at once and
// by every instance; others are not, and known keys are answered.
func TestABoundThatIsSampledHolds(t *testing.T) {
	for name, opt := range map[string]*Options{
		"records":       {MaxRecords: 1_000_000, MaxRecordsPerPrincipal: 20_000},
		"records alone": {MaxRecords: 20_000, MaxRecordsPerPrincipal: 20_000},
		"open calls":    {MaxOpenPerPrincipal: 4_000},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t)
			s, other := d.open(t, opt), d.open(t, opt)
			known := attempt(t, s)
			expect(t, s, known, store.Run)
			record(t, s, known, complete("done"))
			if name == "open calls" {
				fill(t, s, 41_000) // a tenth of them open calls of "p"
			}
			run(t, s, `INSERT INTO {schema}.tally (records, open, phash, ns) SELECT 20000, 20000, p, id FROM {schema}.namespace, unnest(ARRAY[0, $1::bigint]) p
				ON CONFLICT (phash, ns) DO UPDATE SET records = 20000, open = 20000`, principalHash("p"))
			// The next attempt that counts finds out, and remembers it.
			eventually(t, "somebody looks", func() bool {
				res, err := s.Reserve(t.Context(), attempt(t, s))
				return err == nil && res.Verdict == store.NoRoom && res.RetryAfter > 0
			})
			for range 5 {
				expect(t, other, attempt(t, other), store.NoRoom)
			}
			expect(t, other, again(known), store.Known)
			if name != "records alone" {
				stranger := attempt(t, other)
				stranger.Principal = "stranger"
				expect(t, other, stranger, store.Run)
			}
			// Room comes back: the calls have ended, or what was kept is gone.
			run(t, s, `UPDATE {schema}.record SET state = 3 WHERE state = 1`)
			run(t, s, `UPDATE {schema}.tally SET records = 0, open = 0`)
			eventually(t, "there is room", func() bool {
				res, err := other.Reserve(t.Context(), attempt(t, other))
				return err == nil && res.Verdict == store.Run
			})
		})
	}
}

// What is counted in is counted out, whatever way a call ends.
func TestOpenCallsAreCountedOut(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, &Options{MaxOpenPerPrincipal: 1000}) // every call counts
	open := func() int {
		return scan[int](t, s, `SELECT coalesce(sum(open), 0) FROM {schema}.tally WHERE phash <> 0`)
	}
	nonce := newNonce()
	for _, end := range []store.End{complete("x"), {Event: store.DeclareNoEffect}, {Event: store.Lose}, {Event: store.Ask, Nonce: nonce}} {
		a := attempt(t, s)
		expect(t, s, a, store.Run)
		if n := open(); n != 1 {
			t.Errorf("%d calls are open while one runs", n)
		}
		record(t, s, a, end)
		record(t, s, a, end)
		switch end.Event {
		case store.Lose:
			record(t, s, a, complete("late"))
		case store.Ask:
			if n := open(); n != 1 {
				t.Errorf("%d calls are open while one waits", n)
			}
			c := again(a)
			c.Nonce = nonce
			expect(t, s, c, store.Run)
			record(t, s, c, complete("x"))
		}
		if n := open(); n != 0 {
			t.Errorf("after %v: %d calls are open", end.Event, n)
		}
	}
	dead := func() store.Attempt {
		a := attempt(t, s)
		a.Lease = 0
		expect(t, s, a, store.Run)
		return a
	}
	expect(t, s, again(dead()), store.Known)
	if err := s.Resolve(t.Context(), dead().ID, store.ResolveNoEffect, nil); err != nil {
		t.Error(err)
	}
	if n := open(); n != 0 {
		t.Errorf("%d calls are open when two have died", n)
	}
}
