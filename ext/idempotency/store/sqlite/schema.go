package sqlite

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// Migrations are numbered from 1 without gaps, and are never changed once they
// are released.
//
//go:embed migrations/*.sql
var migrations embed.FS

// latest is the version that the migrations lead to.
const latest = 1

// namespaceTables makes the tables of one namespace.
//
//go:embed namespace.sql
var namespaceTables string

// ErrNewerSchema is returned when the database was written by a newer version
// of this package, which this one cannot read. Use that version, or another
// database.
var ErrNewerSchema = errors.New("sqlite: the database has a newer schema than this program knows")

const versionTable = `CREATE TABLE IF NOT EXISTS idempotency_schema (
	version    INTEGER PRIMARY KEY,
	applied_ms INTEGER NOT NULL
)`

// migrate brings the schema up to date. Processes that start at once apply
// each migration once: the version is read again under the write lock.
func migrate(ctx context.Context, c *conn, deadline time.Time) (err error) {
	if err := enableWAL(ctx, c, deadline); err != nil {
		return err
	}
	if err := c.begin(ctx, deadline); err != nil {
		return fmt.Errorf("sqlite: migrating: %w", err)
	}
	defer func() {
		if err != nil {
			_, _ = c.exec(0, rollback) // the connection is closed next
		}
	}()
	if err := c.script(versionTable); err != nil {
		return fmt.Errorf("sqlite: migrating: %w", err)
	}
	have, err := version(c)
	if err != nil {
		return err
	}
	names, err := fs.Glob(migrations, "migrations/*.sql") // sorted, and numbered
	if err != nil {
		return err
	}
	for i, name := range names[have:] {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return err
		}
		if err := c.script(string(text)); err != nil {
			return fmt.Errorf("sqlite: %s: %w", name, err)
		}
		if err := c.script("INSERT INTO idempotency_schema VALUES (?, ?)", have+i+1, time.Now().UnixMilli()); err != nil {
			return fmt.Errorf("sqlite: %s: %w", name, err)
		}
	}
	_, err = c.exec(0, commit)
	return err
}

// version returns the version of the schema, or ErrNewerSchema.
func version(c *conn) (int, error) {
	var v int64
	if _, err := c.row(0, schemaVersion, nil, &v); err != nil {
		return 0, fmt.Errorf("sqlite: reading the schema's version: %w", err)
	}
	if v > latest {
		return 0, fmt.Errorf("%w: version %d, known up to %d", ErrNewerSchema, v, latest)
	}
	return int(v), nil
}

// enableWAL makes the file use a write-ahead log, which is a property of the
// file. SQLite does not wait for locks when it switches over.
func enableWAL(ctx context.Context, c *conn, deadline time.Time) error {
	var mode string
	err := patiently(ctx, deadline, func() error {
		_, err := c.row(0, journalMode, nil, &mode)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqlite: switching to a write-ahead log: %w", err)
	}
	if !strings.EqualFold(mode, "wal") {
		return fmt.Errorf("sqlite: the database cannot use a write-ahead log here (journal mode %s); is it on a network file system?", mode)
	}
	return nil
}
