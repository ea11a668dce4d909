package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// fixture is a server with tools whose effects are counted, and a connection.
type fixture struct {
	conn
	t       testing.TB
	idem    *idempotency.Idempotency
	server  *mcp.Server
	clock   *clock
	memory  *memory.Store // nil when the options have a store
	effects atomic.Int64

	mu      sync.Mutex
	gates   map[string]chan struct{} // released by release
	entered chan string              // a gated handler has begun
}

type chargeArgs struct {
	Amount   int    `json:"amount"`
	EffectID string `json:"effect_id,omitempty"`
}

type gateArgs struct {
	Gate string `json:"gate"`
}

type receipt struct {
	Number int64 `json:"number"`
}

func newFixture(t testing.TB, c connector, opt *idempotency.Options) *fixture {
	return newFixtureStore(t, c, opt, nil)
}

func newFixtureStore(t testing.TB, c connector, opt *idempotency.Options, mem *memory.Options) *fixture {
	f := newServer(t, opt, mem)
	f.conn = c.connect(t, f.idem, f.server)
	return f
}

// newServer makes a fixture without a connection.
func newServer(t testing.TB, opt *idempotency.Options, mem *memory.Options) *fixture {
	f := &fixture{t: t, clock: newClock(), gates: map[string]chan struct{}{}, entered: make(chan string, 4096)}
	var o idempotency.Options
	if opt != nil {
		o = *opt
	}
	if o.WaitLimit == 0 {
		o.WaitLimit = patience // longer than a slow machine needs
	}
	if o.MinAnonymousKey == 0 {
		o.MinAnonymousKey = -1 // keys of tests are to be read
	}
	if o.Store == nil {
		var m memory.Options
		if mem != nil {
			m = *mem
		}
		m.Now = f.clock.Now
		f.memory = memory.New(&m)
		o.Store = f.memory
	}
	f.server = mcp.NewServer(&mcp.Implementation{Name: "fixture", Version: "1"}, nil)
	f.idem = idempotency.New(&o)
	f.idem.Install(f.server)
	f.addTools()
	t.Cleanup(func() { // what the SDK's HTTP handler keeps until a timeout
		for session := range f.server.Sessions() {
			session.Close()
		}
	})
	return f
}

// clock is a clock that moves when it is told to.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_800_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// patience is how long a test waits for what has to happen.
const patience = 2 * time.Minute

// eventually waits for a state that no channel announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// start makes a call in the background.
func (f *fixture) start(ctx context.Context, tool, key, args string) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.reply, p.err = f.call(ctx, "tools/call", toolParams(tool, key, args))
	}()
	return p
}

// pending is a call under way.
type pending struct {
	done  chan struct{}
	reply reply
	err   error
}

func (p *pending) wait(t testing.TB) reply {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatal("no answer within ", patience)
	}
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.reply
}

func (f *fixture) addTools() {
	charge := func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, receipt, error) {
		return nil, receipt{Number: f.effects.Add(1)}, nil
	}
	for _, name := range []string{"charge", "required", "unsupported", "by_argument", "required_argument"} {
		mcp.AddTool(f.server, &mcp.Tool{Name: name, Description: "Charges a card."}, charge)
	}
	mcp.AddTool(f.server, &mcp.Tool{Name: "gated"}, f.gated)
	mcp.AddTool(f.server, &mcp.Tool{Name: "abortable"}, f.gated)
	mcp.AddTool(f.server, &mcp.Tool{Name: "open"}, func(_ context.Context, _ *mcp.CallToolRequest, in gateArgs) (*mcp.CallToolResult, any, error) {
		close(f.gate(in.Gate))
		return nil, nil, nil
	})
	mcp.AddTool(f.server, &mcp.Tool{Name: "declines"}, func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, any, error) {
		f.effects.Add(1)
		return nil, nil, errors.New("card declined")
	})
	mcp.AddTool(f.server, &mcp.Tool{Name: "raises"}, func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, any, error) {
		f.effects.Add(1)
		return nil, nil, &jsonrpc.Error{Code: -32000, Message: "raised", Data: json.RawMessage(`{"detail":9007199254740993}`)}
	})
	mcp.AddTool(f.server, &mcp.Tool{Name: "no_effect"}, func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, any, error) {
		f.effects.Add(1)
		return nil, nil, idempotency.NoEffect(errors.New("the card is not known"))
	})
	mcp.AddTool(f.server, &mcp.Tool{Name: "large"}, func(_ context.Context, _ *mcp.CallToolRequest, in chargeArgs) (*mcp.CallToolResult, any, error) {
		f.effects.Add(1)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", in.Amount)}}}, nil, nil
	})
}

// gated waits for its gate, or for its context.
func (f *fixture) gated(ctx context.Context, _ *mcp.CallToolRequest, in gateArgs) (*mcp.CallToolResult, receipt, error) {
	gate := f.gate(in.Gate)
	f.entered <- in.Gate
	select {
	case <-gate:
		return nil, receipt{Number: f.effects.Add(1)}, nil
	case <-ctx.Done():
		return nil, receipt{}, ctx.Err()
	case <-f.t.Context().Done(): // the test has failed
		return nil, receipt{}, f.t.Context().Err()
	}
}

func (f *fixture) gate(name string) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gates[name] == nil {
		f.gates[name] = make(chan struct{})
	}
	return f.gates[name]
}

// finish opens a gate and checks that the run behind it ends with a result.
func (f *fixture) finish(run *pending, gate string) reply {
	f.t.Helper()
	close(f.gate(gate))
	r := run.wait(f.t)
	if r.Error != nil || r.marker() == nil {
		f.t.Errorf("the run at gate %q ended with %v", gate, r)
	}
	return r
}

