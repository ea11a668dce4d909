package redis_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// TestPrincipalAndKeyDoNotRunTogether: the same bytes, parted elsewhere, are
// another record.
func TestPrincipalAndKeyDoNotRunTogether(t *testing.T) {
	s := fresh(t, connect(t), redis.Options{})
	for _, id := range []store.ID{{Principal: "", Key: ".a.b.c"}, {Principal: ".a", Key: ".b.c"}, {Principal: ".a.b", Key: ".c"}} {
		expect(t, s, attemptOf(id), store.Run)
	}
}

func TestTransactionalAttemptsArePlain(t *testing.T) {
	s := fresh(t, connect(t), redis.Options{})
	a := attempt(t, s)
	a.Transactional, a.Lease = true, 0
	expect(t, s, a, store.Run)
	for range 2 {
		if res := expect(t, s, again(a), store.Known); res.Record.State != store.Unknown {
			t.Errorf("after the lease of a transactional run the record is %v, want unknown", res.Record.State)
		}
	}
	record(t, s, a, store.End{Event: store.Complete, Outcome: []byte("late")})
	wantOutcome(t, s, a, "late")
}

// TestRoundTrips counts what goes to the server: one command a step.
func TestRoundTrips(t *testing.T) {
	client := connect(t)
	s := fresh(t, client, redis.Options{})
	var o outage
	client.AddHook(&o)
	a := attempt(t, s)
	steps := []struct {
		name string
		step func() error
	}{
		{"Current", func() error { _, err := s.Current(t.Context()); return err }},
		{"Reserve", func() error { _, err := s.Reserve(t.Context(), a); return err }},
		{"Renew", func() error { return s.Renew(t.Context(), ref(a), time.Minute) }},
		{"Record", func() error {
			return s.Record(t.Context(), ref(a), store.End{Event: store.Complete, Outcome: []byte("x")})
		}},
		{"Reserve (replay)", func() error { _, err := s.Reserve(t.Context(), again(a)); return err }},
	}
	for range 2 { // the first time the server learns the scripts
		for _, c := range steps {
			before := o.trips.Load()
			if err := c.step(); err != nil && !errors.Is(err, store.ErrFenced) {
				t.Fatalf("%s: %v", c.name, err)
			}
			n := o.trips.Load() - before
			t.Logf("%s: %d round trip(s)", c.name, n)
			if n > 2 {
				t.Errorf("%s took %d round trips", c.name, n)
			}
		}
	}
	before := o.trips.Load()
	for range 10 {
		complete(t, s, "x") // with a look at the namespace
	}
	if n := o.trips.Load() - before; n != 30 {
		t.Errorf("10 calls took %d round trips, want 30", n)
	}
}

func TestScriptsComeBackWhenTheServerForgetsThem(t *testing.T) {
	srv := startServer(t, noPersistence...)
	s := open(t, srv.client(), redis.Options{})
	a := complete(t, s, "done")
	if err := srv.client().ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, s, a, "done")
	wantOutcome(t, s, complete(t, s, "new"), "new")
}

// TestFullMemory: a server without memory takes no new keys, and everything
// else goes on, the ends of calls above all.
func TestFullMemory(t *testing.T) {
	srv := startServer(t, append([]string{"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"}, noPersistence...)...)
	s := open(t, srv.client(), redis.Options{})
	ended := complete(t, s, "done")
	asked, running := attempt(t, s), attempt(t, s)
	expect(t, s, asked, store.Run)
	record(t, s, asked, store.End{Event: store.Ask, Nonce: store.Nonce{1}, Outcome: []byte("which?")})
	expect(t, s, running, store.Run)

	fill(t, srv.client())
	if res := expect(t, s, attempt(t, s), store.NoRoom); res.RetryAfter <= 0 {
		t.Errorf("RetryAfter is %v", res.RetryAfter)
	}
	wantOutcome(t, s, ended, "done")
	expect(t, s, again(asked), store.Asked)
	if err := s.Renew(t.Context(), ref(running), time.Minute); err != nil {
		t.Errorf("Renew: %v", err)
	}
	record(t, s, running, store.End{Event: store.Complete, Outcome: []byte("recorded")})
	wantOutcome(t, s, running, "recorded")
	resumed := again(asked)
	resumed.Nonce = store.Nonce{1}
	expect(t, s, resumed, store.Run)
	record(t, s, resumed, store.End{Event: store.DeclareNoEffect})
	expect(t, s, attempt(t, s), store.NoRoom)
}

