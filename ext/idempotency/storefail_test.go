package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang/mock/gomock"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mockstore"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

var errDown = errors.New("connection refused")

// failing is a memory store behind a mock, in which single steps are made to
// fail; what is not expected first reaches the memory store.
type failing struct {
	*mockstore.MockStore
	behind *memory.Store
}

func newFailing(t gomock.TestReporter, expect func(m *mockstore.MockStoreMockRecorder, behind *memory.Store)) failing {
	ctrl := gomock.NewController(t)
	f := failing{mockstore.NewMockStore(ctrl), memory.New(nil)}
	if expect != nil {
		expect(f.EXPECT(), f.behind)
	}
	rec, any := f.EXPECT(), gomock.Any()
	rec.Current(any).DoAndReturn(f.behind.Current).AnyTimes()
	rec.Reserve(any, any).DoAndReturn(f.behind.Reserve).AnyTimes()
	rec.Record(any, any, any).DoAndReturn(f.behind.Record).AnyTimes()
	rec.Renew(any, any, any).DoAndReturn(f.behind.Renew).AnyTimes()
	rec.Await(any, any, any).DoAndReturn(f.behind.Await).AnyTimes()
	return f
}

// committed does the step and loses the acknowledgement.
func committed(behind *memory.Store) func(context.Context, store.Attempt) (store.Reservation, error) {
	return func(ctx context.Context, a store.Attempt) (store.Reservation, error) {
		if _, err := behind.Reserve(ctx, a); err != nil {
			return store.Reservation{}, err
		}
		return store.Reservation{}, errDown
	}
}

// X19, first half.
func TestAReserveWhoseAnswerWasLostIsReadAgainByItsToken(t *testing.T) {
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
			m.Reserve(gomock.Any(), gomock.Any()).DoAndReturn(committed(behind)).Times(1)
		})}
	}, func(t *testing.T, f *fixture) {
		key := f.key()
		if r := f.tool("charge", key, `{"amount":1}`); r.Error != nil || r.replayed() {
			t.Error(r)
		}
		if r := f.tool("charge", key, `{"amount":1}`); !r.replayed() {
			t.Error(r)
		}
		f.wantEffects(1)
		if f.idem.Orphans() != 0 {
			t.Error("an orphan is left")
		}
	})
}

// X19, second half: the caller was told "not run", so the key is not lost, and
// of those who come for it one runs.
func TestAReservationThatNobodyKnowsOfIsTakenOver(t *testing.T) {
	for name, lost := range map[string]func(behind *memory.Store) func(context.Context, store.Attempt) (store.Reservation, error){
		"committed": committed,
		"not committed": func(*memory.Store) func(context.Context, store.Attempt) (store.Reservation, error) {
			return func(context.Context, store.Attempt) (store.Reservation, error) { return store.Reservation{}, errDown }
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func() *idempotency.Options {
				return &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
					m.Reserve(gomock.Any(), gomock.Any()).DoAndReturn(lost(behind)).Times(2)
				})}
			}, func(t *testing.T, f *fixture) {
				key := f.key()
				wantReason(t, f.tool("charge", key, `{"amount":1}`), schema.ReasonStoreUnavailable)
				f.wantEffects(0)
				var calls []*pending
				for range 20 {
					calls = append(calls, f.start(t.Context(), "charge", key, `{"amount":1}`))
				}
				for _, p := range calls {
					sameValue(t, calls[0].wait(t), p.wait(t))
				}
				f.wantEffects(1)
				if f.idem.Runs() != 0 {
					t.Error("a run is left")
				}
			})
		})
	}
}

func TestALookUpLeavesNoOrphan(t *testing.T) {
	f := newFixture(t, connectors()[0], &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, _ *memory.Store) {
		m.Reserve(gomock.Any(), gomock.Any()).Return(store.Reservation{}, errDown).Times(1)
	})})
	wantReason(t, f.tool("no_such_tool", f.key(), `{}`), schema.ReasonStoreUnavailable)
	if f.idem.Orphans() != 0 {
		t.Error("a look-up left an orphan")
	}
}

func TestAResultThatCannotBeRecordedStillReachesItsCaller(t *testing.T) {
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{WaitLimit: 20 * time.Millisecond, Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, _ *memory.Store) {
			m.Record(gomock.Any(), gomock.Any(), gomock.Any()).Return(errDown).Times(3)
		})}
	}, func(t *testing.T, f *fixture) {
		key := f.key()
		if r := f.tool("charge", key, `{"amount":1}`); r.Error != nil || r.replayed() {
			t.Errorf("the live caller got %v", r)
		}
		// The store still has it as running; it never runs again.
		wantReason(t, f.tool("charge", key, `{"amount":1}`), schema.ReasonStillRunning)
		f.wantEffects(1)
	})
}

