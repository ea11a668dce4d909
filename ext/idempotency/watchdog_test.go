package idempotency

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheWatchdogFiresEachAtItsTimeAndNoneThatWasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchdog
		var fired atomic.Int64
		count := func() { fired.Add(1) }
		start := time.Now()
		at := func(d time.Duration, want int64) {
			time.Sleep(time.Until(start.Add(d)))
			synctest.Wait()
			if got := fired.Load(); got != want {
				t.Errorf("after %v: %d fired, want %d", d, got, want)
			}
		}
		w.after(10*time.Second, count)
		stop := w.after(5*time.Second, count) // earlier than the one before
		w.after(7*time.Second, count)
		at(4*time.Second, 0)
		stop()
		at(6*time.Second, 0)
		at(7*time.Second, 1)
		at(9*time.Second, 1)
		at(10*time.Second, 2)
		w.after(time.Second, count) // after it went idle
		at(11*time.Second, 3)
		at(60*time.Second, 3)
	})
}
