// Command postgres is an MCP server in two instances behind a round-robin
// proxy, which share their records in PostgreSQL, and a client whose responses
// the proxy loses:
//
//	go run ./examples/postgres -database postgres://localhost/test
//
// Each call runs on one instance, its answer is lost, and the call that is sent
// again reaches the other, which answers from the record. The example works in
// a schema of its own, and drops it at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/postgres"
)

// schema is where the example works.
const schema = "mcp_idempotency_example"

const calls = 10

func main() {
	database := flag.String("database", "", "the URL of a PostgreSQL database in which the example may make a schema")
	flag.Parse()
	log.SetFlags(0)
	if *database == "" {
		log.Fatal("say which database to use: -database postgres://localhost/test")
	}
	if err := run(context.Background(), *database); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, database string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	drop := func() error { _, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`); return err }
	if err := drop(); err != nil {
		return err
	}
	return errors.Join(drive(ctx, pool), drop())
}

func drive(ctx context.Context, pool *pgxpool.Pool) error {
	var instances []*url.URL
	for range 2 {
		h, stop, err := instance(ctx, pool)
		if err != nil {
			return err
		}
		defer stop()
		server := httptest.NewServer(h)
		defer server.Close()
		u, err := url.Parse(server.URL)
		if err != nil {
			return err
		}
		instances = append(instances, u)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE `+schema+`.charge (receipt bigint GENERATED ALWAYS AS IDENTITY, amount bigint NOT NULL)`); err != nil {
		return err
	}
	p := &proxy{to: instances}
	front := httptest.NewServer(p)
	defer front.Close()
	replayed, err := call(ctx, front.URL)
	if err != nil {
		return err
	}
	var charges int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM `+schema+`.charge`).Scan(&charges); err != nil {
		return err
	}
	fmt.Printf("%d calls, %d responses lost, %d answered from the other instance's record; charges in the ledger: %d\n",
		calls, p.lost.Load(), replayed, charges)
	if charges != calls || p.lost.Load() == 0 {
		return errors.New("not exactly one charge for each call")
	}
	return nil
}

type chargeInput struct {
	Amount int `json:"amount" jsonschema:"cents to charge"`
}

type chargeOutput struct {
	Receipt int64 `json:"receipt"`
}

// instance is one of the servers.
func instance(ctx context.Context, pool *pgxpool.Pool) (h http.Handler, stop func(), err error) {
	records, err := postgres.Open(ctx, pool, &postgres.Options{Schema: schema})
	if err != nil {
		return nil, nil, err
	}
	idem := idempotency.New(&idempotency.Options{Store: records})
	server := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1.0.0"}, nil)
	postgres.AddTool(idem, server, records, &mcp.Tool{Name: "charge", Description: "Charges the card on file."},
		func(ctx context.Context, _ *mcp.CallToolRequest, tx pgx.Tx, in chargeInput) (*mcp.CallToolResult, chargeOutput, error) {
			var out chargeOutput
			err := tx.QueryRow(ctx, `INSERT INTO `+schema+`.charge (amount) VALUES ($1) RETURNING receipt`, in.Amount).Scan(&out.Receipt)
			return nil, out, err
		})
	idem.Install(server)
	h = idem.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
	return h, func() { _ = records.Close() }, nil
}

// A proxy sends requests to the instances in turn, and loses every third
// response.
type proxy struct {
	to   []*url.URL
	n    atomic.Int64
	lost atomic.Int64
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := p.n.Add(1)
	rp := httputil.NewSingleHostReverseProxy(p.to[n%int64(len(p.to))])
	if n > 3 && n%3 == 0 { // the client has connected
		rp.ModifyResponse = func(*http.Response) error {
			p.lost.Add(1)
			panic(http.ErrAbortHandler) // the connection breaks
		}
	}
	rp.ServeHTTP(w, r)
}

// call makes the calls and returns how many were answered from a record.
func call(ctx context.Context, endpoint string) (replayed int, err error) {
	retry := clientretry.New(mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil),
		&clientretry.Options{Attempts: 10})
	session, err := retry.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: endpoint}, nil)
	if err != nil {
		return 0, err
	}
	for i := range calls {
		ctx, report := clientretry.WithReport(ctx)
		if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 100 * (i + 1)}}); err != nil {
			return replayed, errors.Join(err, session.Close())
		}
		if report.Replayed {
			replayed++
		}
	}
	return replayed, session.Close()
}
