package redis_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// TestCluster splits the slots over two masters that do not help each other,
// so that what does not name its slot meets a server that refuses it.
func TestCluster(t *testing.T) {
	t.Parallel()
	var nodes []*goredis.Client
	var slots []goredis.ClusterSlot
	for first := 0; first < 16384; first += 8192 {
		n, addr := startNode(t)
		slot := goredis.ClusterSlot{Start: first, End: first + 8191, Nodes: []goredis.ClusterNode{{Addr: addr}}}
		if err := n.ClusterAddSlotsRange(t.Context(), slot.Start, slot.End).Err(); err != nil {
			t.Fatal(err)
		}
		nodes, slots = append(nodes, n), append(slots, slot)
	}
	for _, n := range nodes {
		eventually(t, "the node serves its slots", func() bool {
			return redis.InfoField(n.ClusterInfo(t.Context()).Val(), "cluster_state") == "ok"
		})
	}
	client := goredis.NewClusterClient(&goredis.ClusterOptions{
		ContextTimeoutEnabled: true,
		ClusterSlots:          func(context.Context) ([]goredis.ClusterSlot, error) { return slots, nil },
	})
	defer client.Close()
	for _, name := range []string{"idempotency", "a", "b", "c", "d"} { // in slots of either node
		opt := redis.Options{Prefix: name, PollInterval: time.Hour}
		a, b := open(t, client, opt), open(t, client, opt)
		run := attempt(t, a)
		run.Lease = time.Hour
		expect(t, a, run, store.Run)
		expect(t, b, again(run), store.Joinable)
		done := waiting(t.Context(), b, run)
		record(t, a, run, store.End{Event: store.Complete, Outcome: []byte("done")})
		returns(t, done, nil)
		wantOutcome(t, b, run, "done")
		if entries, err := a.List(t.Context(), store.Query{States: store.States()}); err != nil || len(entries) != 1 {
			t.Errorf("List: %v, %v", entries, err)
		}
		if n, err := b.DeleteOutcomes(t.Context(), "p"); err != nil || n != 1 {
			t.Errorf("DeleteOutcomes: %d, %v", n, err)
		}
	}
}

// startNode starts a server that is to be one of a cluster. It needs a port,
// and one for the cluster's own use 10,000 above it.
func startNode(t *testing.T) (c *goredis.Client, addr string) {
	t.Helper()
	s := newServer(t)
	s.args = append([]string{"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"}, noPersistence...)
	var err error
	for range 20 {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		if err = s.tryStart("--port", port); err == nil {
			return s.client(), "127.0.0.1:" + port
		}
	}
	t.Fatal(err)
	return nil, ""
}
