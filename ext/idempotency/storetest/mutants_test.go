package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
)

func mutants() []mutant {
	return slices.Concat(reserveMutants(), leaseMutants(), recordMutants(), awaitMutants(), namespaceMutants(), capacityMutants(),
		hostileMutants(), operatorMutants())
}

func reserveMutants() []mutant {
	return []mutant{
		{fault: "duplicates in flight run", group: "Reserve", store: onVerdict(func(_ store.Attempt, r *store.Reservation) {
			if r.Verdict == store.Joinable {
				r.Verdict = store.Run
			}
		})},
		{fault: "empty outcomes are lost", group: "Reserve", store: onVerdict(func(_ store.Attempt, r *store.Reservation) {
			if len(r.Record.Outcome) == 0 {
				r.Record.Outcome = nil
			}
		})},
		{fault: "the fingerprint is not compared once the call has ended", group: "Reserve", store: onVerdict(func(_ store.Attempt, r *store.Reservation) {
			if r.Verdict == store.Mismatch {
				r.Verdict = store.Known
			}
		})},
		{fault: "principals share their keys", group: "Reserve", store: onReserve(func(a *store.Attempt) { a.Principal = "" })},
		{fault: "a repeated Reserve meets itself", group: "Reserve", store: func(s store.Store) store.Store {
			var seen sync.Map
			return onVerdict(func(a store.Attempt, r *store.Reservation) {
				if _, again := seen.LoadOrStore(a.Token, true); again && r.Verdict == store.Run {
					r.Verdict = store.Joinable
				}
			})(s)
		}},
		{fault: "Peek reserves", group: "Reserve", store: onReserve(func(a *store.Attempt) { a.Peek = false })},
		{fault: "every attempt continues", group: "Questions", store: func(s store.Store) store.Store {
			var nonces sync.Map
			f := faulty{record: func(s store.Store, ctx context.Context, r store.RunRef, e store.End) error {
				nonces.Store(r.ID, e.Nonce)
				return s.Record(ctx, r, e)
			}, reserve: func(s store.Store, ctx context.Context, a store.Attempt) (store.Reservation, error) {
				if n, ok := nonces.Load(a.ID); ok {
					a.Nonce, _ = n.(store.Nonce)
				}
				return s.Reserve(ctx, a)
			}}
			return with(f)(s)
		}},
		{fault: "the record does not say what the run answers", group: "Questions", store: onVerdict(func(_ store.Attempt, r *store.Reservation) {
			r.Record.Answers = store.Fingerprint{}
		})},
	}
}

func leaseMutants() []mutant {
	return []mutant{
		{fault: "a lease of an hour, whatever was asked", group: "Leases", store: onReserve(func(a *store.Attempt) { a.Lease = time.Hour })},
		{fault: "seconds are taken for milliseconds", group: "Leases", store: onReserve(func(a *store.Attempt) { a.Lease /= 1000 })},
		{fault: "no lease is read as a long one", group: "Leases", store: onReserve(func(a *store.Attempt) {
			if a.Lease <= 0 {
				a.Lease = time.Hour
			}
		})},
		{fault: "a run that died is run again", group: "Leases", store: onReserve(func(a *store.Attempt) { a.Transactional = true })},
		{fault: "a transactional run that died is not taken over", group: "Transactional", store: onReserve(func(a *store.Attempt) { a.Transactional = false })},
		{fault: "renewing does nothing", group: "Leases", store: with(faulty{renew: func(store.Store, context.Context, store.RunRef, time.Duration) error { return nil }})},
		{fault: "renewing is not fenced", group: "Leases", store: with(faulty{renew: func(s store.Store, ctx context.Context, r store.RunRef, d time.Duration) error {
			if err := s.Renew(ctx, r, d); !errors.Is(err, store.ErrFenced) {
				return err
			}
			return nil
		}})},
	}
}

func recordMutants() []mutant {
	return []mutant{
		{fault: "records are not fenced", group: "Record", store: with(faulty{record: func(s store.Store, ctx context.Context, r store.RunRef, e store.End) error {
			if err := s.Record(ctx, r, e); !errors.Is(err, store.ErrFenced) {
				return err
			}
			return nil
		}})},
		{fault: "the same end told twice is an error", group: "Record", store: func(s store.Store) store.Store {
			var seen sync.Map
			return with(faulty{record: func(s store.Store, ctx context.Context, r store.RunRef, e store.End) error {
				if _, again := seen.LoadOrStore(fmt.Sprint(r, e.Event), true); again {
					return store.ErrFenced
				}
				return s.Record(ctx, r, e)
			}})(s)
		}},
		{fault: "any event is an end", group: "Record", store: with(faulty{record: func(s store.Store, ctx context.Context, r store.RunRef, e store.End) error {
			if e.Event == store.Reserve || e.Event > store.Lose {
				return nil
			}
			return s.Record(ctx, r, e)
		}})},
		{fault: "what was lost is gone for good", group: "Record", store: func(s store.Store) store.Store {
			var lost sync.Map
			return with(faulty{record: func(s store.Store, ctx context.Context, r store.RunRef, e store.End) error {
				if _, gone := lost.Load(r.Token); gone && e.Event != store.Lose {
					return store.ErrFenced
				}
				if e.Event == store.Lose {
					lost.Store(r.Token, true)
				}
				return s.Record(ctx, r, e)
			}})(s)
		}},
	}
}

