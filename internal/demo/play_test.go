package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/internal/fault"
)

func TestARowWhoseFaultDidNotHappenIsNoRow(t *testing.T) {
	start := time.Now()
	after := told{started: start, at: start.Add(300 * time.Millisecond)}
	delivered := fault.Call{Tool: toolName, Fate: fault.Delivered}
	faulted := fault.Call{Tool: toolName, Fate: fault.Faulted, Lost: start.Add(100 * time.Millisecond)}
	for name, tc := range map[string]struct {
		fault Fault
		calls []fault.Call
		lost  time.Duration // negative: an error
	}{
		"delivered":            {FaultEOF, []fault.Call{delivered}, -1},
		"another tool's loss":  {FaultEOF, []fault.Call{{Tool: "no.such.tool", Fate: fault.Faulted, Lost: start}}, -1},
		"nothing was called":   {FaultReset, nil, -1},
		"lost":                 {FaultEOF, []fault.Call{faulted, delivered}, 100 * time.Millisecond},
		"told before the loss": {FaultEOF, []fault.Call{{Tool: toolName, Fate: fault.Faulted, Lost: start.Add(time.Hour)}}, -1},
		"patience ended":       {FaultTimeout, []fault.Call{delivered}, 200 * time.Millisecond},
	} {
		lost, err := lossOf(tc.fault, after, 200*time.Millisecond, tc.calls)
		if (err != nil) != (tc.lost < 0) || err == nil && !lost.Equal(start.Add(tc.lost)) {
			t.Errorf("%s: lost %v after the start, %v", name, lost.Sub(start), err)
		}
	}
	inTime := told{started: start, at: start.Add(100 * time.Millisecond)}
	if _, err := lossOf(FaultTimeout, inTime, 200*time.Millisecond, nil); err == nil {
		t.Error("a call that was answered in time counts as timed out")
	}
}

func TestEveryAnswerOfClientretryHasItsOutcome(t *testing.T) {
	marked := func(m any) *mcp.CallToolResult {
		return &mcp.CallToolResult{Meta: mcp.Meta{"io.modelcontextprotocol/idempotency": m}}
	}
	for name, tc := range map[string]struct {
		res  *mcp.CallToolResult
		err  error
		want Outcome
	}{
		"unmarked":   {&mcp.CallToolResult{}, nil, OutcomeResult},
		"first":      {marked(map[string]any{"replayed": false}), nil, OutcomeResult},
		"replayed":   {marked(map[string]any{"replayed": true}), nil, OutcomeReplayed},
		"odd marker": {marked("yes"), nil, OutcomeResult},
		"unknown":    {nil, errors.Join(&clientretry.UnknownOutcomeError{}), OutcomeUnknown},
		"not run":    {nil, errors.Join(&clientretry.NotRunError{}), OutcomeFailed},
		"else":       {nil, io.EOF, OutcomeError},
	} {
		if got := retryOutcome(tc.res, tc.err); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestAServerLogsEveryCallAndTheCountLeavesOutPathChecks(t *testing.T) {
	for _, stdio := range []bool{false, true} {
		dir := t.TempDir()
		p, err := openPath(t.Context(), testServer(), FaultTimeout, serverConfig{dir: dir, stdio: stdio, extended: true})
		if err != nil {
			t.Fatal(err)
		}
		session, err := connect(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range []*mcp.CallToolParams{
			payment(),
			{Name: "no.such.tool", Meta: mcp.Meta{"io.modelcontextprotocol/idempotencyKey": "!"}},
			{Name: toolName, Arguments: map[string]any{"amount": "much"}}, // received, though it can't run
		} {
			_, _ = session.CallTool(t.Context(), call) // what it answers is not the point
		}
		_ = session.Close()
		if err := p.close(); err != nil {
			t.Fatal(err)
		}
		if calls, charges, err := count(dir); err != nil || calls != 2 || charges != 1 {
			t.Errorf("stdio %v: %d calls, %d charges, %v; want 2 and 1", stdio, calls, charges, err)
		}
		log, err := os.ReadFile(filepath.Join(dir, callsName))
		if err != nil || bytes.Count(log, []byte("\n")) != 3 || !bytes.Contains(log, []byte(`"key":"!"`)) {
			t.Errorf("stdio %v: the log is %s, %v", stdio, log, err)
		}
	}
}

func TestAServerEndsInOrderWithItsInputThoughItsClientLeftEarly(t *testing.T) {
	dir := t.TempDir()
	s, err := startHTTP(t.Context(), testServer(), serverConfig{dir: dir, slowFirst: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	session, err := newClient().Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := session.CallTool(ctx, payment()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the slow call answered %v", err)
	}
	_ = session.Close()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestAServerThatCannotStartSaysWhy(t *testing.T) {
	_, err := startHTTP(t.Context(), testServer(), serverConfig{dir: filepath.Join(t.TempDir(), "missing")})
	if err == nil || !strings.Contains(err.Error(), "missing") { // for a person to read
		t.Errorf("got %v", err)
	}
}

func TestADirectoryInUseIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), &Options{Server: testServer(), Dir: dir}); !errors.Is(err, ErrDirInUse) {
		t.Errorf("got %v", err)
	}
}

func TestACancelledRunSaysWhatIsMissingAndLeavesNoFile(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	rows, err := Run(ctx, &Options{Server: testServer(), Parallel: 2, Progress: func(done, total int, _ Row) {
		if total != 24 || done < 1 {
			t.Errorf("progress %d of %d", done, total)
		}
		cancel(why)
	}})
	if !errors.Is(err, why) || len(rows) == 0 || len(rows) == 24 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if err := filepath.WalkDir(tmp, func(path string, _ fs.DirEntry, err error) error {
		if path != tmp {
			t.Errorf("left %s", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestTheLoggingReaderKeepsEveryByte(t *testing.T) {
	log, err := openLines(t.TempDir(), callsName, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	text := "{\"a\":1}\n\n no json \n{\"method\":\"tools/call\"}" // the last line has no end
	r := &loggingReader{log: log, src: bufio.NewReader(strings.NewReader(text))}
	got, err := io.ReadAll(r)
	if err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
}
