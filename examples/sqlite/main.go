// Command sqlite is an MCP server on stdio whose charges survive its own death,
// and a client that kills it: run it without arguments.
//
//	go run ./examples/sqlite
//
// The tool's effect and the record of the call are one transaction in one SQLite
// file. The server is killed right after it has committed and before it could
// answer; the client starts another one, sends the call again with its key, and
// gets the first one's answer.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

func main() {
	serve := flag.String("serve", "", "be the server, with this database file")
	die := flag.Bool("die", false, "with -serve: die instead of answering the first call")
	flag.Parse()
	log.SetFlags(0)
	ctx := context.Background()
	if *serve != "" {
		if err := server(ctx, *serve, *die); err != nil {
			log.Fatal(err)
		}
		return
	}
	dir, err := os.MkdirTemp("", "sqlite-example")
	if err != nil {
		log.Fatal(err)
	}
	err = client(ctx, filepath.Join(dir, "payments.db"))
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
}

type chargeInput struct {
	Amount int `json:"amount" jsonschema:"cents to charge"`
}

type chargeOutput struct {
	Receipt int64 `json:"receipt"`
}

// server serves the tool charge on standard input and output.
func server(ctx context.Context, path string, die bool) error {
	records, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	if err := makeLedger(ctx, path); err != nil {
		return errors.Join(err, records.Close())
	}
	idem := idempotency.New(&idempotency.Options{Store: records})
	s := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1.0.0"}, nil)
	sqlite.AddTool(idem, s, records, &mcp.Tool{Name: "charge", Description: "Charges the card on file."},
		func(ctx context.Context, _ *mcp.CallToolRequest, tx *sql.Tx, in chargeInput) (*mcp.CallToolResult, chargeOutput, error) {
			var out chargeOutput
			err := tx.QueryRowContext(ctx, `INSERT INTO charge (amount) VALUES (?) RETURNING receipt`, in.Amount).Scan(&out.Receipt)
			return nil, out, err
		})
	idem.Install(s)
	if die {
		s.AddReceivingMiddleware(dieAfterTheCall)
	}
	return errors.Join(s.Run(ctx, idem.Transport(&mcp.StdioTransport{})), records.Close())
}

// dieAfterTheCall ends the process when a call is done and its answer is not
// yet sent, as a crash would.
func dieAfterTheCall(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if method == "tools/call" {
			os.Exit(1)
		}
		return res, err
	}
}

func makeLedger(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS charge (receipt INTEGER PRIMARY KEY, amount INTEGER NOT NULL)`)
	return errors.Join(err, db.Close())
}

// client makes one call, of a server that dies before it answers.
func client(ctx context.Context, path string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	arguments := []string{"-serve", path, "-die"}
	agent := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil)

	// README: stdio
	retry := clientretry.New(agent, &clientretry.Options{
		Dial: func(context.Context) (mcp.Transport, error) { // one process at first, and another when it died
			return &mcp.CommandTransport{Command: exec.Command(program, arguments...)}, nil
		},
	})
	session, err := retry.Connect(ctx, nil, nil)
	// README: end
	if err != nil {
		return err
	}
	arguments = arguments[:2] // the next one lives
	ctx, report := clientretry.WithReport(ctx)
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 4200}})
	if err := errors.Join(err, session.Close()); err != nil {
		return err
	}
	charges, err := count(ctx, path)
	if err != nil {
		return err
	}
	fmt.Printf("the server died %d time; %d attempts; answer %v, replayed: %v; charges in the ledger: %d\n",
		len(report.Losses), report.Attempts, result.StructuredContent, report.Replayed, charges)
	if charges != 1 {
		return errors.New("not exactly one charge")
	}
	return nil
}

func count(ctx context.Context, path string) (n int, err error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM charge`).Scan(&n)
	return n, errors.Join(err, db.Close())
}