func awaitMutants() []mutant {
	return []mutant{
		{fault: "Await does not wait", group: "Await", store: with(faulty{await: func(store.Store, context.Context, store.ID, store.Token) error { return nil }})},
		{fault: "Await sleeps through the end", group: "Await", store: with(faulty{await: func(_ store.Store, ctx context.Context, _ store.ID, _ store.Token) error {
			<-ctx.Done()
			return ctx.Err()
		}})},
		{fault: "Await ignores its context", group: "Await", store: with(faulty{await: func(s store.Store, ctx context.Context, id store.ID, t store.Token) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			return s.Await(ctx, id, t)
		}})},
	}
}

func namespaceMutants() []mutant {
	return []mutant{
		{fault: "a closed namespace is not held", group: "Namespaces", store: onVerdict(func(_ store.Attempt, r *store.Reservation) {
			if r.Verdict == store.NamespaceClosed {
				r.Verdict = store.NamespaceNotHeld
			}
		})},
		{fault: "half the retention", group: "Namespaces", config: func(c *Config) { c.Retention /= 2 }},
		{fault: "namespaces never close", group: "Namespaces", config: func(c *Config) { c.ClosingFor *= 1000 }},
		{fault: "namespaces do not rotate", group: "Namespaces", config: func(c *Config) { c.RotateEvery *= 1000 }},
		{fault: "two instances share nothing", group: "Reserve", backend: func(b Backend) Backend {
			b.Open = func(t testing.TB) store.Store { return memory.New(nil) }
			return b
		}},
		{fault: "the current namespace is remembered", group: "Namespaces", store: func(s store.Store) store.Store {
			var once sync.Once
			var first store.Namespace
			return with(faulty{current: func(s store.Store, ctx context.Context) (store.Namespace, error) {
				once.Do(func() { first, _ = s.Current(ctx) })
				return first, nil
			}})(s)
		}},
	}
}

func capacityMutants() []mutant {
	return []mutant{
		{fault: "twice the room", group: "Capacity", config: func(c *Config) { c.MaxRecords *= 2; c.MaxRecordsPerPrincipal *= 2 }},
		{fault: "no room does not say until when", group: "Capacity", store: onVerdict(func(_ store.Attempt, r *store.Reservation) { r.RetryAfter = 0 })},
		{fault: "a full store forgets what ended", group: "Capacity", store: onVerdict(func(_ store.Attempt, r *store.Reservation) {
			if r.Verdict == store.NoRoom {
				r.Verdict = store.Run
			}
		})},
	}
}

func hostileMutants() []mutant {
	return []mutant{
		{fault: "names end at a NUL", group: "Hostile", store: onReserve(func(a *store.Attempt) {
			a.Key, _, _ = strings.Cut(a.Key, "\x00")
			a.Principal, _, _ = strings.Cut(a.Principal, "\x00")
		})},
		{fault: "names are made valid UTF-8", group: "Hostile", store: onReserve(func(a *store.Attempt) { a.Key = strings.ToValidUTF8(a.Key, "?") })},
		{fault: "names ignore case", group: "Hostile", store: onReserve(func(a *store.Attempt) {
			ns, key, _ := strings.Cut(a.Key, ".")
			a.Key = ns + "." + strings.ToLower(key)
		})},
		{fault: "outcomes are cut at 64 KiB", group: "Hostile", store: with(faulty{record: func(s store.Store, ctx context.Context, r store.RunRef, e store.End) error {
			e.Outcome = e.Outcome[:min(len(e.Outcome), 64<<10)]
			return s.Record(ctx, r, e)
		}})},
	}
}

func operatorMutants() []mutant {
	return []mutant{
		{fault: "an operator resolves whatever there is", group: "Operator", store: with(faulty{resolve: func(o store.Operator, ctx context.Context, id store.ID, e store.Event, b []byte) error {
			if err := o.Resolve(ctx, id, e, b); !errors.Is(err, store.ErrNotUnknown) {
				return err
			}
			return nil
		}})},
		{fault: "the list has no bound", group: "Operator", store: with(faulty{list: func(o store.Operator, ctx context.Context, q store.Query) ([]store.Entry, error) {
			q.Limit = 1 << 20
			return o.List(ctx, q)
		}})},
		{fault: "the list is of all principals", group: "Operator", store: with(faulty{list: func(o store.Operator, ctx context.Context, q store.Query) ([]store.Entry, error) {
			q.Principal = nil
			return o.List(ctx, q)
		}})},
	}
}
