package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that an operator can act on. The database's own errors are wrapped
// beside them.
var (
	// ErrUnsafe says that the database is one whose word is worth nothing to
	// the store: a standby, or one that may lose what it has acknowledged.
	ErrUnsafe = errors.New("postgres: the database cannot keep the store's promise")
	// ErrIsolation says that the pool's connections do not use READ COMMITTED
	// by default. Set default_transaction_isolation for the store's role, or
	// in the connection parameters.
	ErrIsolation = errors.New("postgres: the default isolation level of the pool's connections is not READ COMMITTED")
	// ErrNewerSchema says that a newer version of this package has changed the
	// tables. Update the program.
	ErrNewerSchema = errors.New("postgres: the schema is from a newer version of this package")
	// ErrClosed says that the store is closed.
	ErrClosed = errors.New("postgres: the store is closed")
)

// Codes that the functions of the schema raise, and those of PostgreSQL that
// decide something.
const (
	codeFenced      = "MI001"
	codeUnsafe      = "MI002"
	codeIsolation   = "MI003"
	codeReadOnly    = "25006" // read_only_sql_transaction: a standby
	codeLockTimeout = "55P03"
)

func hasCode(err error, code string) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == code
}

// explain puts the store's own error before the database's where there is one.
func explain(step string, err error) error {
	switch {
	case err == nil:
		return nil
	case hasCode(err, codeUnsafe), hasCode(err, codeReadOnly):
		return fmt.Errorf("%w: %s: %w", ErrUnsafe, step, err)
	case hasCode(err, codeIsolation):
		return fmt.Errorf("%w: %s: %w", ErrIsolation, step, err)
	}
	return fmt.Errorf("postgres: %s: %w", step, err)
}
