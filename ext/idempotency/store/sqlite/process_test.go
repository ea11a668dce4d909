package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// childOpen opens the store once it is told to, and says which namespace it
// found.
func childOpen(ctx context.Context, path string, _ []string) error {
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	s, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	ns, err := s.Current(ctx)
	if err != nil {
		return err
	}
	fmt.Println(ns.Name)
	return s.Close()
}

func TestProcessesThatStartAtOnceMigrateOnce(t *testing.T) {
	for range 5 {
		path := dbPath(t)
		var all []*child
		for range 8 {
			all = append(all, startChild(t, "open", path))
		}
		for _, c := range all {
			if c.line() != "ready" {
				t.Fatalf("a child did not start: %s", c.errs.String())
			}
		}
		for _, c := range all {
			if _, err := c.in.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
		}
		var names []string
		for _, c := range all {
			lines := c.wait(t)
			names = append(names, lines[len(lines)-1])
		}
		slices.Sort(names)
		if len(slices.Compact(names)) != 1 {
			t.Fatalf("the processes found different namespaces: %v", names)
		}
	}
}

// numbered is the attempt for the i-th key of a test.
func numbered(namespace string, i int) store.Attempt {
	return attemptOf(store.ID{Principal: "user@example.com", Key: namespace + ".k" + strconv.Itoa(i)})
}

// childCalls makes calls with the keys from a number on, until it is killed.
// Before each it asks for an older key, which must not run.
func childCalls(ctx context.Context, path string, args []string) error {
	s, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	namespace, from := args[0], atoi(args[1])
	for i := from; ; i++ {
		a := numbered(namespace, i)
		res, err := s.Reserve(ctx, a)
		if err != nil || res.Verdict != store.Run {
			return fmt.Errorf("key %d: verdict %d, %w", i, res.Verdict, err)
		}
		fmt.Println("run", i)
		if err := s.Record(ctx, ref(a), store.End{Event: store.Complete, Outcome: []byte(strconv.Itoa(i))}); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
		fmt.Println("done", i)
		if old := rand.IntN(i + 1); old < i {
			a := numbered(namespace, old)
			a.Peek = true
			if res, err := s.Reserve(ctx, a); err != nil || res.Verdict == store.Run || res.Verdict == store.NamespaceNotHeld {
				return fmt.Errorf("old key %d: verdict %d, %w", old, res.Verdict, err)
			}
		}
	}
}

