package redis_test

import (
	"context"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

// TestContract runs the contract of every store, with a polling interval that
// no test lives to see: what wakes a wait is the message.
func TestContract(t *testing.T) {
	serverURL(t)
	storetest.Run(t, func(t testing.TB, c storetest.Config) storetest.Backend { return newBackend(t, c).backend() })
}

func BenchmarkContract(b *testing.B) {
	serverURL(b)
	storetest.Bench(b, func(t testing.TB, c storetest.Config) storetest.Backend { return newBackend(t, c).backend() })
}

// backend is one prefix with the means to work on it.
type backend struct {
	client *goredis.Client
	outage outage
	prefix string

	mu     sync.Mutex
	config storetest.Config
	skew   time.Duration
	look   []func()
}

func newBackend(t testing.TB, c storetest.Config) *backend {
	b := &backend{client: connect(t), config: c}
	b.prefix = prefix(t, connect(t))
	b.client.AddHook(&b.outage)
	return b
}

func (b *backend) backend() storetest.Backend {
	return storetest.Backend{
		Open: b.open, Durable: true, Advance: b.advance,
		Reconfigure: func(c storetest.Config) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.config = c
		},
		Break:  b.outage.broken.Store,
		Limits: storetest.Limits{Records: true, RecordsPerPrincipal: true, OpenPerPrincipal: true, ResultBytes: true},
	}
}

func (b *backend) open(t testing.TB) store.Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.config
	s, err := redis.Open(t.Context(), b.client, &redis.Options{
		Prefix: b.prefix, PollInterval: time.Hour,
		Retention: c.Retention, RotateEvery: c.RotateEvery, ClosingFor: c.ClosingFor,
		MaxRecords: c.MaxRecords, MaxRecordsPerPrincipal: c.MaxRecordsPerPrincipal,
		MaxOpenPerPrincipal: c.MaxOpenPerPrincipal, MaxResultBytes: c.MaxResultBytes,
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	b.look = append(b.look, s.Skew(func() time.Duration {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.skew
	}))
	return plain{s, t}
}

func (b *backend) advance(d time.Duration) {
	b.mu.Lock()
	b.skew += d
	look := b.look
	b.mu.Unlock()
	for _, f := range look {
		f()
	}
}

// plain skips what the contract says of runs that record their end in the
// transaction of their effect: there are none here (see Store.Reserve), and
// [TestTransactionalAttemptsArePlain] shows what happens instead.
type plain struct {
	*redis.Store
	t testing.TB
}

func (p plain) Reserve(ctx context.Context, a store.Attempt) (store.Reservation, error) {
	res, err := p.Store.Reserve(ctx, a)
	if a.Transactional && res.Verdict == store.Run {
		p.t.Skip("the store has no transactional runs")
	}
	return res, err
}
