package redis

import (
	"context"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A listener wakes those who wait for runs. It holds one connection, from the
// first wait on until the store is closed, and subscribes to a channel for
// each record that somebody waits for.
type listener struct {
	client goredis.UniversalClient
	prefix string // of the channels
	quit   chan struct{}
	end    context.CancelFunc
	ctx    context.Context // ends with the listener
	work   sync.WaitGroup

	mu      sync.Mutex
	pubsub  *goredis.PubSub // nil until somebody waits
	changed chan struct{}   // topics has changed
	topics  map[string]map[*waiter]struct{}
}

// A waiter is one Await.
type waiter struct {
	channel string
	token   store.Token
	ended   chan struct{} // closed when the run is said to be over
	look    chan struct{} // gets one when a message may have been missed
}

func newListener(client goredis.UniversalClient, prefix string) *listener {
	l := &listener{
		client: client, prefix: prefix, quit: make(chan struct{}),
		changed: make(chan struct{}, 1), topics: map[string]map[*waiter]struct{}{},
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

func (l *listener) closed() bool {
	select {
	case <-l.quit:
		return true
	default:
		return false
	}
}

// add makes a waiter for a run of the record with a digest.
func (l *listener) add(digest []byte, token store.Token) (*waiter, error) {
	w := &waiter{
		channel: l.prefix + string(digest), token: token,
		ended: make(chan struct{}), look: make(chan struct{}, 1),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed() {
		return nil, ErrClosed
	}
	if l.pubsub == nil {
		l.pubsub = l.client.Subscribe(l.ctx) // connects with the first channel
		messages := l.pubsub.ChannelWithSubscriptions()
		l.work.Go(func() { l.receive(messages) })
		l.work.Go(l.subscribe)
	}
	if l.topics[w.channel] == nil {
		l.topics[w.channel] = map[*waiter]struct{}{}
		l.change()
	}
	l.topics[w.channel][w] = struct{}{}
	return w, nil
}

func (l *listener) remove(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.topics[w.channel], w)
	if len(l.topics[w.channel]) == 0 {
		delete(l.topics, w.channel)
		l.change()
	}
}

func (l *listener) change() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// subscribe makes the subscriptions what topics are. It is alone in writing,
// so that no waiter waits for the network here. An error needs no care: the
// connection is made anew with every channel that was asked for, and until
// then waiters poll.
func (l *listener) subscribe() {
	have := map[string]bool{}
	for {
		select {
		case <-l.quit:
			return
		case <-l.changed:
		}
		var add, drop []string
		l.mu.Lock()
		for channel := range l.topics {
			if !have[channel] {
				add = append(add, channel)
			}
		}
		for channel := range have {
			if l.topics[channel] == nil {
				drop = append(drop, channel)
			}
		}
		l.mu.Unlock()
		if len(add) > 0 {
			_ = l.pubsub.Subscribe(l.ctx, add...)
		}
		if len(drop) > 0 {
			_ = l.pubsub.Unsubscribe(l.ctx, drop...)
		}
		for _, channel := range add {
			have[channel] = true
		}
		for _, channel := range drop {
			delete(have, channel)
		}
	}
}

// receive passes on what comes, until the subscription is closed.
func (l *listener) receive(messages <-chan any) {
	for m := range messages {
		switch m := m.(type) {
		case *goredis.Message:
			l.wake(m.Channel, func(w *waiter) {
				if m.Payload == string(w.token[:]) {
					w.over()
				}
			})
		case *goredis.Subscription:
			// What was said before the subscription stood was not heard.
			if m.Kind == "subscribe" {
				l.wake(m.Channel, (*waiter).again)
			}
		}
	}
}

func (l *listener) wake(channel string, wake func(*waiter)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.topics[channel] {
		wake(w)
	}
}

// over is called with the listener's lock held.
func (w *waiter) over() {
	select {
	case <-w.ended:
	default:
		close(w.ended)
	}
}

func (w *waiter) again() {
	select {
	case w.look <- struct{}{}:
	default:
	}
}

// close ends the listener and returns when nothing of it is left.
func (l *listener) close() {
	l.mu.Lock()
	if !l.closed() {
		close(l.quit)
		l.end()
		if l.pubsub != nil {
			_ = l.pubsub.Close() // its error is that of a connection that is not needed
		}
	}
	l.mu.Unlock()
	l.work.Wait()
}
