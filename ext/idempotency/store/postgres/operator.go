package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// List implements [store.Operator]. A run whose lease has passed is listed as
// of unknown outcome, unless it is transactional. Listing records that are not
// open without naming a principal reads every record.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Entry, error) {
	if s.closed() {
		return nil, ErrClosed
	}
	if len(q.States) == 0 {
		q.States = []store.State{store.Unknown}
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	var shown []int16
	for _, st := range q.States {
		shown = append(shown, int16(st))
	}
	stored := slices.Clone(shown)
	if slices.Contains(q.States, store.Unknown) && !slices.Contains(q.States, store.Running) {
		stored = append(stored, int16(store.Running))
	}
	open := !slices.ContainsFunc(q.States, func(st store.State) bool {
		return st != store.Running && st != store.Waiting && st != store.Unknown
	})
	var principal []byte
	var phash int64
	if q.Principal != nil {
		principal, phash = []byte(*q.Principal), principalHash(*q.Principal)
	}
	rows, err := s.pool.Query(ctx, s.sql.entries, shown, stored, open, principal, phash, q.Limit)
	if err != nil {
		return nil, explain("listing", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e store.Entry, err error) {
		var principal, key []byte
		var state int16
		var lease *time.Time
		err = row.Scan(&principal, &key, &e.Namespace, &state, &e.Since, &lease)
		e.Principal, e.Key, e.State = string(principal), string(key), store.State(state)
		if lease != nil {
			e.LeaseUntil = *lease
		}
		return e, err
	})
	return list, explain("listing", err)
}

// Resolve implements [store.Operator].
func (s *Store) Resolve(ctx context.Context, id store.ID, event store.Event, outcome []byte) error {
	if event != store.ResolveCompleted && event != store.ResolveNoEffect {
		return fmt.Errorf("postgres: an operator does not resolve with %v", event)
	}
	outcome, sealed, err := s.seal(outcome)
	if err != nil {
		return err
	}
	if s.closed() {
		return ErrClosed
	}
	_, to := transition(event)
	i := identify(id)
	var done *int32
	if err := s.pool.QueryRow(ctx, s.sql.resolve, i.ns, i.phash, i.digest, int16(to), outcome, sealed).Scan(&done); err != nil {
		return explain("resolving", err)
	}
	switch {
	case done == nil:
		return store.ErrNoRecord
	case *done == 0:
		return store.ErrNotUnknown
	}
	return nil
}

// DeleteOutcomes implements [store.Operator]. The bytes leave the database's
// files when it has vacuumed the tables, and its backups when those are gone.
func (s *Store) DeleteOutcomes(ctx context.Context, principal string) (int, error) {
	if s.closed() {
		return 0, ErrClosed
	}
	var n int
	err := s.pool.QueryRow(ctx, s.sql.deleteOutcomes, []byte(principal), principalHash(principal)).Scan(&n)
	return n, explain("deleting outcomes", err)
}
