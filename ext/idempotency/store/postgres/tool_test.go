package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mcptest"
)

type chargeIn struct {
	Amount int    `json:"amount"`
	Do     string `json:"do,omitempty"`
}

type chargeOut struct {
	Number int64 `json:"number"`
}

// ledger makes the table that tools have their effects in.
func ledger(t testing.TB, s *Store) {
	t.Helper()
	run(t, s, `CREATE TABLE {schema}.ledger (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount bigint NOT NULL)`)
}

func charge(ctx context.Context, tx pgx.Tx, schema string, in chargeIn) (out chargeOut, err error) {
	err = tx.QueryRow(ctx, `INSERT INTO `+schema+`.ledger (amount) VALUES ($1) RETURNING number`, in.Amount).Scan(&out.Number)
	return out, err
}

// charges counts the effects of a test.
func charges(t testing.TB, s *Store, amount int) int {
	return scan[int](t, s, `SELECT count(*) FROM {schema}.ledger WHERE amount = $1`, amount)
}

// toolServer is a server with one transactional tool, charge, whose handler
// does what its argument says after it has had its effect.
func toolServer(t testing.TB, s *Store, opt *idempotency.Options, do map[string]func(context.Context, pgx.Tx) (*mcp.CallToolResult, error)) *mcptest.Client {
	t.Helper()
	var o idempotency.Options
	if opt != nil {
		o = *opt
	}
	o.Store = s
	idem := idempotency.New(&o)
	server := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "1"}, nil)
	AddTool(idem, server, s, &mcp.Tool{Name: "charge"}, func(ctx context.Context, _ *mcp.CallToolRequest, tx pgx.Tx, in chargeIn) (*mcp.CallToolResult, chargeOut, error) {
		out, err := charge(ctx, tx, s.opt.Schema, in)
		if err != nil {
			return nil, out, err
		}
		if f := do[in.Do]; f != nil {
			res, err := f(ctx, tx)
			return res, out, err
		}
		return nil, out, nil
	})
	idem.Install(server)
	return mcptest.Serve(t, idem, server)
}

func TestRecordAndEffectAreCommittedTogether(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	ledger(t, s)
	c := toolServer(t, s, nil, nil)
	key := c.Key(t)
	first := c.Call(t, "charge", key, `{"amount":1}`)
	if first.Replayed == nil || *first.Replayed || first.IsError {
		t.Fatalf("first: %s", first)
	}
	second := c.Call(t, "charge", key, `{"amount":1}`)
	if second.Replayed == nil || !*second.Replayed || string(second.StructuredContent) != string(first.StructuredContent) {
		t.Errorf("second: %s, want a replay of %s", second, first)
	}
	if n := charges(t, s, 1); n != 1 {
		t.Errorf("%d effects", n)
	}
	// One transaction wrote both.
	if !scan[bool](t, s, `SELECT r.xmin = l.xmin FROM {schema}.record r, {schema}.ledger l WHERE l.amount = 1`) {
		t.Error("record and effect were written by two transactions")
	}
}

func TestWithoutAKeyATransactionalToolIsAnyTool(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	ledger(t, s)
	c := toolServer(t, s, nil, map[string]func(context.Context, pgx.Tx) (*mcp.CallToolResult, error){
		"fail": func(context.Context, pgx.Tx) (*mcp.CallToolResult, error) { return nil, errors.New("declined") },
		"error": func(context.Context, pgx.Tx) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true}, nil
		},
	})
	for range 2 {
		if r := c.Call(t, "charge", "", `{"amount":2}`); r.IsError || r.Replayed != nil {
			t.Errorf("without a key: %s", r)
		}
	}
	for _, do := range []string{"fail", "error"} {
		if r := c.Call(t, "charge", "", `{"amount":3,"do":"`+do+`"}`); !r.IsError {
			t.Errorf("%s: %s", do, r)
		}
	}
	if a, b := charges(t, s, 2), charges(t, s, 3); a != 2 || b != 0 {
		t.Errorf("%d effects of two calls that succeeded, %d of two that failed", a, b)
	}
	if n := scan[int](t, s, `SELECT count(*) FROM {schema}.record`); n != 0 {
		t.Errorf("%d records", n)
	}
	idle(t, s)
}

