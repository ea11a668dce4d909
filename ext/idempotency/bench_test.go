package idempotency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A variant is one way to make the same tool call. The first of a set is the
// baseline that the others are divided by.
type variant struct {
	name string
	call func() error
}

// pairs times the variants side by side: in every round each makes a batch of
// calls, in random order, so that a slow moment of the machine falls on all.
// It reports the median of the rounds' ratios to the baseline, and quartiles,
// in percent above it.
func pairs(b *testing.B, variants []variant) {
	const batch = 20
	for _, v := range variants { // warm up
		for range batch {
			if err := v.call(); err != nil {
				b.Fatalf("%s: %v", v.name, err)
			}
		}
	}
	times := make([][]float64, len(variants))
	b.ResetTimer()
	for range b.N {
		for _, i := range rand.Perm(len(variants)) {
			start := time.Now()
			for range batch {
				if err := variants[i].call(); err != nil {
					b.Fatalf("%s: %v", variants[i].name, err)
				}
			}
			times[i] = append(times[i], float64(time.Since(start))/batch)
		}
	}
	b.StopTimer()
	b.ReportMetric(quantile(times[0], 0.5)/1e3, variants[0].name+"-µs")
	for i, v := range variants[1:] {
		ratios := make([]float64, len(times[0]))
		for j := range ratios {
			ratios[j] = 100 * (times[i+1][j]/times[0][j] - 1)
		}
		b.ReportMetric(quantile(ratios, 0.5), v.name+"-%")
		b.ReportMetric(quantile(ratios, 0.25), v.name+"-q1-%")
		b.ReportMetric(quantile(ratios, 0.75), v.name+"-q3-%")
	}
}

func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[int(q*float64(len(s)-1))]
}

// session connects the SDK's own client to a server with one tiny tool.
func session(b *testing.B, overHTTP bool, idem *idempotency.Idempotency) *mcp.ClientSession {
	server := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "add"}, func(_ context.Context, _ *mcp.CallToolRequest, in chargeArgs) (*mcp.CallToolResult, receipt, error) {
		return nil, receipt{Number: int64(in.Amount)}, nil
	})
	if idem != nil {
		idem.Install(server)
	}
	var transport mcp.Transport
	if overHTTP {
		var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
		if idem != nil {
			h = idem.Handler(h)
		}
		ts := httptest.NewServer(h)
		b.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
		transport = &mcp.StreamableClientTransport{Endpoint: ts.URL}
	} else {
		ct, st := mcp.NewInMemoryTransports()
		var t mcp.Transport = st
		if idem != nil {
			t = idem.Transport(st)
		}
		if _, err := server.Connect(context.Background(), t, nil); err != nil {
			b.Fatal(err)
		}
		transport = ct
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(context.Background(), transport, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cs.Close() })
	return cs
}

func tinyCall(cs *mcp.ClientSession, key func() string) func() error {
	return func() error {
		params := &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"amount": 4200}}
		if key != nil {
			params.Meta = mcp.Meta{schema.MetaKey: key()}
		}
		_, err := cs.CallTool(context.Background(), params)
		return err
	}
}

// BenchmarkCall compares a whole call, client and network included, of the
// SDK's own client: against the bare server, and against the extended one
// without a key, with a new key each time, and with one that was used before.
func BenchmarkCall(b *testing.B) {
	for name, overHTTP := range map[string]bool{"memory": false, "http": true} {
		b.Run(name, func(b *testing.B) {
			bare := session(b, overHTTP, nil)
			extended := session(b, overHTTP, idempotency.New(nil))
			ns := extended.InitializeResult().Capabilities.Extensions[schema.ExtensionID].(map[string]any)["keyNamespace"].(string)
			n := 0
			pairs(b, []variant{
				{"bare", tinyCall(bare, nil)},
				{"bare-again", tinyCall(bare, nil)}, // what the noise alone makes
				{"unkeyed", tinyCall(extended, nil)},
				{"keyed", tinyCall(extended, func() string { n++; return fmt.Sprintf("%s.%026d", ns, n) })},
				{"replay", tinyCall(extended, func() string { return ns + ".the-same-key-each-time-0001" })},
			})
		})
	}
}

// BenchmarkStore measures the memory store alone.
func BenchmarkStore(b *testing.B) {
	ctx := context.Background()
	outcome := []byte(`r{"content":[{"type":"text","text":"ok"}]}`)
	attempt := func(s *memory.Store, n int) store.Attempt {
		ns, _ := s.Current(ctx)
		return store.Attempt{
			ID:    store.ID{Principal: "user", Key: fmt.Sprintf("%s.%026d", ns.Name, n)},
			Token: store.Token{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 1},
		}
	}
	b.Run("reserve-and-record", func(b *testing.B) {
		s := memory.New(&memory.Options{MaxRecords: 1 << 30, MaxRecordsPerPrincipal: 1 << 30})
		attempts := make([]store.Attempt, b.N)
		for i := range attempts {
			attempts[i] = attempt(s, i)
		}
		b.ReportAllocs()
		b.ResetTimer()
		for i := range attempts {
			r, err := s.Reserve(ctx, attempts[i])
			if err != nil || r.Verdict != store.Run {
				b.Fatal(r, err)
			}
			if err := s.Record(ctx, store.RunRef{ID: attempts[i].ID, Token: attempts[i].Token}, store.End{Event: store.Complete, Outcome: outcome}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("replay", func(b *testing.B) {
		s := memory.New(nil)
		a := attempt(s, 1)
		_, _ = s.Reserve(ctx, a)
		if err := s.Record(ctx, store.RunRef{ID: a.ID, Token: a.Token}, store.End{Event: store.Complete, Outcome: outcome}); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if r, _ := s.Reserve(ctx, a); r.Verdict != store.Known || r.Record.Outcome == nil {
				b.Fatal(r)
			}
		}
	})
}
