package e2e_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/internal/fault"
)

type chargeIn struct {
	Amount int `json:"amount"`
}

type chargeOut struct {
	Receipt int64 `json:"receipt"`
}

// payments is an MCP server over HTTP whose one tool counts its runs, behind a
// path that can lose responses.
type payments struct {
	charges atomic.Int64
	path    *fault.Server
}

func newPayments(t *testing.T, extended, stateless, jsonResponse bool, rules ...fault.Rule) *payments {
	t.Helper()
	p := &payments{}
	server := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(context.Context, *mcp.CallToolRequest, chargeIn) (*mcp.CallToolResult, chargeOut, error) {
		return nil, chargeOut{Receipt: p.charges.Add(1)}, nil
	})
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: stateless, JSONResponse: jsonResponse})
	if extended {
		idem := idempotency.New(nil)
		idem.Install(server)
		h = idem.Handler(h)
	}
	ts := httptest.NewServer(h)
	path, err := fault.Serve(ts.URL, &fault.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	p.path = path
	t.Cleanup(func() { path.Close(); ts.CloseClientConnections(); ts.Close() })
	return p
}

// calls counts the charge calls that went over the path.
func (p *payments) calls() (n int) {
	for _, c := range p.path.Calls() {
		if c.Tool == "charge" {
			n++
		}
	}
	return n
}

func connect(t *testing.T, url string, opt *clientretry.Options) *clientretry.Session {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	s, err := clientretry.New(client, opt).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func charge(t *testing.T, s *clientretry.Session) (*mcp.CallToolResult, clientretry.Report, error) {
	t.Helper()
	ctx, report := clientretry.WithReport(t.Context())
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 1}})
	return res, *report, err
}

// onEachServer runs a test against both generations and both response forms.
func onEachServer(t *testing.T, test func(t *testing.T, stateless, json bool)) {
	for name, v := range map[string][2]bool{
		"modern-sse": {true, false}, "modern-json": {true, true}, "legacy-sse": {false, false}, "legacy-json": {false, true},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, v[0], v[1]) })
	}
}

func httpFaults() (kinds []fault.Kind) {
	for _, k := range fault.Kinds() {
		if k.HTTP && k.Kind != fault.None {
			kinds = append(kinds, k.Kind)
		}
	}
	return kinds
}
