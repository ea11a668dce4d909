package sqlite

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Options configure a [Store]. The zero value of each field selects its
// default; a negative value is an error of [Open].
type Options struct {
	// Retention is how long a record is kept at least after its call ended,
	// in namespaces that are made from now on. Default 24 h.
	Retention time.Duration
	// RotateEvery is how long a namespace is the declared one. Default 24 h.
	RotateEvery time.Duration
	// ClosingFor is how long a namespace that is no longer declared still
	// takes new keys: as long as clients may hold an old capability. Default
	// 1 h.
	ClosingFor time.Duration

	// MaxRecords bounds the records of all namespaces. A new key beyond it is
	// refused. Default 10,000,000, which is about 2 GiB of tombstones.
	MaxRecords int
	// MaxRecordsPerPrincipal bounds the records of one principal. Default
	// half of MaxRecords; at most MaxRecords.
	MaxRecordsPerPrincipal int
	// MaxOpenPerPrincipal bounds the calls of one principal that run or wait
	// for input. Default 65,536 or MaxRecordsPerPrincipal, what is less.
	MaxOpenPerPrincipal int
	// MaxResultBytes bounds the outcomes that are kept, in bytes as they are
	// stored. The oldest go first. Default 1 GiB.
	MaxResultBytes int64

	// BusyTimeout is how long a step waits for another process that writes,
	// unless its context ends before. Default 5 s.
	BusyTimeout time.Duration
	// PollInterval is how often a process that waits for a run of another
	// looks whether the file has changed. Default 100 ms.
	PollInterval time.Duration
	// WitnessPath is where the witness is kept. Every process that opens the
	// database must name the same one, and backups must not include it.
	// Default: the path of the database and ".witness".
	WitnessPath string

	// Seal and Unseal encrypt and decrypt the outcomes and questions at rest.
	// Either both are set or none. Unseal is given what Seal returned, by any
	// process; records that were stored without Seal stay readable.
	// Principals, keys and times are not encrypted. Seal may be called for an
	// outcome that is then not stored. Both must be safe for concurrent use.
	Seal, Unseal func([]byte) ([]byte, error)

	// Logger is told when the records cannot be vouched for any more and a
	// new namespace begins, and when tables could not be removed. Default:
	// none.
	Logger *slog.Logger
	// Now is the clock. Default time.Now, of whose values the monotonic part
	// is used while the process lives.
	Now func() time.Time
}

// withDefaults copies o and fills it in.
func (o *Options) withDefaults(path string) (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	for name, v := range map[string]int64{
		"Retention": int64(c.Retention), "RotateEvery": int64(c.RotateEvery), "ClosingFor": int64(c.ClosingFor),
		"MaxRecords": int64(c.MaxRecords), "MaxRecordsPerPrincipal": int64(c.MaxRecordsPerPrincipal),
		"MaxOpenPerPrincipal": int64(c.MaxOpenPerPrincipal), "MaxResultBytes": c.MaxResultBytes,
		"BusyTimeout": int64(c.BusyTimeout), "PollInterval": int64(c.PollInterval),
	} {
		if v < 0 {
			return c, fmt.Errorf("sqlite: Options.%s is negative (%d)", name, v)
		}
	}
	if (c.Seal == nil) != (c.Unseal == nil) {
		return c, errors.New("sqlite: Options.Seal and Options.Unseal belong together; one of them is not set")
	}
	c.Retention = cmp.Or(c.Retention, 24*time.Hour)
	c.RotateEvery = cmp.Or(c.RotateEvery, 24*time.Hour)
	c.ClosingFor = cmp.Or(c.ClosingFor, time.Hour)
	c.MaxRecords = cmp.Or(c.MaxRecords, 10_000_000)
	c.MaxRecordsPerPrincipal = min(cmp.Or(c.MaxRecordsPerPrincipal, (c.MaxRecords+1)/2), c.MaxRecords)
	c.MaxOpenPerPrincipal = cmp.Or(c.MaxOpenPerPrincipal, min(65536, c.MaxRecordsPerPrincipal))
	c.MaxResultBytes = cmp.Or(c.MaxResultBytes, 1<<30)
	c.BusyTimeout = cmp.Or(c.BusyTimeout, 5*time.Second)
	c.PollInterval = cmp.Or(c.PollInterval, 100*time.Millisecond)
	c.WitnessPath = cmp.Or(c.WitnessPath, path+".witness")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}
