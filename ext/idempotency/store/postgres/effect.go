package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// An effect is the transaction in which a tool has its effect and in which the
// end of its run is recorded.
type effect struct {
	s    *Store
	conn *pgxpool.Conn // nil when the transaction has ended
	tx   handlerTx
}

var _ idempotency.Transaction = (*effect)(nil)

// begin starts the transaction of an effect. It waits while as many are open as
// leave one of the pool's connections to the store's own steps: a run that
// cannot renew its lease, because all connections are held by runs, would lose
// it.
func (s *Store) begin(ctx context.Context) (*effect, error) {
	if s.closed() {
		return nil, ErrClosed
	}
	select {
	case s.effects <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e := &effect{s: s}
	conn, err := s.pool.Acquire(ctx)
	if err == nil {
		e.conn = conn
		e.tx.Tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: s.opt.ToolIsolation})
	}
	if err != nil {
		e.release()
		return nil, fmt.Errorf("postgres: beginning a transaction: %w", err)
	}
	return e, nil
}

// release gives the connection back; the pool closes one that is in the middle
// of a transaction, which undoes it.
func (e *effect) release() {
	e.tx.end()
	if e.conn != nil {
		e.conn.Release()
		e.conn = nil
	}
	<-e.s.effects
}

// Commit implements [idempotency.Transaction]. Recording the end and
// committing are one round trip: when the first is refused the database skips
// the second.
func (e *effect) Commit(ctx context.Context, run store.RunRef, end store.End) error {
	if e.conn == nil {
		return pgx.ErrTxClosed
	}
	args, err := e.s.recordArgs(run, end, true)
	if err != nil {
		_ = e.s.Renew(ctx, run, 0) // as below
		return err
	}
	err = e.send(ctx, args)
	if err == nil {
		e.release()
		return nil
	}
	if hasCode(err, codeFenced) {
		return fmt.Errorf("%w: %w", store.ErrFenced, err)
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && !e.conn.Conn().IsClosed() {
		// The database lives and has refused to commit, so the effect is
		// undone for certain. The lease is given up, so that the next attempt
		// need not wait until it passes; if that fails, it waits.
		_ = e.s.Renew(ctx, run, 0)
	}
	return explain("committing", err)
}

// send records the end with args and commits.
func (e *effect) send(ctx context.Context, args []any) error {
	var b pgx.Batch
	b.Queue(e.s.sql.record, args...)
	b.Queue("commit")
	results := e.conn.SendBatch(ctx, &b)
	var held bool
	if err := results.QueryRow().Scan(&held); err != nil {
		_ = results.Close() // the first error says why
		return err
	}
	tag, err := results.Exec()
	if closing := results.Close(); err == nil {
		err = closing
	}
	if err == nil && tag.String() != "COMMIT" {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback implements [idempotency.Transaction].
func (e *effect) Rollback(ctx context.Context) error {
	if e.conn == nil {
		return nil
	}
	defer e.release()
	if e.idle() {
		return nil
	}
	return e.tx.Tx.Rollback(ctx)
}

// commitAlone commits the transaction of a call without a key.
func (e *effect) commitAlone(ctx context.Context) error {
	defer e.release()
	return e.tx.Tx.Commit(ctx)
}

// idle reports whether the connection is in no transaction.
func (e *effect) idle() bool { return e.conn.Conn().PgConn().TxStatus() == 'I' }

// usable reports, once a handler has returned without an error, whether its
// transaction is still one that can be committed.
func (e *effect) usable() error {
	conn := e.conn.Conn().PgConn()
	switch {
	case e.tx.rolledBack.Load():
		return errors.New("the tool rolled its transaction back and reported no error")
	case conn.IsBusy():
		return errors.New("the tool left its connection in use: rows or a batch are not closed")
	case conn.TxStatus() == 'E':
		return errors.New("a statement of the tool's transaction failed and the tool reported no error")
	case conn.TxStatus() != 'T':
		return errors.New("the tool ended its transaction by itself")
	}
	return nil
}
