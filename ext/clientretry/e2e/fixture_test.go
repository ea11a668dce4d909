package e2e_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// patient are options with which no timeout of the library's can end a call
// while a test runs: what settles under them was settled by what was seen.
func patient() *clientretry.Options {
	return &clientretry.Options{AttemptTimeout: time.Hour, Deadline: 2 * time.Hour, BackoffBase: time.Millisecond, BackoffMax: 5 * time.Millisecond}
}

// soon bounds what a test waits for. It only ever ends a test that fails.
const soon = 20 * time.Second

// connectTo connects to a peer over a connection pool of its own.
func connectTo(t testing.TB, url string, opt *clientretry.Options, change ...func(*mcp.StreamableClientTransport)) *clientretry.Session {
	t.Helper()
	pool := &http.Transport{}
	t.Cleanup(pool.CloseIdleConnections)
	transport := &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: pool}}
	for _, f := range change {
		f(transport)
	}
	s, err := clientretry.New(newClient(nil), opt).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newClient(opt *mcp.ClientOptions) *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, opt)
}

// outcome is all that a caller gets.
type outcome struct {
	res    *mcp.CallToolResult
	err    error
	report clientretry.Report
}

func (o outcome) replayed() bool { return o.report.Replayed }

// do calls a tool and fails the test when the call does not settle.
func do(t testing.TB, ctx context.Context, s *clientretry.Session, tool string) outcome {
	t.Helper()
	select {
	case o := <-start(ctx, s, tool):
		return o
	case <-time.After(soon):
		t.Fatal("the call was never settled")
		return outcome{}
	}
}

// start calls a tool in the background.
func start(ctx context.Context, s *clientretry.Session, tool string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		ctx, report := clientretry.WithReport(ctx)
		res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"amount": 1}})
		done <- outcome{res, err, *report}
	}()
	return done
}

func (o outcome) wantUnknown(t testing.TB) *clientretry.UnknownOutcomeError {
	t.Helper()
	var unknown *clientretry.UnknownOutcomeError
	if !errors.As(o.err, &unknown) {
		t.Fatalf("the caller got %v and %v, want an unknown outcome (report %+v)", o.res, o.err, o.report)
	}
	if unknown.Cause == nil || unknown.Attempts != o.report.Attempts || unknown.Key != o.report.Key {
		t.Errorf("%+v does not agree with the report %+v", unknown, o.report)
	}
	return unknown
}

func (o outcome) wantNotRun(t testing.TB) *clientretry.NotRunError {
	t.Helper()
	var notRun *clientretry.NotRunError
	if !errors.As(o.err, &notRun) {
		t.Fatalf("the caller got %v and %v, want a call that did not run (report %+v)", o.res, o.err, o.report)
	}
	return notRun
}

func (o outcome) wantResult(t testing.TB) *mcp.CallToolResult {
	t.Helper()
	if o.err != nil || o.res == nil {
		t.Fatalf("the caller got %v and %v, want a result (report %+v)", o.res, o.err, o.report)
	}
	return o.res
}

// wantLosses compares the kinds of the report's losses.
func (o outcome) wantLosses(t testing.TB, kinds ...clientretry.LossKind) {
	t.Helper()
	var got []clientretry.LossKind
	for _, l := range o.report.Losses {
		got = append(got, l.Kind)
	}
	if len(got) != len(kinds) {
		t.Errorf("the losses are %v, want %v", o.report.Losses, kinds)
		return
	}
	for i, k := range kinds {
		if got[i] != k {
			t.Errorf("loss %d is %v, want %v (%v)", i, got[i], k, o.report.Losses[i].Err)
		}
	}
}

// wantCalls compares how many calls and path checks the peer saw.
func (p *peer) wantCalls(t testing.TB, calls, checks int) []wireCall {
	t.Helper()
	got, gotChecks := p.seen()
	if len(got) != calls || len(gotChecks) != checks {
		t.Fatalf("the server saw %d calls and %d path checks, want %d and %d", len(got), len(gotChecks), calls, checks)
	}
	return got
}

// wantAlive makes a call that meets no fault.
func wantAlive(t testing.TB, s *clientretry.Session, tool string) {
	t.Helper()
	if o := do(t, context.Background(), s, tool); o.err != nil {
		t.Errorf("the next call on the session: %v", o.err)
	}
}

// eventually waits for a state that no channel announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(soon)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// wantCode checks that the caller got the server's own JSON-RPC error.
func wantCode(t testing.TB, o outcome, code int64) *jsonrpc.Error {
	t.Helper()
	var e *jsonrpc.Error
	if !errors.As(o.err, &e) || e.Code != code {
		t.Fatalf("the caller got %v and %v, want the JSON-RPC error %d", o.res, o.err, code)
	}
	return e
}

// onLoss returns a logger that tells of every loss that the library logs.
func onLoss(tell chan<- struct{}) *slog.Logger {
	return slog.New(&lossHandler{Handler: slog.DiscardHandler, tell: tell})
}

type lossHandler struct {
	slog.Handler
	tell chan<- struct{}
}

func (h *lossHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *lossHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "response lost") {
		h.tell <- struct{}{}
	}
	return nil
}
