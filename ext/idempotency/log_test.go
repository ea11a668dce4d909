package idempotency_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang/mock/gomock"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mockstore"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// lockedBuffer is a buffer for a logger.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Logs and messages name keys in their short form, and hold no arguments and
// no results.
func TestLogsAndErrorsRevealNoKeyAndNoArgument(t *testing.T) {
	const secret = "5ecret-"
	var log lockedBuffer
	opt := func() *idempotency.Options {
		return &idempotency.Options{
			Logger: slog.New(slog.NewTextHandler(&log, nil)), MaxExecution: 10 * time.Millisecond, MaxResultBytes: 50, WaitLimit: -1, Tools: toolOptions(),
			Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) {
				m.Reserve(gomock.Any(), gomock.Any()).Return(store.Reservation{}, errDown).Times(2)
				m.Record(gomock.Any(), gomock.Any(), gomock.Any()).Return(errDown).Times(3)
			}),
		}
	}
	onEach(t, opt, func(t *testing.T, f *fixture) {
		ns := f.namespaceOf(t)
		long := strings.Repeat("5ecret", 20)
		call := func(tool, key, args string) {
			if r := f.tool(tool, key, args); r.Error != nil && (strings.Contains(r.Error.Message, "5ecret5ecret") || strings.Contains(r.Error.Message, secret)) {
				t.Errorf("the message tells: %s", r.Error.Message)
			}
		}
		key := func(i string) string { return ns + "." + i + long }
		call("charge", key("a"), `{"amount":1,"effect_id":"`+secret+`"}`) // unavailable
		call("charge", key("b"), `{"amount":1,"effect_id":"`+secret+`"}`) // not recorded
		call("charge", key("b"), `{"amount":1,"effect_id":"`+secret+`"}`) // still running
		call("charge", key("b"), `{"amount":2,"effect_id":"`+secret+`"}`) // mismatch
		call("gated", key("c"), `{"gate":"`+secret+`"}`)                  // unknown
		call("large", key("d"), `{"amount":100,"effect_id":"`+secret+`"}`)
		call("large", key("d"), `{"amount":100,"effect_id":"`+secret+`"}`) // not kept
		call("charge", "elsewhere."+long, `{"amount":1}`)
		call("charge", long, `{"amount":1}`)
		call("by_argument", "", `{"amount":1,"effect_id":"`+secret+`"}`)
		call("by_argument", "", `{"amount":2,"effect_id":"`+secret+`"}`)
		call("unsupported", key("e"), `{"amount":1,"effect_id":"`+secret+`"}`)
	})
	t.Cleanup(func() {
		text := log.String()
		if text == "" || strings.Contains(text, "5ecret5ecret") || strings.Contains(text, secret) {
			t.Errorf("the log is empty or tells: %.2000s", text)
		}
	})
}

// A tool's own limit is kept in place of the general one, in both directions.
func TestAToolsOwnExecutionLimitIsKept(t *testing.T) {
	opt := func() *idempotency.Options {
		return &idempotency.Options{MaxExecution: time.Millisecond, Tools: map[string]idempotency.ToolOptions{
			"gated": {MaxExecution: -1}, "abortable": {MaxExecution: 5 * time.Millisecond},
		}}
	}
	onEach(t, opt, func(t *testing.T, f *fixture) {
		wantReason(t, f.tool("abortable", f.key(), `{"gate":"never"}`), schema.ReasonOutcomeUnknown)
		f.awaitEntered("never")
		run := f.start(t.Context(), "gated", f.key(), `{"gate":"g"}`)
		f.awaitEntered("g")
		wantReason(t, f.tool("abortable", f.key(), `{"gate":"never"}`), schema.ReasonOutcomeUnknown)
		f.finish(run, "g")
	})
}
