package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// outcome is about what a tool returns.
var outcome = []byte(`r{"content":[{"type":"text","text":"Charged 12.50 EUR to the card that ends in 4242."}],` +
	`"structuredContent":{"id":"ch_000000000001","amount":1250,"currency":"EUR"}}`)

// trips counts the round trips on connections: a write after a read begins one.
type trips struct {
	net.Conn
	n     *atomic.Int64
	asked bool
}

func (c *trips) Write(b []byte) (int, error) {
	if !c.asked {
		c.asked = true
		c.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *trips) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.asked = false
	return n, err
}

func counted(n *atomic.Int64) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) {
		dialer := &net.Dialer{}
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			return &trips{Conn: conn, n: n}, err
		}
	}
}

// A way is one way to make a call that has its effect once.
type way struct {
	name  string
	call  func(ctx context.Context, key string) error
	trips atomic.Int64
	times []float64 // seconds a batch took
}

// effectOf is the same effect for all ways: a row.
func effectOf(ctx context.Context, tx pgx.Tx, schema, key string) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+schema+`.effect (call) VALUES ($1)`, key)
	return err
}

// byHand is the least that is correct: key, effect and result in one
// transaction, and a duplicate waits for it at the key.
func byHand(pool *pgxpool.Pool, schema string) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		tag, err := tx.Exec(ctx, `INSERT INTO `+schema+`.hand (key, fingerprint) VALUES ($1, $2) ON CONFLICT DO NOTHING`, key, make([]byte, 32))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			var result []byte
			return tx.QueryRow(ctx, `SELECT result FROM `+schema+`.hand WHERE key = $1`, key).Scan(&result)
		}
		if err := effectOf(ctx, tx, schema, key); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE `+schema+`.hand SET result = $2 WHERE key = $1`, key, outcome); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

// byHandLate saves a round trip: the key goes in with the result, and a
// duplicate that ran at the same time is rolled back there.
func byHandLate(pool *pgxpool.Pool, schema string) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if err := effectOf(ctx, tx, schema, key); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO `+schema+`.hand (key, fingerprint, result) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
			key, make([]byte, 32), outcome)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return tx.Commit(ctx)
	}
}

// byStore is what AddTool and the middleware do with the store.
func byStore(s *Store, namespace string) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		a := store.Attempt{
			ID: store.ID{Principal: "user", Key: namespace + "." + key}, Token: newToken(), Lease: time.Minute, Transactional: true,
		}
		res, err := s.Reserve(ctx, a)
		if err != nil || res.Verdict != store.Run {
			return fmt.Errorf("verdict %d: %w", res.Verdict, err)
		}
		e, err := s.begin(ctx)
		if err != nil {
			return err
		}
		if err := effectOf(ctx, &e.tx, s.opt.Schema, key); err != nil {
			return err
		}
		return e.Commit(ctx, ref(a), store.End{Event: store.Complete, Outcome: outcome})
	}
}

// BenchmarkAgainstHandWritten compares transactional calls of the store with
// code written by hand for the same database, in one run: in every round each
// way makes a batch of calls, in random order, so that a slow moment of the
// machine falls on all. The metrics of-hand are throughput as a part of theirs.
func BenchmarkAgainstHandWritten(b *testing.B) {
	for _, workers := range []int{1, 8} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) { againstHandWritten(b, workers) })
	}
}

func againstHandWritten(b *testing.B, workers int) {
	d := newDatabase(b)
	ways := []*way{{name: "store"}, {name: "hand"}, {name: "hand-late"}}
	s := d.open(b, nil, counted(&ways[0].trips))
	effectTable(b, s)
	run(b, s, `CREATE TABLE {schema}.hand (key text PRIMARY KEY, fingerprint bytea NOT NULL, result bytea)`)
	ways[0].call = byStore(s, attempt(b, s).ID.Namespace())
	ways[1].call = byHand(d.pool(b, counted(&ways[1].trips)), d.schema)
	ways[2].call = byHandLate(d.pool(b, counted(&ways[2].trips)), d.schema)
	const batch = 200
	for _, w := range ways { // connections, caches
		w.batch(b, workers, batch)
		w.times = nil
		w.trips.Store(0)
	}
	b.ResetTimer()
	for range b.N {
		for _, i := range mrand.Perm(len(ways)) {
			ways[i].batch(b, workers, batch)
		}
	}
	b.StopTimer()
	for _, w := range ways {
		b.ReportMetric(float64(w.trips.Load())/float64(b.N*batch), w.name+"-trips/call")
		b.ReportMetric(batch/quantile(w.times, 0.5), w.name+"-calls/s")
	}
	for _, w := range ways[1:] {
		ratios := make([]float64, len(w.times))
		for i := range ratios {
			ratios[i] = w.times[i] / ways[0].times[i]
		}
		b.ReportMetric(quantile(ratios, 0.5), "of-"+w.name)
		b.ReportMetric(quantile(ratios, 0.25), "of-"+w.name+"-q1")
		b.ReportMetric(quantile(ratios, 0.75), "of-"+w.name+"-q3")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRecords measures a call while the current namespace holds so many
// records, in one run: the metrics are medians, and the ratio to the smallest.
func BenchmarkRecords(b *testing.B) {
	sizes := []int{1_000, 100_000}
	if long() {
		sizes = append(sizes, 10_000_000)
	}
	var ways []*way
	for _, n := range sizes {
		d := newDatabase(b)
		s := d.open(b, &Options{MaxRecords: 100_000_000})
		effectTable(b, s)
		fill(b, s, n)
		run(b, s, `VACUUM (ANALYZE) {schema}.record`)
		w := &way{name: fmt.Sprint(n), call: byStore(s, attempt(b, s).ID.Namespace())}
		w.batch(b, 1, 100)
		w.times = nil
		ways = append(ways, w)
	}
	run(b, &Store{pool: newDatabase(b).pool(b)}, `CHECKPOINT`)
	b.ResetTimer()
	const batch = 100
	for range b.N {
		for _, i := range mrand.Perm(len(ways)) {
			ways[i].batch(b, 1, batch)
		}
	}
	b.StopTimer()
	for _, w := range ways {
		b.ReportMetric(1e6*quantile(w.times, 0.5)/batch, w.name+"-µs/call")
		b.ReportMetric(quantile(w.times, 0.5)/quantile(ways[0].times, 0.5), w.name+"-ratio")
	}
	b.ReportMetric(0, "ns/op")
}

func (w *way) batch(b *testing.B, workers, n int) {
	b.Helper()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(n))
	start := time.Now()
	for range workers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := w.call(b.Context(), rand.Text()); err != nil {
					b.Errorf("%s: %v", w.name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	w.times = append(w.times, time.Since(start).Seconds())
}

func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[int(q*float64(len(s)-1))]
}
