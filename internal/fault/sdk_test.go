package fault

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type chargeArgs struct {
	Amount int `json:"amount"`
}

// newSDKServer serves a tool that reports progress, then waits for release.
func newSDKServer(t *testing.T, release <-chan struct{}, stateless bool) string {
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(ctx context.Context, req *mcp.CallToolRequest, _ chargeArgs) (*mcp.CallToolResult, any, error) {
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: req.Params.GetProgressToken(), Progress: 1})
		if err != nil {
			return nil, nil, err
		}
		<-release
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: stateless})
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestProgressArrivesWhileTheCallRuns(t *testing.T) {
	for name, stateless := range map[string]bool{"2025-11-25": false, "2026-07-28": true} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			p := newPath(t, newSDKServer(t, release, stateless))
			client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
				// The tool goes on only when the client has the progress: a
				// layer that buffers would block this test for ever.
				ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { close(release) },
			})
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: p.client}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = session.Close() }()
			if v := session.InitializeResult().ProtocolVersion; v != name {
				t.Errorf("the session speaks %s", v)
			}
			params := &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 1}, Meta: mcp.Meta{}}
			params.SetProgressToken("p")
			res, err := session.CallTool(t.Context(), params)
			if err != nil || res.IsError {
				t.Fatalf("%+v, %v", res, err)
			}
		})
	}
}