// Whatever a handler does wrong, the effect is undone, the caller is told, and
// the call does not run again.
func TestAHandlerThatFailsHasNoEffect(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	ledger(t, s)
	var leaked pgx.Tx
	c := toolServer(t, s, nil, map[string]func(context.Context, pgx.Tx) (*mcp.CallToolResult, error){
		"fail": func(context.Context, pgx.Tx) (*mcp.CallToolResult, error) { return nil, errors.New("declined") },
		"error": func(context.Context, pgx.Tx) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true}, nil
		},
		"no effect": func(context.Context, pgx.Tx) (*mcp.CallToolResult, error) {
			return nil, idempotency.NoEffect(errors.New("no"))
		},
		"roll back": func(ctx context.Context, tx pgx.Tx) (*mcp.CallToolResult, error) { return nil, tx.Rollback(ctx) },
		"commit":    func(ctx context.Context, tx pgx.Tx) (*mcp.CallToolResult, error) { return nil, tx.Commit(ctx) },
		"swallow": func(ctx context.Context, tx pgx.Tx) (*mcp.CallToolResult, error) {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil, nil
		},
		"busy": func(ctx context.Context, tx pgx.Tx) (*mcp.CallToolResult, error) {
			_, err := tx.Query(ctx, `SELECT generate_series(1, 1000000)`)
			return nil, err
		},
		"leak": func(_ context.Context, tx pgx.Tx) (*mcp.CallToolResult, error) {
			leaked = tx
			return nil, errors.New("leaked")
		},
	})
	amount := 10
	for _, do := range []string{"fail", "error", "no effect", "roll back", "commit", "swallow", "busy", "leak"} {
		amount++
		key, args := c.Key(t), fmt.Sprintf(`{"amount":%d,"do":%q}`, amount, do)
		first, second := c.Call(t, "charge", key, args), c.Call(t, "charge", key, args)
		if !first.IsError && first.Reason == "" || !second.IsError && second.Reason == "" {
			t.Errorf("%s: %s, then %s", do, first, second)
		}
		if n := charges(t, s, amount); n != 0 {
			t.Errorf("%s: %d effects", do, n)
		}
	}
	if _, err := leaked.Exec(t.Context(), `SELECT 1`); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a transaction that leaked still works: %v", err)
	}
	if _, err := leaked.Query(t.Context(), `SELECT 1`); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a transaction that leaked still works: %v", err)
	}
	if err := leaked.QueryRow(t.Context(), `SELECT 1`).Scan(nil); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a transaction that leaked still works: %v", err)
	}
	if err := leaked.SendBatch(t.Context(), &pgx.Batch{}).Close(); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a transaction that leaked still works: %v", err)
	}
	idle(t, s)
}

// idle demands that no connection of the store is kept, or left in a
// transaction.
func idle(t *testing.T, s *Store) {
	t.Helper()
	eventually(t, "the connections are back", func() bool { return s.pool.Stat().AcquiredConns() == 0 && len(s.effects) == 0 })
	if n := scan[int](t, s, `SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%{schema}%'`); n != 0 {
		t.Errorf("%d connections are idle in a transaction", n)
	}
}

// X12: a run that is slow past its lease is taken over, and cannot commit.
func TestASlowRunRollsBackWhenItsLeaseWasTakenOver(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	ledger(t, s)
	entered, gate := make(chan struct{}, 8), make(chan struct{})
	slow := map[string]func(context.Context, pgx.Tx) (*mcp.CallToolResult, error){
		"wait": func(context.Context, pgx.Tx) (*mcp.CallToolResult, error) {
			entered <- struct{}{}
			<-gate
			return nil, nil
		},
	}
	a := toolServer(t, s, nil, slow)
	key := a.Key(t)
	const args = `{"amount":4,"do":"wait"}`
	type answer struct{ r mcptest.Reply }
	first := make(chan answer, 1)
	go func() { first <- answer{a.Call(t, "charge", key, args)} }()
	<-entered
	// Its renewals are late, as if the process were stopped.
	run(t, s, `UPDATE {schema}.record SET lease_until = '-infinity'`)

	other := d.open(t, nil)
	b := toolServer(t, other, nil, nil)
	second := b.Call(t, "charge", key, args)
	if second.IsError || second.Reason != "" || *second.Replayed {
		t.Fatalf("the second attempt: %s", second)
	}
	close(gate)
	select {
	case got := <-first:
		if got.r.Replayed == nil || !*got.r.Replayed || string(got.r.StructuredContent) != string(second.StructuredContent) {
			t.Errorf("the slow attempt: %s, want the second's result", got.r)
		}
	case <-time.After(soon):
		t.Fatal("the slow attempt does not end")
	}
	if n := charges(t, s, 4); n != 1 {
		t.Errorf("%d effects", n)
	}
	idle(t, s)
}

