package sqlite

import (
	"testing"
	"time"
)

func TestTheClock(t *testing.T) {
	const start = 1_800_000_000_000
	var wall time.Time
	set := func(ms int64) { wall = time.UnixMilli(ms) }
	reading := func(c *clock, stored instant, want int64) {
		t.Helper()
		if got := c.read(stored).at; got != want {
			t.Errorf("at %d with %+v stored: the clock shows %d, want %d", wall.UnixMilli(), stored, got, want)
		}
	}
	c := clock{now: func() time.Time { return wall }}
	set(start)
	reading(&c, instant{}, start) // a new store
	set(start + 10)
	reading(&c, instant{start, start}, start+10)
	set(start - 1000) // stepped back: it stands
	reading(&c, instant{start + 10, start + 10}, start+10)
	set(start - 995) // and goes on
	reading(&c, instant{start + 10, start + 10}, start+15)
	reading(&c, instant{start + 100, start}, start+100) // another process is ahead
	set(start - 990)
	reading(&c, instant{start + 100, start}, start+105)

	next := clock{now: c.now} // the store is opened again
	set(start + 5000)
	reading(&next, instant{start + 105, start - 990}, start+105+5990)
	back := clock{now: c.now}
	set(start - 10_000)
	reading(&back, instant{start + 105, start - 990}, start+105)
}

func TestTheClockDoesNotLosePartsOfMilliseconds(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	c := clock{now: func() time.Time { return at }}
	began := c.read(instant{}).at
	for range 1000 {
		at = at.Add(300 * time.Microsecond)
		c.read(instant{})
	}
	if passed := c.read(instant{}).at - began; passed != 300 {
		t.Errorf("%d ms passed, want 300", passed)
	}
}

func TestAPartOfAMillisecondIsOne(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Microsecond: 1, time.Millisecond: 1, time.Millisecond + 1: 2, -time.Second: -999, time.Hour: 3_600_000,
	} {
		if got := ms(d); got != want && d >= 0 {
			t.Errorf("%v is %d ms, want %d", d, got, want)
		}
		if d < 0 && ms(d) > 0 {
			t.Errorf("%v is %d ms", d, ms(d))
		}
	}
}
