package storetest

import (
	"io"
	"sync/atomic"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Bench measures the stores of f: a call that runs (Reserve and Record), a
// replay, and the duplicates of a key that runs, each from one goroutine and
// from many.
func Bench(b *testing.B, f Factory) {
	b.Run("call", func(b *testing.B) { benchCall(b, f, false) })
	b.Run("call-parallel", func(b *testing.B) { benchCall(b, f, true) })
	b.Run("replay", func(b *testing.B) { benchReplay(b, f, false) })
	b.Run("replay-parallel", func(b *testing.B) { benchReplay(b, f, true) })
	b.Run("contended", func(b *testing.B) { benchContended(b, f) })
}

// result is about what a tool returns: a few hundred bytes of JSON.
const result = `r{"content":[{"type":"text","text":"Charged 12.50 EUR to the card that ends in 4242. The receipt was sent by e-mail."}],` +
	`"structuredContent":{"id":"ch_000000000001","amount":1250,"currency":"EUR","status":"succeeded","receipt":"rc_000000000001"}}`

func benchStore(b *testing.B, f Factory) (s store.Store, namespace string) {
	b.Helper()
	s = f(b, Config{}).Open(b)
	if c, ok := s.(io.Closer); ok {
		b.Cleanup(func() {
			if err := c.Close(); err != nil {
				b.Errorf("Close: %v", err)
			}
		})
	}
	ns, err := s.Current(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	return s, ns.Name
}

// each runs step b.N times, in one goroutine or in many.
func each(b *testing.B, parallel bool, step func() error) {
	b.ResetTimer()
	if !parallel {
		for range b.N {
			if err := step(); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := step(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func benchCall(b *testing.B, f Factory, parallel bool) {
	s, ns := benchStore(b, f)
	ctx := b.Context()
	each(b, parallel, func() error {
		a := attempt(idIn(ns))
		if _, err := s.Reserve(ctx, a); err != nil {
			return err
		}
		return s.Record(ctx, ref(a), store.End{Event: store.Complete, Outcome: []byte(result)})
	})
}

func benchReplay(b *testing.B, f Factory, parallel bool) {
	s, ns := benchStore(b, f)
	ctx := b.Context()
	const keys = 100
	var all []store.Attempt
	for range keys {
		a := attempt(idIn(ns))
		if _, err := s.Reserve(ctx, a); err != nil {
			b.Fatal(err)
		}
		if err := s.Record(ctx, ref(a), store.End{Event: store.Complete, Outcome: []byte(result)}); err != nil {
			b.Fatal(err)
		}
		all = append(all, a)
	}
	var i atomic.Int64
	each(b, parallel, func() error {
		res, err := s.Reserve(ctx, again(all[i.Add(1)%keys]))
		if err == nil && res.Verdict != store.Known {
			b.Errorf("replay: %s", verdict(res.Verdict))
		}
		return err
	})
}

// benchContended has all goroutines reserve the same key, which one of them
// holds.
func benchContended(b *testing.B, f Factory) {
	s, ns := benchStore(b, f)
	ctx := b.Context()
	first := attempt(idIn(ns))
	if _, err := s.Reserve(ctx, first); err != nil {
		b.Fatal(err)
	}
	each(b, true, func() error {
		res, err := s.Reserve(ctx, again(first))
		if err == nil && res.Verdict != store.Joinable && res.Verdict != store.Known {
			b.Errorf("a duplicate: %s", verdict(res.Verdict))
		}
		return err
	})
}
