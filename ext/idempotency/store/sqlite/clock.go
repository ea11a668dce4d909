package sqlite

import (
	"sync"
	"time"
)

// A clock is the store's own. It is set by the machine's clock when the
// database is opened, and from then on moves by what passes on the process's
// monotonic clock, so that a step of the machine's clock neither stretches a
// lease nor shortens the retention. What it showed last is in the database:
// it never goes back, in any process.
//
// Between two processes' lives only the machine's clock can tell how much time
// has passed; a step back in between counts as none.
type clock struct {
	now func() time.Time

	mu   sync.Mutex
	last time.Time     // what now said when at was right; zero before the first reading
	at   time.Duration // since 1970
}

// An instant is a reading: by the store's clock and by the machine's, in
// milliseconds since 1970.
type instant struct{ at, wall int64 }

// read returns the time, given what the database has of it.
func (c *clock) read(stored instant) instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.now()
	least := time.Duration(stored.at) * time.Millisecond
	if c.last.IsZero() {
		c.at = least + time.Duration(max(0, n.UnixMilli()-stored.wall))*time.Millisecond
	} else {
		c.at = max(least, c.at+max(0, n.Sub(c.last)))
	}
	c.last = n
	return instant{c.at.Milliseconds(), n.UnixMilli()}
}

// ms turns a duration into milliseconds, the part of one counting as a whole:
// a lease of a microsecond is short and not none.
func ms(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func timeOf(ms int64) time.Time { return time.UnixMilli(ms) }