func TestARecordIsWrittenAgainUntilItIsKnownToBeThere(t *testing.T) {
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
			m.Record(gomock.Any(), gomock.Any(), gomock.Any()).DoAndReturn(func(ctx context.Context, run store.RunRef, end store.End) error {
				_ = behind.Record(ctx, run, end)
				return errDown
			}).Times(2)
		})}
	}, func(t *testing.T, f *fixture) {
		for _, tool := range []string{"charge", "no_effect"} {
			key := f.key()
			first := f.tool(tool, key, `{"amount":1}`)
			sameValue(t, first, f.tool(tool, key, `{"amount":1}`))
		}
		f.wantEffects(2)
	})
}

// A run that was taken over or resolved meanwhile is not written over, and its
// caller still learns what it did.
func TestAFencedRecordIsNotTriedAgain(t *testing.T) {
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
			m.Record(gomock.Any(), gomock.Any(), gomock.Any()).DoAndReturn(func(ctx context.Context, run store.RunRef, _ store.End) error {
				if err := behind.Record(ctx, run, store.End{Event: store.Lose}); err != nil {
					t.Error(err)
				}
				return store.ErrFenced
			}).Times(1)
		})}
	}, func(t *testing.T, f *fixture) {
		key := f.key()
		if r := f.tool("charge", key, `{"amount":1}`); r.Error != nil || r.replayed() {
			t.Errorf("the live caller got %v", r)
		}
		wantReason(t, f.tool("charge", key, `{"amount":1}`), schema.ReasonOutcomeUnknown)
		f.wantEffects(1)
	})
}

func TestAStoreThatCannotWaitIsAskedLater(t *testing.T) {
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
			m.Await(gomock.Any(), gomock.Any(), gomock.Any()).Return(errDown).Times(1)
		})}
	}, func(t *testing.T, f *fixture) {
		// A run of another process: reserved behind the middleware's back.
		key, behind := f.key(), f.idem.Store().(failing).behind
		elsewhere := f.attempt(key, "charge", `{"amount":1}`)
		if r, err := behind.Reserve(t.Context(), elsewhere); err != nil || r.Verdict != store.Run {
			t.Fatal(r, err)
		}
		wantReason(t, f.tool("charge", key, `{"amount":1}`), schema.ReasonStillRunning)
		joiner := f.start(t.Context(), "charge", key, `{"amount":1}`)
		eventually(t, "it waits", func() bool { return f.idem.Waiters() == 1 })
		end := store.End{Event: store.DeclareNoEffect, Outcome: []byte("nnothing")}
		if err := behind.Record(t.Context(), store.RunRef{ID: elsewhere.ID, Token: elsewhere.Token}, end); err != nil {
			t.Fatal(err)
		}
		wantReason(t, joiner.wait(t), schema.ReasonNoEffect)
		f.wantEffects(0)
	})
}

func TestACapabilityThatCannotBeVouchedForIsNotDeclared(t *testing.T) {
	onEach(t, func() *idempotency.Options {
		return &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, _ *memory.Store) {
			m.Current(gomock.Any()).Return(store.Namespace{}, errDown).AnyTimes()
			m.Reserve(gomock.Any(), gomock.Any()).Return(store.Reservation{}, errDown).AnyTimes()
		})}
	}, func(t *testing.T, f *fixture) {
		if s, err := f.declared(); !errors.Is(err, errNotDeclared) {
			t.Errorf("declared %+v, %v", s, err)
		}
		// E4: keyed calls fail closed, unkeyed ones are as ever.
		wantReason(t, f.tool("charge", "some.key", `{"amount":1}`), schema.ReasonStoreUnavailable)
		f.wantEffects(0)
		if r := f.tool("charge", "", `{"amount":1}`); r.Error != nil {
			t.Error(r)
		}
	})
}

func TestAnswersOfAStoreThatMakeNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		answer store.Reservation
		want   schema.Reason
	}{
		"no verdict":        {store.Reservation{}, schema.ReasonStoreUnavailable},
		"empty record":      {store.Reservation{Verdict: store.Known, Record: store.Record{State: store.Completed, Outcome: []byte{}}}, schema.ReasonResultUnavailable},
		"unknown blob":      {store.Reservation{Verdict: store.Known, Record: store.Record{State: store.Completed, Outcome: []byte("?{}")}}, schema.ReasonResultUnavailable},
		"broken blob":       {store.Reservation{Verdict: store.Known, Record: store.Record{State: store.Completed, Outcome: []byte("r{")}}, schema.ReasonResultUnavailable},
		"broken question":   {store.Reservation{Verdict: store.Asked, Record: store.Record{State: store.Waiting, Outcome: []byte("r")}}, schema.ReasonResultUnavailable},
		"lost question":     {store.Reservation{Verdict: store.Asked, Record: store.Record{State: store.Waiting}}, schema.ReasonResultUnavailable},
		"forgotten message": {store.Reservation{Verdict: store.Known, Record: store.Record{State: store.NoEffect}}, schema.ReasonNoEffect},
		"no retry after":    {store.Reservation{Verdict: store.NoRoom}, schema.ReasonCapacityExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, connectors()[0], &idempotency.Options{Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, _ *memory.Store) {
				m.Reserve(gomock.Any(), gomock.Any()).Return(c.answer, nil).AnyTimes()
			})})
			wantReason(t, f.tool("charge", f.key(), `{"amount":1}`), c.want)
			f.wantEffects(0)
		})
	}
}

