package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

func TestTwoLayersOnOneClientEachHaveTheirOwnSessions(t *testing.T) {
	client := newClient(nil)
	one, two := clientretry.New(client, patient()), clientretry.New(client, patient())
	p, q := newPeer(t, true, declared("p"), after(status(502)), run), newPeer(t, true, declared("q"), after(status(502)), run)
	for peer, layer := range map[*peer]*clientretry.Retry{p: one, q: two} {
		s, err := layer.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: peer.url}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		o := do(t, t.Context(), s, "charge")
		o.wantResult(t)
		wantSameKey(t, peer.wantCalls(t, 2, 1)) // a second layer would mint and check again
		if peer.runs() != 1 {
			t.Errorf("%d runs", peer.runs())
		}
	}
}

func TestASessionOfTheClientsThatTheLayerDidNotConnectIsUntouched(t *testing.T) {
	client := newClient(nil)
	clientretry.New(client, patient())
	p := newPeer(t, true, declared("ns"), status(502), run)
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: p.url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge"})
	var unknown *clientretry.UnknownOutcomeError
	if err == nil || errors.As(err, &unknown) {
		t.Errorf("the bare session got %v", err)
	}
	if c := p.wantCalls(t, 1, 0); c[0].Key != "" {
		t.Errorf("the bare session sent the key %q", c[0].Key)
	}
}

// Another method's broken response ends the SDK's session. The layer notices
// and connects again.
func TestASessionThatAnotherMethodBrokeIsMadeAnew(t *testing.T) {
	for name, page := range map[string]string{"a page": "text/html", "broken JSON": "application/json"} {
		for _, settings := range []any{nil, declared("ns")} {
			t.Run(fmt.Sprint(name, settings != nil), func(t *testing.T) {
				p := newPeer(t, false, settings, run)
				var broken atomic.Bool
				front := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Mcp-Session-Id") != "" && r.Method == http.MethodPost && isMethod(r, "tools/list") && broken.CompareAndSwap(false, true) {
						w.Header().Set("Content-Type", page)
						_, _ = w.Write([]byte("<html>"))
						return
					}
					p.ServeHTTP(w, r)
				}))
				s := connectTo(t, front, patient())
				if _, err := s.ListTools(t.Context(), nil); err == nil {
					t.Fatal("the broken response was taken")
				}
				o := do(t, t.Context(), s, "charge")
				if o.err != nil {
					t.Errorf("the next call: %v", o.err)
				}
				if p.runs() != 1 {
					t.Errorf("%d runs", p.runs())
				}
			})
		}
	}
}

// The stream of a session on which servers speak unasked is the SDK's affair;
// when it breaks the SDK gives the session up.
func TestASessionWhoseOwnStreamBrokeIsMadeAnew(t *testing.T) {
	for _, settings := range []any{nil, declared("ns")} {
		p := newPeer(t, false, settings, run)
		var gets atomic.Int64
		gone := make(chan struct{})
		front := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && gets.Add(1) == 1 {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = w.Write([]byte("data: {\"broken\n\n"))
				_ = http.NewResponseController(w).Flush()
				close(gone)
				<-r.Context().Done()
				return
			}
			p.ServeHTTP(w, r)
		}))
		s := connectTo(t, front, patient())
		<-gone
		lost := 0
		for range 20 { // the SDK notices in its own time
			o := do(t, t.Context(), s, "charge")
			if settings == nil && o.err != nil { // it noticed in the middle of a call
				o.wantUnknown(t)
				lost++
				continue
			}
			o.wantResult(t)
		}
		if lost > 1 {
			t.Errorf("%d calls were lost to one broken stream", lost)
		}
		if p.runs() == 0 {
			t.Error("nothing ran")
		}
	}
}

func isMethod(r *http.Request, method string) bool {
	body := peek(r)
	return containsMethod(body, method)
}

// elicitingServer is a stateful server whose tool asks in the middle of its
// run, as 2025-11-25 has it, and that can forget its sessions.
type elicitingServer struct {
	url     string
	handler atomic.Pointer[mcp.StreamableHTTPHandler]
	server  *mcp.Server
	charges atomic.Int64
}

func newElicitingServer(t testing.TB) *elicitingServer {
	e := &elicitingServer{}
	over, stop := context.WithCancel(context.Background()) // ends questions that nobody answers
	e.server = mcp.NewServer(&mcp.Implementation{Name: "eliciting", Version: "1"}, nil)
	mcp.AddTool(e.server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, _ chargeIn) (*mcp.CallToolResult, any, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(over, cancel)()
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "sure?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}})
		if err != nil {
			return nil, nil, err
		}
		e.charges.Add(1)
		return nil, map[string]any{"action": res.Action}, nil
	})
	mcp.AddTool(e.server, &mcp.Tool{Name: "read"}, func(context.Context, *mcp.CallToolRequest, chargeIn) (*mcp.CallToolResult, any, error) {
		return nil, map[string]any{"ok": true}, nil
	})
	idem := idempotency.New(&idempotency.Options{WaitLimit: 100 * time.Millisecond, RetryAfter: 10 * time.Millisecond})
	idem.Install(e.server)
	e.forget()
	ts := httptest.NewServer(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.handler.Load().ServeHTTP(w, r) })))
	e.url = ts.URL
	t.Cleanup(func() { stop(); ts.CloseClientConnections(); ts.Close() })
	return e
}

