// Package storetest is the contract of [store.Store] as tests: an
// implementation that passes [Run] can be given to the middleware. [Bench]
// measures one.
//
// It checks the rules that keep a tool from running twice (one winner for a
// key, whoever asks where; tokens that fence every later step; namespaces that
// rotate by compare-and-set; room that is refused and never made by
// forgetting), and those by which a caller learns the truth (replay, mismatch,
// waiting, leases, questions, an operator's word).
//
// It does not check what needs the implementation's own means: that records
// survive a crash of the process or the machine, that a restored backup is
// noticed, and that migrations may race. Those tests belong beside the
// implementation.
//
// An implementation is described by a [Factory], which makes the stores of one
// test:
//
//	func TestContract(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, c storetest.Config) storetest.Backend {
//			clock := storetest.NewClock()
//			s := memory.New(&memory.Options{Retention: c.Retention, RotateEvery: c.RotateEvery, Now: clock.Now})
//			return storetest.Backend{Open: func(testing.TB) store.Store { return s }, Advance: clock.Advance}
//		})
//	}
//
// What a backend does not offer (a clock, a way to make it fail, a limit) is
// skipped, by name, so that the output of go test -v says what was not tested.
package storetest