func (f *fixture) awaitEntered(gate string) {
	f.t.Helper()
	select {
	case got := <-f.entered:
		if got != gate {
			f.t.Fatalf("handler entered with gate %q, want %q", got, gate)
		}
	case <-time.After(patience):
		f.t.Fatalf("no handler entered gate %q", gate)
	}
}

// tool calls a tool with a key in params ("" for none).
func (f *fixture) tool(name, key, args string) reply {
	f.t.Helper()
	r, err := f.call(f.t.Context(), "tools/call", toolParams(name, key, args))
	if err != nil {
		f.t.Fatalf("calling %s: %v", name, err)
	}
	return r
}

func toolParams(name, key, args string) string {
	p := fmt.Sprintf(`{"name":%q,"arguments":%s`, name, args)
	if key != "" {
		p += fmt.Sprintf(`,"idempotencyKey":%q`, key)
	}
	return p + "}"
}

// namespace asks the server for the namespace that it declares.
func (f *fixture) namespace() string {
	f.t.Helper()
	return f.settings().KeyNamespace
}

func (f *fixture) settings() schema.ServerSettings {
	f.t.Helper()
	ns, err := f.declared()
	if err != nil {
		f.t.Fatal(err)
	}
	return ns
}

// declared reads the capability by a fresh handshake over the same path.
func (f *fixture) declared() (schema.ServerSettings, error) {
	var settings schema.ServerSettings
	var r reply
	var err error
	switch {
	case f.revision() == modernRevision:
		r, err = f.call(f.t.Context(), "server/discover", `{}`)
	default:
		var fresh conn
		if c, ok := f.conn.(*httpClient); ok {
			fresh = &httpClient{url: c.url, rev: c.rev, client: c.client, bearer: c.bearer}
		} else {
			return f.idemSettings()
		}
		r, err = fresh.call(f.t.Context(), "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}`)
	}
	if err != nil {
		return settings, err
	}
	var res struct {
		Capabilities struct {
			Extensions map[string]json.RawMessage `json:"extensions"`
		} `json:"capabilities"`
	}
	if err := json.Unmarshal(r.Result, &res); err != nil {
		return settings, fmt.Errorf("%v: %w", r, err)
	}
	raw, ok := res.Capabilities.Extensions[schema.ExtensionID]
	if !ok {
		return settings, errNotDeclared
	}
	return settings, json.Unmarshal(raw, &settings)
}

var errNotDeclared = errors.New("capability not declared")

// idemSettings connects a second pipe for a legacy handshake.
func (f *fixture) idemSettings() (schema.ServerSettings, error) {
	ct, st := mcp.NewInMemoryTransports()
	ss, err := f.server.Connect(f.t.Context(), f.idem.Transport(st), nil)
	if err != nil {
		return schema.ServerSettings{}, err
	}
	defer ss.Close()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).
		Connect(f.t.Context(), ct, &mcp.ClientSessionOptions{ProtocolVersion: legacyRevision})
	if err != nil {
		return schema.ServerSettings{}, err
	}
	defer cs.Close()
	raw, ok := cs.InitializeResult().Capabilities.Extensions[schema.ExtensionID]
	if !ok {
		return schema.ServerSettings{}, errNotDeclared
	}
	b, err := json.Marshal(raw)
	if err != nil {
		return schema.ServerSettings{}, err
	}
	var s schema.ServerSettings
	return s, json.Unmarshal(b, &s)
}

var keyCounter atomic.Int64

// key makes a fresh key in the current namespace.
func (f *fixture) key() string {
	f.t.Helper()
	return fmt.Sprintf("%s.key-%018d", f.namespaceOf(f.t), keyCounter.Add(1))
}

// namespaceOf asks the store, without a connection.
func (f *fixture) namespaceOf(t testing.TB) string {
	t.Helper()
	ns, err := f.idem.Store().Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

func (f *fixture) wantEffects(n int64) {
	f.t.Helper()
	if got := f.effects.Load(); got != n {
		f.t.Errorf("%d effects, want %d", got, n)
	}
}

// wantReason checks an extension error as a whole: code, reason, outcome,
// which members its data has, and that it travels on HTTP 200.
func wantReason(t testing.TB, r reply, want schema.Reason) {
	t.Helper()
	d := r.ext()
	if d.Reason != want {
		t.Fatalf("got %v, want the reason %s", r, want)
	}
	members := []string{"reason", "outcome"}
	switch want {
	case schema.ReasonCapacityExceeded, schema.ReasonStoreUnavailable, schema.ReasonStillRunning:
		members = append(members, "retryAfterMs")
		if d.RetryAfterMs == nil || *d.RetryAfterMs <= 0 {
			t.Errorf("%s without a positive retryAfterMs: %v", want, r)
		}
	case schema.ReasonNamespaceNotHeld, schema.ReasonNamespaceClosed:
		members = append(members, "keyNamespace")
		if err := schema.CheckNamespace(d.KeyNamespace); err != nil {
			t.Errorf("%s: %v: %v", want, err, r)
		}
	}
	var data map[string]any
	if err := json.Unmarshal(r.Error.Data, &data); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(data)); !slices.Equal(got, slices.Sorted(slices.Values(members))) {
		t.Errorf("%s has the data members %v, want %v", want, got, members)
	}
	if outcome, _ := schema.OutcomeOf(want); d.Outcome != outcome {
		t.Errorf("reason %s came with outcome %q, want %q", want, d.Outcome, outcome)
	}
	if r.status != 0 && r.status != http.StatusOK {
		t.Errorf("%s came with HTTP status %d", want, r.status)
	}
	if r.Error.Message == "" {
		t.Errorf("%s has no message", want)
	}
}
