package idempotency

import (
	"sync"
	"time"
)

// A watchdog calls functions when their time has come. One timer serves all:
// arming one for every call costs more than the rest of the call's record
// keeping, and almost none would ever fire.
type watchdog struct {
	mu    sync.Mutex
	watch map[*watched]struct{}
	timer *time.Timer // nil when nothing is watched or due
	next  time.Time   // when timer fires
}

type watched struct {
	at   time.Time
	fire func()
}

// after calls fire in a goroutine of its own once d has passed, unless stop is
// called before.
func (w *watchdog) after(d time.Duration, fire func()) (stop func()) {
	e := &watched{at: time.Now().Add(d), fire: fire}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watch == nil {
		w.watch = map[*watched]struct{}{}
	}
	w.watch[e] = struct{}{}
	if w.timer == nil || e.at.Before(w.next) {
		w.arm(e.at)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.watch, e)
	}
}

func (w *watchdog) arm(at time.Time) {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.next = at
	w.timer = time.AfterFunc(time.Until(at), w.look)
}

// look fires what is due and arms the timer for the next.
func (w *watchdog) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.timer == nil || now.Before(w.next) {
		return // an earlier one was armed meanwhile
	}
	w.timer = nil
	var next time.Time
	for e := range w.watch {
		if !e.at.After(now) {
			delete(w.watch, e)
			go e.fire()
		} else if next.IsZero() || e.at.Before(next) {
			next = e.at
		}
	}
	if !next.IsZero() {
		w.arm(next)
	}
}
