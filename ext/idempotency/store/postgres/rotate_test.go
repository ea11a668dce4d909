package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A brief is a life of namespaces that a test can wait for.
func brief() *Options {
	return &Options{Retention: 10 * time.Hour, RotateEvery: 4 * time.Hour, ClosingFor: time.Hour}
}

// waiting reports how many sessions wait for a lock on the table of records.
func waiting(t *testing.T, s *Store) int {
	return scan[int](t, s, `SELECT count(*) FROM pg_locks WHERE relation = '{schema}.record'::regclass AND NOT granted`)
}

// pause runs a step of the store in a transaction and returns how to end it.
func pause(t *testing.T, s *Store, sql string, args ...any) (commit func()) {
	t.Helper()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// X5: a namespace does not close while a reservation in it is under way, so
// that nobody is told "never ran" of a key that does.
func TestClosingWaitsForReservationsUnderWay(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, brief())
	advance := settable(t, s)
	a := attempt(t, s)
	a.Lease = 10 * time.Hour
	advance(4*time.Hour + time.Second)
	if _, err := s.Current(t.Context()); err != nil { // now it is closing
		t.Fatal(err)
	}
	id := identify(a.ID)
	commit := pause(t, s, s.sql.reserve,
		id.ns, id.phash, id.digest, id.principal, id.key, a.Fingerprint[:], [16]byte(a.Token), a.Lease.Microseconds(),
		[16]byte(a.Nonce), []byte{}, false, false, int64(s.opt.MaxRecords), int64(s.opt.MaxRecordsPerPrincipal), int64(s.opt.MaxOpenPerPrincipal), int64(0), int64(0), false)
	advance(time.Hour)

	other := d.open(t, brief())
	done := make(chan store.Reservation)
	go func() {
		res, err := other.Reserve(context.WithoutCancel(t.Context()), again(a))
		if err != nil {
			t.Errorf("Reserve: %v", err)
		}
		done <- res
	}()
	eventually(t, "the rotation waits", func() bool { return waiting(t, s) > 0 })
	select {
	case res := <-done:
		t.Fatalf("another attempt was answered with verdict %d while the first was under way", res.Verdict)
	default:
	}
	commit()
	if res := <-done; res.Verdict != store.Joinable || res.Record.Token != a.Token {
		t.Errorf("the other attempt got verdict %d (%+v), want to join", res.Verdict, res)
	}
	expect(t, other, attemptIn(a.ID.Namespace()), store.NamespaceClosed)
}

// X5, the other way round: a reservation that comes while the namespace is
// being closed waits, and sees it closed.
func TestReservationsWaitForClosingUnderWay(t *testing.T) {
	for name, counted := range map[string]bool{"by the statement alone": false, "by the function": true} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t)
			s := d.open(t, brief())
			if counted { // which the statement leaves to the function
				s.step = 1
			}
			a := attempt(t, s)
			for range 8 { // the statement is prepared, planned and cached by then
				expect(t, s, attempt(t, s), store.Run)
			}
			closing := pause(t, s, `LOCK TABLE ONLY `+d.schema+`.record IN SHARE ROW EXCLUSIVE MODE`)
			done := make(chan store.Verdict)
			go func() {
				res, err := s.reserve(context.WithoutCancel(t.Context()), identify(a.ID), a, true)
				if err != nil {
					t.Errorf("Reserve: %v", err)
				}
				done <- res.Verdict
			}()
			eventually(t, "the reservation waits", func() bool { return waiting(t, s) > 0 })
			// The rotation decides after the reservation has come.
			run(t, s, `UPDATE {schema}.namespace SET state = 1`)
			run(t, s, `UPDATE {schema}.namespace SET state = 2`)
			run(t, s, `INSERT INTO {schema}.namespace SELECT 999, 'next', incarnation, 0, retention, rotate_every, closing_for, born, due FROM {schema}.namespace`)
			closing()
			if v := <-done; v != store.NamespaceClosed {
				t.Errorf("verdict %d, want namespaceClosed", v)
			}
		})
	}
}

// The same for the end of a run: it does not miss that its namespace has
// closed, and is held for the retention from then.
func TestEndsOfRunsWaitForClosingUnderWay(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, brief())
	for range 8 {
		a := attempt(t, s)
		expect(t, s, a, store.Run)
		record(t, s, a, complete("done"))
	}
	a := attempt(t, s)
	expect(t, s, a, store.Run)
	closing := pause(t, s, `LOCK TABLE ONLY `+d.schema+`.record IN SHARE ROW EXCLUSIVE MODE`)
	done := make(chan error)
	go func() { done <- s.Record(context.WithoutCancel(t.Context()), ref(a), complete("done")) }()
	eventually(t, "the end waits", func() bool { return waiting(t, s) > 0 })
	run(t, s, `UPDATE {schema}.namespace SET state = 2`)
	closing()
	if err := <-done; err != nil {
		t.Errorf("Record: %v", err)
	}
	if !scan[bool](t, s, `SELECT last_end IS NOT NULL FROM {schema}.namespace`) {
		t.Error("the end is not noted in the namespace that had closed")
	}
}

