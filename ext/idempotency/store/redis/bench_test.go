package redis_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// result is about what a tool returns.
var result = []byte(`r{"content":[{"type":"text","text":"Charged 12.50 EUR to the card that ends in 4242."}],` +
	`"structuredContent":{"id":"ch_000000000001","amount":1250,"currency":"EUR"}}`)

// BenchmarkAgainstMinimal compares a call that runs (reserve and record) and
// a replay with what one would write by hand:
//
//   - "plain", the least that does anything of the kind: SET NX and SET, and
//     GET. It compares no arguments, has no leases or fences, and notices no
//     loss.
//   - "script", the least that compares arguments, leases and fences: two Lua
//     scripts on one hash a key. It notices no loss, bounds nothing, forgets by
//     a time to live, and cannot be listed.
//
// They go side by side, in random order and small batches, so that a slow
// moment falls on all. The metrics of-plain and of-script are the store's
// throughput divided by theirs, the medians of the rounds.
//
// "network" does the same with half a millisecond more for each round trip, as
// between two machines.
func BenchmarkAgainstMinimal(b *testing.B) {
	client := connect(b)
	b.Run("call-1", func(b *testing.B) { compareCalls(b, client, 1) })
	b.Run("call-16", func(b *testing.B) { compareCalls(b, client, 16) })
	b.Run("network-1", func(b *testing.B) {
		compareCalls(b, connect(b, func(o *goredis.Options) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				return far{c}, err
			}
		}), 1)
	})
	b.Run("replay-1", func(b *testing.B) { compareReplays(b, client) })
}

// far is a connection to another machine.
type far struct{ net.Conn }

func (f far) Write(p []byte) (int, error) {
	time.Sleep(500 * time.Microsecond)
	return f.Conn.Write(p)
}

func compareCalls(b *testing.B, client *goredis.Client, parallel int) {
	s := fresh(b, client, redis.Options{})
	ns := namespace(b, s)
	hand := byHand{client, "{" + prefix(b, client) + "}:"}
	compare(b, parallel, hand.plainCall, hand.scriptCall,
		func(ctx context.Context) error { return storeCall(ctx, s, ns) })
}

func compareReplays(b *testing.B, client *goredis.Client) {
	s := fresh(b, client, redis.Options{})
	done := complete(b, s, string(result))
	hand := byHand{client, "{" + prefix(b, client) + "}:"}
	plain, script := hand.prefix+"plain", hand.prefix+"script"
	if err := errors.Join(hand.plain(b.Context(), plain), hand.script(b.Context(), script)); err != nil {
		b.Fatal(err)
	}
	compare(b, 1,
		func(ctx context.Context) error { return client.Get(ctx, plain).Err() },
		func(ctx context.Context) error {
			return handReserve.Run(ctx, client, []string{script}, done.Fingerprint[:], done.Token[:], 60000).Err()
		},
		func(ctx context.Context) error {
			_, err := s.Reserve(ctx, done)
			return err
		})
}

// byHand is the code that the store is compared with.
type byHand struct {
	client *goredis.Client
	prefix string
}

var (
	handReserve = goredis.NewScript(`
local r = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'lease', 'outcome')
if r[1] then
  return r
end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'token', ARGV[2], 'lease', t[1] * 1000 + ARGV[3])
redis.call('PEXPIRE', KEYS[1], 86400000)
return {}`)
	handRecord = goredis.NewScript(`
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'outcome', ARGV[2])
return 1`)
)

func (h byHand) plainCall(ctx context.Context) error { return h.plain(ctx, h.prefix+rand.Text()) }

func (h byHand) plain(ctx context.Context, key string) error {
	if err := h.client.SetArgs(ctx, key, "running", goredis.SetArgs{Mode: "NX", TTL: 24 * time.Hour}).Err(); err != nil {
		return err
	}
	return h.client.Set(ctx, key, result, 24*time.Hour).Err()
}

func (h byHand) scriptCall(ctx context.Context) error { return h.script(ctx, h.prefix+rand.Text()) }

func (h byHand) script(ctx context.Context, key string) error {
	a := attemptOf(store.ID{})
	if err := handReserve.Run(ctx, h.client, []string{key}, a.Fingerprint[:], a.Token[:], 60000).Err(); err != nil {
		return err
	}
	return handRecord.Run(ctx, h.client, []string{key}, a.Token[:], result).Err()
}

func storeCall(ctx context.Context, s store.Store, ns string) error {
	a := attemptOf(store.ID{Principal: "user", Key: ns + "." + rand.Text()})
	if res, err := s.Reserve(ctx, a); err != nil || res.Verdict != store.Run {
		return fmt.Errorf("verdict %d: %w", res.Verdict, err)
	}
	return s.Record(ctx, ref(a), store.End{Event: store.Complete, Outcome: result})
}

// compare times plain, script and the store side by side.
func compare(b *testing.B, parallel int, steps ...func(context.Context) error) {
	times := sideBySide(b, parallel, steps...)
	stored := times[len(times)-1]
	for i, name := range []string{"plain", "script", "store"} {
		b.ReportMetric(median(times[i])/1e3, name+"-µs")
		if i < len(times)-1 {
			ratios := make([]float64, len(stored))
			for j := range stored {
				ratios[j] = times[i][j] / stored[j]
			}
			b.ReportMetric(median(ratios), "of-"+name)
		}
	}
}

// sideBySide runs b.N rounds of a batch of each step, in random order, and
// returns the nanoseconds of one in each round.
func sideBySide(b *testing.B, parallel int, steps ...func(context.Context) error) [][]float64 {
	const batch = 64
	times := make([][]float64, len(steps))
	round := func(i int) float64 {
		start := time.Now()
		inParallel(b, parallel, batch, steps[i])
		return float64(time.Since(start)) / batch
	}
	for i := range steps { // warm up
		round(i)
	}
	b.ResetTimer()
	for range b.N {
		for _, i := range mathrand.Perm(len(steps)) {
			times[i] = append(times[i], round(i))
		}
	}
	b.StopTimer()
	return times
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func inParallel(b *testing.B, parallel, n int, step func(context.Context) error) {
	done := make(chan error, parallel)
	for range parallel {
		go func() {
			for range n / parallel {
				if err := step(b.Context()); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range parallel {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
