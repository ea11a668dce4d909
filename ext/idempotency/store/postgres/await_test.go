package postgres

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

const soon = 10 * time.Second

// await waits in the background, and returns once the database knows of it.
func await(t *testing.T, s *Store, a store.Attempt) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Await(context.WithoutCancel(t.Context()), a.ID, a.Token) }()
	eventually(t, "somebody waits", func() bool {
		return scan[bool](t, s, `SELECT coalesce((SELECT awaited FROM {schema}.record WHERE token = $1), false)`, [16]byte(a.Token))
	})
	return done
}

func returns(t *testing.T, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%s: Await returned %v", what, err)
		}
	case <-time.After(soon):
		t.Fatalf("%s: Await did not return", what)
	}
}

func TestANotificationWakesWithoutPolling(t *testing.T) {
	d := newDatabase(t)
	runs, waits := d.open(t, nil), d.open(t, &Options{PollInterval: time.Hour})
	a := attempt(t, runs)
	expect(t, runs, a, store.Run)
	done := await(t, waits, a)
	record(t, runs, a, complete("done"))
	returns(t, "notified", done)
}

func TestPollingWakesWhenNotificationsAreBlocked(t *testing.T) {
	d := newDatabase(t)
	runs, waits := d.open(t, nil), d.open(t, &Options{PollInterval: 50 * time.Millisecond})
	run(t, runs, `CREATE OR REPLACE FUNCTION {schema}.wake(p_token uuid) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'`)
	a := attempt(t, runs)
	expect(t, runs, a, store.Run)
	done := await(t, waits, a)
	record(t, runs, a, complete("done"))
	returns(t, "polled", done)
}

// Polling goes on as well when the connection to listen on cannot be had.
func TestPollingWakesWhenNobodyCanListen(t *testing.T) {
	d := newDatabase(t)
	runs := d.open(t, nil)
	waits := d.open(t, &Options{PollInterval: 50 * time.Millisecond}, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = refuse("LISTEN")
	})
	a := attempt(t, runs)
	expect(t, runs, a, store.Run)
	done := await(t, waits, a)
	record(t, runs, a, complete("done"))
	returns(t, "polled", done)
}

// refuse is a tracer that ends the context of statements that start so.
type refuse string

func (r refuse) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, string(r)) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel()
	}
	return ctx
}

func (refuse) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestTheListenerComesBackAfterALoss(t *testing.T) {
	d := newDatabase(t)
	runs, waits := d.open(t, nil), d.open(t, &Options{PollInterval: time.Hour})
	for range 3 {
		a := attempt(t, runs)
		expect(t, runs, a, store.Run)
		done := await(t, waits, a)
		// Ending between two notifications: what was missed is looked up.
		if n := scan[int](t, runs, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query = 'LISTEN "{schema}"'`); n != 1 {
			t.Fatalf("%d connections listen, want 1", n)
		}
		record(t, runs, a, complete("done"))
		returns(t, "after the loss of the connection", done)
	}
}

// Commits that notify queue for a lock of the whole server, so that only those
// do for which somebody waits.
func TestNobodyIsNotifiedForNothing(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	conn, err := pgx.Connect(t.Context(), d.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "LISTEN "+d.schema); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		a := attempt(t, s)
		expect(t, s, a, store.Run)
		expect(t, s, again(a), store.Joinable)
		record(t, s, a, complete("done"))
	}
	a := attempt(t, s)
	expect(t, s, a, store.Run)
	done := await(t, s, a)
	record(t, s, a, complete("done"))
	returns(t, "notified", done)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if token := hexToken(a.Token); strings.ReplaceAll(n.Payload, "-", "") != token {
		t.Errorf("the first notification is of %s, want %s, the only run that was waited for", n.Payload, token)
	}
}

func hexToken(t store.Token) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for _, c := range t {
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}

// Anybody may notify on the channel.
func TestForeignNotificationsDoNoHarm(t *testing.T) {
	d := newDatabase(t)
	runs, waits := d.open(t, nil), d.open(t, &Options{PollInterval: time.Hour})
	a := attempt(t, runs)
	expect(t, runs, a, store.Run)
	done := await(t, waits, a)
	for _, payload := range []string{"", "x", "'; DROP TABLE record", strings.Repeat("0", 32), strings.Repeat("f", 7000), hexToken(a.Token)} {
		run(t, runs, `SELECT pg_notify('{schema}', $1)`, payload)
	}
	select {
	case err := <-done:
		t.Fatalf("Await of a live run returned %v", err)
	default:
	}
	record(t, runs, a, complete("done"))
	returns(t, "after foreign notifications", done)
}

func TestClosingEndsWhoWaits(t *testing.T) {
	d := newDatabase(t)
	runs, waits := d.open(t, nil), d.open(t, &Options{PollInterval: time.Hour})
	a := attempt(t, runs)
	expect(t, runs, a, store.Run)
	done := await(t, waits, a)
	_ = waits.Close()
	select {
	case err := <-done:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("Await returned %v", err)
		}
	case <-time.After(soon):
		t.Fatal("Await did not end with its store")
	}
	if err := waits.Await(t.Context(), a.ID, a.Token); !errors.Is(err, ErrClosed) {
		t.Errorf("Await on a closed store returned %v", err)
	}
}

func TestAClosedStoreLeavesNoGoroutine(t *testing.T) {
	d := newDatabase(t)
	pool := d.pool(t)
	before := goroutinesOf("store/postgres.")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := Open(t.Context(), pool, &Options{Schema: d.schema, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Errorf("Open: %v", err)
				return
			}
			a := attempt(t, s)
			expect(t, s, a, store.Run)
			wait, cancel := context.WithCancel(t.Context())
			go cancel()
			if err := s.Await(wait, a.ID, a.Token); !errors.Is(err, context.Canceled) {
				t.Errorf("Await: %v", err)
			}
			s.sweepSoon()
			_ = s.Close()
		})
	}
	wg.Wait()
	// The goroutines of wg are about to end when Wait returns.
	eventually(t, "no goroutine is left", func() bool { return goroutinesOf("store/postgres.") <= before })
}

// goroutinesOf counts the goroutines that have a function of a package on
// their stack.
func goroutinesOf(pkg string) int {
	buf := make([]byte, 1<<20)
	n := 0
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, pkg) {
			n++
		}
	}
	return n
}
