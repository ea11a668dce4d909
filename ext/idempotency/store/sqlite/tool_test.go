package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mcptest"
)

type chargeIn struct {
	Amount int    `json:"amount"`
	Do     string `json:"do,omitempty"`
}

type chargeOut struct {
	Number int64 `json:"number"`
}

// A deed is what a handler does after it has had its effect.
type deed func(ctx context.Context, tx *sql.Tx) (*mcp.CallToolResult, error)

// toolServer serves one transactional tool, charge, and makes its table.
func toolServer(t testing.TB, s *sqlite.Store, opt idempotency.Options, deeds map[string]deed) *mcptest.Client {
	t.Helper()
	if err := s.Script(`CREATE TABLE IF NOT EXISTS ledger (number INTEGER PRIMARY KEY, amount INTEGER NOT NULL, at TEXT)`); err != nil {
		t.Fatal(err)
	}
	opt.Store = s
	idem := idempotency.New(&opt)
	server := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "1"}, nil)
	sqlite.AddTool(idem, server, s, &mcp.Tool{Name: "charge"},
		func(ctx context.Context, _ *mcp.CallToolRequest, tx *sql.Tx, in chargeIn) (*mcp.CallToolResult, chargeOut, error) {
			var out chargeOut
			if err := tx.QueryRowContext(ctx, `INSERT INTO ledger (amount, at) VALUES (?, ?) RETURNING number`,
				in.Amount, time.Now()).Scan(&out.Number); err != nil {
				return nil, out, err
			}
			if f := deeds[in.Do]; f != nil {
				res, err := f(ctx, tx)
				return res, out, err
			}
			return nil, out, nil
		})
	idem.Install(server)
	server.AddReceivingMiddleware(recovering)
	return mcptest.Serve(t, idem, server)
}

// recovering is what users have around their handlers.
func recovering(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("a panic: %v", p)
			}
		}()
		return next(ctx, method, req)
	}
}

// charges counts the effects with an amount.
func charges(t testing.TB, s *sqlite.Store, amount int) string {
	t.Helper()
	n, err := s.Read(fmt.Sprintf(`SELECT count(*) FROM ledger WHERE amount = %d`, amount))
	if err != nil {
		t.Fatal(err)
	}
	return n[0]
}

func TestRecordAndEffectAreCommittedTogether(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	c := toolServer(t, s, idempotency.Options{}, nil)
	key := c.Key(t)
	first := c.Call(t, "charge", key, `{"amount":1}`)
	if first.Replayed == nil || *first.Replayed || first.IsError {
		t.Fatalf("first: %s", first)
	}
	second := c.Call(t, "charge", key, `{"amount":1}`)
	if second.Replayed == nil || !*second.Replayed || string(second.StructuredContent) != string(first.StructuredContent) {
		t.Errorf("second: %s, want a replay of %s", second, first)
	}
	if n := charges(t, s, 1); n != "1" {
		t.Errorf("%s effects", n)
	}
}

// The effect is not to be seen, and lost with the process, until its record is
// written: a copy of the file that is taken before has neither.
func TestNobodySeesAnEffectBeforeItsRecord(t *testing.T) {
	path := dbPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	seen := -1
	c := toolServer(t, s, idempotency.Options{}, map[string]deed{"look": func(ctx context.Context, _ *sql.Tx) (*mcp.CallToolResult, error) {
		return nil, other.QueryRowContext(ctx, `SELECT count(*) FROM ledger`).Scan(&seen)
	}})
	if r := c.Call(t, "charge", c.Key(t), `{"amount":1,"do":"look"}`); r.IsError || r.Reason != "" {
		t.Fatal(r)
	}
	if seen != 0 {
		t.Errorf("another connection saw %d effects before the call had ended", seen)
	}
}

