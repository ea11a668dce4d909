package postgres

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Bounds of the listener's patience.
const (
	backoffLeast = 100 * time.Millisecond
	backoffMost  = 10 * time.Second
	// A connection on which nothing came for so long is asked whether it lives.
	quiet = 30 * time.Second
	// How long connecting, and asking, may take.
	patience = 10 * time.Second
)

// A listener has the one connection on which the store is notified, from the
// first Await until the store is closed. While it has none, those who wait
// poll; when it has one again, they look at once for what they missed.
type listener struct {
	s     *Store
	start sync.Once
	tried chan struct{} // closed when the first attempt to listen has ended, well or not

	mu      sync.Mutex
	waiting map[store.Token]map[chan struct{}]struct{}
}

func newListener(s *Store) *listener {
	return &listener{s: s, tried: make(chan struct{}), waiting: map[store.Token]map[chan struct{}]struct{}{}}
}

// join returns a channel that receives when a run's record may have moved, and
// what to call when nobody reads it any more.
func (l *listener) join(ctx context.Context, token store.Token) (wake <-chan struct{}, leave func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	if l.waiting[token] == nil {
		l.waiting[token] = map[chan struct{}]struct{}{}
	}
	l.waiting[token][ch] = struct{}{}
	l.mu.Unlock()
	l.start.Do(func() { l.s.background.run(l.run) })
	select {
	case <-l.tried:
	case <-ctx.Done():
	case <-l.s.background.ctx.Done():
	}
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting[token], ch)
		if len(l.waiting[token]) == 0 {
			delete(l.waiting, token)
		}
	}
}

// run listens, again after every loss, until ctx ends.
func (l *listener) run(ctx context.Context) {
	var once sync.Once
	tried := func() { once.Do(func() { close(l.tried) }) }
	backoff := backoffLeast
	for {
		err := l.session(ctx, func() {
			backoff = backoffLeast
			tried()
			l.wakeAll()
		})
		tried()
		if ctx.Err() != nil {
			return
		}
		l.s.opt.Logger.Warn("idempotency: not listening to the database; waiting calls poll meanwhile", "error", err)
		select {
		case <-time.After(time.Duration(rand.Int64N(int64(backoff)) + 1)):
		case <-ctx.Done():
			return
		}
		backoff = min(2*backoff, backoffMost)
	}
}

// session listens on one connection until it is lost. The connection is taken
// out of the pool, so that it is made as the pool makes them.
func (l *listener) session(ctx context.Context, up func()) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost with it
	}()
	up()
	for {
		wait, cancel := context.WithTimeout(ctx, quiet)
		n, err := conn.WaitForNotification(wait)
		expired := wait.Err() != nil
		cancel()
		switch {
		case err == nil:
			l.wake(n.Payload)
		case !expired || ctx.Err() != nil:
			return err
		default:
			ask, cancel := context.WithTimeout(ctx, patience)
			err := conn.Ping(ask)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}

func (l *listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pooled, err := l.s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	conn := pooled.Hijack()
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.s.opt.Schema}.Sanitize()); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// wake passes a notification on: the token of a run, as a UUID.
func (l *listener) wake(payload string) {
	var token store.Token
	if b, err := hex.DecodeString(strings.ReplaceAll(payload, "-", "")); err != nil || copy(token[:], b) != len(token) {
		return // anybody may notify on a channel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	poke(l.waiting[token])
}

func (l *listener) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		poke(w)
	}
}

func poke(waiting map[chan struct{}]struct{}) {
	for ch := range waiting {
		select {
		case ch <- struct{}{}:
		default: // it will look anyway
		}
	}
}
