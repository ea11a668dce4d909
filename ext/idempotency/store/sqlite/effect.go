package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// An effect is the transaction in which a tool has its effect and in which the
// end of its run is recorded. It is one on the connection of the store's own
// steps, and has their turn: SQLite lets one transaction write at a time, so
// that steps can only wait, and here they wait without asking again and again.
//
// For the same reason nobody can take the run over while its handler is at work,
// whatever has become of its lease: that would be a step.
type effect struct {
	s    *Store
	db   *sql.DB
	tx   *sql.Tx
	over bool // and the turn is given back
}

var _ idempotency.Transaction = (*effect)(nil)

// errNotTheirs says that a handler has ended the transaction that it was given.
var errNotTheirs = errors.New("sqlite: the tool ended its transaction by itself, or something undid it")

// begin starts the transaction of an effect, once it has the turn.
func (s *Store) beginEffect(ctx context.Context) (*effect, error) {
	if err := s.take(ctx, s.turn); err != nil {
		return nil, err
	}
	e := &effect{s: s}
	if err := s.begin(&job{ctx: ctx, deadline: time.Now().Add(s.opt.BusyTimeout)}); err != nil {
		s.giveTurn()
		return nil, err
	}
	err := s.w.script("SAVEPOINT " + mark)
	if err == nil {
		e.db = sql.OpenDB(lent{s.w.c})
		e.tx, err = e.db.BeginTx(ctx, nil)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: beginning a tool's transaction: %w", err), e.Rollback(ctx))
	}
	return e, nil
}

// mark is a savepoint that is gone when the transaction is not the one that
// was begun any more.
const mark = "idempotency_effect"

// usable reports, once a handler has returned without an error, whether its
// transaction is still the one that it was given.
func (e *effect) usable() error {
	if err := e.tx.Commit(); err != nil { // of database/sql alone: see lentTx
		return errNotTheirs
	}
	if err := e.s.w.script("RELEASE " + mark); err != nil {
		return errNotTheirs
	}
	return nil
}

// Commit implements [idempotency.Transaction].
func (e *effect) Commit(_ context.Context, run store.RunRef, end store.End) error {
	d := digestOf(run.ID)
	blob, err := e.s.seal(d, end.Outcome)
	if err != nil {
		return errors.Join(err, e.Rollback(background))
	}
	return e.commit(func(t *txn) error {
		refusal, err := t.record(d, run, end, blob)
		return errors.Join(refusal, err) // either undoes the effect
	})
}

// commit commits, with what f adds.
func (e *effect) commit(f func(*txn) error) error {
	j := &job{f: f, done: make(chan struct{})}
	err := e.s.transact([]*job{j})
	if err == nil {
		err = j.err // it may have been committed
	}
	return errors.Join(err, e.end())
}

// Rollback implements [idempotency.Transaction].
func (e *effect) Rollback(context.Context) error {
	if e.over {
		return nil
	}
	if e.tx != nil {
		_ = e.tx.Rollback() // of database/sql alone, and it may be done
	}
	e.s.undo()
	return e.end()
}

// end gives the turn back. The connection stays the store's.
func (e *effect) end() error {
	e.over = true
	e.s.giveTurn()
	if e.db == nil {
		return nil
	}
	return e.db.Close()
}

// lent makes a [sql.DB] of a connection that is in a transaction.
type lent struct{ c driver.Conn }

func (l lent) Connect(context.Context) (driver.Conn, error) {
	return lentConn{l.c.(driverConn)}, nil
}

func (l lent) Driver() driver.Driver { return nil } // nobody asks

// driverConn is what the driver's connections are, without how they end and
// begin transactions.
type driverConn interface {
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnPrepareContext
	Prepare(query string) (driver.Stmt, error)
}

// lentConn is not closed, and its transactions are that which it is in.
type lentConn struct{ driverConn }

func (lentConn) Close() error              { return nil }
func (lentConn) Begin() (driver.Tx, error) { return lentTx{}, nil }
func (lentConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return lentTx{}, nil
}

// lentTx leaves the end to whom the transaction belongs.
type lentTx struct{}

func (lentTx) Commit() error   { return nil }
func (lentTx) Rollback() error { return nil }
