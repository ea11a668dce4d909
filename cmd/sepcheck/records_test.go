package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/postgres"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// A place is where a test's records are: how to open them, and the flags that
// lead the command there.
type place struct {
	open  func() records
	flags []string
}

type records interface {
	store.Store
	Close() error
}

// places are the stores that there are on this machine.
func places(t *testing.T) map[string]place {
	t.Helper()
	path := filepath.Join(t.TempDir(), "records.db")
	out := map[string]place{"sqlite": {
		func() records { return opened(t)(sqlite.Open(context.Background(), path, nil)) },
		[]string{"--sqlite", path},
	}}
	name := "sepcheck_" + strings.ToLower(rand.Text())
	if url := os.Getenv("SEPCHECK_POSTGRES"); url == "" {
		t.Log("SEPCHECK_POSTGRES is not set: records in PostgreSQL are left out")
	} else {
		pool, err := pgxpool.New(context.Background(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS `+name+` CASCADE`)
			pool.Close()
		})
		out["postgres"] = place{
			func() records {
				return opened(t)(postgres.Open(context.Background(), pool, &postgres.Options{Schema: name}))
			},
			[]string{"--postgres", url, "--schema", name},
		}
	}
	if url := os.Getenv("SEPCHECK_REDIS"); url == "" {
		t.Log("SEPCHECK_REDIS is not set: records in Redis are left out")
	} else {
		o, err := goredis.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		o.ContextTimeoutEnabled = true
		client := goredis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		out["redis"] = place{
			func() records {
				return opened(t)(redis.Open(context.Background(), client, &redis.Options{Prefix: name}))
			},
			[]string{"--redis", url, "--prefix", name},
		}
	}
	return out
}

func opened(t *testing.T) func(records, error) records {
	return func(s records, err error) records {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// unknownCalls makes calls that were lost, one for each principal, and one that
// runs; and returns the keys.
func (p place) unknownCalls(t *testing.T, principals ...string) (keys []string) {
	t.Helper()
	s := p.open()
	ns, err := s.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, who := range principals {
		a := store.Attempt{
			ID:    store.ID{Principal: who, Key: ns.Name + "." + strings.Repeat(string(rune('a'+i)), 26)},
			Token: store.Token{byte(i)}, Lease: time.Hour,
		}
		reserve(t, s, a, store.Run)
		if err := s.Record(t.Context(), store.RunRef{ID: a.ID, Token: a.Token}, store.End{Event: store.Lose}); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, a.Key)
	}
	reserve(t, s, store.Attempt{ID: store.ID{Key: ns.Name + ".that-runs-and-is-not-listed"}, Lease: time.Hour}, store.Run)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return keys
}

// run runs a subcommand of records.
func (p place) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	return sepcheck(t.Context(), slices.Concat([]string{"records"}, args, p.flags)...)
}

func reserve(t *testing.T, s store.Store, a store.Attempt, want store.Verdict) store.Record {
	t.Helper()
	r, err := s.Reserve(t.Context(), a)
	if err != nil || r.Verdict != want {
		t.Fatalf("reserving %s: verdict %d, %v; want %d", a.Key, r.Verdict, err, want)
	}
	return r.Record
}

func TestUnknownOutcomesAreListed(t *testing.T) {
	for name, p := range places(t) {
		t.Run(name, func(t *testing.T) {
			keys := p.unknownCalls(t, "ada", "", "a\nb")
			code, out, stderr := p.run(t, "list", "--format", "json")
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			var got struct{ Records []entryJSON }
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatal(err)
			}
			seen := map[string]string{}
			for _, e := range got.Records {
				seen[e.Principal] = e.Key
				if e.State != "unknown" || e.Since.IsZero() || e.Namespace == "" {
					t.Errorf("%+v", e)
				}
			}
			if len(got.Records) != 3 || seen["ada"] != keys[0] || seen[""] != keys[1] || seen[`"a\nb"`] != keys[2] {
				t.Errorf("listed %v, want %q", seen, keys)
			}
			_, out, _ = p.run(t, "list", "--state", "running")
			if strings.Count(out, "running") != 1 || strings.Contains(out, keys[0]) {
				t.Errorf("the running ones are\n%s", out)
			}
			_, out, _ = p.run(t, "list", "--state", "completed")
			if out != "no records\n" {
				t.Errorf("the completed ones are\n%s", out)
			}
		})
	}
}

func TestAnOperatorResolvesUnknownOutcomes(t *testing.T) {
	result := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(result, []byte(`{"content":[{"type":"text","text":"charged"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, p := range places(t) {
		t.Run(name, func(t *testing.T) {
			keys := p.unknownCalls(t, "ada", "", "a\nb")
			for _, args := range [][]string{
				{"resolve", keys[0], "--principal", "ada", "--result", result},
				{"resolve", keys[1], "--not-run", "the bank has no such charge"},
				{"resolve", keys[2], "--principal", `"a\nb"`, "--not-run", "neither"},
			} {
				if code, out, stderr := p.run(t, args...); code != exitOK || !strings.HasPrefix(out, "resolved: ") {
					t.Fatalf("%q: exit code %d, %s%s", args, code, out, stderr)
				}
				// What is resolved stays so.
				if code, _, stderr := p.run(t, args...); code != exitFailed || !strings.Contains(stderr, "known") {
					t.Errorf("again: exit code %d, %s", code, stderr)
				}
			}
			s := p.open()
			defer s.Close()
			ran := reserve(t, s, store.Attempt{ID: store.ID{Principal: "ada", Key: keys[0]}, Token: store.Token{9}}, store.Known)
			if ran.State != store.Completed || !strings.Contains(string(ran.Outcome), "charged") {
				t.Errorf("resolved with a result: %v %s", ran.State, ran.Outcome)
			}
			none := reserve(t, s, store.Attempt{ID: store.ID{Key: keys[1]}, Token: store.Token{9}}, store.Known)
			if none.State != store.NoEffect || string(none.Outcome) != string(idempotency.NoEffectOutcome("the bank has no such charge")) {
				t.Errorf("resolved as not run: %v %s", none.State, none.Outcome)
			}
		})
	}
}

func TestRecordsRefusesWhatCannotBeMeant(t *testing.T) {
	p := places(t)["sqlite"]
	path, keys := p.flags[1], p.unknownCalls(t, "ada")
	empty := filepath.Join(t.TempDir(), "none.db")
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"content":`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitUsage, "list or records resolve", nil},
		{exitUsage, "give one of --sqlite", []string{"list"}},
		{exitUsage, "give one of --sqlite", []string{"list", "--sqlite", path, "--redis", "redis://x"}},
		{exitUsage, "absent", []string{"list", "--sqlite", path, "--state", "absent"}},
		{exitUsage, "--limit", []string{"list", "--sqlite", path, "--limit", "0"}},
		{exitFailed, "no record store", []string{"list", "--sqlite", empty}},
		{exitUsage, "exactly one key", []string{"resolve", "--sqlite", path, "--not-run", "x"}},
		{exitUsage, "--result and --not-run", []string{"resolve", "--sqlite", path, keys[0], "--principal", "ada"}},
		{exitUsage, "--result", []string{"resolve", "--sqlite", path, keys[0], "--principal", "ada", "--result", broken}},
		{exitUsage, "--result", []string{"resolve", "--sqlite", path, keys[0], "--principal", "ada", "--result", empty}},
		{exitFailed, "another principal", []string{"resolve", "--sqlite", path, keys[0], "--not-run", "x"}},
		{exitNoPeer, "could not be reached", []string{"list", "--redis", "redis://127.0.0.1:1"}},
		{exitNoPeer, "could not be reached", []string{"list", "--postgres", "postgres://127.0.0.1:1/x"}},
	} {
		code, out, stderr := sepcheck(t.Context(), append([]string{"records"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) || out != "" {
			t.Errorf("%q: exit code %d, want %d and %q: %s%s", c.args, code, c.code, c.says, out, stderr)
		}
	}
	if _, err := os.Stat(empty); err == nil {
		t.Error("listing made a store")
	}
}
