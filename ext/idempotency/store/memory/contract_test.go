package memory_test

import (
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

// backend is one store: there is no other process that could share it.
func backend(_ testing.TB, c storetest.Config) storetest.Backend {
	clock := storetest.NewClock()
	s := memory.New(&memory.Options{
		Retention: c.Retention, RotateEvery: c.RotateEvery, ClosingFor: c.ClosingFor,
		MaxRecords: c.MaxRecords, MaxRecordsPerPrincipal: c.MaxRecordsPerPrincipal,
		MaxOpenPerPrincipal: c.MaxOpenPerPrincipal, MaxResultBytes: c.MaxResultBytes,
		Now: clock.Now,
	})
	return storetest.Backend{
		Open:    func(testing.TB) store.Store { return s },
		Advance: clock.Advance,
		Limits:  storetest.Limits{Records: true, RecordsPerPrincipal: true, OpenPerPrincipal: true, ResultBytes: true},
	}
}

func TestStoreKeepsTheContract(t *testing.T) { storetest.Run(t, backend) }

func BenchmarkStore(b *testing.B) { storetest.Bench(b, backend) }
