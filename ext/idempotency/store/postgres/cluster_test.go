package postgres

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A cluster is a PostgreSQL of a test's own, for what cannot be done to one
// that others use.
type cluster struct {
	dir string
	url string
}

func testserver(t testing.TB, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "./testserver.sh", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("testserver.sh %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	serverURL(t)
	// Not below t.TempDir, which the database's user cannot enter.
	dir, err := os.MkdirTemp("", "postgres-test")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: dir}
	t.Cleanup(func() {
		if c.url != "" {
			c.stop(t)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *cluster) start(t testing.TB, settings ...string) {
	t.Helper()
	c.url = testserver(t, append([]string{"start", c.dir}, settings...)...)
}

// stop ends the database as a crash does: nothing is written any more.
func (c *cluster) stop(t testing.TB) {
	t.Helper()
	testserver(t, "stop", c.dir, "immediate")
	c.url = ""
}

// backup returns a cluster made from a base backup, not started yet, which is
// to have the address of c.
func (c *cluster) backup(t testing.TB) *cluster {
	t.Helper()
	b := newCluster(t)
	testserver(t, "copy", c.url, b.dir)
	port, err := os.ReadFile(filepath.Join(c.dir, "port"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "port"), port, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func (c *cluster) signal(t testing.TB, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, "data", name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// calls are a finished and a running call, to be asked for later.
type calls struct{ finished, running store.Attempt }

func makeCalls(t testing.TB, s *Store) calls {
	t.Helper()
	c := calls{attempt(t, s), attempt(t, s)}
	expect(t, s, c.finished, store.Run)
	record(t, s, c.finished, complete("done"))
	expect(t, s, c.running, store.Run)
	return c
}

// up waits until the store reaches its database again.
func up(t testing.TB, s *Store) {
	t.Helper()
	eventually(t, "the database answers", func() bool { _, err := s.Current(t.Context()); return err == nil })
}

// notHeld demands that a store vouches for none of the calls, and works.
func notHeld(t testing.TB, s *Store, all ...calls) {
	t.Helper()
	for _, c := range all {
		for _, a := range []store.Attempt{c.finished, c.running} {
			expect(t, s, again(a), store.NamespaceNotHeld)
			expect(t, s, a, store.NamespaceNotHeld)
			if err := s.Record(t.Context(), ref(a), complete("late")); !errors.Is(err, store.ErrFenced) {
				t.Errorf("Record in a namespace that is not held: %v", err)
			}
			if err := s.Renew(t.Context(), ref(a), time.Minute); !errors.Is(err, store.ErrFenced) {
				t.Errorf("Renew in a namespace that is not held: %v", err)
			}
		}
	}
	a := attempt(t, s)
	expect(t, s, a, store.Run)
	record(t, s, a, complete("after"))
	expect(t, s, again(a), store.Known)
}

// X6: the database is restored from a backup to a moment before some calls.
// Neither those that the backup has nor those that it lacks run again, not even
// by an instance that was there all the time.
func TestARestoredBackupIsNotVouchedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start(t)
	d := newDatabaseAt(t, c.url)
	s := d.open(t, nil)
	before := makeCalls(t, s)
	old := c.backup(t)
	after := makeCalls(t, s)
	ns := after.finished.ID.Namespace()
	c.stop(t)

	old.signal(t, "recovery.signal")
	old.start(t, "restore_command=false")
	up(t, s)
	eventually(t, "the recovery ends", func() bool { return !scan[bool](t, s, `SELECT pg_is_in_recovery()`) })
	notHeld(t, s, before, after)
	notHeld(t, d.open(t, nil), before, after)
	if now := attempt(t, s).ID.Namespace(); now == ns {
		t.Errorf("%s is still declared", ns)
	}
}

// X6: a standby refuses, and once it is promoted it vouches for nothing that
// the old primary promised.
func TestAPromotedStandbyIsNotVouchedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start(t)
	d := newDatabaseAt(t, c.url)
	s := d.open(t, nil)
	before := makeCalls(t, s)
	standby := c.backup(t)
	lost := makeCalls(t, s) // asynchronous replication has not sent them
	c.stop(t)

	standby.signal(t, "standby.signal")
	standby.start(t)
	var err error
	defer func() { t.Logf("the standby's answer: %v", err) }()
	eventually(t, "the standby answers", func() bool {
		_, err = s.Reserve(t.Context(), again(before.finished))
		return errors.Is(err, ErrUnsafe)
	})
	if _, err := s.Current(t.Context()); !errors.Is(err, ErrUnsafe) {
		t.Errorf("Current on a standby: %v", err)
	}
	if _, err := Open(t.Context(), d.pool(t), &Options{Schema: d.schema}); !errors.Is(err, ErrUnsafe) {
		t.Errorf("Open on a standby: %v", err)
	}
	run(t, s, `SELECT pg_promote()`) // waits
	notHeld(t, s, before, lost)      // on the connections that the standby had
}

// X6: a logical dump that is loaded into another cluster, which has the same
// timeline.
func TestADumpInAnotherClusterIsNotVouchedFor(t *testing.T) {
	t.Parallel()
	from, to := newCluster(t), newCluster(t)
	from.start(t)
	d := newDatabaseAt(t, from.url)
	s := d.open(t, nil)
	before := makeCalls(t, s)
	to.start(t)
	bin := testserver(t, "bin")
	dump := exec.CommandContext(t.Context(), filepath.Join(bin, "pg_dump"), "--schema="+d.schema, "--dbname="+from.url)
	var stderr bytes.Buffer
	dump.Stderr = &stderr
	sql, err := dump.Output()
	if err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, stderr.String())
	}
	load := exec.CommandContext(t.Context(), filepath.Join(bin, "psql"), "--quiet", "--set=ON_ERROR_STOP=1", "--dbname="+to.url)
	load.Stdin = bytes.NewReader(sql)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	copied := newDatabaseAt(t, to.url)
	copied.schema = d.schema
	notHeld(t, copied.open(t, nil), before)
	expect(t, s, again(before.finished), store.Known) // the original goes on
}

func TestReincarnateForgetsWhatTheDatabaseCannotTell(t *testing.T) {
	d := newDatabase(t)
	s, other := d.open(t, nil), d.open(t, nil)
	before := makeCalls(t, s)
	if err := s.Reincarnate(t.Context()); err != nil {
		t.Fatal(err)
	}
	notHeld(t, s, before)
	notHeld(t, other, before)
}

// What was acknowledged survives a crash of the database, though the sessions
// have synchronous_commit off; and a database that would lose it is refused.
func TestAcknowledgedStepsSurviveACrashOfTheDatabase(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start(t, "synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=0")
	d := newDatabaseAt(t, c.url)
	s := d.open(t, nil)
	for round := range 3 {
		var made []calls
		for range 20 {
			made = append(made, makeCalls(t, s))
		}
		// Its reservation may be lost, and with it its effect is.
		lost := attempt(t, s)
		lost.Transactional = true
		expect(t, s, lost, store.Run)
		c.stop(t)
		c.start(t, "synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=0")
		up(t, s)
		for _, m := range made {
			expect(t, s, again(m.finished), store.Known)
			expect(t, s, again(m.running), store.Joinable)
		}
		res, err := s.Reserve(t.Context(), again(lost))
		if err != nil || res.Verdict != store.Joinable && res.Verdict != store.Run {
			t.Errorf("round %d: a transactional reservation: verdict %d, %v", round, res.Verdict, err)
		}
	}
}

func TestADatabaseThatMayForgetIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start(t, "full_page_writes=off")
	d := newDatabaseAt(t, c.url)
	if _, err := Open(t.Context(), d.pool(t), &Options{Schema: d.schema}); !errors.Is(err, ErrUnsafe) {
		t.Errorf("Open with full_page_writes off: %v", err)
	}
	s := d.open(t, &Options{WholePages: true})
	a := attempt(t, s)
	expect(t, s, a, store.Run)
	run(t, s, `ALTER SYSTEM SET fsync = off`)
	run(t, s, `SELECT pg_reload_conf()`)
	eventually(t, "fsync is off", func() bool { return scan[string](t, s, `SELECT current_setting('fsync')`) == "off" })
	if _, err := Open(t.Context(), d.pool(t), &Options{Schema: d.schema, WholePages: true}); !errors.Is(err, ErrUnsafe) {
		t.Errorf("Open with fsync off: %v", err)
	}
	for _, step := range []func() error{
		func() error { _, err := s.Current(t.Context()); return err },
		func() error { _, err := s.Reserve(t.Context(), again(a)); return err },
		func() error { return s.Record(t.Context(), ref(a), complete("x")) },
		func() error { return s.Renew(t.Context(), ref(a), time.Minute) },
	} {
		eventually(t, "a step is refused", func() bool { return errors.Is(step(), ErrUnsafe) })
	}
}
