package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Store is a [store.Store] and [store.Operator] in a PostgreSQL database that
// many instances share. Make it with [Open], and end it with [Store.Close].
type Store struct {
	opt  Options
	pool *pgxpool.Pool
	sql  statements

	// One new record in so many is counted, by principal and in all.
	step, stepAll int64

	listen  *listener
	effects chan struct{} // a slot for each transaction of a tool

	background background
	sweeps     chan struct{} // holds a value while rows of dropped namespaces are being removed
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Operator = (*Store)(nil)
)

// Open returns the store in the pool's database, and brings its schema to this
// package's version. The pool stays the caller's and has to outlive the store.
// Transactional tools hold a connection of it each while they run, and the
// store's steps need one, so it has to have at least two. opt may be nil.
func Open(ctx context.Context, pool *pgxpool.Pool, opt *Options) (*Store, error) {
	o, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	most := pool.Config().MaxConns
	if most < 2 {
		return nil, fmt.Errorf("postgres: the pool has %d connection; the store needs at least 2", most)
	}
	s := &Store{
		opt: o, pool: pool, sql: statementsFor(o.Schema),
		effects: make(chan struct{}, most-1), sweeps: make(chan struct{}, 1),
	}
	s.background.ctx, s.background.stop = context.WithCancel(context.Background())
	s.listen = newListener(s)
	s.step = countingStep(min(o.MaxRecordsPerPrincipal, 4*o.MaxOpenPerPrincipal))
	s.stepAll = countingStep(o.MaxRecords)
	if err := s.prepare(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// prepare looks whether the database is one to rely on, and makes what the
// store needs in it.
func (s *Store) prepare(ctx context.Context) error {
	var recovery bool
	var fsync, pages, isolation string
	if err := s.pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
		current_setting('transaction_isolation')`).Scan(&recovery, &fsync, &pages, &isolation); err != nil {
		return explain("looking at the server's settings", err)
	}
	switch {
	case recovery:
		return fmt.Errorf("%w: it is a standby; connect to the primary (target_session_attrs=read-write)", ErrUnsafe)
	case fsync != "on":
		return fmt.Errorf("%w: fsync is off, so that a crash can lose records without a trace", ErrUnsafe)
	case pages != "on" && !s.opt.WholePages:
		return fmt.Errorf("%w: full_page_writes is off, so that a crash can damage records; see Options.WholePages", ErrUnsafe)
	case isolation != "read committed":
		return fmt.Errorf("%w (%s)", ErrIsolation, isolation)
	}
	if err := migrate(ctx, s.pool, s.opt.Schema); err != nil {
		return explain("migrating", err)
	}
	_, err := s.Current(ctx) // makes the first namespace
	return err
}

// Close ends what the store does in the background and waits for it. From then
// on every step, and every Await under way, returns [ErrClosed]. The pool stays
// open. The error is always nil.
func (s *Store) Close() error {
	s.background.end()
	return nil
}

// Current implements [store.Store].
func (s *Store) Current(ctx context.Context) (store.Namespace, error) {
	for settled := false; ; settled = true {
		var ns store.Namespace
		if s.closed() {
			return ns, ErrClosed
		}
		err := s.pool.QueryRow(ctx, s.sql.current, settled).Scan(&ns.Name, &ns.Retention)
		if err == nil || !errors.Is(err, pgx.ErrNoRows) || settled {
			return ns, explain("reading the current namespace", err)
		}
		if err := s.rotateDue(ctx); err != nil {
			return ns, err
		}
	}
}

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, a store.Attempt) (store.Reservation, error) {
	id := identify(a.ID)
	for settled := false; ; settled = true {
		if s.closed() {
			return store.Reservation{}, ErrClosed
		}
		res, err := s.reserve(ctx, id, a, settled)
		if err != nil {
			return store.Reservation{}, explain("reserving", err)
		}
		if res.Verdict != due {
			return res, nil
		}
		if settled {
			return store.Reservation{}, errors.New("postgres: reserving: there is no current namespace")
		}
		if err := s.rotateDue(ctx); err != nil {
			return store.Reservation{}, err
		}
	}
}

// due is what the database says instead of a verdict when a namespace has to
// be rotated first.
const due store.Verdict = 0

// reserve is one step in the database. settled says to take the namespaces as
// they are.
func (s *Store) reserve(ctx context.Context, id ident, a store.Attempt, settled bool) (store.Reservation, error) {
	var (
		res          store.Reservation
		verdict      *int16
		state        *int16
		token, nonce pgtype.UUID
		answers      []byte
		outcome      []byte
		sealed       *bool
		continued    *bool
		current      *string
		retry        *time.Duration
	)
	err := s.pool.QueryRow(ctx, s.sql.reserve,
		id.ns, id.phash, id.digest, id.principal, id.key, a.Fingerprint[:], [16]byte(a.Token),
		a.Lease.Microseconds(), [16]byte(a.Nonce), answersBytes(a.Answers), a.Peek, a.Transactional,
		int64(s.opt.MaxRecords), int64(s.opt.MaxRecordsPerPrincipal), int64(s.opt.MaxOpenPerPrincipal), drawn(s.step), drawn(s.stepAll), settled,
	).Scan(&verdict, &state, &token, &nonce, &answers, &outcome, &sealed, &continued, &current, &retry)
	if err != nil {
		return res, err
	}
	if res.Verdict = store.Run; verdict != nil {
		res.Verdict = store.Verdict(*verdict)
	}
	switch res.Verdict {
	case store.Run:
		res.Leased = true
		res.Continued = continued != nil && *continued
	case store.Joinable, store.Known, store.Asked:
		res.Record = store.Record{State: store.State(*state), Token: token.Bytes, Nonce: nonce.Bytes}
		copy(res.Record.Answers[:], answers)
		res.Record.Outcome, err = s.unseal(outcome, *sealed)
	case store.NamespaceNotHeld, store.NamespaceClosed:
		res.Current = *current
	case store.NoRoom:
		res.RetryAfter = *retry
	}
	return res, err
}

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, run store.RunRef, d time.Duration) error {
	if s.closed() {
		return ErrClosed
	}
	id := identify(run.ID)
	var held bool
	err := s.pool.QueryRow(ctx, s.sql.renew, id.ns, id.phash, id.digest, [16]byte(run.Token), d.Microseconds()).Scan(&held)
	if err == nil && !held {
		return store.ErrFenced
	}
	return explain("renewing a lease", err)
}

// Record implements [store.Store].
func (s *Store) Record(ctx context.Context, run store.RunRef, end store.End) error {
	args, err := s.recordArgs(run, end, false)
	if err != nil {
		return err
	}
	if s.closed() {
		return ErrClosed
	}
	var held bool
	err = s.pool.QueryRow(ctx, s.sql.record, args...).Scan(&held)
	if err == nil && !held {
		return store.ErrFenced
	}
	return explain("recording", err)
}

// recordArgs are the arguments of the step that records an end; transactional
// says that it is a part of the effect's transaction.
func (s *Store) recordArgs(run store.RunRef, end store.End, transactional bool) ([]any, error) {
	switch end.Event {
	case store.Complete, store.DeclareNoEffect, store.Ask, store.Reject, store.Lose:
	default:
		return nil, fmt.Errorf("postgres: a run does not end with %v", end.Event)
	}
	outcome, sealed, err := s.seal(end.Outcome)
	if err != nil {
		if transactional || end.Event == store.Ask {
			return nil, err
		}
		// That it has ended is worth more than how.
		s.opt.Logger.Error("idempotency: an outcome is not kept", "error", err)
	}
	var nonce store.Nonce
	if end.Event == store.Ask {
		nonce = end.Nonce
	}
	from, to := transition(end.Event)
	id := identify(run.ID)
	return []any{
		id.ns, id.phash, id.digest, [16]byte(run.Token), int16(end.Event), from, int16(to),
		outcome, sealed, [16]byte(nonce), transactional,
	}, nil
}

// rotateDue is rotate for a step that found a namespace due. That somebody
// else is at it, or that steps under way do not let it through, is no reason
// to fail: what is held is still true.
func (s *Store) rotateDue(ctx context.Context) error {
	err := s.rotate(ctx, false)
	if hasCode(err, codeLockTimeout) {
		return nil
	}
	return err
}

// rotate moves the namespaces on; with forget, it drops them all first.
func (s *Store) rotate(ctx context.Context, forget bool) error {
	_, err := s.pool.Exec(ctx, s.sql.rotate, newName(),
		s.opt.Retention.Microseconds(), s.opt.RotateEvery.Microseconds(), s.opt.ClosingFor.Microseconds(), forget)
	if err != nil {
		return explain("rotating the namespaces", err)
	}
	s.sweepSoon()
	return nil
}

// sweepSoon removes the rows of dropped namespaces, in the background: it may
// have to wait, and nobody waits for it.
func (s *Store) sweepSoon() {
	select {
	case s.sweeps <- struct{}{}:
	default:
		return // one is under way
	}
	started := s.background.run(func(ctx context.Context) {
		defer func() { <-s.sweeps }()
		if _, err := s.pool.Exec(ctx, s.sql.sweep); err != nil && ctx.Err() == nil {
			// The next rotation tries again; nobody reads these rows.
			s.opt.Logger.Warn("idempotency: the rows of dropped namespaces are not removed yet", "error", err)
		}
	})
	if !started {
		<-s.sweeps
	}
}

// Reincarnate forgets every record and starts a new namespace, so that no key
// from before runs. It is for what the database cannot see by itself: a copy of
// its files, or a snapshot of their volume, that was started without a recovery
// to a new timeline. Call it before an instance serves from such a copy.
func (s *Store) Reincarnate(ctx context.Context) error {
	if s.closed() {
		return ErrClosed
	}
	return s.rotate(ctx, true)
}

func newName() string { return "p" + strings.ToLower(rand.Text()) }
