package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

const recordsHelp = `Lists the records of a server's store, and resolves those whose outcome is
unknown: a call started, its server died or gave it up, and nobody recorded
how it ended. Every later attempt of such a call is answered outcomeUnknown
until somebody who has looked at its effect says what happened.

Exactly one of the flags --sqlite, --postgres and --redis says which store. The
other flags have to say what the server's own options say of it. Outcomes that
the server encrypts (Options.Seal) cannot be resolved with a result here: do
that in a program of your own, by store.Operator.

Principals are shown and taken in Go's quoted form where they are not plain
text; the empty one is the anonymous.

` + exitCodesHelp

// storeFlags say which store to open.
type storeFlags struct {
	sqlite, witness string

	postgres, schema string

	redis, prefix string
	keep          bool
}

func newRecords() *cobra.Command {
	var where storeFlags
	cmd := &cobra.Command{
		Use:   "records",
		Short: "List a store's records and resolve unknown outcomes",
		Long:  recordsHelp,
		Args:  knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError{errors.New("say what to do: records list or records resolve"), cmd.CommandPath()}
		},
	}
	cmd.PersistentFlags().StringVar(&where.sqlite, "sqlite", "", "the SQLite database file")
	cmd.PersistentFlags().StringVar(&where.postgres, "postgres", "", "the PostgreSQL connection URL")
	cmd.PersistentFlags().StringVar(&where.redis, "redis", "", "the Redis URL")
	cmd.PersistentFlags().StringVar(&where.witness, "witness", "", "with --sqlite: the witness file (default: beside the database)")
	cmd.PersistentFlags().StringVar(&where.schema, "schema", "mcp_idempotency", "with --postgres: the store's schema")
	cmd.PersistentFlags().StringVar(&where.prefix, "prefix", "idempotency", "with --redis: the store's prefix")
	cmd.PersistentFlags().BoolVar(&where.keep, "keep-over-restarts", false, "with --redis: the server's Options.KeepOverRestarts")
	cmd.AddCommand(newRecordsList(&where), newRecordsResolve(&where))
	return cmd
}

