package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/servercheck"
	"github.com/mcp-idempotency/mcp-idempotency/internal/rawmcp"
)

const serverHelp = `Checks an MCP server against every rule of the SEP for servers: over Streamable
HTTP at a URL, or on stdio with a command that starts it.

It never calls a tool that it was not told to. Without --tool it makes the
checks that run nothing; with --tool and --args it calls that tool, some dozens
of times, so name one whose effect does no harm. Whether a tool ran once is
counted by --count-tool (a tool whose first number in its result is the count)
or --count-cmd (a shell command that prints it). A server with the tools of
'sepcheck fixture' is checked completely: --fixture.

Servers without the extension are welcome: it is told what they do with a key.

` + exitCodesHelp

// serverFlags say what to check and what may be done with it.
type serverFlags struct {
	report             reporting
	headers, others    []string
	tool, args         string
	countTool, countOf string
	countCmd           string
	fixture            bool
	revision           string
	timeout            time.Duration
}

func newServer() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "server {URL | -- COMMAND [ARGUMENT...]}",
		Short: "Check a server against the SEP's rules for servers",
		Long:  serverHelp,
		Example: `  sepcheck server http://127.0.0.1:8787
  sepcheck server -- ./my-server --stdio
  sepcheck server --tool charge --args '{"amount":1}' --count-cmd 'wc -l < ledger' http://127.0.0.1:8787
  sepcheck server --fixture -- sepcheck fixture server`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, subject, err := f.config(cmd, args)
			if err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			checks := servercheck.All()
			expected, err := f.report.expectations(cmd, check.Infos(checks))
			if err != nil {
				return err
			}
			return f.run(cmd, subject, cfg, checks, expected)
		},
	}
	f.report.addFlags(cmd)
	fs := cmd.Flags()
	fs.StringArrayVar(&f.headers, "header", nil, "an HTTP header to send, as 'Name: value'; may be repeated")
	fs.StringArrayVar(&f.others, "other-header", nil, "a header of another principal, for the check that keeps two apart; may be repeated")
	fs.StringVar(&f.tool, "tool", "", "a tool that may be called")
	fs.StringVar(&f.args, "args", "{}", "its arguments, a JSON object")
	fs.StringVar(&f.countTool, "count-tool", "", "a tool that tells how many effects there were")
	fs.StringVar(&f.countOf, "count-args", "{}", "its arguments, a JSON object")
	fs.StringVar(&f.countCmd, "count-cmd", "", "a shell command that prints how many effects there were")
	fs.BoolVar(&f.fixture, "fixture", false, "the server has the tools of 'sepcheck fixture'")
	fs.StringVar(&f.revision, "revision", "", "the protocol revision to speak: "+rawmcp.Modern+" or "+rawmcp.Legacy+" (default: the newest that the server speaks)")
	fs.DurationVar(&f.timeout, "timeout", 20*time.Second, "give up connecting, or a single request, after this long")
	return cmd
}

// config reads the flags and arguments.
func (f *serverFlags) config(cmd *cobra.Command, args []string) (cfg servercheck.Config, subject string, err error) {
	cfg = servercheck.Config{Fixture: f.fixture, Tool: f.tool, Args: strings.TrimSpace(f.args)}
	if err := f.sane(); err != nil {
		return cfg, "", err
	}
	switch dash := cmd.ArgsLenAtDash(); {
	case dash == 0 && len(args) > 0:
		if len(f.headers)+len(f.others) > 0 {
			return cfg, "", errors.New("--header and --other-header are for a URL")
		}
		cfg.Process = true
		cfg.Dial = func(ctx context.Context, revision string) (rawmcp.Conn, error) {
			return rawmcp.DialStdio(ctx, exec.Command(args[0], args[1:]...), &rawmcp.Options{Revision: or(revision, f.revision)})
		}
		subject = strings.Join(args, " ")
	case dash < 0 && len(args) == 1:
		u, err := url.Parse(args[0])
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return cfg, "", fmt.Errorf("%q is not an http or https URL; a command comes after --", args[0])
		}
		header, err := headersOf(f.headers)
		if err != nil {
			return cfg, "", err
		}
		cfg.Dial = dialURL(args[0], header, f.revision)
		if len(f.others) > 0 {
			other, err := headersOf(append(append([]string(nil), f.headers...), f.others...))
			if err != nil {
				return cfg, "", err
			}
			dial := dialURL(args[0], other, f.revision)
			cfg.Other = func(ctx context.Context) (rawmcp.Conn, error) { return dial(ctx, "") }
		}
		subject = u.Redacted()
	default:
		return cfg, "", errors.New("give either a URL or, after --, a command")
	}
	switch {
	case f.countTool != "":
		cfg.Count = countByTool(f.countTool, f.countOf)
	case f.countCmd != "":
		cfg.Count = countByCommand(f.countCmd)
	}
	return cfg, subject, nil
}

