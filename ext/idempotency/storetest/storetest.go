package storetest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A Factory makes the stores of one test: fresh, empty, and apart from those
// of every other call. It registers what has to be cleaned up with t.
type Factory func(t testing.TB, c Config) Backend

// Config is what a test wants of its stores. A zero field means whatever the
// implementation does by itself. Limits that the implementation does not have
// are left unset in [Backend.Limits].
type Config struct {
	// Retention is how long a record is kept at least after its call ended.
	Retention time.Duration
	// RotateEvery is how long a namespace is the declared one.
	RotateEvery time.Duration
	// ClosingFor is how long a namespace takes new keys after that.
	ClosingFor time.Duration
	// MaxRecords bounds all records.
	MaxRecords int
	// MaxRecordsPerPrincipal bounds the records of one principal.
	MaxRecordsPerPrincipal int
	// MaxOpenPerPrincipal bounds the calls of one principal that run or wait.
	MaxOpenPerPrincipal int
	// MaxResultBytes bounds the outcomes that are kept.
	MaxResultBytes int64
}

// Limits says which bounds of [Config] an implementation keeps.
type Limits struct {
	Records, RecordsPerPrincipal, OpenPerPrincipal, ResultBytes bool
}

// A Backend is one set of records and the means to work on it. Open is
// required; every other field may be left at its zero value.
type Backend struct {
	// Open returns another instance over the same records, as another server
	// process would have one. A store that lives in one process returns the
	// same value every time. Instances that are io.Closers are closed by the
	// suite.
	Open func(t testing.TB) store.Store

	// Durable says that the records outlive the instances: after all are
	// closed, the next one that is opened has them.
	Durable bool

	// Advance moves the clock of every instance by d; a negative d is a step
	// back, as an operator or NTP does it. Nil means that the store cannot be
	// told the time: leases are then tested in real time, and rotation is not.
	Advance func(d time.Duration)

	// Reconfigure makes the instances opened from now on use c: a deploy with
	// other options. Nil when it cannot be done.
	Reconfigure func(c Config)

	// Break makes every step of every instance fail until it is called with
	// false, as in an outage of the database. Nil when it cannot be done.
	Break func(broken bool)

	// Limits are the bounds of Config that are kept.
	Limits Limits

	// WakeWithin bounds how long after the end of a run another instance's
	// Await returns. Default 5 s. A store that has events sets its polling
	// interval to an hour in the Factory and leaves this as it is: then it is
	// the event that wakes.
	WakeWithin time.Duration
}

// Run runs the contract against the stores of f, one subtest per rule. With
// groups, which are the names of the first level of subtests, it runs only
// those: for a second backend that differs in one respect.
func Run(t *testing.T, f Factory, groups ...string) {
	for _, name := range groups {
		if !slices.Contains(Groups(), name) {
			t.Errorf("storetest: there is no group %q", name)
		}
	}
	for _, g := range contracts() {
		if len(groups) > 0 && !slices.Contains(groups, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				t.Run(c.rule, func(t *testing.T) { c.check(newWorld(t, f, c.config)) })
			}
		})
	}
}

// Groups returns the names of the groups of rules, for those who want to run
// them side by side.
func Groups() (names []string) {
	for _, g := range contracts() {
		names = append(names, g.name)
	}
	return names
}

// A group is the rules of one subject.
type group struct {
	name  string
	tests []contract
}

func contracts() []group {
	return []group{
		{"Reserve", reserveTests()},
		{"Record", recordTests()},
		{"Questions", questionTests()},
		{"Leases", leaseTests()},
		{"Transactional", transactionalTests()},
		{"Await", awaitTests()},
		{"Namespaces", namespaceTests()},
		{"Clock", clockTests()},
		{"Capacity", capacityTests()},
		{"Hostile", hostileTests()},
		{"LifeCycle", lifeCycleTests()},
		{"Operator", operatorTests()},
		{"Outage", outageTests()},
	}
}

// A contract is one rule and the check of it.
type contract struct {
	rule   string
	config Config
	check  func(w *world)
}

// A Clock is a clock that moves when it is told to, for implementations whose
// options take one.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that stands at some instant.
func NewClock() *Clock { return &Clock{now: time.Unix(1_800_000_000, 0)} }

// Now returns the instant.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock, back if d is negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
