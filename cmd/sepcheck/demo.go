package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcp-idempotency/mcp-idempotency/internal/demo"
)

// demoServerName is the hidden command that the demo starts its servers with.
const demoServerName = "demo-server"

const demoHelp = `Loses the answer to a payment in six ways and counts what that costs.

For each fault (the connection cut after the charge by an end of stream, a
reset, a broken event or a 502; the stdio server killed; the client's timeout
on a slow tool) one payment is made with each of four stacks:

  plain           the SDK's client with a deadline
  loop            the same in a loop that calls again on an error
  retry-plain     clientretry against a server without the extension
  retry-extended  clientretry against a server with the extension

Each payment has a server process of its own, which logs every tools/call
before it does anything else and writes each charge to a ledger file. The table
counts the lines of these two files.

The demo succeeds when retry-extended charged exactly once in every row and
retry-plain never sent a second call.

` + exitCodesHelp

func newDemo() *cobra.Command {
	var opts demo.Options
	format := formatTable
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what a lost answer costs, with and without the extension",
		Long:  demoHelp,
		Example: `  sepcheck demo
  sepcheck demo --format json > rows.json
  sepcheck demo --dir ./evidence    # keep the servers' logs and ledgers`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Timeout <= 0 {
				return usageError{fmt.Errorf("--timeout must be above zero, not %v", opts.Timeout), cmd.CommandPath()}
			}
			return runDemo(cmd, opts, format)
		},
	}
	cmd.Flags().Var(&format, "format", "output: table, json or markdown")
	cmd.Flags().StringVar(&opts.Dir, "dir", "", "keep each row's log and ledger in this folder, which must be new or empty (default: keep nothing)")
	cmd.Flags().DurationVar(&opts.Timeout, "timeout", demo.DefaultTimeout, "end the run, with exit code 1, after this long")
	return cmd
}

func runDemo(cmd *cobra.Command, opts demo.Options, f format) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the demo starts its servers from its own program file: %w", err)
	}
	opts.Server = []string{exe, demoServerName}
	stderr := cmd.ErrOrStderr()
	opts.Progress = func(done, total int, r demo.Row) { progress(stderr, done, total, r) }
	rows, runErr := demo.Run(cmd.Context(), &opts)
	if errors.Is(runErr, demo.ErrDirInUse) {
		return usageError{runErr, cmd.CommandPath()}
	}
	if err := write(cmd.OutOrStdout(), f, rows); err != nil {
		return fmt.Errorf("writing the rows: %w", err)
	}
	return conclude(stderr, rows, runErr)
}

// conclude says what speaks against success, and returns nil if nothing does.
func conclude(stderr io.Writer, rows []demo.Row, runErr error) error {
	if runErr != nil {
		for _, r := range rows {
			if p := r.Problem(); p != "" {
				fmt.Fprintln(stderr, "FAIL:", p)
			}
		}
		return fmt.Errorf("the demo is incomplete:\n%w", runErr)
	}
	problems := demo.Judge(rows)
	for _, p := range problems {
		fmt.Fprintln(stderr, "FAIL:", p)
	}
	if len(problems) > 0 {
		return errFailed
	}
	return nil
}

func progress(w io.Writer, done, total int, r demo.Row) {
	fmt.Fprintf(w, "%2d/%d  %s, %s: %s, %s, told %q after %d ms\n", done, total,
		r.Fault, r.Stack, plural(r.ToolCalls, "call"), plural(r.Charges, "charge"), r.Outcome, r.SettleMs)
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func newDemoServer() *cobra.Command {
	return &cobra.Command{
		Use:                demoServerName,
		Short:              "The demo's payment server; started by the demo itself",
		Hidden:             true,
		DisableFlagParsing: true, // the demo wrote the arguments and reads them
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.ServerMain(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
