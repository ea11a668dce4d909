package sqlite_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// smallDisk mounts a file system of so many bytes, or skips the test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return dir
}

// fill makes calls until one fails, and returns those that were acknowledged
// and the run that was reserved last and could not be recorded, if any.
func fill(t *testing.T, s *sqlite.Store) (ended []store.Attempt, stuck *store.Attempt) {
	t.Helper()
	ns := current(t, s)
	outcome := make([]byte, 64<<10)
	_, _ = rand.Read(outcome) // never fails
	for range 10_000 {
		a := attempt(ns)
		res, err := s.Reserve(context.Background(), a)
		if err != nil {
			return ended, nil
		}
		if res.Verdict != store.Run {
			t.Fatalf("Reserve: verdict %d", res.Verdict)
		}
		if s.Record(context.Background(), ref(a), store.End{Event: store.Complete, Outcome: outcome}) != nil {
			return ended, &a
		}
		ended = append(ended, a)
	}
	t.Fatal("the disk is not full yet")
	return nil, nil
}

func checkFilled(t *testing.T, s *sqlite.Store, ended []store.Attempt, stuck *store.Attempt) {
	t.Helper()
	for _, a := range ended {
		if res := expect(t, s, again(a), store.Known); len(res.Record.Outcome) != 64<<10 {
			t.Fatalf("an outcome has %d bytes", len(res.Record.Outcome))
		}
	}
	if stuck != nil {
		expect(t, s, again(*stuck), store.Joinable)
	}
}

func TestAFullDiskIsAnErrorAndNeverARun(t *testing.T) {
	dir := smallDisk(t, "4m")
	path := filepath.Join(dir, "records.db")
	s := mustOpen(t, path, sqlite.Options{})
	ns := current(t, s)
	ended, stuck := fill(t, s)
	if len(ended) < 3 {
		t.Fatalf("only %d calls fitted", len(ended))
	}
	checkFilled(t, s, ended, stuck)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=16m"); err != nil {
		t.Fatal(err)
	}
	if stuck != nil {
		complete(t, s, *stuck, "late")
	}
	replays(t, s, call(t, s, "there is room again"), "there is room again")
	if current(t, s) != ns {
		t.Error("the namespace changed")
	}
}

func TestADiskThatFillsUpBesideTheDatabase(t *testing.T) {
	dir := smallDisk(t, "4m")
	path := filepath.Join(dir, "records.db")
	s := mustOpen(t, path, sqlite.Options{})
	ns := current(t, s)
	a := call(t, s, "before")
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, make([]byte, 16<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	ended, stuck := fill(t, s)
	checkFilled(t, s, ended, stuck)
	mustClose(t, s)
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, sqlite.Options{})
	if current(t, s) != ns {
		t.Error("a full disk began a new namespace")
	}
	replays(t, s, a, "before")
	checkFilled(t, s, ended, nil)
}
