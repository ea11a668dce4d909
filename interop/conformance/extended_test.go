package conformance

import (
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/internal/everything"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// extended is bare with the extension, added as the README says.
func extended(opts *mcp.StreamableHTTPOptions) (*mcp.Server, http.Handler) {
	server := everything.New()
	idem := idempotency.New(nil)
	idem.Install(server)
	return server, idem.Handler(mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return server }, opts))
}

// The comparison would prove nothing if the extension were not there.
func TestOnlyTheExtendedServerHasTheExtension(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			if got := declares(t, serve(t, bare, m)); got {
				t.Error("the bare server declares the extension")
			}
			if got := declares(t, serve(t, extended, m)); !got {
				t.Error("the extended server does not declare the extension")
			}
		})
	}
}

// declares reports whether the server at url has the extension in its
// capabilities and the hint on its tools; it has to have both or none.
func declares(t *testing.T, url string) bool {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "conformance-test", Version: "1.0.0"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	_, declared := session.InitializeResult().Capabilities.Extensions[schema.ExtensionID]

	tools, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools {
		if _, hinted := tool.Meta[schema.ExtensionID]; hinted != declared {
			t.Errorf("%s: hint is %t, capability is %t", tool.Name, hinted, declared)
		}
	}
	return declared
}
