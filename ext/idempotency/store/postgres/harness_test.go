package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// serverURL returns the URL of the server to test with, or skips the test.
func serverURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv("SEPCHECK_POSTGRES")
	if url == "" {
		t.Skip("SEPCHECK_POSTGRES is not set: nothing is tested against PostgreSQL (see testserver.sh)")
	}
	return url
}

// long reports whether the tests are to take their time.
func long() bool { return os.Getenv("SEPCHECK_LONG") == "1" }

// A database is a schema of a test's own.
type database struct {
	url    string
	schema string
	// broken makes every use of a connection fail, as in an outage.
	broken atomic.Bool
}

func newDatabase(t testing.TB) *database { return newDatabaseAt(t, serverURL(t)) }

func newDatabaseAt(t testing.TB, url string) *database {
	d := &database{url: url, schema: "t_" + strings.ToLower(rand.Text()[:16])}
	t.Cleanup(func() {
		d.broken.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, d.url)
		if err != nil {
			return // a test has stopped its own server
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+d.schema+" CASCADE"); err != nil {
			t.Errorf("dropping the schema of the test: %v", err)
		}
	})
	return d
}

// pool returns a pool that is closed when the test ends.
func (d *database) pool(t testing.TB, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 8
	dialer := &net.Dialer{}
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if d.broken.Load() {
			return nil, errBroken
		}
		conn, err := dialer.DialContext(ctx, network, addr)
		return &breakable{Conn: conn, broken: &d.broken}, err
	}
	for _, f := range change {
		f(c)
	}
	p, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// open returns a store of its own pool, as another process would have one.
func (d *database) open(t testing.TB, opt *Options, change ...func(*pgxpool.Config)) *Store {
	t.Helper()
	var o Options
	if opt != nil {
		o = *opt
	}
	o.Schema = cmp.Or(o.Schema, d.schema)
	s, err := Open(t.Context(), d.pool(t, change...), &o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var errBroken = errors.New("the network is broken")

// breakable is a connection that can be made to fail, which ends it.
type breakable struct {
	net.Conn
	broken *atomic.Bool
}

func (c *breakable) Write(b []byte) (int, error) {
	if c.broken.Load() {
		_ = c.Close()
		return 0, errBroken
	}
	return c.Conn.Write(b)
}

func run(t testing.TB, s *Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), strings.ReplaceAll(sql, "{schema}", s.opt.Schema), args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](t testing.TB, s *Store, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := s.pool.QueryRow(t.Context(), strings.ReplaceAll(sql, "{schema}", s.opt.Schema), args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// settable replaces the schema's clock by one that advance moves.
func settable(t testing.TB, s *Store) (advance func(time.Duration)) {
	t.Helper()
	run(t, s, `CREATE TABLE {schema}.test_clock AS SELECT true AS one, interval '0' AS ahead`)
	run(t, s, `CREATE UNIQUE INDEX ON {schema}.test_clock (one)`) // as every table has what is looked for
	run(t, s, `CREATE OR REPLACE FUNCTION {schema}.wall() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp() + ahead FROM {schema}.test_clock WHERE one'`)
	return func(d time.Duration) {
		run(t, s, `UPDATE {schema}.test_clock SET ahead = ahead + $1::bigint * interval '1 microsecond'`, d.Microseconds())
	}
}

// eventually waits for a state of the database that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func newToken() (t store.Token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

func newNonce() (n store.Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// attempt is a first attempt with a new key of the current namespace.
func attempt(t testing.TB, s *Store) store.Attempt {
	t.Helper()
	ns, err := s.Current(t.Context())
	if err != nil {
		t.Fatalf("Current: %v", err)
	}
	return attemptIn(ns.Name)
}

func attemptIn(namespace string) store.Attempt {
	return store.Attempt{
		ID:          store.ID{Principal: "p", Key: namespace + "." + rand.Text()},
		Fingerprint: store.Fingerprint{1}, Token: newToken(), Lease: time.Minute,
	}
}

func again(a store.Attempt) store.Attempt {
	a.Token = newToken()
	return a
}

func ref(a store.Attempt) store.RunRef { return store.RunRef{ID: a.ID, Token: a.Token} }

func complete(outcome string) store.End {
	return store.End{Event: store.Complete, Outcome: []byte(outcome)}
}

func expect(t testing.TB, s *Store, a store.Attempt, want store.Verdict) store.Reservation {
	t.Helper()
	res, err := s.Reserve(t.Context(), a)
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	if res.Verdict != want {
		t.Fatalf("Reserve: verdict %d (%+v), want %d", res.Verdict, res, want)
	}
	return res
}

func record(t testing.TB, s *Store, a store.Attempt, end store.End) {
	t.Helper()
	if err := s.Record(t.Context(), ref(a), end); err != nil {
		t.Fatalf("Record: %v", err)
	}
}
