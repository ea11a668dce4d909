package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The migrations are numbered from 1 and never changed once they are released;
// a change is a new one. A function that callers of an older version use keeps
// its arguments and its meaning, so that old instances go on while new ones
// start.
//
//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations returns the statements of each version, the first at index 0.
func migrations(schema string) ([]string, error) {
	files, err := fs.Glob(migrationFiles, "migrations/*.sql") // in order
	if err != nil {
		return nil, err
	}
	fill := strings.NewReplacer("{schema}", pgx.Identifier{schema}.Sanitize(), "{channel}", schema)
	var all []string
	for i, name := range files {
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s is not number %d", name, i+1)
		}
		b, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, fill.Replace(string(b)))
	}
	return all, nil
}

// migrate brings the schema to this package's version, in one transaction. Any
// number of instances may do so at once: an advisory lock makes them queue, and
// all but the first find nothing to do.
func migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	all, err := migrations(schema)
	if err != nil {
		return err
	}
	name := pgx.Identifier{schema}.Sanitize()
	// The common case needs neither a lock nor the right to make tables.
	if v, err := version(ctx, pool, schema, len(all)); err != nil || v == len(all) {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, lockKey(schema)); err != nil {
			return err
		}
		v, err := version(ctx, tx, schema, len(all))
		if err != nil || v == len(all) {
			return err
		}
		if v == 0 {
			if err := makeSchema(ctx, tx, schema); err != nil {
				return err
			}
		}
		for i, sql := range all[v:] {
			if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("migration %d: %w", v+i+1, err)
			}
			if _, err := tx.Exec(ctx, `INSERT INTO `+name+`.migration (version) VALUES ($1)`, v+i+1); err != nil {
				return err
			}
		}
		return nil
	})
}

// version returns the version of the schema, 0 for none, unless it is newer
// than known.
func version(ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, schema string, known int) (v int, err error) {
	var exists bool
	// Asked of the catalogue itself: to_regclass answers from a cache that an
	// advisory lock does not refresh.
	if err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'migration')`, schema).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = q.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+pgx.Identifier{schema}.Sanitize()+`.migration`).Scan(&v)
	if err == nil && v > known {
		err = fmt.Errorf("%w: it has version %d, this one knows %d", ErrNewerSchema, v, known)
	}
	return v, err
}

// makeSchema makes the schema, unless somebody with the right to do so has made
// it for the store, and the table of versions.
func makeSchema(ctx context.Context, tx pgx.Tx, schema string) error {
	name := pgx.Identifier{schema}.Sanitize()
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`, schema).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := tx.Exec(ctx, `CREATE SCHEMA `+name); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `CREATE TABLE `+name+`.migration (
		version    integer PRIMARY KEY,
		applied_at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	return err
}

// lockKey is the advisory lock that migrations of a schema queue for.
func lockKey(schema string) int64 {
	sum := sha256.Sum256([]byte("mcp-idempotency migrations of " + schema))
	return int64(binary.BigEndian.Uint64(sum[:]))
}