// forget loses all sessions.
func (e *elicitingServer) forget() {
	e.handler.Store(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return e.server }, nil))
}

// A handler that calls a tool while the session is found to be gone waits for
// the new connection, which must not wait for the handler.
func TestACallFromWithinAHandlerWhileTheSessionIsMadeAnew(t *testing.T) {
	e := newElicitingServer(t)
	var s *clientretry.Session
	asked := make(chan error, 10)
	client := newClient(&mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		e.forget() // the server loses its sessions while the user thinks
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"amount": 1}})
		asked <- err
		return &mcp.ElicitResult{Action: "accept"}, err
	}})
	opt := patient()
	opt.AttemptTimeout = 2 * time.Second // the answer to the question finds no session
	var err error
	s, err = clientretry.New(client, opt).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: e.url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done := start(t.Context(), s, "ask")
	select {
	case err := <-asked:
		if err != nil {
			t.Errorf("the nested call: %v", err)
		}
	case <-time.After(soon):
		t.Fatal("the nested call never ended")
	}
	select {
	case o := <-done:
		if o.err != nil {
			o.wantUnknown(t)
		}
	case <-time.After(soon):
		t.Fatal("the outer call never ended")
	}
}

// Close ends what waits, whatever waits for it.
func TestCloseDoesNotWaitForAHandlerThatWaitsForASession(t *testing.T) {
	e := newElicitingServer(t)
	var s *clientretry.Session
	begun, closed := make(chan struct{}), make(chan struct{})
	client := newClient(&mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		close(begun)
		<-closed // Close has begun, and waits for calls under way
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"amount": 1}})
		return &mcp.ElicitResult{Action: "accept"}, err
	}})
	opt := patient()
	opt.AttemptTimeout = time.Second
	var err error
	s, err = clientretry.New(client, opt).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: e.url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := start(t.Context(), s, "ask")
	<-begun
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Close() }()
	eventually(t, "the session counts as closed", func() bool {
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "read"})
		return err != nil
	})
	close(closed)
	for name, c := range map[string]<-chan struct{}{"Close": ended} {
		select {
		case <-c:
		case <-time.After(soon):
			t.Fatalf("%s never ended", name)
		}
	}
	<-done
}

func TestCallsAfterCloseAreNotSent(t *testing.T) {
	p := newPeer(t, true, declared("ns"), run)
	s := connectTo(t, p.url, patient())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	o := do(t, t.Context(), s, "charge")
	if o.err == nil {
		t.Error("a call on a closed session succeeded")
	}
	if !errors.Is(o.err, mcp.ErrConnectionClosed) {
		t.Errorf("the caller got %v", o.err)
	}
	p.wantCalls(t, 0, 0)
}

func TestCloseWhileCallsAreUnderWay(t *testing.T) {
	p := newPeer(t, true, declared("ns"), status(503, "Retry-After", "3600"))
	opt := patient()
	losses := make(chan struct{}, 100)
	opt.Logger = onLoss(losses)
	s := connectTo(t, p.url, opt)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			o := do(t, context.Background(), s, "charge")
			o.wantUnknown(t)
		})
	}
	for range 10 {
		<-losses
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
}

// The SDK's keep-alive gives a session up by itself.
func TestASessionThatItsKeepAliveGaveUpIsMadeAnew(t *testing.T) {
	p := newPeer(t, false, declared("ns"), run)
	var silent atomic.Bool
	front := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && isMethod(r, "ping") && silent.Load() {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		p.ServeHTTP(w, r)
	}))
	client := newClient(&mcp.ClientOptions{KeepAlive: 20 * time.Millisecond})
	s, err := clientretry.New(client, patient()).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: front}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	silent.Store(true)
	eventually(t, "the session is given up", func() bool { return p.count("DELETE") > 0 })
	silent.Store(false)
	for range 3 {
		do(t, t.Context(), s, "charge").wantResult(t)
	}
}

// A connection keeps the values of the context that it was made with, and
// handlers of requests of the server run under them: neither key nor report of
// that context is theirs.
func TestAConnectionInheritsNeitherKeyNorReport(t *testing.T) {
	e := newElicitingServer(t)
	var s *clientretry.Session
	nested := make(chan outcome, 1)
	client := newClient(&mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		inner, report := clientretry.WithReport(ctx)
		_, err := s.CallTool(inner, &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"amount": 1}})
		nested <- outcome{err: err, report: *report}
		// Without a report of its own it leaves the caller's alone.
		_, err = s.CallTool(ctx, &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"amount": 2}})
		return &mcp.ElicitResult{Action: "accept"}, err
	}})
	const key = "anything.abcdefghijklmnopqrstuvwxyz"
	ctx, report := clientretry.WithReport(clientretry.WithKey(t.Context(), key))
	var err error
	s, err = clientretry.New(client, patient()).Connect(ctx, &mcp.StreamableClientTransport{Endpoint: e.url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o := do(t, t.Context(), s, "ask")
	o.wantResult(t)
	n := <-nested
	if n.err != nil || n.report.Key == key || n.report.Key == "" {
		t.Errorf("the nested call had the key %q: %v", n.report.Key, n.err)
	}
	if report.Attempts != 0 {
		t.Errorf("the report of the connection's context was filled in: %+v", *report)
	}
}