// sane refuses flags that cannot be meant together, or at all.
func (f *serverFlags) sane() error {
	switch {
	case f.fixture && f.tool != "":
		return errors.New("--fixture brings its own tools; --tool is for a server without them")
	case f.tool == "" && (f.countTool != "" || f.countCmd != ""):
		return errors.New("--count-tool and --count-cmd count the effects of --tool")
	case f.countTool != "" && f.countCmd != "":
		return errors.New("give one of --count-tool and --count-cmd")
	case f.revision != "" && f.revision != rawmcp.Modern && f.revision != rawmcp.Legacy:
		return fmt.Errorf("--revision is %s or %s, not %q", rawmcp.Modern, rawmcp.Legacy, f.revision)
	case f.timeout <= 0:
		return fmt.Errorf("--timeout must be above zero, not %v", f.timeout)
	}
	for name, value := range map[string]string{"args": f.args, "count-args": f.countOf} {
		var object map[string]json.RawMessage
		if err := json.Unmarshal([]byte(value), &object); err != nil || object == nil {
			return fmt.Errorf("--%s is not a JSON object: %s", name, value)
		}
	}
	return nil
}

func dialURL(target string, header map[string]string, revision string) func(context.Context, string) (rawmcp.Conn, error) {
	return func(ctx context.Context, want string) (rawmcp.Conn, error) {
		return rawmcp.DialHTTP(ctx, target, &rawmcp.Options{Revision: or(want, revision), Header: header})
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func headersOf(lines []string) (map[string]string, error) {
	out := map[string]string{}
	for _, l := range lines {
		name, value, ok := strings.Cut(l, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("a header is written as 'Name: value', not %q", l)
		}
		out[name] = strings.TrimSpace(value)
	}
	return out, nil
}

func (f *serverFlags) run(cmd *cobra.Command, subject string, cfg servercheck.Config, checks []servercheck.Check, expected check.Expectations) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	p, err := servercheck.Connect(ctx, cfg)
	cancel()
	if err != nil {
		return fmt.Errorf("%s %w: %w", subject, errNoPeer, err)
	}
	f.report.opts.Progress = f.report.progress(cmd)
	results := check.Run(cmd.Context(), checks, p, &f.report.opts)
	report := &check.Report{Subject: subject, Facts: p.Facts(), Results: results}
	_ = p.Close() // it may be gone
	return f.report.finish(cmd, report, expected)
}

// countByTool reads the first number in what a tool returns.
func countByTool(tool, args string) func(context.Context, rawmcp.Conn) (int, error) {
	return func(ctx context.Context, c rawmcp.Conn) (int, error) {
		r, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, args))
		if err != nil {
			return 0, err
		}
		var res struct {
			Content           []struct{ Text string }
			StructuredContent json.RawMessage
		}
		if err := r.Decode(&res); err != nil {
			return 0, err
		}
		texts := []string{string(res.StructuredContent)}
		for _, c := range res.Content {
			texts = append(texts, c.Text)
		}
		return firstNumber(strings.Join(texts, " "))
	}
}

func countByCommand(command string) func(context.Context, rawmcp.Conn) (int, error) {
	return func(ctx context.Context, _ rawmcp.Conn) (int, error) {
		out, err := exec.CommandContext(ctx, "sh", "-c", command).Output()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", command, err)
		}
		return firstNumber(string(out))
	}
}

func firstNumber(text string) (int, error) {
	digits := strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) == 0 {
		return 0, fmt.Errorf("there is no number in %.100q", text)
	}
	return strconv.Atoi(digits[0])
}
