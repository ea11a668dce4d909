package postgres

import (
	"cmp"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options configure a [Store]. The zero value of each field selects its
// default; a negative number is refused by [Open].
type Options struct {
	// Schema is the schema that the store has to itself, and the channel it
	// notifies on. 1–48 of a–z, 0–9 and _, no digit first. Default
	// mcp_idempotency.
	Schema string

	// Retention is how long a record is kept at least after its call ended.
	// Default 24 h. This and the next two are fixed in a namespace when it is
	// made: a change takes effect with the next one.
	Retention time.Duration
	// RotateEvery is how long a namespace is the declared one. Default 24 h.
	RotateEvery time.Duration
	// ClosingFor is how long a namespace that is no longer declared still
	// takes new keys: as long as clients may hold an old capability. Default
	// 1 h.
	ClosingFor time.Duration

	// MaxRecords bounds the records of all held namespaces. A new key beyond
	// it is refused. Like the next bound it is exact up to 4096, and above
	// that off by a few percent. Default 10,000,000.
	MaxRecords int
	// MaxRecordsPerPrincipal bounds the records of one principal. Default half
	// of MaxRecords; at most MaxRecords.
	MaxRecordsPerPrincipal int
	// MaxOpenPerPrincipal bounds the calls of one principal that run or wait
	// for input. Default 65,536 or MaxRecordsPerPrincipal, what is less.
	MaxOpenPerPrincipal int

	// ToolIsolation is the isolation level of the transactions that AddTool
	// gives to handlers. Above READ COMMITTED the database may refuse to
	// commit; then the effect is undone and the next attempt runs. Default:
	// the connection's own, which is READ COMMITTED.
	ToolIsolation pgx.TxIsoLevel

	// PollInterval is how often a waiting duplicate looks at the record of the run
	// that it waits for when no notification comes. Default 2 s.
	PollInterval time.Duration

	// Seal and Unseal encrypt and decrypt outcomes and questions on their way
	// to and from the database; keys, principals and fingerprints are stored
	// as they are. Both or neither. What was stored without Seal stays
	// readable. An error of Seal keeps a transactional run from being
	// committed, and makes another one's result unavailable. An error of
	// Unseal is one of the store, so that the call may be sent again; nil from
	// Unseal says that the outcome cannot be had any more. Both must be safe
	// for concurrent use. Default: none.
	Seal, Unseal func([]byte) ([]byte, error)

	// WholePages says that the file system never writes a part of a page of
	// 8 KiB (as ZFS does not), so that full_page_writes may be off.
	WholePages bool

	// Logger reports what goes on in the background: a notification
	// connection that is lost, rows that could not be removed. Default: none.
	Logger *slog.Logger
}

// A schema's name is put into statements, so its form is narrow.
var schemaForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// withDefaults copies o, checks it and fills it in.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"Retention", int64(c.Retention)}, {"RotateEvery", int64(c.RotateEvery)}, {"ClosingFor", int64(c.ClosingFor)},
		{"MaxRecords", int64(c.MaxRecords)}, {"MaxRecordsPerPrincipal", int64(c.MaxRecordsPerPrincipal)},
		{"MaxOpenPerPrincipal", int64(c.MaxOpenPerPrincipal)}, {"PollInterval", int64(c.PollInterval)},
	} {
		if f.v < 0 {
			return c, fmt.Errorf("postgres: Options.%s is negative (%d)", f.name, f.v)
		}
	}
	if (c.Seal == nil) != (c.Unseal == nil) {
		return c, fmt.Errorf("postgres: Options.Seal and Options.Unseal belong together; one is missing")
	}
	c.Schema = cmp.Or(c.Schema, "mcp_idempotency")
	if !schemaForm.MatchString(c.Schema) {
		return c, fmt.Errorf("postgres: Options.Schema is %q; it has to match %v", c.Schema, schemaForm)
	}
	c.Retention = max(cmp.Or(c.Retention, 24*time.Hour), time.Millisecond)
	c.RotateEvery = max(cmp.Or(c.RotateEvery, 24*time.Hour), time.Millisecond)
	c.ClosingFor = max(cmp.Or(c.ClosingFor, time.Hour), time.Millisecond)
	c.MaxRecords = cmp.Or(c.MaxRecords, 10_000_000)
	c.MaxRecordsPerPrincipal = min(cmp.Or(c.MaxRecordsPerPrincipal, (c.MaxRecords+1)/2), c.MaxRecords)
	c.MaxOpenPerPrincipal = cmp.Or(c.MaxOpenPerPrincipal, min(65536, c.MaxRecordsPerPrincipal))
	c.PollInterval = cmp.Or(c.PollInterval, 2*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
