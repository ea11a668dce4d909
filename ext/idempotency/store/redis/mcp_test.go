package redis_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

type chargeArgs struct {
	ID string `json:"id"`
}

type receipt struct {
	Number int64 `json:"number"`
}

// handler serves MCP over HTTP with one tool, which has the effect.
func handler(s *redis.Store, lease time.Duration, effect func(id string) int64) http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(_ context.Context, _ *mcp.CallToolRequest, in chargeArgs) (*mcp.CallToolResult, receipt, error) {
		return nil, receipt{Number: effect(in.ID)}, nil
	})
	idem := idempotency.New(&idempotency.Options{Store: s, Lease: lease})
	idem.Install(server)
	return idem.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true}))
}

// dial connects the SDK's own client.
func dial(ctx context.Context, url string) (*mcp.ClientSession, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	return mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: client}, nil)
}

// An answer is what became of one attempt.
type answer struct {
	number   int64 // of the receipt
	replayed bool
	outcome  schema.Outcome // of an extension error; empty for a result
	err      error          // the answer was lost
}

// call makes one attempt.
func call(ctx context.Context, session *mcp.ClientSession, key, id string) answer {
	res, err := session.CallTool(ctx, &mcp.CallToolParams{
		Name: "charge", Arguments: chargeArgs{ID: id}, Meta: mcp.Meta{schema.MetaKey: key},
	})
	var rpc *jsonrpc.Error
	if errors.As(err, &rpc) && rpc.Code == schema.ErrorCode {
		var data schema.ErrorData
		if err := json.Unmarshal(rpc.Data, &data); err != nil {
			return answer{err: err}
		}
		return answer{outcome: data.Outcome}
	}
	if err != nil {
		return answer{err: err}
	}
	var r receipt
	var m schema.ResultMarker
	if err := errors.Join(convert(res.StructuredContent, &r), convert(res.Meta[schema.ExtensionID], &m)); err != nil {
		return answer{err: err}
	}
	return answer{number: r.Number, replayed: m.Replayed}
}

func convert(from, to any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// settle makes attempts until one is answered for good.
func settle(t *testing.T, session *mcp.ClientSession, key, id string) answer {
	for deadline := time.Now().Add(soon); ; {
		a := call(t.Context(), session, key, id)
		if a.err == nil && a.outcome != schema.OutcomeInProgress {
			return a
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: no answer: %+v", key, a)
			return a
		}
	}
}

func (a answer) String() string {
	if a.err != nil {
		return "lost: " + a.err.Error()
	}
	return fmt.Sprintf("outcome %q, number %d, replayed %t", a.outcome, a.number, a.replayed)
}
