package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func TestMigrationsRunOnceHoweverManyInstancesStart(t *testing.T) {
	d := newDatabase(t)
	const instances = 12
	names := make(chan string, instances)
	var wg sync.WaitGroup
	for range instances {
		pool := d.pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
		wg.Go(func() {
			s, err := Open(t.Context(), pool, &Options{Schema: d.schema})
			if err != nil {
				t.Errorf("Open: %v", err)
				return
			}
			defer s.Close()
			ns, err := s.Current(t.Context())
			if err != nil {
				t.Errorf("Current: %v", err)
			}
			names <- ns.Name
		})
	}
	wg.Wait()
	close(names)
	first := <-names
	for name := range names {
		if name != first {
			t.Errorf("instances that started at once declare %s and %s", first, name)
		}
	}
	all, err := migrations(d.schema)
	if err != nil {
		t.Fatal(err)
	}
	s := d.open(t, nil)
	if n := scan[int](t, s, `SELECT count(*) FROM {schema}.migration`); n != len(all) {
		t.Errorf("%d migrations are noted, want %d", n, len(all))
	}
	if n := scan[int](t, s, `SELECT count(*) FROM {schema}.namespace`); n != 1 {
		t.Errorf("%d namespaces were made, want 1", n)
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	run(t, s, `INSERT INTO {schema}.migration (version) SELECT max(version) + 1 FROM {schema}.migration`)
	_, err := Open(t.Context(), d.pool(t), &Options{Schema: d.schema})
	if !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Open of a newer schema: %v", err)
	}
	expect(t, s, attempt(t, s), store.Run) // who was there before works on
}

// A migration that fails leaves nothing half done.
func TestAnInterruptedMigrationLeavesNothing(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	run(t, s, `DROP SCHEMA {schema} CASCADE`)
	run(t, s, `CREATE SCHEMA {schema} CREATE TABLE clock ()`) // in the way of the first
	if _, err := Open(t.Context(), d.pool(t), &Options{Schema: d.schema}); err == nil {
		t.Fatal("Open went over a table that is not its own")
	}
	if n := scan[int](t, s, `SELECT count(*) FROM pg_class WHERE relnamespace = '{schema}'::regnamespace`); n != 1 {
		t.Errorf("%d relations are left, want the one that was in the way", n)
	}
	run(t, s, `DROP TABLE {schema}.clock`)
	expect(t, d.open(t, nil), attempt(t, s), store.Run)
}

// The store needs no rights but on its own schema.
func TestARoleWithItsSchemaAloneIsEnough(t *testing.T) {
	d := newDatabase(t)
	admin := d.pool(t)
	role := "r" + d.schema
	if _, err := admin.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %s LOGIN; CREATE SCHEMA %s AUTHORIZATION %s`, role, d.schema, role)); err != nil {
		t.Skipf("this server lets nobody make roles: %v", err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf(`DROP SCHEMA %s CASCADE; DROP ROLE %s`, d.schema, role)); err != nil {
			t.Error(err)
		}
	})
	s := d.open(t, nil, func(c *pgxpool.Config) { c.ConnConfig.User = role })
	a := attempt(t, s)
	expect(t, s, a, store.Run)
	record(t, s, a, complete("done"))
	if err := s.Reincarnate(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, s, again(a), store.NamespaceNotHeld)
	_ = s.Close()
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	d := newDatabase(t)
	pool := d.pool(t)
	seal := func(b []byte) ([]byte, error) { return b, nil }
	for _, o := range []Options{
		{Schema: "Upper"}, {Schema: `a"b`}, {Schema: "1a"}, {Schema: strings.Repeat("a", 49)},
		{Retention: -1}, {RotateEvery: -1}, {ClosingFor: -1}, {MaxRecords: -1}, {MaxRecordsPerPrincipal: -1}, {MaxOpenPerPrincipal: -1},
		{PollInterval: -1}, {Seal: seal}, {Unseal: seal},
	} {
		if _, err := Open(t.Context(), pool, &o); err == nil {
			t.Errorf("Open accepted %+v", o)
		}
	}
	one := d.pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	if _, err := Open(t.Context(), one, &Options{Schema: d.schema}); err == nil {
		t.Error("Open accepted a pool of one connection")
	}
}

func TestAnotherDefaultIsolationLevelIsRefused(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	strict := d.pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	})
	if _, err := Open(t.Context(), strict, &Options{Schema: d.schema}); !errors.Is(err, ErrIsolation) {
		t.Errorf("Open: %v", err)
	}
	// A role's setting that changes later is noticed as well.
	s.pool = strict
	if _, err := s.Reserve(t.Context(), attemptIn("x")); !errors.Is(err, ErrIsolation) {
		t.Errorf("Reserve: %v", err)
	}
	if err := s.rotate(t.Context(), true); !errors.Is(err, ErrIsolation) {
		t.Errorf("rotating: %v", err)
	}
}
