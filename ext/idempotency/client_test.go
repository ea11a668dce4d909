package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// The SDK's own client, with its own multi round-trip loop, against the
// middleware. The key is put into `_meta` by sending middleware.

type sdkClient struct {
	*mcp.ClientSession
	ns    string
	asked atomic.Int64
	sends int // of each call, by the middleware
}

type sdkTransport struct {
	name, revision string
	connect        func(t *testing.T, f *fixture) mcp.Transport
}

func sdkTransports() []sdkTransport {
	overHTTP := func(opts mcp.StreamableHTTPOptions) func(t *testing.T, f *fixture) mcp.Transport {
		return func(t *testing.T, f *fixture) mcp.Transport {
			ts := httptest.NewServer(f.idem.Handler(sdkHandler(f.server, opts)))
			t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
			return &mcp.StreamableClientTransport{Endpoint: ts.URL}
		}
	}
	inMemory := func(t *testing.T, f *fixture) mcp.Transport {
		ct, st := mcp.NewInMemoryTransports()
		ss, err := f.server.Connect(t.Context(), f.idem.Transport(st), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ss.Close() })
		return ct
	}
	return []sdkTransport{
		{"http-modern", modernRevision, overHTTP(mcp.StreamableHTTPOptions{Stateless: true})},
		{"http-legacy", legacyRevision, overHTTP(mcp.StreamableHTTPOptions{})},
		{"memory-modern", modernRevision, inMemory},
		{"memory-legacy", legacyRevision, inMemory},
	}
}

// dial connects a client that answers every question with amount.
func (s sdkTransport) dial(t *testing.T, f *fixture, amount func() float64) *sdkClient {
	t.Helper()
	c := &sdkClient{sends: 1}
	client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			c.asked.Add(1)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"amount": amount()}}, nil
		},
	})
	client.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method != schema.MethodCallTool {
				return next(ctx, method, req)
			}
			var res mcp.Result
			var err error
			for range c.sends { // all but the last answer are thrown away
				res, err = next(ctx, method, req)
			}
			return res, err
		}
	})
	session, err := client.Connect(t.Context(), s.connect(t, f), &mcp.ClientSessionOptions{ProtocolVersion: s.revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	settings, ok := session.InitializeResult().Capabilities.Extensions[schema.ExtensionID].(map[string]any)
	if !ok {
		t.Fatal("the client does not see the capability")
	}
	c.ClientSession, c.ns = session, settings["keyNamespace"].(string)
	return c
}

func (c *sdkClient) keyed(t *testing.T, key, tool string, args map[string]any) *mcp.CallToolResult {
	t.Helper()
	res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args, Meta: mcp.Meta{schema.MetaKey: c.ns + "." + key}})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func wasReplayed(t *testing.T, res *mcp.CallToolResult) bool {
	t.Helper()
	m, ok := res.Meta[schema.ExtensionID].(map[string]any)
	if !ok {
		t.Fatalf("not marked: %v", res.Meta)
	}
	return m["replayed"].(bool)
}

func onSDK(t *testing.T, test func(t *testing.T, s sdkTransport, f *fixture, d *dialog)) {
	for _, s := range sdkTransports() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f := newServer(t, nil, nil)
			test(t, s, f, addDialog(f))
		})
	}
}

func TestTheSDKsClientCarriesOneKeyThroughAllRounds(t *testing.T) {
	onSDK(t, func(t *testing.T, s sdkTransport, f *fixture, d *dialog) {
		amount := 0.0
		c := s.dial(t, f, func() float64 { amount++; return amount })
		args := map[string]any{"questions": 1, "state": "s"}
		first := c.keyed(t, "k", "dialog", args)
		if wasReplayed(t, first) || !strings.Contains(fmt.Sprint(first.StructuredContent), "charged:1") {
			t.Errorf("first: %v", first)
		}
		again := c.keyed(t, "k", "dialog", args)
		if !wasReplayed(t, again) || fmt.Sprint(again.StructuredContent) != fmt.Sprint(first.StructuredContent) {
			t.Errorf("again: %v", again)
		}
		d.want(t, 1, 2, 1)
		if n := c.asked.Load(); n != 1 {
			t.Errorf("the user was asked %d times", n)
		}
	})
}