// attempt is what another process would reserve for a call.
func (f *fixture) attempt(key, tool, args string) store.Attempt {
	return store.Attempt{
		ID: store.ID{Key: key}, Token: store.Token{0xff, byte(keyCounter.Add(1))}, Fingerprint: idempotency.Fingerprint(tool, []byte(args)),
	}
}

// leased makes the store say that it watches leases.
func leased(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
	m.Reserve(gomock.Any(), gomock.Any()).DoAndReturn(func(ctx context.Context, a store.Attempt) (store.Reservation, error) {
		r, err := behind.Reserve(ctx, a)
		r.Leased = r.Verdict == store.Run
		return r, err
	}).AnyTimes()
}

func TestALeasedRunRenewsUntilItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewed []time.Duration
		start := time.Now()
		s := newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
			leased(m, behind)
			m.Renew(gomock.Any(), gomock.Any(), 30*time.Second).DoAndReturn(func(context.Context, store.RunRef, time.Duration) error {
				renewed = append(renewed, time.Since(start))
				if len(renewed) == 2 {
					return errDown // does not end the run
				}
				return nil
			}).AnyTimes()
		})
		d := newDirect(t, &idempotency.Options{Store: s}, func(ctx context.Context, _ string, _ mcp.Request) (mcp.Result, error) {
			time.Sleep(45 * time.Second)
			return &mcp.CallToolResult{Content: []mcp.Content{}}, ctx.Err()
		})
		if _, err := d.call(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // no renewal after the end
		if want := []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second}; !slices.Equal(renewed, want) {
			t.Errorf("renewed at %v, want %v", renewed, want)
		}
	})
}

func TestARunThatLostItsLeaseIsToldByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
			leased(m, behind)
			m.Renew(gomock.Any(), gomock.Any(), gomock.Any()).Return(nil).Times(2)
			m.Renew(gomock.Any(), gomock.Any(), gomock.Any()).Return(store.ErrFenced).Times(1)
			m.Record(gomock.Any(), gomock.Any(), gomock.Any()).Return(store.ErrFenced).Times(1)
		})
		start := time.Now()
		d := newDirect(t, &idempotency.Options{Store: s}, func(ctx context.Context, _ string, _ mcp.Request) (mcp.Result, error) {
			<-ctx.Done()
			if took := time.Since(start); took != 30*time.Second {
				t.Errorf("told after %v", took)
			}
			if errors.Is(context.Cause(ctx), context.Canceled) {
				t.Errorf("told %v", context.Cause(ctx))
			}
			return nil, ctx.Err()
		})
		if _, err := d.call(t.Context(), "k"); reasonOf(err) != schema.ReasonOutcomeUnknown {
			t.Errorf("the caller got %v", err)
		}
	})
}

// A store that hangs is given up, and the step is not cut short because its
// caller went away.
func TestAStepOfTheStoreHasALimitOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFailing(t, func(m *mockstore.MockStoreMockRecorder, _ *memory.Store) {
			m.Reserve(gomock.Any(), gomock.Any()).DoAndReturn(func(ctx context.Context, _ store.Attempt) (store.Reservation, error) {
				<-ctx.Done()
				return store.Reservation{}, ctx.Err()
			}).Times(2)
		})
		d := newDirect(t, &idempotency.Options{Store: s, StoreTimeout: 3 * time.Second}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		if _, err := d.call(ctx, "k"); reasonOf(err) != schema.ReasonStoreUnavailable {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 6*time.Second {
			t.Errorf("given up after %v, want two tries of 3 s", took)
		}
	})
}

func TestOrphansAreBounded(t *testing.T) {
	d := newDirect(t, &idempotency.Options{Store: brokenStore{memory.New(nil)}}, nil)
	d.idem.FillOrphans()
	for i := range 10 {
		if _, err := d.call(t.Context(), fmt.Sprintf("k%d", i)); reasonOf(err) != schema.ReasonStoreUnavailable {
			t.Fatal(err)
		}
	}
	if got := d.idem.Orphans(); got > 10_000 {
		t.Errorf("%d orphans are remembered", got)
	}
}
