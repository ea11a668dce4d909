package redis

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Options bound a [Store]. The zero value of each field selects its default;
// a negative value is an error of [Open]. Every instance over the same Prefix
// should have the same options; where they differ (during a deploy) a
// namespace keeps the times that it was made with, and each instance applies
// its own bounds.
type Options struct {
	// Prefix names the records, apart from those of other stores on the same
	// server: 1–100 bytes without '{' and '}'. All keys and channels begin
	// with "{Prefix}:". Default "idempotency".
	Prefix string

	// Retention is how long a record is kept at least after its call ended.
	// Default 24 h.
	Retention time.Duration
	// RotateEvery is how long a namespace is the declared one. Default 24 h.
	RotateEvery time.Duration
	// ClosingFor is how long a namespace that is no longer declared still
	// takes new keys: as long as clients may hold an old capability. Default
	// 1 h.
	ClosingFor time.Duration

	// MaxRecords bounds the records of all namespaces. A new key beyond it is
	// refused. Default 1,048,576, at most 33,554,432; see the package comment
	// for what they take.
	MaxRecords int
	// MaxRecordsPerPrincipal bounds the records of one principal. Default
	// half of MaxRecords; at most MaxRecords.
	MaxRecordsPerPrincipal int
	// MaxOpenPerPrincipal bounds the calls of one principal that run or wait
	// for input. Default 65,536 or MaxRecordsPerPrincipal, what is less.
	MaxOpenPerPrincipal int
	// MaxResultBytes bounds the outcomes that are kept, as they are stored.
	// The oldest go first. Default 256 MiB.
	MaxResultBytes int64

	// KeepOverRestarts goes on with the namespaces when the server was
	// restarted, instead of beginning a new one. It says that a restart of
	// this server loses nothing: see "Restarts" in the package comment for
	// what Open checks and what it has to believe.
	KeepOverRestarts bool

	// PollInterval is how long a wait for another instance's run goes without
	// looking at the record, should the wake-up by pub/sub not come. Default
	// 2 s.
	PollInterval time.Duration

	// Seal and Unseal encrypt and decrypt the outcomes and questions that the
	// server keeps: both or none. Unseal is given what Seal returned, by any
	// process; what was stored without Seal stays readable. Principals, keys
	// and times are not encrypted. When Seal fails the end of a call is
	// recorded without its outcome, and a question is not recorded; when
	// Unseal fails, so does Reserve.
	Seal, Unseal func([]byte) ([]byte, error)
}

// maxRecords is half of what fits into a counter of lua/record.lua.
const maxRecords = 1 << 25

// withDefaults copies o, checks it and fills it in.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Retention", int64(c.Retention)}, {"RotateEvery", int64(c.RotateEvery)}, {"ClosingFor", int64(c.ClosingFor)},
		{"MaxRecords", int64(c.MaxRecords)}, {"MaxRecordsPerPrincipal", int64(c.MaxRecordsPerPrincipal)},
		{"MaxOpenPerPrincipal", int64(c.MaxOpenPerPrincipal)}, {"MaxResultBytes", c.MaxResultBytes},
		{"PollInterval", int64(c.PollInterval)},
	} {
		if f.value < 0 {
			return c, fmt.Errorf("redis: Options.%s is negative (%d)", f.name, f.value)
		}
	}
	c.Prefix = cmp.Or(c.Prefix, "idempotency")
	if len(c.Prefix) > 100 || strings.ContainsAny(c.Prefix, "{}") {
		return c, fmt.Errorf("redis: Options.Prefix %.100q has more than 100 bytes or a brace", c.Prefix)
	}
	if c.MaxRecords > maxRecords {
		return c, fmt.Errorf("redis: Options.MaxRecords is %d; at most %d", c.MaxRecords, maxRecords)
	}
	if (c.Seal == nil) != (c.Unseal == nil) {
		return c, fmt.Errorf("redis: Options.Seal and Options.Unseal: one is set without the other")
	}
	c.Retention = cmp.Or(c.Retention, 24*time.Hour)
	c.RotateEvery = cmp.Or(c.RotateEvery, 24*time.Hour)
	c.ClosingFor = cmp.Or(c.ClosingFor, time.Hour)
	c.MaxRecords = cmp.Or(c.MaxRecords, 1<<20)
	c.MaxRecordsPerPrincipal = min(cmp.Or(c.MaxRecordsPerPrincipal, (c.MaxRecords+1)/2), c.MaxRecords)
	c.MaxOpenPerPrincipal = cmp.Or(c.MaxOpenPerPrincipal, min(65536, c.MaxRecordsPerPrincipal))
	c.MaxResultBytes = cmp.Or(c.MaxResultBytes, 256<<20)
	c.PollInterval = cmp.Or(c.PollInterval, 2*time.Second)
	return c, nil
}
