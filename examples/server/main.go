// Command server is an MCP server over HTTP whose one tool is safe to call
// again. Run it, and then examples/client against it.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

type chargeInput struct {
	Amount int `json:"amount" jsonschema:"cents to charge"`
}

type chargeOutput struct {
	Receipt int64 `json:"receipt"`
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8787", "address to listen on")
	flag.Parse()

	server := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1.0.0"}, nil)
	var receipts atomic.Int64
	mcp.AddTool(server, &mcp.Tool{Name: "charge", Description: "Charges the card on file."},
		func(_ context.Context, _ *mcp.CallToolRequest, in chargeInput) (*mcp.CallToolResult, chargeOutput, error) {
			log.Printf("charging %d cents", in.Amount)
			return nil, chargeOutput{Receipt: receipts.Add(1)}, nil
		})
	mcpHandler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true})

	// README: server
	idem := idempotency.New(nil)
	idem.Install(server)
	handler := idem.Handler(mcpHandler) // on stdio: server.Run(ctx, idem.Transport(&mcp.StdioTransport{}))
	// README: end

	log.Printf("serving MCP on http://%s", *addr)
	log.Fatal(http.ListenAndServe(*addr, handler))
}
