package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

func TestBadOptionsAreRefused(t *testing.T) {
	same := func(b []byte) ([]byte, error) { return b, nil }
	for name, opt := range map[string]sqlite.Options{
		"Retention":              {Retention: -1},
		"RotateEvery":            {RotateEvery: -1},
		"ClosingFor":             {ClosingFor: -1},
		"MaxRecords":             {MaxRecords: -1},
		"MaxRecordsPerPrincipal": {MaxRecordsPerPrincipal: -1},
		"MaxOpenPerPrincipal":    {MaxOpenPerPrincipal: -1},
		"MaxResultBytes":         {MaxResultBytes: -1},
		"BusyTimeout":            {BusyTimeout: -1},
		"PollInterval":           {PollInterval: -1},
		"Seal":                   {Seal: same},
		"Unseal":                 {Unseal: same},
	} {
		path := dbPath(t)
		if _, err := sqlite.Open(t.Context(), path, &opt); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got error %v", name, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: the file was made", name)
		}
	}
}

func TestNamesOfFilesAreTakenAsTheyAre(t *testing.T) {
	for _, name := range []string{"with space", "a?b", "a#b", "a%20b", "ä", "a&b=c", "'", ":memory:", "file:x"} {
		path := filepath.Join(t.TempDir(), name)
		s := mustOpen(t, path, sqlite.Options{})
		a := call(t, s, "x")
		mustClose(t, s)
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		replays(t, mustOpen(t, path, sqlite.Options{}), a, "x")
	}
}

// toggle is a stand-in for encryption that one can see.
func toggle(key byte) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		c := bytes.Clone(b)
		for i := range c {
			c[i] ^= key
		}
		return c, nil
	}
}

func TestOutcomesAreSealedAtRest(t *testing.T) {
	path := dbPath(t)
	plain := mustOpen(t, path, sqlite.Options{})
	old := call(t, plain, "stored in the clear")
	mustClose(t, plain)

	sealed := sqlite.Options{Seal: toggle(0x55), Unseal: toggle(0x55)}
	s := mustOpen(t, path, sealed)
	a := call(t, s, "a secret of the tool")
	asked := attempt(current(t, s))
	expect(t, s, asked, store.Run)
	question := store.End{Event: store.Ask, Outcome: []byte("a secret question"), Nonce: store.Nonce{1}}
	if err := s.Record(t.Context(), ref(asked), question); err != nil {
		t.Fatal(err)
	}
	replays(t, s, a, "a secret of the tool")
	replays(t, s, old, "stored in the clear")
	if res := expect(t, s, again(asked), store.Asked); string(res.Record.Outcome) != "a secret question" {
		t.Errorf("asked %q", res.Record.Outcome)
	}
	mustClose(t, s)
	for _, suffix := range []string{"", "-wal"} {
		if b, err := os.ReadFile(path + suffix); err == nil && bytes.Contains(b, []byte("a secret")) {
			t.Errorf("the secret is in %s", path+suffix)
		}
	}

	// Without the key, or with another one, nothing is told, and no key runs.
	for name, opt := range map[string]sqlite.Options{"no key": {}, "another key": {Seal: toggle(0x56), Unseal: toggle(0x56)}} {
		s := mustOpen(t, path, opt)
		if res, err := s.Reserve(t.Context(), again(a)); err == nil {
			t.Errorf("%s: replayed %q", name, res.Record.Outcome)
		}
		mustClose(t, s)
	}
}

func TestSealedOutcomesCannotBeSwapped(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{Seal: toggle(0x55), Unseal: toggle(0x55)})
	a, b := call(t, s, "yes"), call(t, s, "no")
	swap := `UPDATE idempotency_ended_1 SET outcome = (SELECT outcome FROM idempotency_ended_1 WHERE seq = 1) WHERE seq = 2`
	if err := s.Script(swap); err != nil {
		t.Fatal(err)
	}
	replays(t, s, a, "yes")
	if res, err := s.Reserve(t.Context(), again(b)); err == nil {
		t.Errorf("replayed %q", res.Record.Outcome)
	}
}

func TestASealThatFailsRecordsNothing(t *testing.T) {
	broken := errors.New("no key today")
	opt := sqlite.Options{Seal: func([]byte) ([]byte, error) { return nil, broken }, Unseal: toggle(0)}
	s := mustOpen(t, dbPath(t), opt)
	a := attempt(current(t, s))
	expect(t, s, a, store.Run)
	if err := s.Record(t.Context(), ref(a), store.End{Event: store.Complete, Outcome: []byte("x")}); !errors.Is(err, broken) {
		t.Errorf("Record: got error %v", err)
	}
	expect(t, s, again(a), store.Joinable)
}

func TestDeletedOutcomesLeaveTheFile(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	secret := strings.Repeat("a very secret thing ", 1000)
	a := call(t, s, secret)
	call(t, s, secret[:200])
	if n, err := s.DeleteOutcomes(t.Context(), a.Principal); n != 2 || err != nil {
		t.Fatalf("DeleteOutcomes: %d, %v", n, err)
	}
	// Copies, since a file that SQLite has open must not be closed by others.
	copyOf := path + ".copy"
	if err := s.Script("VACUUM INTO '" + copyOf + "'"); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	for _, name := range []string{path, path + "-wal", copyOf} {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte("very secret")) {
			t.Errorf("the secret is still in %s", filepath.Base(name))
		}
	}
}

func TestNoGoroutineIsLeftBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	s := mustOpen(t, dbPath(t), sqlite.Options{PollInterval: time.Millisecond})
	a := attempt(current(t, s))
	expect(t, s, a, store.Run)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 20 {
		wg.Go(func() {
			waiting := t.Context()
			if i%2 == 0 {
				waiting = ctx
			}
			_ = s.Await(waiting, a.ID, a.Token) // half of them end with their context
		})
	}
	cancel()
	complete(t, s, a, "x")
	wg.Wait()
	b := attempt(current(t, s))
	expect(t, s, b, store.Run)
	wg.Go(func() {
		if err := s.Await(t.Context(), b.ID, b.Token); !errors.Is(err, sqlite.ErrClosed) {
			t.Errorf("Await of a closed store: %v", err)
		}
	})
	mustClose(t, s)
	wg.Wait()
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond) // a goroutine that has ended is counted a little longer
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

func TestStepsThatWaitShareATransaction(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	ns := current(t, s)
	const calls = 200
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() { call(t, s, "x") })
	}
	wg.Wait()
	n, err := s.Read("SELECT count(*) FROM idempotency_ended_1")
	if err != nil || n[0] != fmt.Sprint(calls) {
		t.Errorf("%v calls are recorded, want %d; %v", n, calls, err)
	}
	// One that fails does not take the others with it, and is told alone.
	errs := make(chan error, 20)
	for i := range cap(errs) {
		wg.Go(func() {
			a := attempt(ns)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%2 == 0 {
				cancel()
			}
			res, err := s.Reserve(ctx, a)
			if (i%2 == 0) != (err != nil) || err == nil && res.Verdict != store.Run {
				errs <- fmt.Errorf("caller %d: verdict %d, %w", i, res.Verdict, err)
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

func TestQuotasHoldForMorePrincipalsThanAreRemembered(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{MaxOpenPerPrincipal: 1, MaxRecordsPerPrincipal: 2})
	ns := current(t, s)
	key := func(p int) store.Attempt {
		return attemptOf(store.ID{Principal: fmt.Sprint(p), Key: attempt(ns).Key})
	}
	const running = 40
	for p := range running {
		expect(t, s, key(p), store.Run)
	}
	var wg sync.WaitGroup
	next := make(chan int)
	for range 64 {
		wg.Go(func() {
			for p := range next {
				a := key(p)
				expect(t, s, a, store.Run)
				complete(t, s, a, "x")
			}
		})
	}
	for p := range sqlite.MaxTallies + 200 {
		next <- running + p
	}
	close(next)
	wg.Wait()
	if n := s.Tallies(); n > sqlite.MaxTallies+running+1 {
		t.Errorf("%d tallies are remembered", n)
	}
	for _, s := range []*sqlite.Store{s, mustOpen(t, path, sqlite.Options{MaxOpenPerPrincipal: 1, MaxRecordsPerPrincipal: 2})} {
		for p := range running {
			expect(t, s, key(p), store.NoRoom)
		}
	}
	a := key(running)
	expect(t, s, a, store.Run)
	expect(t, s, key(running), store.NoRoom)
	complete(t, s, a, "x")
	expect(t, s, key(running), store.NoRoom) // two records
}

func TestTheOldestOutcomesGoFirst(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{MaxResultBytes: 1000})
	var all []store.Attempt
	for range 20 {
		all = append(all, call(t, s, strings.Repeat("x", 99)))
	}
	for i, a := range all {
		res := expect(t, s, again(a), store.Known)
		if kept := res.Record.Outcome != nil; kept != (i >= 10) {
			t.Errorf("outcome %d is kept: %t", i, kept)
		}
	}
}

func TestTimePassesWhileNobodyHasTheFileOpen(t *testing.T) {
	path := dbPath(t)
	clock := storetest.NewClock()
	opt := sqlite.Options{Now: clock.Now, RotateEvery: time.Hour}
	s := mustOpen(t, path, opt)
	ns := current(t, s)
	a := attempt(ns)
	expect(t, s, a, store.Run)
	mustClose(t, s)

	clock.Advance(-24 * time.Hour) // a step back counts as no time
	s = mustOpen(t, path, opt)
	expect(t, s, again(a), store.Joinable)
	clock.Advance(29 * time.Second)
	expect(t, s, again(a), store.Joinable)
	clock.Advance(2 * time.Second)
	expect(t, s, again(a), store.Known)
	mustClose(t, s)

	clock.Advance(2 * time.Hour)
	if got := current(t, mustOpen(t, path, opt)); got == ns {
		t.Error("the namespace did not rotate while the store was closed")
	}
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	call(t, s, "x")
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 4 {
		t.Errorf("files %v, want the database, its log and index, and the witness", files)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", f.Name(), info.Mode(), err)
		}
	}
}

func TestALostConnectionIsOpenedAgain(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	a := call(t, s, "x")
	b := attempt(current(t, s))
	expect(t, s, b, store.Run)
	for range 3 {
		if err := s.Interrupt(); err != nil {
			t.Fatal(err)
		}
		replays(t, s, a, "x")
		expect(t, s, again(b), store.Joinable)
	}
	if err := s.Interrupt(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
}
