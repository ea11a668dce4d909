package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/internal/fault"
)

// ledger counts charges by order number.
type ledger struct {
	mu      sync.Mutex
	charges map[int]int
}

func (l *ledger) add(order int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charges[order]++
	return int64(len(l.charges))
}

func (l *ledger) of(order int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.charges[order]
}

// newLedger serves a tool that charges the amount as an order number, behind a
// path with rules for its first n calls.
func newLedger(t testing.TB, extended, stateless, json bool, rules fault.Rules) (*ledger, *fault.Server) {
	t.Helper()
	l := &ledger{charges: map[int]int{}}
	server := mcp.NewServer(&mcp.Implementation{Name: "ledger", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(_ context.Context, _ *mcp.CallToolRequest, in chargeIn) (*mcp.CallToolResult, chargeOut, error) {
		return nil, chargeOut{Receipt: l.add(in.Amount)}, nil
	})
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: stateless, JSONResponse: json})
	if extended {
		idem := idempotency.New(nil)
		idem.Install(server)
		h = idem.Handler(h)
	}
	ts := httptest.NewServer(h)
	path, err := fault.Serve(ts.URL, &fault.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { path.Close(); ts.CloseClientConnections(); ts.Close() })
	return l, path
}

// randomRules loses about one in three of n calls, path checks included. Few of
// them hang, since those alone take time.
func randomRules(n int, seed uint64) (rules fault.Rules) {
	r := rand.New(rand.NewPCG(seed, seed))
	kinds := slices.DeleteFunc(httpFaults(), func(k fault.Kind) bool { return k == fault.Hang })
	for i := 1; i <= n; i++ {
		switch {
		case i%50 == 0:
			rules = append(rules, fault.Rule{Nth: i, Action: fault.Action{Kind: fault.Hang}})
		case r.IntN(3) == 0:
			rules = append(rules, fault.Rule{Nth: i, Action: fault.Action{Kind: kinds[r.IntN(len(kinds))]}})
		}
	}
	return rules
}

// charge an order, and say what became of it.
func order(s *clientretry.Session, n int) error {
	_, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": n}})
	return err
}

// twice runs a test against two servers that differ in all. One after the
// other: a machine that is too slow for the attempt timeout loses calls by it.
func twice(t *testing.T, calls int, test func(t *testing.T, calls int, stateless, json bool)) {
	t.Run("modern-sse", func(t *testing.T) { test(t, calls, true, false) })
	t.Run("legacy-json", func(t *testing.T) { test(t, calls/3, false, true) })
}

func TestNoCallIsLostAndNoneRunsTwiceUnderRandomFaults(t *testing.T) {
	const atOnce = 20
	twice(t, 200, func(t *testing.T, calls int, stateless, json bool) {
		l, path := newLedger(t, true, stateless, json, randomRules(4*calls, 7))
		s := connectTo(t, path.URL, &clientretry.Options{
			AttemptTimeout: time.Second, BackoffBase: 5 * time.Millisecond, BackoffMax: 200 * time.Millisecond, Attempts: 60,
		})
		slots := make(chan struct{}, atOnce)
		var all sync.WaitGroup
		for n := range calls {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				if err := order(s, n); err != nil {
					t.Errorf("order %d: %v", n, err)
				}
			})
		}
		all.Wait()
		for n := range calls {
			if got := l.of(n); got != 1 {
				t.Errorf("order %d was charged %d times", n, got)
			}
		}
		sends := 0
		for _, c := range path.Calls() {
			if c.Tool == "charge" {
				sends++
			}
		}
		if sends == calls {
			t.Error("no call met a fault")
		}
	})
}

// Towards an unextended server a call that failed was charged once or never,
// and one that is said not to have run never.
func TestNobodyIsToldALieUnderRandomFaults(t *testing.T) {
	twice(t, 150, func(t *testing.T, calls int, stateless, json bool) {
		l, path := newLedger(t, false, stateless, json, randomRules(2*calls, 11))
		s := connectTo(t, path.URL, &clientretry.Options{AttemptTimeout: 300 * time.Millisecond})
		var all sync.WaitGroup
		slots := make(chan struct{}, 20)
		for n := range calls {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				o := outcome{err: order(s, n)}
				charged := l.of(n)
				switch {
				case o.err == nil && charged != 1, charged > 1:
					t.Errorf("order %d: charged %d times, told %v", n, charged, o.err)
				case o.err != nil && strings.Contains(o.err.Error(), "it was not run") && charged != 0:
					t.Errorf("order %d was charged, and its caller told %v", n, o.err)
				}
			})
		}
		all.Wait()
	})
}

// descriptors is the number of open files of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("cannot count descriptors here: %v", err)
	}
	return len(d)
}

// A leak of one goroutine or connection a call would show as hundreds.
func TestFaultedCallsLeaveNothingBehind(t *testing.T) {
	for extended, calls := range map[bool]int{true: 500, false: 200} {
		t.Run(fmt.Sprintf("extended=%v", extended), func(t *testing.T) {
			goroutines, files := runtime.NumGoroutine(), descriptors(t)
			func() {
				_, path := newLedger(t, extended, extended, extended, randomRules(3*calls, 3))
				pool := &http.Transport{}
				defer pool.CloseIdleConnections()
				s, err := clientretry.New(newClient(nil), &clientretry.Options{
					AttemptTimeout: 30 * time.Millisecond, BackoffBase: time.Microsecond, BackoffMax: time.Millisecond, Attempts: 10,
				}).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: path.URL, HTTPClient: &http.Client{Transport: pool}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				for n := range calls {
					_ = order(s, n)
				}
				during := runtime.NumGoroutine()
				if grown := during - goroutines; grown > 100 {
					t.Errorf("%d goroutines more after %d calls", grown, calls)
				}
				if err := s.Close(); err != nil {
					t.Errorf("closing: %v", err)
				}
			}()
			// The servers are still there, and what they keep for a moment.
			eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+40 })
			eventually(t, "the descriptors are closed", func() bool { return descriptors(t) <= files+40 })
		})
	}
}

func TestProcessesThatDieLeaveNothingBehind(t *testing.T) {
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	for range 5 {
		c := newChildren(t, "extended modern exit-after")
		s := c.connect(patient(), true)
		do(t, t.Context(), s, "charge").wantResult(t)
		if err := s.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		c.wantGone()
	}
	eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	eventually(t, "the descriptors are closed", func() bool { return descriptors(t) <= files+2 })
}