// fill takes what memory there is, in ever smaller pieces: the command that
// fails needs some for itself.
func fill(t *testing.T, c *goredis.Client) {
	t.Helper()
	n := 0
	for _, size := range []int{64 << 10, 1 << 10, 16} {
		var err error
		for ; err == nil; n++ {
			err = c.Set(t.Context(), "filler"+strconv.Itoa(n), make([]byte, size), 0).Err()
		}
		if !goredis.IsOOMError(err) {
			t.Fatal(err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	shared := connect(t)
	evicting := startServer(t, append([]string{"--maxmemory-policy", "allkeys-lru"}, noPersistence...)...).client()
	cautious := startServer(t, append([]string{"--maxmemory-policy", "volatile-lru"}, noPersistence...)...).client()
	keep := redis.Options{KeepOverRestarts: true}
	for _, c := range []struct {
		name   string
		client goredis.UniversalClient
		opt    redis.Options
		want   string // a word of the error; "" for none
	}{
		{"nothing to refuse", cautious, redis.Options{}, ""},
		{"eviction of any key", evicting, redis.Options{}, "maxmemory-policy"},
		{"restarts that lose", startServer(t, noPersistence...).client(), keep, "appendonly"},
		{"restarts that lose a second", startServer(t, aofEverysec...).client(), keep, "appendfsync"},
		{"rewrites that lose", startServer(t, append([]string{"--no-appendfsync-on-rewrite", "yes"}, aofAlways...)...).client(), keep, "rewrite"},
		{"a cluster that keeps", goredis.NewClusterClient(&goredis.ClusterOptions{ContextTimeoutEnabled: true}), keep, "cluster"},
		{"a client that ignores contexts", goredis.NewClient(&goredis.Options{Addr: "unused:1"}), redis.Options{}, "ContextTimeoutEnabled"},
		{"a ring", goredis.NewRing(&goredis.RingOptions{}), redis.Options{}, "Ring"},
		{"a negative option", shared, redis.Options{Retention: -1}, "Retention"},
		{"a brace", shared, redis.Options{Prefix: "a}b"}, "Prefix"},
		{"too many records", shared, redis.Options{MaxRecords: 1 << 30}, "MaxRecords"},
		{"half a seal", shared, redis.Options{Seal: func(b []byte) ([]byte, error) { return b, nil }}, "Unseal"},
	} {
		s, err := redis.Open(t.Context(), c.client, &c.opt)
		switch {
		case err == nil && c.want != "":
			t.Errorf("%s: Open succeeded", c.name)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want a word of %q", c.name, err, c.want)
		}
		if s != nil {
			_ = s.Close()
		}
	}
	for _, c := range []goredis.UniversalClient{evicting, cautious} {
		_ = c.Close()
	}
}

func TestSealedOutcomesAreUnreadableAndStayInTheirRecord(t *testing.T) {
	client := connect(t)
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	opt := redis.Options{
		Prefix: prefix(t, client),
		Seal:   func(b []byte) ([]byte, error) { return aead.Seal(nil, nil, b, nil), nil },
		Unseal: func(b []byte) ([]byte, error) { return aead.Open(nil, nil, b, nil) },
	}
	unsealed := open(t, client, redis.Options{Prefix: opt.Prefix})
	old := complete(t, unsealed, "from before")
	s := open(t, client, opt)
	a, b := complete(t, s, "secret a"), complete(t, s, "secret b")
	asked := attempt(t, s)
	expect(t, s, asked, store.Run)
	record(t, s, asked, store.End{Event: store.Ask, Nonce: store.Nonce{1}, Outcome: []byte("secret question")})
	wantOutcome(t, s, a, "secret a")
	wantOutcome(t, s, old, "from before")
	if res := expect(t, s, again(asked), store.Asked); string(res.Record.Outcome) != "secret question" {
		t.Errorf("question %q", res.Record.Outcome)
	}
	for _, key := range allKeys(t, client, opt.Prefix) {
		if b, err := client.Dump(t.Context(), key).Bytes(); err != nil || bytes.Contains(b, []byte("secret")) {
			t.Errorf("%s holds a secret, or %v", key, err)
		}
	}
	// Somebody swaps the two on the server.
	outcomes := "{" + opt.Prefix + "}:1:" + namespace(t, s) + ":outcomes"
	var swap []any
	held, err := client.HGetAll(t.Context(), outcomes).Result()
	if err != nil {
		t.Fatal(err)
	}
	order, err := client.LRange(t.Context(), strings.Replace(outcomes, "outcomes", "order", 1), 0, -1).Result()
	if err != nil || len(order) != 3 {
		t.Fatal(order, err)
	}
	swap = append(swap, order[1], held[order[2]], order[2], held[order[1]])
	if err := client.HSet(t.Context(), outcomes, swap...).Err(); err != nil {
		t.Fatal(err)
	}
	for _, x := range []store.Attempt{a, b} {
		if res, err := s.Reserve(t.Context(), again(x)); err == nil {
			t.Errorf("an outcome of another record was answered: %q", res.Record.Outcome)
		}
	}
	if res, err := unsealed.Reserve(t.Context(), again(asked)); err == nil {
		t.Errorf("a store without Unseal answered %q", res.Record.Outcome)
	}
}

func TestWhatCannotBeSealedIsNotKept(t *testing.T) {
	broken := errors.New("no key")
	s := fresh(t, connect(t), redis.Options{
		Seal:   func([]byte) ([]byte, error) { return nil, broken },
		Unseal: func([]byte) ([]byte, error) { return nil, broken },
	})
	a := complete(t, s, "secret")
	if res := expect(t, s, again(a), store.Known); res.Record.State != store.Completed || res.Record.Outcome != nil {
		t.Errorf("the record is %v with %q", res.Record.State, res.Record.Outcome)
	}
	b := attempt(t, s)
	expect(t, s, b, store.Run)
	err := s.Record(t.Context(), ref(b), store.End{Event: store.Ask, Nonce: store.Nonce{1}, Outcome: []byte("?")})
	if !errors.Is(err, broken) {
		t.Errorf("Record of a question: %v", err)
	}
	expect(t, s, again(b), store.Joinable)
}

// TestEverythingIsUnderOnePrefix: nothing but the prefix's keys is touched, in
// one slot of a cluster, whatever the keys are made of.
func TestEverythingIsUnderOnePrefix(t *testing.T) {
	srv := startServer(t, noPersistence...)
	c := srv.client()
	if err := c.Set(t.Context(), "mine", "untouched", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s := open(t, c, redis.Options{Prefix: "p ' \" \x00 x"})
	ns := namespace(t, s)
	for _, hostile := range []string{"}", "{mine}", "\x00", "') redis.call('FLUSHALL') --", "mine", "state", ":records"} {
		a := attemptOf(store.ID{Principal: hostile, Key: ns + "." + hostile})
		expect(t, s, a, store.Run)
		record(t, s, a, store.End{Event: store.Complete, Outcome: []byte(hostile)})
		wantOutcome(t, s, a, hostile)
		expect(t, s, attemptOf(store.ID{Key: hostile + ".x"}), store.NamespaceNotHeld)
	}
	keys := allKeys(t, c, "")
	slices.Sort(keys)
	want := []string{"mine"}
	for _, part := range []string{ns + ":order", ns + ":outcomes", ns + ":principals", ns + ":records", "state"} {
		want = append(want, "{p ' \" \x00 x}:1:"+part)
	}
	slices.Sort(want)
	if !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
	for _, key := range keys {
		if ttl, err := c.TTL(t.Context(), key).Result(); err != nil || ttl != -1 {
			t.Errorf("%q has a time to live: %v, %v", key, ttl, err)
		}
	}
}

func allKeys(t *testing.T, c *goredis.Client, prefix string) []string {
	t.Helper()
	pattern := "*"
	if prefix != "" {
		pattern = "{" + prefix + "}:*"
	}
	keys, err := c.Keys(t.Context(), pattern).Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestDroppingANamespaceIsOneStep fills a namespace and looks at the server
// with every step that could drop it.
func TestDroppingANamespaceIsOneStep(t *testing.T) {
	client := connect(t)
	opt := redis.Options{Prefix: prefix(t, client), Retention: time.Hour, RotateEvery: time.Hour, ClosingFor: time.Minute}
	s := open(t, client, opt)
	var skew time.Duration
	s.Skew(func() time.Duration { return skew })
	old := namespace(t, s)
	for i := range 50 {
		complete(t, s, fmt.Sprint(i))
	}
	parts := func() (n int) {
		for _, key := range allKeys(t, client, opt.Prefix) {
			if strings.Contains(key, old) {
				n++
			}
		}
		return n
	}
	for parts() == 4 {
		skew += 10 * time.Minute
		if skew > 4*time.Hour {
			t.Fatal("the namespace was not dropped")
		}
		namespace(t, s)
	}
	if n := parts(); n != 0 {
		t.Errorf("%d parts of a dropped namespace are left", n)
	}
	if n, err := client.HExists(t.Context(), "{"+opt.Prefix+"}:1:state", "n:"+old).Result(); err != nil || n {
		t.Errorf("the state still has it: %v, %v", n, err)
	}
	if skew < opt.RotateEvery+opt.ClosingFor+opt.Retention {
		t.Errorf("dropped after %v", skew)
	}
}

func TestStepsEndWithTheirContext(t *testing.T) {
	silent := startServer(t, noPersistence...)
	s := open(t, silent.client(), redis.Options{})
	a := attempt(t, s)
	if err := silent.stop(); err != nil {
		t.Skipf("a process cannot be stopped here: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := s.Reserve(ctx, a); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Reserve of a server that hangs: %v", err)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("Reserve took %v", d)
	}
	if err := silent.resume(); err != nil {
		t.Fatal(err)
	}
	expect(t, s, a, store.Run) // by its token, whether it had arrived or not
}
