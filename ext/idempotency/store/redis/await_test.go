package redis_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// soon bounds what an event should bring about, in a test that would else
// wait for an hour.
const soon = 20 * time.Second

// waiting calls Await in the background.
func waiting(ctx context.Context, s store.Store, a store.Attempt) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Await(ctx, a.ID, a.Token) }()
	return done
}

func returns(t *testing.T, done <-chan error, want error) {
	t.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			t.Errorf("Await: %v, want %v", err, want)
		}
	case <-time.After(soon):
		t.Fatal("Await did not return")
	}
}

// subscriptions returns the connections of a server that subscribe.
func subscriptions(t *testing.T, c *goredis.Client) int {
	t.Helper()
	list, err := c.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "id=")
}

// eventually waits for a state of the server that nothing announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

func TestAMessageWakesThoseWhoWait(t *testing.T) {
	srv := startServer(t, noPersistence...)
	c := srv.client()
	opt := redis.Options{PollInterval: time.Hour}
	a, b := open(t, srv.client(), opt), open(t, srv.client(), opt)
	if n := subscriptions(t, c); n != 0 {
		t.Errorf("%d subscriptions before anybody waits", n)
	}
	var runs []store.Attempt
	var waits []<-chan error
	for range 20 {
		run := attempt(t, a)
		run.Lease = time.Hour
		expect(t, a, run, store.Run)
		runs = append(runs, run)
		for range 5 {
			waits = append(waits, waiting(t.Context(), b, run))
		}
	}
	eventually(t, "every run has a channel", func() bool { return len(c.PubSubChannels(t.Context(), "*").Val()) == len(runs) })
	if n := subscriptions(t, c); n != 1 {
		t.Errorf("%d subscriptions of one store", n)
	}
	for _, run := range runs {
		record(t, a, run, store.End{Event: store.Complete})
	}
	for _, done := range waits {
		returns(t, done, nil)
	}
	eventually(t, "no channel is left", func() bool { return len(c.PubSubChannels(t.Context(), "*").Val()) == 0 })
}

// TestAnInterruptedSubscriptionLosesNothing ends the run while there is no
// subscription to hear of it.
func TestAnInterruptedSubscriptionLosesNothing(t *testing.T) {
	srv := startServer(t, noPersistence...)
	c := srv.client()
	s := open(t, srv.client(), redis.Options{PollInterval: time.Hour})
	for range 5 {
		run := attempt(t, s)
		run.Lease = time.Hour
		expect(t, s, run, store.Run)
		done := waiting(t.Context(), s, run)
		eventually(t, "a subscription", func() bool { return len(c.PubSubChannels(t.Context(), "*").Val()) == 1 })
		_, err := c.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
			p.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		record(t, s, run, store.End{Event: store.Complete})
		returns(t, done, nil)
	}
}

// deaf is a connection whose subscriptions never reach the server.
type deaf struct{ net.Conn }

func (d deaf) Write(b []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(b), []byte("subscribe")) {
		return len(b), nil
	}
	return d.Conn.Write(b)
}

func TestThePollWakesWhereNoMessageComes(t *testing.T) {
	client := connect(t, func(o *goredis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return deaf{c}, err
		}
	})
	opt := redis.Options{Prefix: prefix(t, connect(t)), PollInterval: 20 * time.Millisecond}
	a, b := open(t, connect(t), opt), open(t, client, opt)
	var o outage
	client.AddHook(&o)
	run := attempt(t, a)
	run.Lease = time.Hour
	expect(t, a, run, store.Run)
	done := waiting(t.Context(), b, run)
	eventually(t, "Await has seen that the run lives, twice", func() bool { return o.trips.Load() >= 2 })
	record(t, a, run, store.End{Event: store.Complete})
	returns(t, done, nil)
}

func TestTheEndOfALeaseWakes(t *testing.T) {
	client := connect(t)
	opt := redis.Options{Prefix: prefix(t, client), PollInterval: time.Hour}
	a, b := open(t, client, opt), open(t, connect(t), opt)
	run := attempt(t, a)
	run.Lease = 150 * time.Millisecond
	expect(t, a, run, store.Run)
	began := time.Now()
	done := waiting(t.Context(), b, run)
	if err := a.Renew(t.Context(), ref(run), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	returns(t, done, nil)
	if d := time.Since(began); d < 290*time.Millisecond {
		t.Errorf("Await returned after %v, while the lease had not passed", d)
	}
	if res := expect(t, b, again(run), store.Known); res.Record.State != store.Unknown {
		t.Errorf("the record is %v", res.Record.State)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	srv := startServer(t, noPersistence...)
	before := stacks("redis.(*")
	for range 3 {
		c := srv.client()
		s, err := redis.Open(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		run := attempt(t, s)
		expect(t, s, run, store.Run)
		done := waiting(t.Context(), s, run)
		eventually(t, "a subscription", func() bool { return subscriptions(t, c) == 1 })
		for range 2 {
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		returns(t, done, redis.ErrClosed)
		if n := stacks("redis.(*listener)"); n != 0 {
			t.Errorf("%d goroutines of the store live when Close has returned", n)
		}
		eventually(t, "no subscription", func() bool { return subscriptions(t, c) == 0 })
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "no goroutine is left", func() bool { return stacks("redis.(*") <= before })
}

// stacks counts the goroutines that are in functions with a word in their name.
func stacks(word string) int {
	buf := make([]byte, 1<<20)
	n := 0
	for s := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(s, word) {
			n++
		}
	}
	return n
}
