package everything

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// New returns a server with everything that the conformance scenarios call,
// on the unmodified SDK and without any extension.
func New() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{
		Name:    "everything",
		Version: "1.0.0",
	}, &mcp.ServerOptions{
		CompletionHandler: complete,
		// The SDK keeps the list of subscribers; there is nothing to add.
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	addContentTools(server)
	addNotifyingTools(server)
	addClientTools(server)
	addRoundTools(server)
	addSchemaTools(server)
	addChangeTools(server)
	addPrompts(server)
	addResources(server)
	return server
}

// none is the input of a tool that takes no arguments.
type none struct{}

// addTool adds a tool without structured output, the only kind here.
func addTool[In any](server *mcp.Server, name, description string,
	handle func(context.Context, *mcp.CallToolRequest, In) (*mcp.CallToolResult, error)) {
	mcp.AddTool(server, &mcp.Tool{Name: name, Description: description},
		func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
			res, err := handle(ctx, req, in)
			return res, nil, err
		})
}

// addConstant adds a tool without arguments that always answers with content.
func addConstant(server *mcp.Server, name, description string, content ...mcp.Content) {
	addTool(server, name, description,
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: content}, nil
		})
}

// text is a result with one block of text.
func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}},
	}
}

// pause waits for d, or until ctx ends. Some scenarios want time to pass
// between two notifications.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// complete offers the few words that start with what was typed.
func complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	values := []string{} // never nil: the wire wants an array
	for _, word := range []string{"paris", "park", "party"} {
		if strings.HasPrefix(word, req.Params.Argument.Value) {
			values = append(values, word)
		}
	}
	return &mcp.CompleteResult{
		Completion: mcp.CompletionResultDetails{Values: values, Total: len(values)},
	}, nil
}
