package redis_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// serverEnv names the URL of the server that the tests may use; each works
// under a prefix of its own. testserver.sh starts one.
const serverEnv = "SEPCHECK_REDIS"

func serverURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv(serverEnv)
	if url == "" {
		t.Skip(serverEnv + " is not set: no Redis server to test with (testserver.sh starts one)")
	}
	return url
}

// connect returns a client of the shared server, with the changes of edit.
func connect(t testing.TB, edit ...func(*goredis.Options)) *goredis.Client {
	t.Helper()
	opt, err := goredis.ParseURL(serverURL(t))
	if err != nil {
		t.Fatalf("%s: %v", serverEnv, err)
	}
	return newClient(t, opt, edit...)
}

func newClient(t testing.TB, opt *goredis.Options, edit ...func(*goredis.Options)) *goredis.Client {
	opt.ContextTimeoutEnabled = true
	for _, e := range edit {
		e(opt)
	}
	c := goredis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// prefix returns a prefix that no other test has, and removes what is under
// it when the test ends.
func prefix(t testing.TB, c *goredis.Client) string {
	p := "t-" + rand.Text()[:10]
	t.Cleanup(func() {
		ctx := context.Background()
		keys, err := c.Keys(ctx, "{"+p+"}:*").Result()
		if err == nil && len(keys) > 0 {
			err = c.Unlink(ctx, keys...).Err()
		}
		if err != nil && !errors.Is(err, goredis.ErrClosed) {
			t.Logf("cleaning up: %v", err)
		}
	})
	return p
}

// open opens a store that is closed when the test ends.
func open(t testing.TB, c goredis.UniversalClient, opt redis.Options) *redis.Store {
	t.Helper()
	s, err := redis.Open(t.Context(), c, &opt)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// fresh opens a store without records.
func fresh(t testing.TB, c *goredis.Client, opt redis.Options) *redis.Store {
	t.Helper()
	opt.Prefix = prefix(t, c)
	return open(t, c, opt)
}

// namespace returns the one that takes new keys.
func namespace(t testing.TB, s store.Store) string {
	t.Helper()
	ns, err := s.Current(t.Context())
	if err != nil {
		t.Fatalf("Current: %v", err)
	}
	return ns.Name
}

// attempt is a first attempt with a new key of the current namespace.
func attempt(t testing.TB, s store.Store) store.Attempt {
	t.Helper()
	return attemptOf(store.ID{Principal: "p", Key: namespace(t, s) + "." + rand.Text()})
}

func attemptOf(id store.ID) store.Attempt {
	a := store.Attempt{ID: id, Fingerprint: store.Fingerprint{1}, Lease: time.Minute}
	_, _ = rand.Read(a.Token[:]) // never fails
	return a
}

// again is another attempt of the same call.
func again(a store.Attempt) store.Attempt {
	_, _ = rand.Read(a.Token[:]) // never fails
	return a
}

func ref(a store.Attempt) store.RunRef { return store.RunRef{ID: a.ID, Token: a.Token} }

// expect reserves and demands a verdict.
func expect(t testing.TB, s store.Store, a store.Attempt, want store.Verdict) store.Reservation {
	t.Helper()
	res, err := s.Reserve(t.Context(), a)
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	if res.Verdict != want {
		t.Fatalf("Reserve: verdict %d (%+v), want %d", res.Verdict, res.Record, want)
	}
	return res
}

// complete runs a new key to its end.
func complete(t testing.TB, s store.Store, outcome string) store.Attempt {
	t.Helper()
	a := attempt(t, s)
	expect(t, s, a, store.Run)
	record(t, s, a, store.End{Event: store.Complete, Outcome: []byte(outcome)})
	return a
}

func record(t testing.TB, s store.Store, a store.Attempt, end store.End) {
	t.Helper()
	if err := s.Record(t.Context(), ref(a), end); err != nil {
		t.Fatalf("Record: %v", err)
	}
}

// wantOutcome demands that a call has completed with an outcome.
func wantOutcome(t testing.TB, s store.Store, a store.Attempt, outcome string) {
	t.Helper()
	res := expect(t, s, again(a), store.Known)
	if res.Record.State != store.Completed || string(res.Record.Outcome) != outcome {
		t.Fatalf("the record is %v with %q, want %q", res.Record.State, res.Record.Outcome, outcome)
	}
}

// outage is a hook of a client that can make everything fail, and counts round trips
// that have ended.
type outage struct {
	broken atomic.Bool
	trips  atomic.Int64
}

var errOutage = errors.New("outage")

func (o *outage) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (o *outage) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		defer o.trips.Add(1)
		if o.broken.Load() {
			cmd.SetErr(errOutage)
			return errOutage
		}
		return next(ctx, cmd)
	}
}

func (o *outage) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		defer o.trips.Add(1)
		if o.broken.Load() {
			return errOutage
		}
		return next(ctx, cmds)
	}
}
