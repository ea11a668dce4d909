package redis_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// BenchmarkRecords compares calls in stores with more and more records, side
// by side. The metric "of-1000" is the cost of a call there divided by that
// with 1,000 records; B/record is what the server needs for each of a call
// without its outcome, B/outcome for an outcome of as many bytes as result has.
func BenchmarkRecords(b *testing.B) {
	sizes := []int{1000, 100_000}
	if long() {
		sizes = append(sizes, 1_000_000)
	}
	client := connect(b)
	var steps []func(context.Context) error
	for _, n := range sizes {
		opt := redis.Options{Prefix: prefix(b, client), MaxRecords: 1 << 25, MaxResultBytes: 1 << 34}
		s := open(b, client, opt)
		ns := namespace(b, s)
		fillRecords(b, s, ns, n)
		if n == 100_000 {
			for part, unit := range map[string]string{"records": "B/record", "outcomes": "B/outcome"} {
				bytes, err := client.MemoryUsage(b.Context(), "{"+opt.Prefix+"}:1:"+ns+":"+part, 0).Result()
				if err != nil {
					b.Fatal(err)
				}
				defer func() { b.ReportMetric(float64(bytes)/float64(n), unit) }()
			}
		}
		steps = append(steps, func(ctx context.Context) error { return storeCall(ctx, s, ns) })
	}
	times := sideBySide(b, 1, steps...)
	for i, n := range sizes {
		b.ReportMetric(median(times[i])/1e3, fmt.Sprintf("µs-at-%d", n))
		if i > 0 {
			ratios := make([]float64, len(times[i]))
			for j := range ratios {
				ratios[j] = times[i][j] / times[0][j]
			}
			b.ReportMetric(median(ratios), fmt.Sprintf("%d-of-1000", n))
		}
	}
}

func fillRecords(b *testing.B, s *redis.Store, ns string, n int) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for next.Add(1) <= int64(n) {
				if err := storeCall(b.Context(), s, ns); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
