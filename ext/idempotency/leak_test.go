package idempotency_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/internal/mockstore"
)

// goroutines returns the stacks of all goroutines by their id.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	stacks := map[string]string{}
	for s := range strings.SplitSeq(string(buf), "\n\n") {
		id, _, _ := strings.Cut(s, " [")
		stacks[id] = s
	}
	return stacks
}

// descriptors returns how many files and sockets are open.
func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no list of descriptors on this system: ", err)
	}
	return len(list)
}

func TestNothingIsLeftWhenTheServerHasClosed(t *testing.T) {
	opt := func() *idempotency.Options {
		return &idempotency.Options{
			MaxExecution: time.Hour, Tools: toolOptions(),
			Store: newFailing(t, func(m *mockstore.MockStoreMockRecorder, behind *memory.Store) { leased(m, behind) }), Lease: 3 * time.Millisecond,
		}
	}
	before, open := goroutines(), descriptors(t)
	t.Run("work", func(t *testing.T) {
		on(t, append(connectors(), cancelling()...), opt, nil, func(t *testing.T, f *fixture) {
			for range 5 {
				key := f.key()
				f.tool("charge", key, `{"amount":1}`)
				f.tool("charge", key, `{"amount":1}`)
			}
			// Joiners that stay and that leave, runs that are left and that
			// are aborted.
			for _, tool := range []string{"gated", "abortable"} {
				key := f.key()
				ctx, cancel := context.WithCancel(t.Context())
				run := f.start(ctx, tool, key, `{"gate":"`+tool+`"}`)
				f.awaitEntered(tool)
				stay := f.start(t.Context(), tool, key, `{"gate":"`+tool+`"}`)
				eventually(t, "joined", func() bool { return f.idem.Waiters() == 1 })
				gone := f.start(ctx, tool, key, `{"gate":"`+tool+`"}`)
				cancel()
				<-run.done
				<-gone.done
				f.finish(stay, tool)
			}
			ctx, cancel := context.WithCancel(t.Context())
			run := f.start(ctx, "abortable", f.key(), `{"gate":"never"}`)
			f.awaitEntered("never")
			cancel()
			<-run.done
			// Where leaving is not noticed the handler would wait for ever.
			close(f.gate("never"))
			eventually(t, "all runs have ended", func() bool { return f.idem.Runs() == 0 && f.idem.Waiters() == 0 })
		})
	})
	var left []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(left, "\n\n"))
		}
	})
	eventually(t, "all goroutines have ended", func() bool {
		left = left[:0]
		for id, stack := range goroutines() {
			if _, ok := before[id]; !ok {
				left = append(left, stack)
			}
		}
		return len(left) == 0
	})
	eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= open })
}

// What the middleware keeps by itself does not grow with the calls.
func TestTheMiddlewareKeepsNothingPerCall(t *testing.T) {
	mem := memory.New(&memory.Options{MaxRecords: 100, MaxResultBytes: 1000})
	d := newDirect(t, &idempotency.Options{Store: mem}, func(context.Context, string, mcp.Request) (mcp.Result, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 1000)}}}, nil
	})
	grown := func(n int) uint64 {
		for i := range n {
			_, _ = d.call(t.Context(), fmt.Sprintf("k%d", i))
		}
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := grown(1000)
	if after := grown(6000); after > before+256<<10 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	if d.idem.Runs() != 0 || d.idem.Orphans() != 0 {
		t.Error("runs or orphans are left")
	}
}