func TestNothingIsLostOrRunTwiceWhenTheProcessIsKilled(t *testing.T) {
	kills := 100
	if testing.Short() {
		kills = 20
	}
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	namespace := current(t, s)
	mustClose(t, s)
	next, started, done := 0, map[int]bool{}, map[int]bool{}
	for range kills {
		c := startChild(t, "calls", path, namespace, strconv.Itoa(next))
		for range 1 + rand.IntN(20) {
			c.line()
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // anywhere in the next steps
		c.kill()
		for _, line := range c.lines {
			switch word, i := fields(line); word {
			case "run":
				started[i], next = true, i+1
			case "done":
				done[i] = true
			default:
				t.Fatalf("a child said %q", line)
			}
		}
		next++ // the one that was being reserved is not used again
		s := mustOpen(t, path, sqlite.Options{})
		if got := current(t, s); got != namespace {
			t.Fatalf("after a kill the namespace is %s, was %s: a false alarm", got, namespace)
		}
		for i := max(0, next-30); i < next; i++ {
			checkAfterKill(t, s, namespace, i, started[i], done[i])
		}
		mustClose(t, s)
	}
	s = mustOpen(t, path, sqlite.Options{})
	for i := range next {
		checkAfterKill(t, s, namespace, i, started[i], done[i])
	}
	t.Logf("%d kills, %d runs of which %d were recorded and acknowledged", kills, len(started), len(done))
}

// checkAfterKill looks at a key: what was acknowledged is there.
func checkAfterKill(t *testing.T, s *sqlite.Store, namespace string, i int, started, done bool) {
	t.Helper()
	a := numbered(namespace, i)
	a.Peek = true
	res, err := s.Reserve(context.Background(), a)
	if err != nil {
		t.Fatalf("key %d: %v", i, err)
	}
	switch {
	case res.Verdict == store.Known && res.Record.State == store.Completed:
		if string(res.Record.Outcome) != strconv.Itoa(i) {
			t.Fatalf("key %d has the outcome %q", i, res.Record.Outcome)
		}
	case done:
		t.Fatalf("key %d was recorded and acknowledged, and is now: verdict %d %v", i, res.Verdict, res.Record.State)
	case res.Verdict == store.Joinable, res.Verdict == store.Known: // it died, or its lease has passed
	case started || res.Verdict != store.Free:
		t.Fatalf("key %d (reserved: %t) got verdict %d", i, started, res.Verdict)
	}
}

// childContend makes the calls of keys 0 to n, which another process makes
// too, several at once.
func childContend(ctx context.Context, path string, args []string) error {
	s, err := sqlite.Open(ctx, path, &sqlite.Options{PollInterval: 5 * time.Millisecond})
	if err != nil {
		return err
	}
	namespace, n := args[0], atoi(args[1])
	keys, errs := make(chan int), make(chan error, 4)
	var wg sync.WaitGroup
	for range cap(errs) {
		wg.Go(func() {
			for i := range keys {
				if err := contend(ctx, s, numbered(namespace, i), i); err != nil {
					errs <- fmt.Errorf("key %d: %w", i, err)
					return
				}
			}
		})
	}
	for i := range n {
		select {
		case keys <- i:
		case err := <-errs:
			return err
		}
	}
	close(keys)
	wg.Wait()
	close(errs)
	return errors.Join(<-errs, s.Close())
}

func contend(ctx context.Context, s *sqlite.Store, a store.Attempt, i int) error {
	for {
		res, err := s.Reserve(ctx, a)
		if err != nil {
			return err
		}
		switch res.Verdict {
		case store.Run:
			fmt.Println("run", i)
			if err := s.Record(ctx, ref(a), store.End{Event: store.Complete, Outcome: []byte(strconv.Itoa(i))}); err != nil {
				return err
			}
		case store.Joinable:
			if err := s.Await(ctx, a.ID, res.Record.Token); err != nil {
				return err
			}
		case store.Known:
			if string(res.Record.Outcome) != strconv.Itoa(i) {
				return fmt.Errorf("outcome %q", res.Record.Outcome)
			}
			return nil
		default:
			return fmt.Errorf("verdict %d", res.Verdict)
		}
	}
}

func TestTwoProcessesShareTheFile(t *testing.T) {
	const keys = 300
	path := dbPath(t)
	namespace := current(t, mustOpen(t, path, sqlite.Options{}))
	a := startChild(t, "contend", path, namespace, strconv.Itoa(keys))
	b := startChild(t, "contend", path, namespace, strconv.Itoa(keys))
	runs := map[int]int{}
	of := map[*child]int{}
	for _, c := range []*child{a, b} {
		for _, line := range c.wait(t) {
			if word, i := fields(line); word == "run" {
				runs[i]++
				of[c]++
			}
		}
	}
	for i := range keys {
		if runs[i] != 1 {
			t.Errorf("key %d ran %d times", i, runs[i])
		}
	}
	t.Logf("%d keys ran in one process, %d in the other", of[a], of[b])
}

// childHold holds the write lock until it is killed.
func childHold(ctx context.Context, path string, _ []string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 10000; BEGIN IMMEDIATE"); err != nil {
		return err
	}
	fmt.Println("held")
	select {}
}

func TestTheWaitForAnotherProcessEnds(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{BusyTimeout: time.Hour})
	brief := mustOpen(t, path, sqlite.Options{BusyTimeout: 30 * time.Millisecond})
	a := attempt(current(t, s))
	holder := startChild(t, "hold", path)
	if holder.line() != "held" {
		t.Fatalf("the lock is not held: %s", holder.errs.String())
	}
	if res, err := brief.Reserve(t.Context(), a); err == nil {
		t.Errorf("with a short BusyTimeout: verdict %d", res.Verdict)
	}
	if _, err := sqlite.Open(t.Context(), path, &sqlite.Options{BusyTimeout: 30 * time.Millisecond}); err == nil {
		t.Error("Open did not need the lock")
	}

	// With its context, for whoever waits for the lock and whoever waits behind.
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() { _, err := s.Reserve(ctx, attemptOf(a.ID)); errs <- err }()
	}
	patient := make(chan error, 1)
	go func() { _, err := s.Reserve(t.Context(), a); patient <- err }()
	cancel()
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v", err)
		}
	}
	holder.kill() // and with the lock
	if err := <-patient; err != nil {
		t.Errorf("the one that waited longer: %v", err)
	}
	complete(t, s, a, "x")
}

func TestClosingEndsTheWaitForAnotherProcess(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{BusyTimeout: 200 * time.Millisecond})
	ns := current(t, s)
	holder := startChild(t, "hold", path)
	if holder.line() != "held" {
		t.Fatalf("the lock is not held: %s", holder.errs.String())
	}
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() { _, err := s.Reserve(t.Context(), attempt(ns)); errs <- err }()
	}
	_ = s.Close() // the log cannot be moved into the file while the lock is held
	for range cap(errs) {
		if err := <-errs; err == nil {
			t.Error("a step succeeded while another process had the lock")
		}
	}
}