// A database that refuses to commit has undone the effect. The lease is given
// up, so that the next attempt runs at once.
func TestACommitThatIsRefusedLeavesTheKeyToTheNextAttempt(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, &Options{ToolIsolation: pgx.Serializable})
	ledger(t, s)
	run(t, s, `ALTER TABLE {schema}.ledger ADD CONSTRAINT once UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED`)
	c := toolServer(t, s, nil, nil)
	if r := c.Call(t, "charge", c.Key(t), `{"amount":5}`); r.IsError {
		t.Fatalf("%s", r)
	}
	key := c.Key(t)
	for range 2 {
		if r := c.Call(t, "charge", key, `{"amount":5}`); r.Reason != "stillRunning" {
			t.Errorf("a commit that the database refused: %s", r)
		}
	}
	run(t, s, `DELETE FROM {schema}.ledger`)
	if r := c.Call(t, "charge", key, `{"amount":5}`); r.IsError || r.Reason != "" {
		t.Errorf("once it can be committed: %s", r)
	}
	if n := charges(t, s, 5); n != 1 {
		t.Errorf("%d effects", n)
	}
	idle(t, s)
}

// As many tools run as leave a connection to the store.
func TestTransactionalToolsLeaveAConnectionToTheStore(t *testing.T) {
	d := newDatabase(t)
	s := d.open(t, nil)
	ledger(t, s)
	most := cap(s.effects)
	entered, gate := make(chan struct{}, 64), make(chan struct{})
	c := toolServer(t, s, &idempotency.Options{Lease: 600 * time.Millisecond}, map[string]func(context.Context, pgx.Tx) (*mcp.CallToolResult, error){
		"wait": func(context.Context, pgx.Tx) (*mcp.CallToolResult, error) {
			entered <- struct{}{}
			<-gate
			return nil, nil
		},
	})
	calls := most + 4
	replies := make(chan mcptest.Reply, calls)
	for range calls {
		go func() { replies <- c.Call(t, "charge", c.Key(t), `{"amount":6,"do":"wait"}`) }()
	}
	for range most {
		<-entered
	}
	// All of them keep their leases, though they hold all connections but one.
	held := scan[time.Time](t, s, `SELECT clock_timestamp() + interval '1 second'`)
	eventually(t, "the leases are renewed", func() bool {
		return scan[int](t, s, `SELECT count(*) FROM {schema}.record WHERE lease_until > $1`, held) >= most
	})
	close(gate)
	for range calls {
		if r := <-replies; r.IsError || r.Reason != "" {
			t.Errorf("%s", r)
		}
	}
	if n := charges(t, s, 6); n != calls {
		t.Errorf("%d effects of %d calls", n, calls)
	}
	idle(t, s)
}

var _ store.Store = (*Store)(nil)

func TestAToolOfAnotherStoreIsRefused(t *testing.T) {
	d := newDatabase(t)
	one, two := d.open(t, nil), d.open(t, nil)
	defer func() {
		if recover() == nil {
			t.Error("the records of a tool's calls would not be in its transactions")
		}
	}()
	AddTool(idempotency.New(&idempotency.Options{Store: one}), mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil), two,
		&mcp.Tool{Name: "charge"}, func(context.Context, *mcp.CallToolRequest, pgx.Tx, chargeIn) (*mcp.CallToolResult, chargeOut, error) {
			return nil, chargeOut{}, nil
		})
}