// A call that is sent again from outside the client's loop starts at its first
// round, and the record leads it to where the call is.
func TestAReSendOfAWholeDialogueIsOneExecution(t *testing.T) {
	onSDK(t, func(t *testing.T, s sdkTransport, f *fixture, d *dialog) {
		c := s.dial(t, f, func() float64 { return 7 })
		c.sends = 3
		questions := 3
		if s.revision == legacyRevision {
			questions = 1 // the SDK asks an older client once
		}
		res := c.keyed(t, "k", "dialog", map[string]any{"questions": questions, "state": "s"})
		if !wasReplayed(t, res) {
			t.Errorf("the last answer was %v", res)
		}
		d.want(t, 1, questions+1, 7)
		if n := c.asked.Load(); n != int64(questions) {
			t.Errorf("the user was asked %d times, want %d", n, questions)
		}
	})
}

// The user of one client hesitates; the same call from another joins, or is
// asked too, and there is one execution.
func TestADialogueFromTwoClientsIsOneExecution(t *testing.T) {
	onSDK(t, func(t *testing.T, s sdkTransport, f *fixture, d *dialog) {
		hesitating, decided := make(chan struct{}), make(chan struct{})
		slow := s.dial(t, f, func() float64 { close(hesitating); <-decided; return 1 })
		quick := s.dial(t, f, func() float64 { return 2 })
		start := func(c *sdkClient) <-chan *mcp.CallToolResult {
			done := make(chan *mcp.CallToolResult, 1)
			go func() {
				defer close(done)
				done <- c.keyed(t, "k", "dialog", map[string]any{"questions": 1, "state": "s"})
			}()
			return done
		}
		slowDone := start(slow)
		<-hesitating
		quickDone := start(quick)
		if s.revision == legacyRevision {
			// One run spans the whole dialogue: the second joins it.
			eventually(t, "the second has joined", func() bool { return f.idem.Waiters() == 1 })
			close(decided)
			if wasReplayed(t, <-slowDone) || !wasReplayed(t, <-quickDone) {
				t.Error("the run was not the slow client's")
			}
			d.want(t, 1, 2, 1)
			return
		}
		// The record holds the question: the second may answer it first.
		if wasReplayed(t, <-quickDone) {
			t.Error("the quick client did not run its round")
		}
		close(decided)
		if !wasReplayed(t, <-slowDone) {
			t.Error("the slow client ran another round")
		}
		d.want(t, 1, 2, 2)
	})
}

func TestTheSDKsClientSeesTheExtensionsErrors(t *testing.T) {
	onSDK(t, func(t *testing.T, s sdkTransport, f *fixture, _ *dialog) {
		c := s.dial(t, f, nil)
		_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 1}, Meta: mcp.Meta{schema.MetaKey: "other.key"}})
		if reasonOf(err) != schema.ReasonNamespaceNotHeld {
			t.Errorf("got %v", err)
		}
		res := c.keyed(t, "after", "charge", map[string]any{"amount": 1})
		if wasReplayed(t, res) {
			t.Error(res)
		}
	})
}

// A client that goes away while its user thinks leaves a run that ends in an
// error of the SDK's, on the revision where one run spans the dialogue.
func TestALegacyDialogueWhoseClientIsGoneEnds(t *testing.T) {
	f := newServer(t, &idempotency.Options{}, nil)
	addDialog(f)
	s := sdkTransports()[3]
	thinking := make(chan struct{})
	block := make(chan struct{})
	c := s.dial(t, f, func() float64 { close(thinking); <-block; return 1 })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "dialog", Arguments: map[string]any{"questions": 1, "state": "s"}, Meta: mcp.Meta{schema.MetaKey: c.ns + ".k"}})
		done <- err
	}()
	<-thinking
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller got %v", err)
	}
	close(block)
	c.Close()
	eventually(t, "the run has ended", func() bool { return f.idem.Runs() == 0 })
}
