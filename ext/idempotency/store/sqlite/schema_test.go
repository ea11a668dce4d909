package sqlite_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

func TestEveryQueryHasAnIndex(t *testing.T) {
	plans, err := mustOpen(t, dbPath(t), sqlite.Options{}).Plans()
	if err != nil {
		t.Fatal(err)
	}
	if len(plans) < 30 {
		t.Errorf("only %d statements were looked at", len(plans))
	}
	// All of a table that has a handful of rows is wanted.
	whole := regexp.MustCompile(`^SCAN (idempotency_namespaces|idempotency_dropped|CONSTANT ROW|2-ROW VALUES CLAUSE)$`)
	for text, plan := range plans {
		for _, step := range plan {
			if strings.Contains(step, "SCAN") && !whole.MatchString(step) {
				t.Errorf("%s\n\tis run as: %s", text, strings.Join(plan, "; "))
			}
		}
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	ns := current(t, s)
	if err := s.Script("INSERT INTO idempotency_schema VALUES (1000, 0)"); err != nil {
		t.Fatal(err)
	}
	// One that has the file open finds out when it looks.
	other := func() error { _, err := sqlite.Open(t.Context(), path, nil); return err }
	if err := other(); !errors.Is(err, sqlite.ErrNewerSchema) {
		t.Errorf("Open: got error %v, want ErrNewerSchema", err)
	}
	if err := s.Script("DELETE FROM idempotency_schema WHERE version = 1000"); err != nil {
		t.Fatal(err)
	}
	if got := current(t, mustOpen(t, path, sqlite.Options{})); got != ns {
		t.Error("the attempt to open it has changed the namespace")
	}
}

func TestAStoreThatIsOpenRefusesASchemaThatBecomesNewer(t *testing.T) {
	path := dbPath(t)
	a, b := mustOpen(t, path, sqlite.Options{}), mustOpen(t, path, sqlite.Options{})
	ns := current(t, a)
	if err := b.Script("INSERT INTO idempotency_schema VALUES (1000, 0)"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Reserve(t.Context(), attempt(ns)); !errors.Is(err, sqlite.ErrNewerSchema) {
		t.Errorf("Reserve: got error %v, want ErrNewerSchema", err)
	}
}

func TestADroppedNamespaceLeavesNoTables(t *testing.T) {
	clock := storetest.NewClock()
	s := mustOpen(t, dbPath(t), sqlite.Options{Now: clock.Now, Retention: time.Hour, RotateEvery: time.Hour, ClosingFor: time.Minute})
	tables := func() int {
		t.Helper()
		names, err := s.Read("SELECT name FROM sqlite_master WHERE name LIKE 'idempotency_live_%' OR name LIKE 'idempotency_ended_%'")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	want := tables()
	for range 10 {
		for range 5 {
			call(t, s, "x")
		}
		clock.Advance(time.Hour)
	}
	current(t, s)
	if got := tables(); got > 4*want {
		t.Errorf("%d tables and indexes after ten rotations, %d for one namespace", got, want)
	}
	if left, err := s.Read("SELECT id FROM idempotency_dropped"); len(left) > 0 || err != nil {
		t.Errorf("namespaces %v still have tables, %v", left, err)
	}
}

func TestTablesThatWereNotRemovedAreRemovedLater(t *testing.T) {
	path := dbPath(t)
	clock := storetest.NewClock()
	opt := sqlite.Options{Now: clock.Now}
	s := mustOpen(t, path, opt)
	call(t, s, "x")
	// As a process leaves it that dies between the two steps of dropping.
	for _, text := range []string{
		"INSERT INTO idempotency_dropped VALUES (77)",
		"CREATE TABLE idempotency_live_77 (x)", "CREATE TABLE idempotency_ended_77 (x)",
	} {
		if err := s.Script(text); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, s)
	s = mustOpen(t, path, opt)
	left, err := s.Read("SELECT name FROM sqlite_master WHERE name LIKE 'idempotency_%_77' UNION ALL SELECT 'row' FROM idempotency_dropped")
	if len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestTheLatestVersionIsThatOfTheLastMigration(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	versions, err := s.Read("SELECT version FROM idempotency_schema ORDER BY version")
	if err != nil || len(versions) != sqlite.Latest || versions[len(versions)-1] != fmt.Sprint(sqlite.Latest) {
		t.Errorf("versions %v, want up to %d; %v", versions, sqlite.Latest, err)
	}
}
