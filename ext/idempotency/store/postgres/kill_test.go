package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mcptest"
)

// childSchema is the environment variable by which the test binary is told to
// be a server on a schema.
const childSchema = "SEPCHECK_POSTGRES_CHILD"

func TestMain(m *testing.M) {
	if schema := os.Getenv(childSchema); schema != "" {
		if err := child(schema); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// leaseOfChild is short, since those who come after a killed server wait for it.
const leaseOfChild = 300 * time.Millisecond

// child serves the tools of a test until it is killed or its standard input
// ends.
func child(schema string) error {
	ctx := context.Background()
	c, err := pgxpool.ParseConfig(os.Getenv("SEPCHECK_POSTGRES"))
	if err != nil {
		return err
	}
	c.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return err
	}
	s, err := Open(ctx, pool, &Options{Schema: schema})
	if err != nil {
		return err
	}
	idem := idempotency.New(&idempotency.Options{Store: s, Lease: leaseOfChild, StoreTimeout: 20 * time.Second})
	return mcptest.ServeChild(mcptest.Handler(idem, effectServer(idem, s)))
}

type effectIn struct {
	Call string `json:"call"`
}

type effectOut struct {
	Number int64 `json:"number"`
}

const insertEffect = `.effect (call) VALUES ($1) RETURNING number`

// effectServer has two tools with the same effect, a row that is named by the
// call: exact, in the record's transaction, and plain, in one of its own.
func effectServer(idem *idempotency.Idempotency, s *Store) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "effects", Version: "1"}, nil)
	AddTool(idem, server, s, &mcp.Tool{Name: "exact"}, func(ctx context.Context, _ *mcp.CallToolRequest, tx pgx.Tx, in effectIn) (*mcp.CallToolResult, effectOut, error) {
		var out effectOut
		err := tx.QueryRow(ctx, `INSERT INTO `+s.opt.Schema+insertEffect, in.Call).Scan(&out.Number)
		return nil, out, err
	})
	mcp.AddTool(server, &mcp.Tool{Name: "plain"}, func(ctx context.Context, _ *mcp.CallToolRequest, in effectIn) (*mcp.CallToolResult, effectOut, error) {
		var out effectOut
		err := s.pool.QueryRow(ctx, `INSERT INTO `+s.opt.Schema+insertEffect, in.Call).Scan(&out.Number)
		return nil, out, err
	})
	idem.Install(server)
	return server
}

func effectTable(t testing.TB, s *Store) {
	run(t, s, `CREATE TABLE {schema}.effect (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, call text NOT NULL)`)
	run(t, s, `CREATE INDEX ON {schema}.effect (call)`)
}

// L8. kill -9 of the server at random instants, while calls are under way: none
// falls between the commit of an effect and that of its record.
func TestKilledServersLoseNothing(t *testing.T) {
	t.Parallel()
	kills := 100
	if long() {
		kills = 300
	}
	d := newDatabase(t)
	s := d.open(t, nil)
	effectTable(t, s)
	mcptest.Campaign{
		Kills: kills, Lanes: 4,
		Start: func() *mcptest.Process { return mcptest.Start(t, childSchema+"="+d.schema) },
		Effects: func(call string) (n int, first int64) {
			return scan[int](t, s, `SELECT count(*) FROM {schema}.effect WHERE call = $1`, call),
				scan[int64](t, s, `SELECT coalesce(min(number), 0) FROM {schema}.effect WHERE call = $1`, call)
		},
	}.Run(t)
}

// Two instances behind what might be a load balancer: every call is sent twice
// at once, to either instance. There is one effect for each, and both answers
// are the same.
func TestTwoInstancesHaveOneEffectForEachCall(t *testing.T) {
	t.Parallel()
	n := 1000
	if long() {
		n = 10_000
	}
	d := newDatabase(t)
	var clients []*mcptest.Client
	for range 2 {
		s := d.open(t, &Options{PollInterval: time.Hour})
		idem := idempotency.New(&idempotency.Options{Store: s, StoreTimeout: 20 * time.Second})
		clients = append(clients, mcptest.Serve(t, idem, effectServer(idem, s)))
	}
	s := d.open(t, nil)
	effectTable(t, s)
	ns, err := clients[0].Namespace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	work := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range work {
				tool := []string{"exact", "plain"}[i%2]
				key, args := ns+"."+rand.Text(), fmt.Sprintf(`{"call":"%d"}`, i)
				var a, b mcptest.Reply
				var pair sync.WaitGroup
				pair.Go(func() { a = clients[0].Call(t, tool, key, args) })
				pair.Go(func() { b = clients[1].Call(t, tool, key, args) })
				pair.Wait()
				if a.Replayed == nil || b.Replayed == nil || *a.Replayed == *b.Replayed || string(a.StructuredContent) != string(b.StructuredContent) {
					t.Errorf("call %d: %s and %s", i, a, b)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	if effects, calls := scan[int](t, s, `SELECT count(*) FROM {schema}.effect`), scan[int](t, s, `SELECT count(DISTINCT call) FROM {schema}.effect`); effects != n || calls != n {
		t.Errorf("%d effects of %d calls, want %d of each", effects, calls, n)
	}
}