func newRecordsList(where *storeFlags) *cobra.Command {
	var states []string
	var limit int
	format := formatTable
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List records, by default those of unknown outcome",
		Example: `  sepcheck records list --sqlite records.db
  sepcheck records list --postgres postgres://localhost/app --state running,unknown --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := store.Query{Limit: limit}
			for _, name := range states {
				s, ok := stateNamed(name)
				if !ok {
					return usageError{fmt.Errorf("--state: %q is not one of %s", name, stateNames()), cmd.CommandPath()}
				}
				q.States = append(q.States, s)
			}
			if limit < 1 {
				return usageError{fmt.Errorf("--limit must be above zero, not %d", limit), cmd.CommandPath()}
			}
			return withOperator(cmd, where, func(op store.Operator) error {
				entries, err := op.List(cmd.Context(), q)
				if err != nil {
					return fmt.Errorf("listing records: %w", err)
				}
				return writeEntries(cmd.OutOrStdout(), format, entries)
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", []string{store.Unknown.String()}, "states to list: "+stateNames())
	cmd.Flags().IntVar(&limit, "limit", 100, "the most records to list")
	cmd.Flags().Var(&format, "format", "output: table, json or markdown")
	return cmd
}

func newRecordsResolve(where *storeFlags) *cobra.Command {
	var principal, result, notRun string
	cmd := &cobra.Command{
		Use:   "resolve KEY",
		Short: "Say what became of a call whose outcome is unknown",
		Long: `Resolves a record of unknown outcome, for good:

  --result FILE     it ran: FILE holds the CallToolResult (JSON, - for standard
                    input) that every later attempt gets
  --not-run REASON  it had no effect: later attempts are answered noEffect

Look at the effect itself before you say so: nobody checks it after you.`,
		Example: `  sepcheck records resolve --sqlite records.db m4x.7k2 --result receipt.json
  sepcheck records resolve --postgres postgres://localhost/app m4x.7k2 --principal ada --not-run "no such charge at the bank"`,
		Args: cobra.MatchAll(func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("give exactly one key, not %d", len(args)), cmd.CommandPath()}
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			event, outcome, err := resolution(cmd, result, notRun)
			if err != nil {
				return err
			}
			return withOperator(cmd, where, func(op store.Operator) error {
				id := store.ID{Principal: unquoted(principal), Key: unquoted(args[0])}
				switch err := op.Resolve(cmd.Context(), id, event, outcome); {
				case errors.Is(err, store.ErrNoRecord):
					return fmt.Errorf("there is no record with this key and principal %q: the key may be another principal's (--principal)", id.Principal)
				case errors.Is(err, store.ErrNotUnknown):
					return errors.New("the outcome of this record is known; nothing was changed")
				case err != nil:
					return fmt.Errorf("resolving: %w", err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "resolved: %s\n", event)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&principal, "principal", "", "whose record it is")
	cmd.Flags().StringVar(&result, "result", "", "file with the CallToolResult to answer with")
	cmd.Flags().StringVar(&notRun, "not-run", "", "why it is known not to have run")
	return cmd
}

// resolution reads what the flags say became of the call.
func resolution(cmd *cobra.Command, result, notRun string) (store.Event, []byte, error) {
	usage := func(err error) error { return usageError{err, cmd.CommandPath()} }
	if (result == "") == (notRun == "") {
		return 0, nil, usage(errors.New("give one of --result and --not-run"))
	}
	if notRun != "" {
		return store.ResolveNoEffect, idempotency.NoEffectOutcome(notRun), nil
	}
	read := func() ([]byte, error) { return os.ReadFile(result) }
	if result == "-" {
		read = func() ([]byte, error) { return io.ReadAll(cmd.InOrStdin()) }
	}
	b, err := read()
	if err != nil {
		return 0, nil, usage(fmt.Errorf("--result: %w", err))
	}
	outcome, err := idempotency.ResultOutcome(b)
	if err != nil {
		return 0, nil, usage(fmt.Errorf("--result: %w", err))
	}
	return store.ResolveCompleted, outcome, nil
}

// withOperator opens the store that the flags name and closes it again.
func withOperator(cmd *cobra.Command, where *storeFlags, do func(store.Operator) error) error {
	set := 0
	for _, v := range []string{where.sqlite, where.postgres, where.redis} {
		if v != "" {
			set++
		}
	}
	if set != 1 {
		return usageError{errors.New("give one of --sqlite, --postgres and --redis"), cmd.CommandPath()}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 30*time.Second)
	defer cancel()
	op, closeStore, err := openOperator(ctx, where)
	if err != nil {
		var network *net.OpError
		if ctx.Err() != nil || errors.As(err, &network) {
			return fmt.Errorf("the store %w: %w", errNoPeer, err)
		}
		return fmt.Errorf("opening the store: %w", err)
	}
	return errors.Join(do(op), closeStore())
}

// entryJSON is a record in `--format json`.
type entryJSON struct {
	Principal  string    `json:"principal"`
	Key        string    `json:"key"`
	Namespace  string    `json:"namespace"`
	State      string    `json:"state"`
	Since      time.Time `json:"since"`
	LeaseUntil time.Time `json:"leaseUntil,omitzero"`
}

func writeEntries(w io.Writer, f format, entries []store.Entry) error {
	if f == formatJSON {
		out := struct {
			Records []entryJSON `json:"records"`
		}{[]entryJSON{}}
		for _, e := range entries {
			out.Records = append(out.Records, entryJSON{quoted(e.Principal), quoted(e.Key), e.Namespace, e.State.String(), e.Since, e.LeaseUntil})
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(out)
	}
	if len(entries) == 0 {
		_, err := fmt.Fprintln(w, "no records")
		return err
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"principal", "key", "state", "since", "lease until"})
	for _, e := range entries {
		lease := ""
		if !e.LeaseUntil.IsZero() {
			lease = e.LeaseUntil.Format(time.RFC3339)
		}
		t.AppendRow(table.Row{quoted(e.Principal), quoted(e.Key), e.State, e.Since.Format(time.RFC3339), lease})
	}
	text := t.Render
	if f == formatMarkdown {
		text = t.RenderMarkdown
	}
	_, err := fmt.Fprintln(w, text())
	return err
}

// quoted shows a string of any bytes: as it is when it is plain text.
func quoted(s string) string {
	if q := strconv.Quote(s); q[1:len(q)-1] != s || strings.HasPrefix(s, `"`) {
		return q
	}
	return s
}

// unquoted is the opposite of quoted.
func unquoted(s string) string {
	if u, err := strconv.Unquote(s); err == nil && strings.HasPrefix(s, `"`) {
		return u
	}
	return s
}

func stateNamed(name string) (store.State, bool) {
	for _, s := range store.States() {
		if s != store.Absent && s.String() == name {
			return s, true
		}
	}
	return store.Absent, false
}

func stateNames() string {
	var names []string
	for _, s := range store.States() {
		if s != store.Absent {
			names = append(names, s.String())
		}
	}
	return strings.Join(names, ", ")
}
