// Package postgres is the store for many instances that share a PostgreSQL
// database (13 or newer), and the one form of a tool that is exactly once: its
// effect and its record are one transaction ([AddTool]).
//
// It promises that no key runs twice over all instances, whatever of them or of
// the database crashes, for as long as its namespace is held; that a finished
// key is replayed wherever it is sent; and that a namespace whose records may be
// incomplete is not held any more.
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	…
//	s, err := postgres.Open(ctx, pool, nil)
//	…
//	idem := idempotency.New(&idempotency.Options{Store: s})
//	postgres.AddTool(idem, server, s, &mcp.Tool{Name: "charge"},
//		func(ctx context.Context, _ *mcp.CallToolRequest, tx pgx.Tx, in Charge) (*mcp.CallToolResult, Receipt, error) {
//			…
//		})
//	idem.Install(server)
//
// # Steps
//
// Each step is one statement that calls one function of the store's schema, and
// one round trip; committing a tool's transaction together with its record is
// one as well. The connections have to use READ COMMITTED by default.
//
// # Restores and fail-overs
//
// A namespace belongs to the incarnation of the data that it was made in: the
// identifier of the cluster and its timeline, which every step compares. So
// these are noticed at once, and nothing from before them runs again: recovery
// from a backup, to its end or to a point in time; the promotion of a standby,
// with or without lost writes; a logical dump that is loaded into another
// cluster; an upgrade by pg_upgrade.
//
// These are not noticed, because nothing that the database sees has changed: a
// copy of its files, or a snapshot of their volume, that is started without a
// recovery to a new timeline; pg_resetwal; a logical dump that is loaded back
// into the same cluster. Whoever does that calls [Store.Reincarnate] before an
// instance serves.
//
// A standby is refused, and so is a database that may lose what it has
// acknowledged: with fsync off, or full_page_writes off (but see
// [Options].WholePages). synchronous_commit need not be on: steps that have to
// survive a crash turn it on for themselves. The reservation of a transactional
// tool turns it off, since a crash that loses the reservation has lost the
// effect too, which comes later in the log.
//
// # Waiting
//
// A duplicate that waits for a run of another instance is told by NOTIFY when
// it ends, over one connection that the store takes from the pool at the first
// wait and keeps until Close. A pooler between the store and the database that
// does not pass LISTEN on leaves polling.
//
// # Bounds
//
// Nothing that is held is ever forgotten to make room; new keys are refused.
// Namespaces are partitions and are removed whole. Outcomes are not evicted.
package postgres
