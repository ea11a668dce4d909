package postgres

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotYours is returned when a tool handler commits the transaction that it
// was given: that is done for it, together with the record, when it returns.
var ErrNotYours = errors.New("postgres: the transaction of a tool is committed when its handler returns without an error")

// A handlerTx is the transaction as a handler has it. A handler cannot commit
// it, and cannot use it after it has returned, when the connection may be
// somebody else's.
type handlerTx struct {
	pgx.Tx
	rolledBack atomic.Bool
	ended      atomic.Bool
}

var _ pgx.Tx = (*handlerTx)(nil)

func (t *handlerTx) end() { t.ended.Store(true) }

// Commit implements [pgx.Tx]; it does not commit.
func (t *handlerTx) Commit(context.Context) error { return ErrNotYours }

// Rollback implements [pgx.Tx].
func (t *handlerTx) Rollback(ctx context.Context) error {
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	t.rolledBack.Store(true)
	return t.Tx.Rollback(ctx)
}

func (t *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.Tx.Begin(ctx)
}

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if t.ended.Load() {
		return 0, pgx.ErrTxClosed
	}
	return t.Tx.CopyFrom(ctx, table, columns, src)
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.ended.Load() {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	return t.Tx.SendBatch(ctx, b)
}

func (t *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.ended.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.Tx.Prepare(ctx, name, sql)
}

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.ended.Load() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.Tx.Exec(ctx, sql, args...)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.ended.Load() {
		return pgx.FailedBatchResults(&pgx.Batch{}, pgx.ErrTxClosed).Query()
	}
	return t.Tx.Query(ctx, sql, args...)
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.ended.Load() {
		return pgx.FailedBatchResults(&pgx.Batch{}, pgx.ErrTxClosed).QueryRow()
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}
