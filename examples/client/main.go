// Command client calls the charge tool of examples/server once, whatever
// happens to the connection.
package main

import (
	"context"
	"errors"
	"flag"
	"log"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

func main() {
	url := flag.String("url", "http://127.0.0.1:8787", "the server's URL")
	flag.Parse()
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil)

	// README: client
	retry := clientretry.New(client, nil)
	session, err := retry.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: *url}, nil)
	// README: end
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	// README: call
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 4200}})
	var unknown *clientretry.UnknownOutcomeError
	if errors.As(err, &unknown) {
		// It may have run or not: ask a person, or look at the account. Don't call again.
		log.Fatalf("nobody knows whether the card was charged (key %s, %d attempts): %v", unknown.Key, unknown.Attempts, unknown.Cause)
	}
	// README: end
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("charged: %v", result.StructuredContent)
}