func TestWithoutAKeyATransactionalToolIsAnyTool(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	c := toolServer(t, s, idempotency.Options{}, map[string]deed{
		"fail": func(context.Context, *sql.Tx) (*mcp.CallToolResult, error) { return nil, errors.New("declined") },
		"error": func(context.Context, *sql.Tx) (*mcp.CallToolResult, error) {
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
	if a, b := charges(t, s, 2), charges(t, s, 3); a != "2" || b != "0" {
		t.Errorf("%s effects of two calls that succeeded, %s of two that failed", a, b)
	}
	if entries, err := s.List(t.Context(), store.Query{States: store.States()}); err != nil || len(entries) != 0 {
		t.Errorf("%d records, %v", len(entries), err)
	}
}

// Whatever a handler does wrong, the effect is undone, the caller is told, the
// call does not run again, and the store works on.
func TestAHandlerThatFailsHasNoEffect(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	var leaked *sql.Tx
	deeds := map[string]deed{
		"fail": func(context.Context, *sql.Tx) (*mcp.CallToolResult, error) { return nil, errors.New("declined") },
		"error": func(context.Context, *sql.Tx) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true}, nil
		},
		"no effect": func(context.Context, *sql.Tx) (*mcp.CallToolResult, error) {
			return nil, idempotency.NoEffect(errors.New("no"))
		},
		"roll back": func(_ context.Context, tx *sql.Tx) (*mcp.CallToolResult, error) { return nil, tx.Rollback() },
		"commit":    func(_ context.Context, tx *sql.Tx) (*mcp.CallToolResult, error) { return nil, tx.Commit() },
		"roll back in SQL": func(ctx context.Context, tx *sql.Tx) (*mcp.CallToolResult, error) {
			return nil, execute(ctx, tx, `ROLLBACK`)
		},
		"leak": func(_ context.Context, tx *sql.Tx) (*mcp.CallToolResult, error) {
			leaked = tx
			return nil, errors.New("leaked")
		},
	}
	c := toolServer(t, s, idempotency.Options{}, deeds)
	amount := 10
	for do := range deeds {
		amount++
		key, args := c.Key(t), fmt.Sprintf(`{"amount":%d,"do":%q}`, amount, do)
		first, second := c.Call(t, "charge", key, args), c.Call(t, "charge", key, args)
		if !first.IsError && first.Reason == "" || !second.IsError && second.Reason == "" {
			t.Errorf("%s: %s, then %s", do, first, second)
		}
		if n := charges(t, s, amount); n != "0" {
			t.Errorf("%s: %s effects", do, n)
		}
		if r := c.Call(t, "charge", c.Key(t), `{"amount":1}`); r.IsError || r.Reason != "" {
			t.Errorf("after %s: %s", do, r)
		}
	}
	if err := execute(t.Context(), leaked, `SELECT 1`); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("a transaction that leaked still works: %v", err)
	}
}

func execute(ctx context.Context, tx *sql.Tx, text string) error {
	_, err := tx.ExecContext(ctx, text)
	return err
}

// Rows that a handler leaves open are closed, and do not keep it from
// committing.
func TestRowsThatAreLeftOpenAreClosed(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	c := toolServer(t, s, idempotency.Options{}, map[string]deed{"busy": func(ctx context.Context, tx *sql.Tx) (*mcp.CallToolResult, error) {
		rows, err := tx.QueryContext(ctx, `SELECT number FROM ledger`) //nolint:rowserrcheck // it is not read
		if err == nil {
			rows.Next()
		}
		return nil, err
	}})
	for i := range 3 {
		if r := c.Call(t, "charge", c.Key(t), `{"amount":5,"do":"busy"}`); r.IsError || r.Reason != "" {
			t.Errorf("call %d: %s", i, r)
		}
	}
	if n := charges(t, s, 5); n != "3" {
		t.Errorf("%s effects of 3 calls", n)
	}
}

// X12. The run is slow before its transaction begins, is taken over, and then
// rolls back; while its transaction is open nobody can take it over.
func TestASlowRunRollsBackWhenItWasTakenOver(t *testing.T) {
	path := dbPath(t)
	s, other := mustOpen(t, path, sqlite.Options{}), mustOpen(t, path, sqlite.Options{})
	a := attempt(current(t, s))
	a.Transactional, a.Lease = true, time.Nanosecond
	expect(t, s, a, store.Run)
	b := attemptOf(a.ID)
	b.Transactional = true
	if err := s.Script(`CREATE TABLE ledger (call TEXT)`); err != nil {
		t.Fatal(err)
	}
	for { // its lease passes
		res, err := other.Reserve(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		if res.Verdict == store.Run {
			break
		}
	}
	end := store.End{Event: store.Complete, Outcome: []byte("done")}
	slow := begun(t, s)
	insert(t, slow, "slow")
	if err := slow.Commit(t.Context(), ref(a), end); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the slow run got %v", err)
	}
	quick := begun(t, other)
	insert(t, quick, "quick")
	if err := quick.Commit(t.Context(), ref(b), end); err != nil {
		t.Errorf("the run that took over got %v", err)
	}
	replays(t, s, a, "done")
	if got, err := s.Read(`SELECT call FROM ledger`); err != nil || len(got) != 1 || got[0] != "quick" {
		t.Errorf("the effects are %q, %v", got, err)
	}
}

