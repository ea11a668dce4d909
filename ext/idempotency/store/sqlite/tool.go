package sqlite

import (
	"context"
	"database/sql"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

// AddTool adds a tool whose effect is in the store's own database file: like
// [mcp.AddTool], with a handler that is given a transaction. What the handler
// does in it and the record of the call are committed together or not at all,
// so that a call with a key has its effect exactly once, whatever crashes. s
// has to be the store of idem: AddTool panics when it is not, and as
// [mcp.AddTool] does.
//
// The transaction is committed when the handler returns without an error, and
// rolled back when it returns an error, a result with IsError, or a question to
// the client; the error, result or question is recorded as ever. The handler
// neither commits nor rolls back itself. A call without a key is committed by
// itself.
//
// SQLite has one writer: until the handler returns, every other call with a key
// waits, in this process and in others, and is refused with storeUnavailable
// when it waits longer than Options.StoreTimeout of the middleware or
// [Options].BusyTimeout. So a handler is to be quick, and must not call a tool
// of the same server.
//
// A run may be cut short and be rolled back, and the handler be called again
// for the same call. What it does outside the transaction, such as a request to
// another service, may thus happen more than once: pass
// [idempotency.DownstreamKey] on, or write what is to be done into an outbox
// table in the transaction.
func AddTool[In, Out any](
	idem *idempotency.Idempotency, server *mcp.Server, s *Store, tool *mcp.Tool,
	h func(ctx context.Context, req *mcp.CallToolRequest, tx *sql.Tx, in In) (*mcp.CallToolResult, Out, error),
) {
	idem.Transactional(tool.Name, s)
	mcp.AddTool(server, tool, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		var none Out
		e, err := s.beginEffect(ctx)
		if err != nil {
			return nil, none, idempotency.NoEffect(err)
		}
		keyed := idempotency.Enlist(ctx, e)
		if !keyed {
			// Also when the handler panics.
			defer func() { _ = e.Rollback(context.WithoutCancel(ctx)) }()
		}
		res, out, err := h(ctx, req, e.tx, in)
		if err == nil {
			err = e.usable()
		}
		if err != nil || keyed || res != nil && (res.IsError || res.NeedsInput()) {
			return res, out, err
		}
		if err := e.commit(func(*txn) error { return nil }); err != nil {
			return nil, none, err
		}
		return res, out, nil
	})
}
