package clientretry_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/exec"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// One line more than without: every call of the session has a key, is sent
// again after a loss, and ends in an outcome that the caller can act on.
func Example() {
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil)

	retry := clientretry.New(client, nil)
	session, err := retry.Connect(ctx, scriptedServer(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	ctx, report := clientretry.WithReport(ctx)
	_, err = session.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 4200}})

	var unknown *clientretry.UnknownOutcomeError
	var notRun *clientretry.NotRunError
	switch {
	case errors.As(err, &unknown):
		fmt.Println("ask a person: it may have run under the key", unknown.Key)
	case errors.As(err, &notRun):
		fmt.Println("not run, safe to call again:", err)
	case err != nil:
		fmt.Println("the tool says:", err)
	default:
		fmt.Printf("charged: %d attempts, replayed: %v\n", report.Attempts, report.Replayed)
	}
	// Output: charged: 2 attempts, replayed: true
}

// A server on stdio that dies takes its connection with it: the layer is told
// how to start another one.
func ExampleOptions_dial() {
	opt := &clientretry.Options{
		Dial: func(context.Context) (mcp.Transport, error) {
			return &mcp.CommandTransport{Command: exec.Command("payment-server")}, nil
		},
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil)
	session, err := clientretry.New(client, opt).Connect(context.Background(), nil, nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer session.Close()
}

// A caller that has to survive its own crash makes the key first, writes it
// down, and sends the same key again afterwards.
func ExampleWithKey() {
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil)
	session, err := clientretry.New(client, nil).Connect(ctx, scriptedServer(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	key, err := session.MintKey()
	if err != nil {
		log.Fatal(err) // the server takes no keys: the call is as unsafe as ever
	}
	// Write the whole key into a file or a database here, and only then:
	_, err = session.CallTool(clientretry.WithKey(ctx, key), &mcp.CallToolParams{Name: "charge"})
	fmt.Println(err)
	// Output: <nil>
}

// scriptedServer loses its first response.
func scriptedServer() mcp.Transport {
	var n atomic.Int64
	return newPipePeer(true, declared(), func(*toolCall) any {
		if n.Add(1) == 1 {
			return proxied
		}
		return done(true)
	})
}
