package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/fixture"
)

const fixtureHelp = `Serves the tools with which 'sepcheck server --fixture' tries every rule, on the
official Go SDK: on stdio, or over HTTP with --listen.

To check a server SDK of your own, write the same tools on it:

` + fixture.Help

func newFixture() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fixture",
		Short: "The tools that let sepcheck try every rule",
		Long:  fixtureHelp,
		Args:  knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError{errors.New("say what to do: fixture server"), cmd.CommandPath()}
		},
	}
	cmd.AddCommand(newFixtureServer())
	return cmd
}

func newFixtureServer() *cobra.Command {
	var listen string
	var bare, stateful bool
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Serve the fixture's tools, with the extension",
		Long:  fixtureHelp,
		Example: `  sepcheck server --fixture -- sepcheck fixture server
  sepcheck fixture server --listen 127.0.0.1:8787`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := fixture.New()
			var idem *idempotency.Idempotency
			if !bare {
				idem = idempotency.New(&idempotency.Options{Tools: fixture.Tools()})
				idem.Install(s)
			}
			if listen == "" {
				var t mcp.Transport = &mcp.StdioTransport{}
				if idem != nil {
					t = idem.Transport(t)
				}
				return s.Run(cmd.Context(), t)
			}
			var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: !stateful})
			if idem != nil {
				h = idem.Handler(h)
			}
			return serveHTTP(cmd, listen, h)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "serve HTTP at this address instead of stdio")
	cmd.Flags().BoolVar(&bare, "bare", false, "without the extension")
	cmd.Flags().BoolVar(&stateful, "stateful", false, "with --listen: with sessions")
	return cmd
}

// serveHTTP serves until the command is interrupted.
func serveHTTP(cmd *cobra.Command, addr string, h http.Handler) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(cmd.Context(), func() { _ = srv.Close() })
	defer stop()
	fmt.Fprintf(cmd.ErrOrStderr(), "serving http://%s\n", l.Addr())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
