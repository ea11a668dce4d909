package storetest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// A mutant is a store with one fault, and the group whose tests have to find
// it.
type mutant struct {
	fault string
	group string
	store func(store.Store) store.Store
	// backend changes what the stores are opened on; nil for a sound one.
	config  func(*Config)
	backend func(Backend) Backend
}

// faulty is a store whose steps can be replaced.
type faulty struct {
	store.Store
	store.Operator
	reserve func(s store.Store, ctx context.Context, a store.Attempt) (store.Reservation, error)
	record  func(s store.Store, ctx context.Context, r store.RunRef, e store.End) error
	renew   func(s store.Store, ctx context.Context, r store.RunRef, d time.Duration) error
	await   func(s store.Store, ctx context.Context, id store.ID, t store.Token) error
	current func(s store.Store, ctx context.Context) (store.Namespace, error)
	resolve func(o store.Operator, ctx context.Context, id store.ID, e store.Event, outcome []byte) error
	list    func(o store.Operator, ctx context.Context, q store.Query) ([]store.Entry, error)
}

func (f *faulty) Reserve(ctx context.Context, a store.Attempt) (store.Reservation, error) {
	if f.reserve != nil {
		return f.reserve(f.Store, ctx, a)
	}
	return f.Store.Reserve(ctx, a)
}

func (f *faulty) Record(ctx context.Context, r store.RunRef, e store.End) error {
	if f.record != nil {
		return f.record(f.Store, ctx, r, e)
	}
	return f.Store.Record(ctx, r, e)
}

func (f *faulty) Renew(ctx context.Context, r store.RunRef, d time.Duration) error {
	if f.renew != nil {
		return f.renew(f.Store, ctx, r, d)
	}
	return f.Store.Renew(ctx, r, d)
}

func (f *faulty) Await(ctx context.Context, id store.ID, t store.Token) error {
	if f.await != nil {
		return f.await(f.Store, ctx, id, t)
	}
	return f.Store.Await(ctx, id, t)
}

func (f *faulty) Current(ctx context.Context) (store.Namespace, error) {
	if f.current != nil {
		return f.current(f.Store, ctx)
	}
	return f.Store.Current(ctx)
}

func (f *faulty) Resolve(ctx context.Context, id store.ID, e store.Event, outcome []byte) error {
	if f.resolve != nil {
		return f.resolve(f.Operator, ctx, id, e, outcome)
	}
	return f.Operator.Resolve(ctx, id, e, outcome)
}

func (f *faulty) List(ctx context.Context, q store.Query) ([]store.Entry, error) {
	if f.list != nil {
		return f.list(f.Operator, ctx, q)
	}
	return f.Operator.List(ctx, q)
}

func (f *faulty) Close() error {
	if c, ok := f.Store.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

func with(f faulty) func(store.Store) store.Store {
	return func(s store.Store) store.Store {
		f := f
		f.Store = s
		f.Operator, _ = s.(store.Operator)
		return &f
	}
}

// onReserve is a fault in what Reserve is asked.
func onReserve(change func(*store.Attempt)) func(store.Store) store.Store {
	return with(faulty{reserve: func(s store.Store, ctx context.Context, a store.Attempt) (store.Reservation, error) {
		change(&a)
		return s.Reserve(ctx, a)
	}})
}

// onVerdict is a fault in what Reserve answers.
func onVerdict(change func(a store.Attempt, res *store.Reservation)) func(store.Store) store.Store {
	return with(faulty{reserve: func(s store.Store, ctx context.Context, a store.Attempt) (store.Reservation, error) {
		res, err := s.Reserve(ctx, a)
		change(a, &res)
		return res, err
	}})
}

// sound makes stores without a fault: SQLite, which has everything that the
// contract speaks of.
func sound(t testing.TB, c Config) Backend {
	path, clock := filepath.Join(t.TempDir(), "records.db"), NewClock()
	opt := sqlite.Options{
		Retention: c.Retention, RotateEvery: c.RotateEvery, ClosingFor: c.ClosingFor,
		MaxRecords: c.MaxRecords, MaxRecordsPerPrincipal: c.MaxRecordsPerPrincipal,
		MaxOpenPerPrincipal: c.MaxOpenPerPrincipal, MaxResultBytes: c.MaxResultBytes,
		PollInterval: time.Millisecond, Now: clock.Now,
	}
	return Backend{
		Open: func(t testing.TB) store.Store {
			s, err := sqlite.Open(context.Background(), path, &opt)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Durable: true, Advance: clock.Advance, WakeWithin: 300 * time.Millisecond,
		Limits: Limits{Records: true, RecordsPerPrincipal: true, OpenPerPrincipal: true, ResultBytes: true},
	}
}

func (m mutant) factory(t testing.TB, c Config) Backend {
	if m.config != nil {
		m.config(&c)
	}
	b := sound(t, c)
	if m.backend != nil {
		b = m.backend(b)
	}
	if open := b.Open; m.store != nil {
		b.Open = func(t testing.TB) store.Store { return m.store(open(t)) }
	}
	return b
}

func TestTheSuiteFindsEveryFault(t *testing.T) {
	for _, m := range mutants() {
		t.Run(m.fault, func(t *testing.T) {
			t.Parallel()
			for _, g := range contracts() {
				if g.name != m.group {
					continue
				}
				for _, c := range g.tests {
					if found := fails(t, m.factory, c); found != "" {
						t.Logf("found by %q: %s", c.rule, found)
						return
					}
				}
			}
			t.Errorf("no test of %s found that %s", m.group, m.fault)
		})
	}
}

// fails runs one contract and returns what it complains of.
func fails(t *testing.T, f Factory, c contract) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.cleanup()
		c.check(newWorld(r, f, c.config))
	}()
	<-done
	return r.first
}

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	first    string
	cleanups []func()
}

func (r *recorder) fail(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first == "" {
		r.first = message
	}
}

func (r *recorder) cleanup() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

func (r *recorder) Cleanup(f func())              { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Helper()                       {}
func (r *recorder) Error(args ...any)             { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(form string, as ...any) { r.fail(fmt.Sprintf(form, as...)) }
func (r *recorder) Fatal(args ...any)             { r.fail(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(form string, as ...any) { r.fail(fmt.Sprintf(form, as...)); runtime.Goexit() }
func (r *recorder) Skip(...any)                   { runtime.Goexit() }
func (r *recorder) Skipf(string, ...any)          { runtime.Goexit() }
