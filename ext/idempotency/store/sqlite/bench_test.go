package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

// handWritten is the least that is correct on the same database: a key is
// claimed by an insert that does nothing on a conflict, in an immediate
// transaction, and its result is written by an update. It has no namespaces,
// leases, quotas, tokens or witness.
type handWritten struct {
	conn                         *sql.Conn
	begin, claim, commit, finish *sql.Stmt
}

func newHandWritten(b *testing.B, path string) *handWritten {
	b.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	const table = `CREATE TABLE calls (principal TEXT NOT NULL, key TEXT NOT NULL, fingerprint BLOB NOT NULL,
		state INTEGER NOT NULL, result BLOB, PRIMARY KEY (principal, key))`
	if _, err := conn.ExecContext(b.Context(), table); err != nil {
		b.Fatal(err)
	}
	h := &handWritten{conn: conn}
	for stmt, text := range map[**sql.Stmt]string{
		&h.begin: "BEGIN IMMEDIATE", &h.commit: "COMMIT",
		&h.claim:  "INSERT INTO calls (principal, key, fingerprint, state) VALUES (?, ?, ?, 1) ON CONFLICT DO NOTHING",
		&h.finish: "UPDATE calls SET state = 2, result = ? WHERE principal = ? AND key = ?",
	} {
		if *stmt, err = conn.PrepareContext(context.Background(), text); err != nil {
			b.Fatal(err)
		}
	}
	return h
}

func (h *handWritten) call(id store.ID, fingerprint, result []byte) error {
	if _, err := h.begin.Exec(); err != nil {
		return err
	}
	res, err := h.claim.Exec(id.Principal, id.Key, fingerprint)
	if err != nil {
		return err
	}
	if _, err := h.commit.Exec(); err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n != 1 || err != nil {
		return fmt.Errorf("claimed %d rows, %w", n, err)
	}
	_, err = h.finish.Exec(result, id.Principal, id.Key)
	return err
}

func storeCall(ctx context.Context, s store.Store, a store.Attempt, result []byte) error {
	if _, err := s.Reserve(ctx, a); err != nil {
		return err
	}
	return s.Record(ctx, store.RunRef{ID: a.ID, Token: a.Token}, store.End{Event: store.Complete, Outcome: result})
}

// rivals are both stores in one directory, for benchmarks in which they take
// turns, so that what else the machine does befalls both.
type rivals struct {
	hand      *handWritten
	store     *sqlite.Store
	namespace string
	result    []byte
}

func newRivals(b *testing.B) *rivals {
	b.Helper()
	dir := b.TempDir()
	r := &rivals{
		hand:   newHandWritten(b, filepath.Join(dir, "hand.db")),
		store:  mustOpen(b, filepath.Join(dir, "store.db"), sqlite.Options{}),
		result: make([]byte, 300),
	}
	r.namespace = current(b, r.store)
	return r
}

func report(b *testing.B, calls int, byHand, byStore time.Duration) {
	b.ReportMetric(float64(byHand.Nanoseconds())/float64(calls), "hand-ns/call")
	b.ReportMetric(float64(byStore.Nanoseconds())/float64(calls), "store-ns/call")
	b.ReportMetric(float64(byHand)/float64(byStore), "ratio")
}

// BenchmarkAgainstHandWritten compares one caller. The ratio is of throughputs:
// 1 is as fast.
func BenchmarkAgainstHandWritten(b *testing.B) {
	ctx, r := b.Context(), newRivals(b)
	var byHand, byStore time.Duration
	for b.Loop() {
		a := attempt(r.namespace)
		start := time.Now()
		if err := r.hand.call(a.ID, a.Fingerprint[:], r.result); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		if err := storeCall(ctx, r.store, a, r.result); err != nil {
			b.Fatal(err)
		}
		byHand += between.Sub(start)
		byStore += time.Since(between)
	}
	report(b, b.N, byHand, byStore)
}

// BenchmarkAgainstHandWrittenParallel compares 16 callers. By hand they queue
// for one connection, which is what suits SQLite best.
func BenchmarkAgainstHandWrittenParallel(b *testing.B) {
	const callers, each = 16, 10
	ctx, r := b.Context(), newRivals(b)
	var mu sync.Mutex
	byHand := func(a store.Attempt) error {
		mu.Lock()
		defer mu.Unlock()
		return r.hand.call(a.ID, a.Fingerprint[:], r.result)
	}
	byStore := func(a store.Attempt) error { return storeCall(ctx, r.store, a, r.result) }
	round := func(call func(store.Attempt) error) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					if err := call(attempt(r.namespace)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	var hand, st time.Duration
	for b.Loop() {
		hand += round(byHand)
		st += round(byStore)
	}
	report(b, b.N*callers*each, hand, st)
}

// sizeEnv names how many records the largest size of BenchmarkAtSize has.
const sizeEnv = "IDEMPOTENCY_BENCH_RECORDS"

// BenchmarkAtSize measures a call when there are so many ended calls already:
// 10³, 10⁵, and what IDEMPOTENCY_BENCH_RECORDS says. 10⁷ takes 2 GiB and some
// minutes to fill. It also says what it takes to drop them all.
func BenchmarkAtSize(b *testing.B) {
	sizes := []int{1e3, 1e5}
	if n, err := strconv.Atoi(os.Getenv(sizeEnv)); err == nil {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		b.Run(strconv.Itoa(n), func(b *testing.B) { benchAtSize(b, n) })
	}
}

func benchAtSize(b *testing.B, n int) {
	ctx, clock := b.Context(), storetest.NewClock()
	path := filepath.Join(b.TempDir(), "store.db")
	s := mustOpen(b, path, sqlite.Options{Now: clock.Now, MaxRecords: 1 << 40})
	ns := current(b, s)
	call(b, s, "x")
	// By SQL, as n calls would leave them whose results are evicted.
	fill := fmt.Sprintf(`WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < %d)
		INSERT INTO idempotency_ended_1 (digest, principal, key, state, since_ms, fingerprint, token)
		SELECT randomblob(24), CAST('user@example.com' AS BLOB), CAST('%s.' || hex(randomblob(13)) AS BLOB), 3,
		1800000000000, randomblob(32), randomblob(16) FROM i`, n, ns)
	count := fmt.Sprintf("UPDATE idempotency_live_1 SET records = records + %d WHERE kind = 0", n)
	for _, text := range []string{fill, count, "PRAGMA wal_checkpoint(TRUNCATE)"} {
		if err := s.Script(text); err != nil {
			b.Fatal(err)
		}
	}
	size, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	result := make([]byte, 300)
	for b.Loop() {
		if err := storeCall(ctx, s, attempt(ns), result); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(size.Size())/float64(n), "B/record")
	b.StopTimer()
	clock.Advance(25 * time.Hour)
	current(b, s)
	clock.Advance(2 * 25 * time.Hour)
	start := time.Now()
	current(b, s)
	left, err := s.Read("SELECT name FROM sqlite_master WHERE name = 'idempotency_ended_1'") // when the tables are gone
	b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/drop")
	if len(left) > 0 || err != nil {
		b.Errorf("the namespace was not dropped: %v, %v", left, err)
	}
}
