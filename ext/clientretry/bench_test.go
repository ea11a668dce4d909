package clientretry_test

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

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
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

// benchServer is the SDK's server with one tiny tool, with the extension or
// without. It returns a transport for each client.
func benchServer(b *testing.B, overHTTP, extended bool) func() mcp.Transport {
	server := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	type in struct {
		Amount int `json:"amount"`
	}
	type out struct {
		Number int `json:"number"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "add"}, func(_ context.Context, _ *mcp.CallToolRequest, v in) (*mcp.CallToolResult, out, error) {
		return nil, out{v.Amount}, nil
	})
	var idem *idempotency.Idempotency
	if extended {
		idem = idempotency.New(nil)
		idem.Install(server)
	}
	if !overHTTP {
		return func() mcp.Transport {
			ct, st := mcp.NewInMemoryTransports()
			var t mcp.Transport = st
			if extended {
				t = idem.Transport(st)
			}
			if _, err := server.Connect(context.Background(), t, nil); err != nil {
				b.Fatal(err)
			}
			return ct
		}
	}
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	if extended {
		h = idem.Handler(h)
	}
	ts := httptest.NewServer(h)
	b.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return func() mcp.Transport {
		return &mcp.StreamableClientTransport{Endpoint: ts.URL, HTTPClient: &http.Client{Transport: &http.Transport{}}}
	}
}

// benchCaller is what both kinds of session can do.
type benchCaller interface {
	CallTool(context.Context, *mcp.CallToolParams) (*mcp.CallToolResult, error)
	Close() error
}

func benchClient(b *testing.B, t mcp.Transport, layer bool) func() error {
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	var s benchCaller
	var err error
	if layer {
		s, err = clientretry.New(client, nil).Connect(context.Background(), t, nil)
	} else {
		s, err = client.Connect(context.Background(), t, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return func() error {
		_, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"amount": 4200}})
		return err
	}
}

// BenchmarkCall compares a whole call, server and network included. The
// baseline is the SDK's own client and server; the layer is measured against
// the bare server, where it adds nothing to the wire, and against the extended
// one, where it adds the key, beside the SDK's own client against that.
func BenchmarkCall(b *testing.B) {
	for name, overHTTP := range map[string]bool{"memory": false, "http": true} {
		b.Run(name, func(b *testing.B) {
			bare, extended := benchServer(b, overHTTP, false), benchServer(b, overHTTP, true)
			pairs(b, []variant{
				{"bare", benchClient(b, bare(), false)},
				{"bare-again", benchClient(b, bare(), false)}, // what the noise alone makes
				{"layer", benchClient(b, bare(), true)},
				{"extended-server", benchClient(b, extended(), false)},
				{"layer-extended-server", benchClient(b, extended(), true)},
			})
		})
	}
}

// BenchmarkAllocations is BenchmarkCall's cost in memory, one call at a time.
func BenchmarkAllocations(b *testing.B) {
	for _, overHTTP := range []bool{false, true} {
		for _, layer := range []bool{false, true} {
			for _, extended := range []bool{false, true} {
				b.Run(fmt.Sprintf("http=%v/layer=%v/extended=%v", overHTTP, layer, extended), func(b *testing.B) {
					call := benchClient(b, benchServer(b, overHTTP, extended)(), layer)
					b.ReportAllocs()
					for b.Loop() {
						if err := call(); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
