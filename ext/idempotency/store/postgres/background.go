package postgres

import (
	"context"
	"sync"
)

// background is what a store does when nobody has called it, until it is
// closed.
type background struct {
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// run starts f, whose context ends with the store. It reports whether it did:
// a closed store starts nothing.
func (b *background) run(f func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.running.Go(func() { f(b.ctx) })
	return true
}

// end stops all that was started and waits for it.
func (b *background) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.stop()
	b.running.Wait()
}

func (s *Store) closed() bool { return s.background.ctx.Err() != nil }
