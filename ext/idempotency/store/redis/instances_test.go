package redis_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

func long() bool { return os.Getenv("SEPCHECK_LONG") == "1" }

// TestTwoInstancesRunEveryCallOnce sends every call twice, to different
// instances, at once.
func TestTwoInstancesRunEveryCallOnce(t *testing.T) {
	calls := 1000
	if long() {
		calls = 10_000
	}
	const workers = 16
	client := connect(t)
	opt := redis.Options{Prefix: prefix(t, client), PollInterval: time.Hour}
	var effects atomic.Int64
	var sessions []*mcp.ClientSession
	for range 2 {
		s := open(t, connect(t), opt)
		ts := httptest.NewServer(handler(s, time.Minute, func(string) int64 { return effects.Add(1) }))
		t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
		session, err := dial(t.Context(), ts.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Close() })
		sessions = append(sessions, session)
	}
	ns := namespace(t, open(t, client, opt))
	began := time.Now()
	var next, equal atomic.Int64
	var seen sync.Map
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for n := next.Add(1); n <= int64(calls); n = next.Add(1) {
				key, id := fmt.Sprintf("%s.call-%026d", ns, n), fmt.Sprint(n)
				var pair [2]answer
				var both sync.WaitGroup
				for i, session := range sessions {
					both.Go(func() { pair[i] = call(t.Context(), session, key, id) })
				}
				both.Wait()
				a, b := pair[0], pair[1]
				if a.err != nil || b.err != nil || a.outcome != "" || b.outcome != "" || a.number != b.number || a.replayed == b.replayed {
					t.Errorf("call %d: %v and %v", n, a, b)
				} else {
					equal.Add(1)
				}
				if other, again := seen.LoadOrStore(a.number, n); again {
					t.Errorf("calls %d and %v have one receipt", n, other)
				}
			}
		})
	}
	wg.Wait()
	if n := effects.Load(); n != int64(calls) {
		t.Errorf("%d calls had %d effects", calls, n)
	}
	t.Logf("%d calls, each sent twice at once to different instances: %d effects, %d equal pairs, %v", calls, effects.Load(), equal.Load(), time.Since(began).Round(time.Millisecond))
}
