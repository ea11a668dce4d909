package storetest_test

import (
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/storetest"
)

// A test of an implementation is one function; this is its body.
func ExampleRun() {
	contract := func(t *testing.T) {
		storetest.Run(t, func(t testing.TB, c storetest.Config) storetest.Backend {
			clock := storetest.NewClock()
			s := memory.New(&memory.Options{Retention: c.Retention, RotateEvery: c.RotateEvery, Now: clock.Now})
			return storetest.Backend{Open: func(testing.TB) store.Store { return s }, Advance: clock.Advance}
		})
	}
	_ = contract // in your package: func TestContract(t *testing.T)
}
