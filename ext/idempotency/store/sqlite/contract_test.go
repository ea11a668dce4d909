package sqlite_test

import (
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

func options(c storetest.Config) sqlite.Options {
	return sqlite.Options{
		Retention: c.Retention, RotateEvery: c.RotateEvery, ClosingFor: c.ClosingFor,
		MaxRecords: c.MaxRecords, MaxRecordsPerPrincipal: c.MaxRecordsPerPrincipal,
		MaxOpenPerPrincipal: c.MaxOpenPerPrincipal, MaxResultBytes: c.MaxResultBytes,
		PollInterval: 2 * time.Millisecond,
	}
}

// backend opens one file any number of times: each instance has connections of
// its own, as if it were another process. In an outage the file is gone.
func backend(t testing.TB, c storetest.Config) storetest.Backend {
	path, clock, opt := dbPath(t), storetest.NewClock(), options(c)
	b := onFile(path, &opt)
	opt.Now = clock.Now
	b.Advance = clock.Advance
	b.Reconfigure = func(c storetest.Config) { opt = options(c); opt.Now = clock.Now }
	b.Break = func(broken bool) {
		if away := path + ".away"; broken {
			rename(t, path, away)
		} else {
			rename(t, away, path)
		}
	}
	return b
}

// realTime has the machine's clock, so that leases pass by themselves.
func realTime(t testing.TB, c storetest.Config) storetest.Backend {
	opt := options(c)
	return onFile(dbPath(t), &opt)
}

func onFile(path string, opt *sqlite.Options) storetest.Backend {
	return storetest.Backend{
		Open:    func(t testing.TB) store.Store { return mustOpen(t, path, *opt) },
		Durable: true,
		Limits:  storetest.Limits{Records: true, RecordsPerPrincipal: true, OpenPerPrincipal: true, ResultBytes: true},
	}
}

func TestStoreKeepsTheContract(t *testing.T) {
	for _, group := range storetest.Groups() { // most of their time they wait for the disk
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, backend, group)
		})
	}
}

func TestStoreKeepsTheContractInRealTime(t *testing.T) {
	storetest.Run(t, realTime, "Leases", "Transactional", "Await")
}

func BenchmarkStore(b *testing.B) { storetest.Bench(b, realTime) }
