package redis

import (
	"context"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Await implements [store.Store]. It wakes by a message of the script that
// ends the run, looks again when the lease passes, when the subscription was
// interrupted, and every PollInterval.
func (s *Store) Await(ctx context.Context, id store.ID, token store.Token) error {
	digest, _ := digests(id)
	w, err := s.listener.add(digest, token)
	if err != nil {
		return err
	}
	defer s.listener.remove(w)
	for {
		r, err := s.step(ctx, s.scripts.alive, id.Namespace(), digest, token[:])
		if err != nil {
			return err
		}
		left := time.Duration(r.number(0)) * time.Millisecond
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(min(left, s.opt.PollInterval))
		select {
		case <-w.ended:
			timer.Stop()
			return nil
		case <-s.listener.quit:
			timer.Stop()
			return ErrClosed
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-w.look:
			timer.Stop()
		case <-timer.C:
		}
	}
}
