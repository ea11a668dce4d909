package postgres

import (
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

func optionsFor(c storetest.Config) Options {
	return Options{
		Retention: c.Retention, RotateEvery: c.RotateEvery, ClosingFor: c.ClosingFor,
		MaxRecords: c.MaxRecords, MaxRecordsPerPrincipal: c.MaxRecordsPerPrincipal,
		MaxOpenPerPrincipal: c.MaxOpenPerPrincipal,
	}
}

func backend(t testing.TB, c storetest.Config, poll time.Duration) (storetest.Backend, *database) {
	d := newDatabase(t)
	opt := optionsFor(c)
	opt.PollInterval = poll
	return storetest.Backend{
		Open:        func(t testing.TB) store.Store { return d.open(t, &opt) },
		Durable:     true,
		Reconfigure: func(c storetest.Config) { opt = optionsFor(c); opt.PollInterval = poll },
		Break:       d.broken.Store,
		Limits:      storetest.Limits{Records: true, RecordsPerPrincipal: true, OpenPerPrincipal: true},
	}, d
}

// By the database's own clock, and with notifications alone: nobody polls for
// an hour.
func TestContract(t *testing.T) {
	serverURL(t)
	storetest.Run(t, func(t testing.TB, c storetest.Config) storetest.Backend {
		b, _ := backend(t, c, time.Hour)
		return b
	})
}

// By a clock that is moved. Nothing notifies of that, so that who waits has to
// poll.
func TestContractWithMovedClock(t *testing.T) {
	serverURL(t)
	storetest.Run(t, func(t testing.TB, c storetest.Config) storetest.Backend {
		b, d := backend(t, c, 50*time.Millisecond)
		b.Advance = settable(t, d.open(t, &Options{Retention: c.Retention, RotateEvery: c.RotateEvery, ClosingFor: c.ClosingFor}))
		return b
	})
}

func BenchmarkContract(b *testing.B) {
	serverURL(b)
	storetest.Bench(b, func(t testing.TB, c storetest.Config) storetest.Backend {
		back, _ := backend(t, c, time.Hour)
		return back
	})
}
