package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// A restored store has lost the run of after, which came after the backup.
type restored struct {
	path          string
	before, after store.Attempt
	namespace     string
}

// backUp makes a store with one call, a copy of its file at backup, and
// another call.
func backUp(t testing.TB, backup func(path string) string) restored {
	t.Helper()
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	r := restored{path: path, namespace: current(t, s), before: call(t, s, "before")}
	mustClose(t, s)
	copyFile(t, path, backup(path))
	s = mustOpen(t, path, sqlite.Options{})
	r.after = attempt(r.namespace)
	expect(t, s, r.after, store.Run)
	mustClose(t, s)
	return r
}

// noticed demands that the store is a new one.
func (r restored) noticed(t testing.TB, s *sqlite.Store) {
	t.Helper()
	if got := current(t, s); got == r.namespace {
		t.Fatal("the restored store has the old namespace")
	}
	for _, a := range []store.Attempt{r.after, r.before, attempt(r.namespace)} {
		expect(t, s, again(a), store.NamespaceNotHeld)
	}
	replays(t, s, call(t, s, "new"), "new")
}

func beside(path string) string { return path + ".backup" }

func TestARestoredFileBeginsANewNamespace(t *testing.T) {
	t.Run("copied over, one run behind", func(t *testing.T) {
		r := backUp(t, beside)
		copyFile(t, beside(r.path), r.path)
		r.noticed(t, mustOpen(t, r.path, sqlite.Options{}))
	})
	t.Run("moved into place", func(t *testing.T) {
		r := backUp(t, beside)
		rename(t, beside(r.path), r.path)
		r.noticed(t, mustOpen(t, r.path, sqlite.Options{}))
	})
	t.Run("after the process was killed", func(t *testing.T) {
		path := dbPath(t)
		s := mustOpen(t, path, sqlite.Options{})
		r := restored{path: path, namespace: current(t, s), before: call(t, s, "before")}
		mustClose(t, s)
		copyFile(t, path, beside(path))
		c := startChild(t, "calls", path, r.namespace, "7")
		if c.line() != "run 7" {
			t.Fatalf("the child did not run: %v", c.lines)
		}
		c.kill()
		r.after = numbered(r.namespace, 7)
		for _, suffix := range []string{"-wal", "-shm"} { // as every guide to SQLite says
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		copyFile(t, beside(path), path)
		r.noticed(t, mustOpen(t, path, sqlite.Options{}))
	})
	t.Run("twice", func(t *testing.T) {
		r := backUp(t, beside)
		for range 3 {
			copyFile(t, beside(r.path), r.path)
			s := mustOpen(t, r.path, sqlite.Options{})
			r.noticed(t, s)
			mustClose(t, s)
		}
	})
	t.Run("and a deletion taken back", func(t *testing.T) {
		path := dbPath(t)
		s := mustOpen(t, path, sqlite.Options{})
		a := call(t, s, "secret")
		mustClose(t, s)
		copyFile(t, path, beside(path))
		s = mustOpen(t, path, sqlite.Options{})
		if n, err := s.DeleteOutcomes(t.Context(), a.Principal); n != 1 || err != nil {
			t.Fatalf("DeleteOutcomes: %d, %v", n, err)
		}
		mustClose(t, s)
		copyFile(t, beside(path), path)
		expect(t, mustOpen(t, path, sqlite.Options{}), again(a), store.NamespaceNotHeld)
	})
}

func TestAFileReplacedUnderOpenStoresIsNoticedByAll(t *testing.T) {
	path := dbPath(t)
	a := mustOpen(t, path, sqlite.Options{})
	r := restored{path: path, namespace: current(t, a), before: call(t, a, "before")}
	b := mustOpen(t, path, sqlite.Options{})
	other := mustOpen(t, dbPath(t), sqlite.Options{}) // a file that is a valid store, and not this one
	mustClose(t, other)
	// Not a plain copy: most of a store that is open is in its log.
	if err := a.Script("VACUUM INTO '" + beside(path) + "'"); err != nil {
		t.Fatal(err)
	}
	r.after = attempt(r.namespace)
	expect(t, a, r.after, store.Run)
	for _, suffix := range []string{"-wal", "-shm"} {
		rename(t, path+suffix, path+".old"+suffix)
	}
	rename(t, beside(path), path)
	r.noticed(t, a)
	r.noticed(t, b)
	if got := current(t, b); got != current(t, a) {
		t.Errorf("one store is in %s, the other in %s", current(t, a), got)
	}
	c := mustOpen(t, path, sqlite.Options{})
	if current(t, c) != current(t, a) {
		t.Error("a third store is elsewhere")
	}
}

func TestAStoreWhoseFileIsGoneFails(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	a := attempt(current(t, s))
	rename(t, path, path+".away")
	if res, err := s.Reserve(t.Context(), a); err == nil {
		t.Errorf("Reserve without a file: verdict %d", res.Verdict)
	}
	rename(t, path+".away", path)
	expect(t, s, a, store.Run)
}

func TestWithoutItsWitnessAStoreBeginsANewNamespace(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, witness string){
		"missing": func(t *testing.T, witness string) { rename(t, witness, witness+".away") },
		"empty": func(t *testing.T, witness string) {
			if err := os.Truncate(witness, 0); err != nil {
				t.Fatal(err)
			}
		},
		"garbage": func(t *testing.T, witness string) {
			b, err := os.ReadFile(witness)
			if err != nil {
				t.Fatal(err)
			}
			b = bytes.Replace(b, []byte("grants"), []byte("grunts"), 1)
			if err := os.WriteFile(witness, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"copied": func(t *testing.T, witness string) {
			copyFile(t, witness, witness+".copy")
			rename(t, witness+".copy", witness)
		},
		"another store's": func(t *testing.T, witness string) {
			path := dbPath(t)
			s := mustOpen(t, path, sqlite.Options{})
			for range 10 {
				call(t, s, "x")
			}
			mustClose(t, s)
			copyFile(t, path+".witness", witness)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := backUp(t, beside)
			harm(t, r.path+".witness")
			s := mustOpen(t, r.path, sqlite.Options{})
			r.noticed(t, s)
			ns := current(t, s)
			mustClose(t, s)
			if got := current(t, mustOpen(t, r.path, sqlite.Options{})); got != ns {
				t.Errorf("the next time the namespace is %s, was %s", got, ns)
			}
		})
	}
	t.Run("missing while it is open", func(t *testing.T) {
		path := dbPath(t)
		s := mustOpen(t, path, sqlite.Options{})
		a := call(t, s, "x")
		rename(t, path+".witness", path+".witness.away")
		other := mustOpen(t, path, sqlite.Options{}) // finds none, and begins anew
		expect(t, other, again(a), store.NamespaceNotHeld)
		expect(t, s, again(a), store.NamespaceNotHeld)
		if current(t, s) != current(t, other) {
			t.Error("the stores do not agree on the namespace")
		}
		replays(t, s, call(t, other, "y"), "y")
	})
}

// A copy of everything is another store: both serve, and what one runs the
// other must not run.
func TestACloneIsAnotherStore(t *testing.T) {
	r := backUp(t, beside)
	clone := filepath.Join(t.TempDir(), "clone.db")
	copyFile(t, r.path, clone)
	copyFile(t, r.path+".witness", clone+".witness")
	r.noticed(t, mustOpen(t, clone, sqlite.Options{}))
	s := mustOpen(t, r.path, sqlite.Options{})
	if current(t, s) != r.namespace {
		t.Error("the original has lost its namespace")
	}
	replays(t, s, r.before, "before")
}

// This is what the package's documentation says is not noticed. The test keeps
// it from claiming too little or too much.
func TestARestoreOfFileAndWitnessInPlaceIsNotNoticed(t *testing.T) {
	r := backUp(t, func(path string) string {
		copyFile(t, path+".witness", path+".witness.backup")
		return beside(path)
	})
	copyFile(t, beside(r.path), r.path)
	copyFile(t, r.path+".witness.backup", r.path+".witness")
	if got := current(t, mustOpen(t, r.path, sqlite.Options{})); got != r.namespace {
		t.Error("it was noticed: correct doc.go")
	}
}

func TestOrdinaryUseNeverBeginsANewNamespace(t *testing.T) {
	path := dbPath(t)
	var log bytes.Buffer
	opt := sqlite.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s := mustOpen(t, path, opt)
	ns := current(t, s)
	for range 20 {
		other := mustOpen(t, path, opt)
		call(t, other, "x")
		call(t, s, "x")
		mustClose(t, other)
		if err := s.Script("VACUUM"); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		if s = mustOpen(t, path, opt); current(t, s) != ns {
			t.Fatal("the namespace changed")
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged %s", log.String())
	}
}

func TestLinksLeadToTheSameWitness(t *testing.T) {
	path := dbPath(t)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err)
	}
	s := mustOpen(t, path, sqlite.Options{})
	a := call(t, s, "x")
	replays(t, mustOpen(t, link, sqlite.Options{}), a, "x")
	replays(t, s, a, "x")
}

func TestTheReasonForANewNamespaceIsLogged(t *testing.T) {
	r := backUp(t, beside)
	copyFile(t, beside(r.path), r.path)
	var log bytes.Buffer
	mustOpen(t, r.path, sqlite.Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	if n := bytes.Count(log.Bytes(), []byte(`"reason":`)); n != 1 {
		t.Errorf("%d reasons are logged: %s", n, log.String())
	}
	_ = context.Background
}