// A rotation that cannot get through gives up, and calls go on meanwhile.
func TestARotationDoesNotHoldCallsUpForLong(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, brief())
	advance := settable(t, s)
	a := attempt(t, s)
	commit := pause(t, s, `LOCK TABLE ONLY `+d.schema+`.record IN ROW EXCLUSIVE MODE`)
	advance(4*time.Hour + time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the middleware's patience
	defer cancel()
	if res, err := s.Reserve(ctx, a); err != nil || res.Verdict != store.Run {
		t.Errorf("while a rotation cannot get through: verdict %d, %v", res.Verdict, err)
	}
	commit()
	if ns, err := s.Current(t.Context()); err != nil || ns.Name == a.ID.Namespace() {
		t.Errorf("it is made up for later: %v, %v", ns, err)
	}
}

// X5 and X23 under load: several instances reserve in namespaces that rotate
// every few milliseconds, close as quickly and are dropped soon. No key that
// anyone ran is ever called one that never ran, and none is run twice.
func TestNobodyLiesWhileNamespacesRotate(t *testing.T) {
	d := newDatabase(t)
	opt := &Options{Retention: 400 * time.Millisecond, RotateEvery: 60 * time.Millisecond, ClosingFor: 30 * time.Millisecond}
	stores := []*Store{d.open(t, opt), d.open(t, opt), d.open(t, opt)}
	var runs, closed, gone atomic.Int64
	deadline := time.Now().Add(3 * time.Second)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			var names []string
			for time.Now().Before(deadline) && !t.Failed() {
				ns, err := stores[worker%3].Current(t.Context())
				if err != nil {
					t.Errorf("Current: %v", err)
					return
				}
				names = append(names, ns.Name)
				// A key of now, or of a namespace from a while ago.
				key := attemptIn(names[max(0, len(names)-1-rand.IntN(4))])
				ran, never := race(t, stores, key)
				runs.Add(int64(ran))
				if ran > 1 || ran > 0 && never > 0 {
					t.Errorf("one key: %d attempts ran, %d were told that it never ran", ran, never)
				}
				if never > 0 {
					closed.Add(1)
				} else if ran == 0 {
					gone.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d keys ran, %d met a closed namespace, %d none", runs.Load(), closed.Load(), gone.Load())
	if runs.Load() == 0 || closed.Load() == 0 {
		t.Error("the namespaces did not rotate as the test wants it")
	}
}

// race sends three attempts with one key to three instances at once and
// counts those that ran and those that were told that the key never ran.
func race(t *testing.T, stores []*Store, a store.Attempt) (ran, never int) {
	verdicts := make(chan store.Verdict, len(stores))
	var wg sync.WaitGroup
	for _, s := range stores {
		wg.Go(func() {
			b := again(a)
			res, err := s.Reserve(t.Context(), b)
			if err != nil {
				t.Errorf("Reserve: %v", err)
			}
			verdicts <- res.Verdict
			if res.Verdict == store.Run {
				if err := s.Record(t.Context(), ref(b), complete("done")); err != nil {
					t.Errorf("Record: %v", err) // the run holds its namespace
				}
			}
		})
	}
	wg.Wait()
	close(verdicts)
	for v := range verdicts {
		switch v {
		case store.Run:
			ran++
		case store.NamespaceClosed:
			never++
		}
	}
	return ran, never
}

// Namespaces are dropped whole: the state first, in which every reader answers
// "not held" though the rows are there, and the rows later.
func TestRowsOfADroppedNamespaceAreRemovedWhole(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, brief())
	advance := settable(t, s)
	a := attempt(t, s)
	expect(t, s, a, store.Run)
	record(t, s, a, complete("done"))
	partitions := func() int {
		return scan[int](t, s, `SELECT count(*) FROM pg_inherits WHERE inhparent IN ('{schema}.record'::regclass, '{schema}.tally'::regclass)`)
	}
	// A reader that takes its time keeps the tables from being dropped.
	reader, err := s.pool.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), `SELECT FROM `+d.schema+`.record`); err != nil {
		t.Fatal(err)
	}
	advance(4*time.Hour + time.Second)
	attempt(t, s)
	advance(11*time.Hour + time.Second)
	if n := partitions(); n != 4 {
		t.Fatalf("%d partitions, want 2 of each table", n)
	}
	expect(t, s, again(a), store.NamespaceNotHeld)
	if err := s.Record(t.Context(), ref(a), complete("done")); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Record in a dropped namespace: %v", err)
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rows are removed", func() bool {
		s.sweepSoon()
		return scan[int](t, s, `SELECT count(*) FROM {schema}.namespace WHERE state = 3`) == 0
	})
	expect(t, s, again(a), store.NamespaceNotHeld)
	if n := scan[int](t, s, `SELECT count(*) FROM {schema}.namespace`) * 2; n != partitions() {
		t.Errorf("%d partitions for %d namespaces", partitions(), n/2)
	}
}
