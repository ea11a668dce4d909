package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Await implements [store.Store]. It returns when it is notified that the run
// has ended, when the run's lease passes, or when it sees either while polling.
func (s *Store) Await(ctx context.Context, id store.ID, token store.Token) error {
	if s.closed() {
		return ErrClosed
	}
	i := identify(id)
	wake, leave := s.listen.join(ctx, token)
	defer leave()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.background.ctx.Done():
			return ErrClosed
		}
		var left *int64
		if err := s.pool.QueryRow(ctx, s.sql.await, i.ns, i.phash, i.digest, [16]byte(token)).Scan(&left); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return explain("waiting for a run", err)
		}
		if left == nil {
			return nil
		}
		// Spread, so that those who began to wait together do not ask together.
		poll := s.opt.PollInterval - time.Duration(rand.Int64N(int64(s.opt.PollInterval)/4+1))
		timer.Reset(min(poll, time.Duration(*left)*time.Microsecond))
	}
}
