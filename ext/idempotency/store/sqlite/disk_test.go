package sqlite_test

import (
	"context"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// SQLite's own limit on the file stands for a full disk where none can be
// mounted.
func TestAFullFileIsAnErrorAndNeverARun(t *testing.T) {
	s := mustOpen(t, dbPath(t), sqlite.Options{})
	ns := current(t, s)
	if err := s.Script("PRAGMA max_page_count = 200"); err != nil {
		t.Fatal(err)
	}
	var ended []store.Attempt
	for failures := 0; failures < 5; {
		a := attempt(ns)
		res, err := s.Reserve(context.Background(), a)
		if err != nil {
			failures++
			continue
		}
		if res.Verdict != store.Run {
			t.Fatalf("Reserve: verdict %d", res.Verdict)
		}
		if s.Record(context.Background(), ref(a), store.End{Event: store.Complete, Outcome: make([]byte, 20_000)}) != nil {
			failures++
			continue
		}
		ended = append(ended, a)
		if len(ended) > 1000 {
			t.Fatal("the file is not full yet")
		}
	}
	for _, a := range ended {
		expect(t, s, again(a), store.Known)
	}
	if err := s.Script("PRAGMA max_page_count = 100000"); err != nil {
		t.Fatal(err)
	}
	call(t, s, "there is room again")
}
