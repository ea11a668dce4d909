package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mcptest"
)

// long reports whether the tests are to take their time.
func long() bool { return os.Getenv("SEPCHECK_LONG") == "1" }

type effectIn struct {
	Call string `json:"call"`
}

const insertEffect = `INSERT INTO effect (call) VALUES (?) RETURNING number`

// childServe serves two tools with the same effect, a row that is named by the
// call: exact, in the record's transaction, and plain, in one of its own.
func childServe(ctx context.Context, path string, _ []string) error {
	s, err := sqlite.Open(ctx, path, &sqlite.Options{BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	db, err := effects(path)
	if err != nil {
		return err
	}
	idem := idempotency.New(&idempotency.Options{
		Store: s, StoreTimeout: time.Minute,
		Lease: 300 * time.Millisecond, // those who come after a killed server wait for it
	})
	server := mcp.NewServer(&mcp.Implementation{Name: "effects", Version: "1"}, nil)
	sqlite.AddTool(idem, server, s, &mcp.Tool{Name: "exact"},
		func(ctx context.Context, _ *mcp.CallToolRequest, tx *sql.Tx, in effectIn) (*mcp.CallToolResult, chargeOut, error) {
			var out chargeOut
			err := tx.QueryRowContext(ctx, insertEffect, in.Call).Scan(&out.Number)
			return nil, out, err
		})
	mcp.AddTool(server, &mcp.Tool{Name: "plain"}, func(ctx context.Context, _ *mcp.CallToolRequest, in effectIn) (*mcp.CallToolResult, chargeOut, error) {
		var out chargeOut
		err := db.QueryRowContext(ctx, insertEffect, in.Call).Scan(&out.Number)
		return nil, out, err
	})
	idem.Install(server)
	return mcptest.ServeChild(mcptest.Handler(idem, server))
}

// effects opens the file as any program would, and makes the table.
func effects(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS effect (number INTEGER PRIMARY KEY AUTOINCREMENT, call TEXT NOT NULL)`)
	return db, err
}

// L8. kill -9 of the server at random instants, while calls are under way: none
// falls between the commit of an effect and that of its record.
func TestKilledServersLoseNothing(t *testing.T) {
	kills := 40
	if long() {
		kills = 300
	}
	path := dbPath(t)
	mustClose(t, mustOpen(t, path, sqlite.Options{}))
	db, err := effects(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	mcptest.Campaign{
		Kills: kills, Lanes: 2,
		Start: func() *mcptest.Process { return mcptest.Start(t, childEnv+"=serve", path) },
		Effects: func(call string) (n int, first int64) {
			if err := db.QueryRow(`SELECT count(*), coalesce(min(number), 0) FROM effect WHERE call = ?`, call).Scan(&n, &first); err != nil {
				t.Error(err)
			}
			return n, first
		},
	}.Run(t)
}
