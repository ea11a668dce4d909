package redis_test

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// A loss is a way in which a server comes to lack what it acknowledged, or may.
type loss struct {
	name   string
	server []string
	// before is done when the store is opened and has no records.
	before func(t *testing.T, s *server) any
	lose   func(t *testing.T, s *server, before any)
}

const stateDeleted = "the state is deleted"

func losses() []loss {
	restart := func(t *testing.T, s *server, _ any) {
		s.kill()
		s.start()
	}
	save := func(t *testing.T, s *server) any {
		if err := s.client().Save(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		return nil
	}
	copied := func(_ *testing.T, s *server) any { return s.aof() }
	return []loss{
		{name: "FLUSHALL", server: aofAlways, lose: func(t *testing.T, s *server, _ any) {
			if err := s.client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "restart without persistence", server: noPersistence, lose: restart},
		{name: "SHUTDOWN NOSAVE after a snapshot", server: noPersistence, before: save, lose: func(t *testing.T, s *server, _ any) {
			s.shutdown()
			s.start()
		}},
		{name: "kill -9 with appendfsync everysec", server: aofEverysec, lose: restart},
		{name: "power failure with appendfsync everysec", server: aofEverysec, before: copied, lose: func(t *testing.T, s *server, before any) {
			s.kill() // what was written but not forced to the disk is gone
			s.restore(before.(map[string][]byte))
			s.start()
		}},
		{name: "older copy of the append-only file", server: aofAlways, before: copied, lose: func(t *testing.T, s *server, before any) {
			s.shutdown()
			s.restore(before.(map[string][]byte))
			s.start()
		}},
		{name: "older copy loaded into the running process", server: append([]string{"--enable-debug-command", "yes"}, noPersistence...), before: save,
			lose: func(t *testing.T, s *server, _ any) {
				if err := s.client().Do(t.Context(), "DEBUG", "RELOAD", "NOSAVE").Err(); err != nil {
					t.Fatal(err)
				}
			}},
		{name: stateDeleted, server: noPersistence, lose: del("state")},
		{name: "the records are deleted or evicted", server: noPersistence, lose: del("*:records")},
	}
}

func del(pattern string) func(t *testing.T, s *server, _ any) {
	return func(t *testing.T, s *server, _ any) {
		keys, err := s.client().Keys(t.Context(), "{idempotency}:1:"+pattern).Result()
		if err != nil || len(keys) != 1 {
			t.Fatalf("keys %v, %v", keys, err)
		}
		if err := s.client().Del(t.Context(), keys...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLossChangesTheNamespace is X6: whatever became of the server's data, no
// key from before runs again.
func TestLossChangesTheNamespace(t *testing.T) {
	for _, l := range losses() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			srv := startServer(t, l.server...)
			s := open(t, srv.client(), redis.Options{})
			old := namespace(t, s)
			var before any
			if l.before != nil {
				before = l.before(t, srv)
			}
			ended := complete(t, s, "done")
			running := attempt(t, s)
			expect(t, s, running, store.Run)

			l.lose(t, srv, before)
			// The instance that lived through it, and one that knows nothing.
			for _, s := range []*redis.Store{s, open(t, srv.client(), redis.Options{})} {
				for _, a := range []store.Attempt{ended, running, again(running), attemptOf(store.ID{Key: old + ".new"})} {
					res := expect(t, s, a, store.NamespaceNotHeld)
					if res.Current == old || res.Current != namespace(t, s) {
						t.Errorf("current namespace %q, was %q", res.Current, old)
					}
				}
			}
			if err := s.Record(t.Context(), ref(running), store.End{Event: store.Complete}); err != store.ErrFenced {
				t.Errorf("the end of a run that was lost: %v, want ErrFenced", err)
			}
			wantOutcome(t, s, complete(t, s, "new"), "new")
			if l.name != stateDeleted { // then nobody knows what else there was
				wantNothingLeft(t, srv.client(), old)
			}
		})
	}
}

// wantNothingLeft demands that a namespace that is not held takes no room.
func wantNothingLeft(t *testing.T, c *goredis.Client, ns string) {
	t.Helper()
	keys, err := c.Keys(t.Context(), "*"+ns+"*").Result()
	if err != nil || len(keys) > 0 {
		t.Errorf("keys of the namespace that was lost: %v, %v", keys, err)
	}
}

func TestRestartKeepsTheNamespaceWhereItLosesNothing(t *testing.T) {
	srv := startServer(t, aofAlways...)
	keep := redis.Options{KeepOverRestarts: true}
	s := open(t, srv.client(), keep)
	old := namespace(t, s)
	ended := complete(t, s, "done")
	running := attempt(t, s)
	expect(t, s, running, store.Run)
	asked := attempt(t, s)
	expect(t, s, asked, store.Run)
	record(t, s, asked, store.End{Event: store.Ask, Nonce: store.Nonce{1}, Outcome: []byte("which?")})
	for range 3 {
		srv.kill()
		srv.start()
		for _, s := range []*redis.Store{s, open(t, srv.client(), keep)} {
			if ns := namespace(t, s); ns != old {
				t.Fatalf("after a restart the namespace is %s, was %s", ns, old)
			}
			wantOutcome(t, s, ended, "done")
			expect(t, s, again(running), store.Joinable)
			if res := expect(t, s, again(asked), store.Asked); string(res.Record.Outcome) != "which?" {
				t.Errorf("question %q", res.Record.Outcome)
			}
		}
	}
	record(t, s, running, store.End{Event: store.Complete, Outcome: []byte("late")})
	wantOutcome(t, s, running, "late")
}

// TestKeepOverRestartsNoticesLosses shows what is noticed although restarts
// are trusted.
func TestKeepOverRestartsNoticesLosses(t *testing.T) {
	keep := redis.Options{KeepOverRestarts: true}
	for _, c := range []struct {
		name string
		lose func(t *testing.T, srv *server, before map[string][]byte)
	}{
		{"an older copy, by those who saw more", func(t *testing.T, srv *server, before map[string][]byte) {
			srv.kill()
			srv.restore(before)
			srv.start()
		}},
		{"a server that does not write at once any more", func(t *testing.T, srv *server, _ map[string][]byte) {
			srv.kill()
			srv.start("--appendfsync", "everysec")
		}},
		{"FLUSHALL", func(t *testing.T, srv *server, _ map[string][]byte) {
			if err := srv.client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := startServer(t, aofAlways...)
			s := open(t, srv.client(), keep)
			old := namespace(t, s)
			before := srv.aof()
			a := complete(t, s, "done")
			c.lose(t, srv, before)
			if res := expect(t, s, again(a), store.NamespaceNotHeld); res.Current == old {
				t.Error("the namespace is the same")
			}
			wantOutcome(t, s, complete(t, s, "new"), "new")
		})
	}
}

func TestInstancesThatDisagreeAboutRestartsStartOver(t *testing.T) {
	srv := startServer(t, aofAlways...)
	careful, trusting := open(t, srv.client(), redis.Options{}), open(t, srv.client(), redis.Options{KeepOverRestarts: true})
	a := complete(t, trusting, "done")
	srv.kill()
	srv.start()
	expect(t, careful, again(a), store.NamespaceNotHeld)
	expect(t, trusting, again(a), store.NamespaceNotHeld)
}

// TestFailover promotes a replica that lacks the last writes, while the old
// master lives on and serves those who still reach it.
func TestFailover(t *testing.T) {
	for name, opt := range map[string]redis.Options{"careful": {}, "trusting": {KeepOverRestarts: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"--repl-diskless-sync-delay", "0"}, aofAlways...)
			master, replica := startServer(t, args...), startServer(t, args...)
			a := open(t, master.client(), opt)
			old := namespace(t, a)
			follow(t, replica, master)
			if _, err := redis.Open(t.Context(), replica.client(), &opt); err == nil {
				t.Error("a replica was opened")
			}
			promote(t, replica)
			lost := complete(t, a, "done") // the replica does not hear of it

			b := open(t, replica.client(), opt)
			if ns := namespace(t, b); ns == old {
				t.Fatal("a promoted replica declares the namespace of its master")
			}
			expect(t, b, again(lost), store.NamespaceNotHeld)
			mine := complete(t, b, "mine")
			wantOutcome(t, a, lost, "done") // both sides of the split are right
			expect(t, a, again(mine), store.NamespaceNotHeld)

			// The old master comes back, first as a replica, with the other's data.
			follow(t, master, replica)
			for range 2 {
				if res, err := a.Reserve(t.Context(), again(lost)); err == nil {
					t.Errorf("a replica answered %+v", res)
				}
			}
			promote(t, master)
			expect(t, a, again(lost), store.NamespaceNotHeld)
			expect(t, a, again(mine), store.NamespaceNotHeld)
			wantOutcome(t, a, complete(t, a, "new"), "new")
		})
	}
}

// follow makes a server a replica, and returns when it has the master's data.
func follow(t *testing.T, replica, master *server) {
	t.Helper()
	ctx, c := t.Context(), replica.client()
	if err := c.ReplicaOf(ctx, "127.0.0.1", master.listen()).Err(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for redis.InfoField(c.Info(ctx, "replication").Val(), "master_link_status") != "up" {
		if time.Now().After(deadline) {
			t.Fatalf("no replication within 20 s:\n%s", c.Info(ctx, "replication").Val())
		}
		time.Sleep(10 * time.Millisecond) // the server announces it to nobody
	}
}

func promote(t *testing.T, s *server) {
	t.Helper()
	if err := s.client().ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
}