func begun(t *testing.T, s *sqlite.Store) *sqlite.Effect {
	t.Helper()
	e, err := s.BeginEffect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func insert(t *testing.T, e *sqlite.Effect, call string) {
	t.Helper()
	if _, err := e.Tx().Exec(`INSERT INTO ledger VALUES (?)`, call); err != nil {
		t.Fatal(err)
	}
	if err := e.Usable(); err != nil {
		t.Fatal(err)
	}
}

// The context of a run that is given up ends its transaction; a handler that
// does not notice cannot commit.
func TestARunThatIsGivenUpHasNoEffect(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	c := toolServer(t, s, idempotency.Options{MaxExecution: 50 * time.Millisecond}, map[string]deed{
		"linger": func(ctx context.Context, _ *sql.Tx) (*mcp.CallToolResult, error) { <-ctx.Done(); return nil, nil },
	})
	key := c.Key(t)
	for range 2 {
		if r := c.Call(t, "charge", key, `{"amount":6,"do":"linger"}`); r.Reason == "" && !r.IsError {
			t.Errorf("told %s", r)
		}
	}
	if n := charges(t, s, 6); n != "0" {
		t.Errorf("%s effects", n)
	}
}

func TestAPanicUndoesTheEffect(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	c := toolServer(t, s, idempotency.Options{}, map[string]deed{
		"panic": func(context.Context, *sql.Tx) (*mcp.CallToolResult, error) { panic("on purpose") },
	})
	key := c.Key(t)
	if r, err := c.Try(t.Context(), "charge", key, `{"amount":7,"do":"panic"}`); err == nil && r.Reason == "" {
		t.Errorf("told %s", r)
	}
	if r := c.Call(t, "charge", key, `{"amount":7,"do":"panic"}`); r.Reason != "noEffect" {
		t.Errorf("the next attempt was told %s", r)
	}
	if n := charges(t, s, 7); n != "0" {
		t.Errorf("%s effects", n)
	}
}

func TestAToolOfAnotherStoreIsRefused(t *testing.T) {
	one, two := mustOpen(t, dbPath(t), sqlite.Options{}), mustOpen(t, dbPath(t), sqlite.Options{})
	defer func() {
		if recover() == nil {
			t.Error("the records of a tool's calls would not be in its transactions")
		}
	}()
	sqlite.AddTool(idempotency.New(&idempotency.Options{Store: one}), mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil), two,
		&mcp.Tool{Name: "charge"}, func(context.Context, *mcp.CallToolRequest, *sql.Tx, chargeIn) (*mcp.CallToolResult, chargeOut, error) {
			return nil, chargeOut{}, nil
		})
}

// Many calls at once, each sent twice and to two stores on one file: each has
// its effect once.
func TestTwoStoresHaveOneEffectForEachCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	opt := idempotency.Options{StoreTimeout: time.Minute}
	sopt := sqlite.Options{BusyTimeout: time.Minute, PollInterval: 5 * time.Millisecond}
	one, two := mustOpen(t, path, sopt), mustOpen(t, path, sopt)
	a, b := toolServer(t, one, opt, nil), toolServer(t, two, opt, nil)
	ns, err := a.Namespace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const calls = 100
	for i := range calls {
		key, args := fmt.Sprintf("%s.%026d", ns, i), fmt.Sprintf(`{"amount":%d}`, 1000+i)
		var answers [2]mcptest.Reply
		var pair sync.WaitGroup
		for j, c := range []*mcptest.Client{a, b} {
			pair.Go(func() { answers[j] = c.Call(t, "charge", key, args) })
		}
		wg.Go(func() {
			pair.Wait()
			if answers[0].Replayed == nil || answers[1].Replayed == nil || *answers[0].Replayed == *answers[1].Replayed ||
				string(answers[0].StructuredContent) != string(answers[1].StructuredContent) {
				t.Errorf("call %d: %s and %s", i, answers[0], answers[1])
			}
		})
		if i%8 == 7 {
			wg.Wait()
		}
	}
	wg.Wait()
	if n, err := one.Read(`SELECT count(*) || ' ' || count(DISTINCT amount) FROM ledger`); err != nil || n[0] != fmt.Sprintf("%d %d", calls, calls) {
		t.Errorf("effects and calls with one: %v, %v", n, err)
	}
}
