package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes, the same for every command.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitNoPeer = 3
)

const exitCodesHelp = `Exit codes:
  0  what was checked holds
  1  it does not hold, or the run could not be completed
  2  wrong use: an unknown command, flag or value
  3  what was to be checked could not be reached`

// errFailed ends a command whose findings have been printed already.
var errFailed = errors.New("failed")

// errNoPeer is matched when what was to be checked could not be reached.
var errNoPeer = errors.New("could not be reached")

// usageError marks an error that is the user's to correct.
type usageError struct {
	error
	command string // whose --help says more
}

func (e usageError) Unwrap() error { return e.error }

// streams are a command's standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, std streams) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	return exitCode(std.err, root.ExecuteContext(ctx))
}

// exitCode reports a command's error, unless that was done, and returns its
// exit code.
func exitCode(stderr io.Writer, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "sepcheck: %v\nRun '%s --help' for usage.\n", err, usage.command)
		return exitUsage
	case errors.Is(err, errNoPeer):
		fmt.Fprintf(stderr, "sepcheck: %v\n", err)
		return exitNoPeer
	case !errors.Is(err, errFailed):
		fmt.Fprintf(stderr, "sepcheck: %v\n", err)
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sepcheck",
		Short: "Show and check the MCP idempotency extension",
		Long: `sepcheck shows and checks the MCP idempotency extension
(io.modelcontextprotocol/idempotency): what becomes of a tools/call whose
answer is lost.

Start with "sepcheck demo": it needs no configuration and no network.

` + exitCodesHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError{errors.New("no command given; the first to try is 'sepcheck demo'"), cmd.CommandPath()}
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{err, cmd.CommandPath()}
	})
	root.AddCommand(newDemo(), newServer(), newFixture(), newExplain(), newRecords(), newDemoServer())
	return root
}

// knownCommand refuses what is no command, and names what may be meant.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg := fmt.Sprintf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		msg += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{errors.New(msg), cmd.CommandPath()}
}

// noArgs refuses positional arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0]), cmd.CommandPath()}
	}
	return nil
}
