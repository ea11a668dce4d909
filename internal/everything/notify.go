package everything

//lint:file-ignore SA1019 the scenarios test logging, which revision 2026-07-28 deprecates

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// step is the time that the scenarios want between two notifications.
const step = 50 * time.Millisecond

// addNotifyingTools adds the tools that say something before they answer, and
// the one that hangs up before it answers.
func addNotifyingTools(server *mcp.Server) {
	addTool(server, "test_tool_with_logging", "Logs three messages while it runs.", logThrice)
	addTool(server, "test_logging_tool", "Logs one message while it runs.", logOnce)
	addTool(server, "test_tool_with_progress", "Reports progress while it runs.", reportProgress)
	addTool(server, "test_reconnection", "Closes its response stream before it answers.", hangUp)
}

func logThrice(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	for i, message := range []string{
		"Tool execution started", "Tool processing data", "Tool execution completed",
	} {
		if i > 0 {
			if err := pause(ctx, step); err != nil {
				return nil, err
			}
		}
		if err := log(ctx, req, message); err != nil {
			return nil, err
		}
	}
	return text("Logged three messages."), nil
}

func logOnce(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if err := log(ctx, req, "Tool execution started"); err != nil {
		return nil, err
	}
	return text("Logged one message, for those who asked for it."), nil
}

// log sends message to the client. The SDK drops it when the client has not
// asked for log messages.
func log(ctx context.Context, req *mcp.CallToolRequest, message string) error {
	return req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: message})
}

func reportProgress(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for i, progress := range []float64{0, 50, 100} {
		if i > 0 {
			if err := pause(ctx, step); err != nil {
				return nil, err
			}
		}
		if token == nil {
			continue
		}
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token,
			Progress:      progress,
			Total:         100,
		})
		if err != nil {
			return nil, err
		}
	}
	return text("Done, progress reported: %t.", token != nil), nil
}

// hangUp closes the response stream, where the transport can, and answers
// after that: the client has to come back for the result (SEP-1699).
func hangUp(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if extra := req.GetExtra(); extra != nil && extra.CloseSSEStream != nil {
		extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: step})
	}
	if err := pause(ctx, 2*step); err != nil {
		return nil, err
	}
	return text("Answered after the stream was closed."), nil
}
