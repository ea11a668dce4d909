package postgres

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A plan is a node of a plan as EXPLAIN (FORMAT JSON) has it.
type plan struct {
	Node     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cost     float64 `json:"Total Cost"`
	Removed  int     `json:"Rows Removed by Filter"`
	Plans    []plan  `json:"Plans"`
	query    string
}

func (p plan) each(f func(plan)) {
	f(p)
	for _, c := range p.Plans {
		c.each(f)
	}
}

// explained is a store whose connections tell, by the server's own
// auto_explain, the plan of every statement that runs on them, those within
// functions included.
func (d *database) explained(t *testing.T, opt *Options) (s *Store, plans func() []plan) {
	var mu sync.Mutex
	var all []plan
	s = d.open(t, opt, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			_, text, ok := strings.Cut(n.Message, "plan:\n")
			if !ok {
				return
			}
			var e struct {
				Query string `json:"Query Text"`
				Plan  plan
			}
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Errorf("%v: %s", err, text)
			}
			mu.Lock()
			defer mu.Unlock()
			e.Plan.query = strings.Join(strings.Fields(e.Query), " ")
			all = append(all, e.Plan)
		}
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
				SET auto_explain.log_format = json; SET auto_explain.log_level = notice; SET auto_explain.log_analyze = on`)
			return err
		}
	})
	return s, func() []plan {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// No statement of any step reads a table of records from one end to the other,
// and none reads rows in vain whose number grows with the records.
func TestEveryQueryUsesAnIndex(t *testing.T) {
	d := newDatabase(t)
	seed := d.open(t, brief())
	advance := settable(t, seed)
	const records = 3000
	fill(t, seed, records)
	old := attempt(t, seed)
	advance(4*time.Hour + time.Second)
	attempt(t, seed)
	fill(t, seed, records) // in two namespaces
	run(t, seed, `ANALYZE {schema}.record`)

	s, plans := d.explained(t, brief())
	everyStep(t, s, old.ID.Namespace(), advance)
	small, more := d.explained(t, &Options{MaxRecords: 4000}) // every step counts
	one := attempt(t, small)
	expect(t, small, one, store.Run)
	record(t, small, one, complete("x"))

	nodes := map[string]int{}
	all := append(plans(), more()...)
	for _, whole := range all {
		whole.each(func(p plan) {
			table, _, partition := strings.Cut(p.Relation, "_")
			nodes[table]++
			if p.Cost > 1e9 {
				// A way that is ruled out, for want of an index; it has the
				// plan compiled, which takes longer than anything else.
				t.Errorf("%s costs %g for %s", p.Node, p.Cost, whole.query)
			}
			partition = partition && (table == "record" || table == "tally")
			if partition && p.Node == "Seq Scan" {
				t.Errorf("%s is read from one end to the other by %s", p.Relation, whole.query)
			}
			if partition && p.Removed > limit(whole.query, 3*records/10) {
				t.Errorf("%s of %s reads %d rows in vain for %s", p.Node, p.Relation, p.Removed, whole.query)
			}
		})
	}
	t.Logf("%d plans; nodes by table: %v", len(all), nodes)
	if nodes["record"] < 20 || nodes["tally"] == 0 || nodes["namespace"] == 0 {
		t.Error("these are not the plans of all steps")
	}
}

// limit is how many rows a statement may read in vain: a few, or as many as
// there are open calls where it looks for calls by their state.
func limit(query string, open int) int {
	for _, looks := range []string{"x.shown", "outcome = NULL", "last_end >", "SELECT count(*)"} {
		if strings.Contains(query, looks) {
			return open
		}
	}
	return 10
}

// everyStep takes every step in every form, in the current namespace and in an
// old one, with and without a namespace in the key.
func everyStep(t *testing.T, s *Store, old string, advance func(time.Duration)) {
	t.Helper()
	ctx := t.Context()
	n := newNonce()
	for _, ns := range []string{old, attempt(t, s).ID.Namespace(), ""} {
		for _, end := range []store.End{complete("x"), {Event: store.DeclareNoEffect}, {Event: store.Lose}, {Event: store.Ask, Nonce: n, Outcome: []byte("?")}} {
			a := attemptIn(ns)
			expect(t, s, a, store.Run)
			if err := s.Renew(ctx, ref(a), time.Minute); err != nil {
				t.Error(err)
			}
			waitCtx, cancel := context.WithCancel(ctx)
			done := make(chan error)
			go func() { done <- s.Await(waitCtx, a.ID, a.Token) }()
			record(t, s, a, end)
			<-done
			cancel()
			res, err := s.Reserve(ctx, again(a))
			if err != nil || res.Verdict != store.Known && res.Verdict != store.Asked {
				t.Errorf("after %v: verdict %d, %v", end.Event, res.Verdict, err)
			}
			if end.Event == store.Ask {
				c := again(a)
				c.Nonce = n
				expect(t, s, c, store.Run)
				record(t, s, c, store.End{Event: store.Reject})
			}
			if end.Event == store.Lose {
				if err := s.Resolve(ctx, a.ID, store.ResolveNoEffect, nil); err != nil {
					t.Error(err)
				}
			}
		}
		for _, transactional := range []bool{false, true} {
			a := attemptIn(ns)
			a.Transactional, a.Lease = transactional, 0
			expect(t, s, a, store.Run)
			if _, err := s.Reserve(ctx, again(a)); err != nil {
				t.Error(err)
			}
		}
	}
	for _, q := range []store.Query{{}, {Principal: new(string)}, {States: []store.State{store.Running, store.Waiting}}} {
		if _, err := s.List(ctx, q); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.DeleteOutcomes(ctx, "p"); err != nil {
		t.Error(err)
	}
	advance(5 * time.Hour)
	attempt(t, s)
	advance(12 * time.Hour)
	attempt(t, s) // and the oldest is looked at, to be dropped
}

// fill puts n completed records of many principals into the current namespace,
// and a tenth as many open ones of the principal "p".
func fill(t testing.TB, s *Store, n int) {
	t.Helper()
	run(t, s, `INSERT INTO {schema}.record (changed, touched, lease_until, phash, digest, token, nonce, ns, weight, state, transactional, continued, awaited,
			fingerprint, answers, principal, key, outcome)
		SELECT now(), now(), now(), hashtextextended('p' || i % 1000, 0), gen_random_uuid(), gen_random_uuid(), '00000000-0000-0000-0000-000000000000',
			c.id, 0, 3, false, false, false, decode(repeat('ab', 32), 'hex'), '', ('p' || i % 1000)::bytea, (c.name || '.' || gen_random_uuid())::bytea,
			convert_to(repeat('x', 200), 'UTF8')
		FROM generate_series(1, $1::bigint) i, {schema}.namespace c WHERE c.state = 0`, n)
	run(t, s, `INSERT INTO {schema}.record (changed, touched, lease_until, phash, digest, token, nonce, ns, weight, state, transactional, continued, awaited,
			fingerprint, answers, principal, key)
		SELECT now(), now(), now() + interval '1 hour', $2, gen_random_uuid(), gen_random_uuid(), '00000000-0000-0000-0000-000000000000',
			c.id, 0, 1, false, false, false, decode(repeat('ab', 32), 'hex'), '', 'p', (c.name || '.' || gen_random_uuid())::bytea
		FROM generate_series(1, $1::bigint / 10) i, {schema}.namespace c WHERE c.state = 0`, n, principalHash("p"))
}
