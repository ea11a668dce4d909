package sqlite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Await implements [store.Store]. Ends that this process records wake it at
// once. SQLite does not tell of those of others: while somebody waits, one
// goroutine asks it every PollInterval whether the file has changed, which
// costs microseconds, and only then looks at the records.
func (s *Store) Await(ctx context.Context, id store.ID, token store.Token) error {
	w := &waiter{id: id, ended: ended{digestOf(id), token}, done: make(chan struct{})}
	s.waiting.add(w)
	defer s.waiting.remove(w)
	// After it was added: an end from now on wakes it.
	if err := s.look(ctx, []*waiter{w}, true); err != nil {
		return err
	}
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return ErrClosed
	}
}

// A waiter is one Await.
type waiter struct {
	id store.ID
	ended
	once  sync.Once
	done  chan struct{} // closed when the run is over
	lease int64         // when it passes, as far as is known; guarded by Store.reading
}

func (w *waiter) wake() { w.once.Do(func() { close(w.done) }) }

// waiters are the Awaits of one store.
type waiters struct {
	store  *Store
	poller sync.WaitGroup

	mu    sync.Mutex
	all   map[*waiter]struct{}
	stop  context.CancelFunc // of the poller, which runs while there are any
	ended bool               // there will be no poller
}

func (ws *waiters) add(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.all == nil {
		ws.all = map[*waiter]struct{}{}
	}
	ws.all[w] = struct{}{}
	if ws.stop == nil && !ws.ended {
		ctx, stop := context.WithCancel(context.Background())
		ws.stop = stop
		ws.poller.Go(func() { ws.poll(ctx) })
	}
}

func (ws *waiters) remove(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, w)
	if len(ws.all) == 0 && ws.stop != nil {
		ws.stop()
		ws.stop = nil
	}
}

// end returns when there is no poller, and never will be. The store is closing.
func (ws *waiters) end() {
	ws.mu.Lock()
	ws.ended = true
	ws.mu.Unlock()
	ws.poller.Wait()
}

func (ws *waiters) list() (all []*waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all {
		all = append(all, w)
	}
	return all
}

// wake wakes those who wait for a run.
func (ws *waiters) wake(e ended) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all {
		if w.ended == e {
			w.wake()
		}
	}
}

// poll looks for what other processes have done, and for leases that pass.
func (ws *waiters) poll(ctx context.Context) {
	tick := time.NewTicker(ws.store.opt.PollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ws.store.closing:
			return
		case <-tick.C:
		}
		// What fails now is tried again at the next tick; an Await that never
		// succeeds ends with its context.
		_ = ws.store.look(ctx, ws.list(), false)
	}
}

// look wakes those of all whose run is over. Unless it is the first look for
// them, it asks first whether anything can have changed.
func (s *Store) look(ctx context.Context, all []*waiter, first bool) error {
	if err := s.take(ctx, s.reading); err != nil {
		return err
	}
	defer func() { <-s.reading }()
	if s.r == nil {
		return errReplaced // the next step opens what is there now
	}
	now := s.clock.read(instant{}).at
	if !first {
		var seen int64
		if _, err := s.r.row(0, dataVersion, nil, &seen); err != nil {
			return err
		}
		if seen == s.rSeen {
			all = slices.DeleteFunc(all, func(w *waiter) bool { return w.lease > now })
		}
		s.rSeen = seen // a change after this is seen by the next look
	}
	if len(all) == 0 {
		return nil
	}
	if _, err := s.r.exec(0, beginRead); err != nil {
		return err
	}
	err := s.lookAt(all, now)
	_, endErr := s.r.exec(0, rollback) // it only read
	return errors.Join(err, endErr)
}

// lookAt reads the records in one snapshot.
func (s *Store) lookAt(all []*waiter, now int64) error {
	held, err := heldNamespaces(s.r)
	if err != nil {
		return err
	}
	s.r.forgetAllBut(held)
	for _, w := range all {
		running, err := s.running(w, held, now)
		if err != nil {
			return err
		}
		if !running {
			w.wake()
		}
	}
	return nil
}

// running reports whether the run that is waited for goes on.
func (s *Store) running(w *waiter, held []*namespace, now int64) (bool, error) {
	name := w.id.Namespace()
	for _, ns := range held {
		if name != "" && name != ns.name {
			continue
		}
		var token []byte
		found, err := s.r.row(ns.id, runState, []any{w.digest[:]}, &token, &w.lease)
		if err != nil {
			return false, err
		}
		if found {
			return store.Token(token) == w.token && w.lease > now, nil
		}
	}
	return false, nil
}
