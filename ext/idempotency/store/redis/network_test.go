package redis_test

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// A lossy connection loses the next answer, and breaks, when it is told to.
type lossy struct {
	net.Conn
	lose *atomic.Bool
}

func (l lossy) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if err == nil && l.lose.CompareAndSwap(true, false) {
		_ = l.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestALostAnswerIsAskedForAgain is X19: the step is done, its answer is lost,
// and the client library sends it again.
func TestALostAnswerIsAskedForAgain(t *testing.T) {
	var lose atomic.Bool
	client := connect(t, func(o *goredis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return lossy{c, &lose}, err
		}
	})
	opt := redis.Options{Prefix: prefix(t, connect(t))}
	s := open(t, client, opt)
	a, b := attempt(t, s), attempt(t, s)

	lose.Store(true)
	expect(t, s, a, store.Run)
	expect(t, s, again(a), store.Joinable)
	lose.Store(true)
	record(t, s, a, store.End{Event: store.Complete, Outcome: []byte("done")})
	wantOutcome(t, s, a, "done")

	expect(t, s, b, store.Run)
	lose.Store(true)
	record(t, s, b, store.End{Event: store.Lose})
	lose.Store(true)
	if err := s.Resolve(t.Context(), b.ID, store.ResolveCompleted, []byte("resolved")); err != nil {
		t.Errorf("Resolve: %v", err)
	}
	wantOutcome(t, s, b, "resolved")
	entries, err := s.List(t.Context(), store.Query{States: store.States()})
	if err != nil || len(entries) != 2 {
		t.Errorf("List: %+v, %v; want two records", entries, err)
	}
	if lose.Load() {
		t.Error("the last answer was not lost")
	}
}

// TestTheRightsOfThePackageCommentSuffice does everything as a user who may do
// nothing else.
func TestTheRightsOfThePackageCommentSuffice(t *testing.T) {
	srv := startServer(t, aofAlways...)
	rights := strings.Fields(`~{idempotency}:* &{idempotency}:* +eval +evalsha +info +time +publish
		+subscribe +unsubscribe +ping +hget +hmget +hset +hdel +hincrby +hstrlen
		+hscan +rpush +lpop +unlink +del`)
	setUser := func(rights []string) *goredis.Client {
		t.Helper()
		args := []any{"ACL", "SETUSER", "u", "reset", "on", ">p"}
		for _, r := range rights {
			args = append(args, r)
		}
		if err := srv.client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		return newClient(t, &goredis.Options{Network: "unix", Addr: srv.socket(), Username: "u", Password: "p", MaxRetries: -1})
	}
	client := setUser(rights)
	s := open(t, client, redis.Options{PollInterval: time.Hour, MaxResultBytes: 40, Retention: time.Hour, RotateEvery: time.Hour, ClosingFor: time.Hour})
	var skew time.Duration
	s.Skew(func() time.Duration { return skew })
	for range 3 {
		run := attempt(t, s)
		expect(t, s, run, store.Run)
		done := waiting(t.Context(), s, run)
		eventually(t, "a subscription", func() bool { return len(srv.client().PubSubChannels(t.Context(), "*").Val()) == 1 })
		record(t, s, run, store.End{Event: store.Complete, Outcome: make([]byte, 30)}) // and evicts the one before
		returns(t, done, nil)
		if _, err := s.List(t.Context(), store.Query{States: store.States()}); err != nil {
			t.Errorf("List: %v", err)
		}
		if _, err := s.DeleteOutcomes(t.Context(), "nobody"); err != nil {
			t.Errorf("DeleteOutcomes: %v", err)
		}
		skew += 2 * time.Hour // rotate, close and drop
	}
	if n, err := s.DeleteOutcomes(t.Context(), "p"); err != nil || n > 1 {
		t.Errorf("DeleteOutcomes: %d, %v", n, err)
	}

	keep := redis.Options{KeepOverRestarts: true}
	if _, err := redis.Open(t.Context(), client, &keep); !goredis.IsPermissionError(err) {
		t.Errorf("Open with KeepOverRestarts and without CONFIG GET: %v", err)
	}
	open(t, setUser(append(slices.Clone(rights), "+config|get")), keep)
}
