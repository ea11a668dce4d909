package sqlite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// A server with records that survive it. The records of a call are there when
// the file is opened again.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	records, err := sqlite.Open(ctx, filepath.Join(dir, "records.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer records.Close()
	idem := idempotency.New(&idempotency.Options{Store: records})
	_ = idem // idem.Install(server), and so on as with any store

	ns, err := records.Current(ctx)
	fmt.Println(ns.Retention, err)
	// Output: 24h0m0s <nil>
}

// An operator lists the calls of which nobody knows how they ended, and says
// how they did.
func ExampleStore_Resolve() {
	ctx := context.Background()
	var records *sqlite.Store // from Open
	if records == nil {
		return
	}
	unknown, err := records.List(ctx, store.Query{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range unknown {
		// The account shows no charge for this one.
		if err := records.Resolve(ctx, e.ID, store.ResolveNoEffect, nil); err != nil {
			fmt.Println(err)
		}
	}
}
