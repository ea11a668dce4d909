package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// bareConnectors reach a server with the middleware but without an adapter.
func bareConnectors() []connector {
	overHTTP := func(rev string, opts mcp.StreamableHTTPOptions) func(testing.TB, *idempotency.Idempotency, *mcp.Server) conn {
		return func(t testing.TB, _ *idempotency.Idempotency, server *mcp.Server) conn {
			return dialHTTP(t, sdkHandler(server, opts), rev, opts, "")
		}
	}
	overPipe := func(rev string) func(testing.TB, *idempotency.Idempotency, *mcp.Server) conn {
		return func(t testing.TB, _ *idempotency.Idempotency, server *mcp.Server) conn {
			return dialPipe(t, server, nil, rev)
		}
	}
	return []connector{
		{"http-modern", overHTTP(modernRevision, mcp.StreamableHTTPOptions{Stateless: true})},
		{"http-legacy-stateful", overHTTP(legacyRevision, mcp.StreamableHTTPOptions{})},
		{"http-legacy-stateless", overHTTP(legacyRevision, mcp.StreamableHTTPOptions{Stateless: true})},
		{"stdio-modern", overPipe(modernRevision)},
		{"stdio-legacy", overPipe(legacyRevision)},
	}
}

// rawCapability is the capability as a handshake over the same path has it.
func rawCapability(t *testing.T, f *fixture) json.RawMessage {
	t.Helper()
	var r reply
	var err error
	switch c := f.conn.(type) {
	case *httpClient:
		fresh := &httpClient{url: c.url, rev: c.rev, client: c.client, header: c.header}
		method := "server/discover"
		params := `{}`
		if c.rev == legacyRevision {
			method, params = "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}`
		}
		r, err = fresh.call(t.Context(), method, params)
	case *pipeClient:
		if r = c.handshake; r.Result == nil {
			r, err = c.call(t.Context(), "server/discover", `{}`)
		}
	}
	var res struct {
		Capabilities struct {
			Extensions map[string]json.RawMessage `json:"extensions"`
		} `json:"capabilities"`
	}
	if e := json.Unmarshal(r.Result, &res); err != nil || e != nil {
		t.Fatalf("%v: %v, %v", r, err, e)
	}
	return res.Capabilities.Extensions[schema.ExtensionID]
}

func TestWithoutAnAdapterTheMetaFormWorksAndTheCapabilitySaysSo(t *testing.T) {
	on(t, bareConnectors(), nil, nil, func(t *testing.T, f *fixture) {
		ns := f.namespaceOf(t)
		raw := rawCapability(t, f)
		var s schema.ServerSettings
		if err := json.Unmarshal(raw, &s); err != nil || s.KeyNamespace != ns || s.RetentionMs != (24*time.Hour).Milliseconds() || strings.Contains(string(raw), "keyParam") {
			t.Errorf("declared %s, %v", raw, err)
		}
		inMeta := `{` + goodArgs + `,"_meta":{"` + schema.MetaKey + `":"` + ns + `.k"}}`
		for i := range 2 {
			if r, err := f.call(t.Context(), "tools/call", inMeta); err != nil || r.marker() == nil || r.replayed() != (i == 1) {
				t.Errorf("attempt %d: %v, %v", i, r, err)
			}
		}
		f.wantEffects(1)
		// The param is dropped by the SDK: not honoured, and not marked.
		for range 2 {
			if r := f.tool("charge", ns+".p", `{"amount":1}`); r.Error != nil || r.marker() != nil {
				t.Errorf("%v", r)
			}
		}
		f.wantEffects(3)
	})
}

func TestOnlyTheAdapterCanSayThatItWasThere(t *testing.T) {
	forged := http.Header{"Mcp-Idempotency-Adapter": {"idempotencyKey#FORGED"}}
	for i, c := range append(bareConnectors()[:3], named("http")...) {
		f := newFixture(t, c, nil)
		client, adapted := f.conn.(*httpClient), i >= 3
		client.header = forged
		if raw := rawCapability(t, f); strings.Contains(string(raw), `"keyParam":true`) != adapted {
			t.Errorf("%s declared %s", c.name, raw)
		}
		// Nor can a peer write what the adapter writes.
		r, err := f.call(t.Context(), "tools/call", `{`+goodArgs+`,"_meta":{"idempotencyKey#FORGED":["`+f.namespaceOf(t)+`.k"]}}`)
		if err != nil || r.marker() != nil || r.Error != nil {
			t.Errorf("%s: %v, %v", c.name, r, err)
		}
	}
}

// Even a peer that learned the adapter's name can only send what a key is.
func TestTheAdaptersMemberIsReadWithCare(t *testing.T) {
	f := newFixture(t, connectors()[0], nil)
	for value, reason := range map[string]schema.Reason{
		`[]`: "", `{}`: "", `"x.k"`: "", `null`: "", `[null]`: schema.ReasonKeyInvalid, `[[]]`: schema.ReasonKeyInvalid, `["x.k"]`: schema.ReasonNamespaceNotHeld,
	} {
		r, err := f.call(t.Context(), "tools/call", `{`+goodArgs+`,"_meta":{"`+f.idem.Private()+`":`+value+`}}`)
		if err != nil {
			t.Fatal(err)
		}
		if reason != "" {
			wantReason(t, r, reason)
		} else if r.Error != nil || r.marker() != nil {
			t.Errorf("%s: %v", value, r)
		}
	}
}

// What the adapter adds for the middleware reaches no handler and no peer.
func TestTheAdaptersMemberIsSeenByNobody(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		var seen mcp.Meta
		f.server.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			seen = req.Params.Meta
			return &mcp.CallToolResult{Meta: mcp.Meta{"echo": req.Params.Meta}}, nil
		})
		key := f.key()
		params := `{"name":"echo","arguments":{},"idempotencyKey":"` + key + `","_meta":{"mine":1,"` + schema.ExtensionID + `":{"attempt":2}}}`
		first, err := f.call(t.Context(), "tools/call", params)
		if err != nil || first.Error != nil {
			t.Fatal(first, err)
		}
		if first.replayed() {
			t.Error("the attempt's number made a difference")
		}
		for name := range seen {
			if strings.HasPrefix(name, schema.ParamKey) {
				t.Errorf("the handler saw %s", name)
			}
		}
		if seen["mine"] == nil || strings.Contains(string(first.Result), schema.ParamKey+"#") {
			t.Errorf("%v", first)
		}
	})
}

func TestAcceptOnlyTakesKeysAndDeclaresNothing(t *testing.T) {
	opt := func() *idempotency.Options { return &idempotency.Options{AcceptOnly: true, Tools: toolOptions()} }
	onEach(t, opt, func(t *testing.T, f *fixture) {
		if _, err := f.declared(); !errors.Is(err, errNotDeclared) {
			t.Errorf("declared: %v", err)
		}
		r, err := f.call(t.Context(), "tools/list", `{}`)
		if err != nil || strings.Contains(string(r.Result), "idempotency") || strings.Contains(string(r.Result), "epeat") {
			t.Errorf("%v, %v", r, err)
		}
		key := f.namespaceOf(t) + ".k"
		f.tool("charge", key, `{"amount":1}`)
		if r := f.tool("charge", key, `{"amount":1}`); !r.replayed() {
			t.Error(r)
		}
		wantReason(t, f.tool("charge", "bad", `{"amount":1}`), schema.ReasonKeyInvalid)
		f.wantEffects(1)
	})
}

func TestToolsCarryTheHintAndTheSentence(t *testing.T) {
	tools := toolOptions()
	tools["charge"] = idempotency.ToolOptions{MaxExecution: 90 * time.Second}
	tools["gated"] = idempotency.ToolOptions{MaxExecution: -1}
	opt := func() *idempotency.Options { return &idempotency.Options{Tools: tools} }
	onEach(t, opt, func(t *testing.T, f *fixture) {
		list := func() map[string]*mcp.Tool {
			r, err := f.call(t.Context(), "tools/list", `{}`)
			var res mcp.ListToolsResult
			if e := json.Unmarshal(r.Result, &res); err != nil || e != nil {
				t.Fatal(err, e)
			}
			byName := map[string]*mcp.Tool{}
			for _, tool := range res.Tools {
				byName[tool.Name] = tool
			}
			return byName
		}
		got := list()
		for name, want := range map[string]struct{ hint, description string }{
			"charge":            {`{"key":"optional","maxExecutionMs":90000}`, "Charges a card. A repeat that the client marks"},
			"gated":             {`{"key":"optional"}`, "A repeat that the client marks"},
			"required":          {`{"key":"required"}`, "Charges a card. The client marks each intended call"},
			"unsupported":       {`{"key":"unsupported"}`, "Charges a card. Repeating this call runs it again."},
			"by_argument":       {`{"key":"optional"}`, `Charges a card. Repeating a call with the same "effect_id" returns the first call's result`},
			"required_argument": {`{"key":"required"}`, `Charges a card. Repeating a call with the same "effect_id"`},
		} {
			tool := got[name]
			hint, _ := json.Marshal(tool.Meta[schema.ExtensionID])
			if string(hint) != want.hint || !strings.HasPrefix(tool.Description, want.description) {
				t.Errorf("%s: hint %s, description %q", name, hint, tool.Description)
			}
			// K2: no sentence sends a model to a new key for the same request.
			if strings.Contains(tool.Description, "new key") {
				t.Errorf("%s: %q", name, tool.Description)
			}
		}
		if again := list(); !reflect.DeepEqual(got, again) {
			t.Error("a second list differs: the server's tools were changed")
		}
	})
}

// What the server says of itself stays, and stays its own.
func TestOtherCapabilitiesAndToolMetaStay(t *testing.T) {
	other := map[string]any{"a": 1.0}
	caps := &mcp.ServerCapabilities{Completions: &mcp.CompletionCapabilities{}}
	caps.AddExtension("example.com/other", other)
	meta := mcp.Meta{"mine": true}
	tool := &mcp.Tool{Name: "mine", Description: "Does it. \n", Meta: meta, InputSchema: map[string]any{"type": "object"}}
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, &mcp.ServerOptions{Capabilities: caps})
	server.AddTool(tool, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{}, nil
	})
	idem := idempotency.New(nil)
	idem.Install(server)
	for _, s := range []string{modernRevision, legacyRevision} {
		ct, st := mcp.NewInMemoryTransports()
		if _, err := server.Connect(t.Context(), idem.Transport(st), nil); err != nil {
			t.Fatal(err)
		}
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), ct, &mcp.ClientSessionOptions{ProtocolVersion: s})
		if err != nil {
			t.Fatal(err)
		}
		got := cs.InitializeResult().Capabilities
		if !reflect.DeepEqual(got.Extensions["example.com/other"], other) || got.Extensions[schema.ExtensionID] == nil || got.Completions == nil {
			t.Errorf("%s: %+v", s, got)
		}
		list, err := cs.ListTools(t.Context(), nil)
		if err != nil || list.Tools[0].Meta["mine"] != true || !strings.HasPrefix(list.Tools[0].Description, "Does it. A repeat") {
			t.Errorf("%s: %+v, %v", s, list.Tools[0], err)
		}
		cs.Close()
	}
	if len(caps.Extensions) != 1 || len(meta) != 1 || tool.Description != "Does it. \n" {
		t.Errorf("written into: %v, %v, %q", caps.Extensions, meta, tool.Description)
	}
}

func TestOptionsThatCanOnlyBeMistakesArePanics(t *testing.T) {
	for name, o := range map[string]idempotency.Options{
		"MaxWaiters": {MaxWaiters: -1}, "RetryAfter": {RetryAfter: -1}, "Lease": {Lease: -1}, "StoreTimeout": {StoreTimeout: -1},
		"MaxResultBytes": {MaxResultBytes: -1}, "MaxArgumentBytes": {MaxArgumentBytes: -1},
		`Key is "maybe"`:    {Tools: map[string]idempotency.ToolOptions{"t": {Key: "maybe"}}},
		"OnDisconnect is 9": {Default: idempotency.ToolOptions{OnDisconnect: 9}},
	} {
		func() {
			defer func() {
				if r, ok := recover().(string); !ok || !strings.Contains(r, name) {
					t.Errorf("%s: %v", name, r)
				}
			}()
			idempotency.New(&o)
		}()
	}
	// Copied on entry: later changes of the caller's are not seen.
	tools := map[string]idempotency.ToolOptions{}
	o := &idempotency.Options{Tools: tools}
	f := newFixture(t, connectors()[0], o)
	tools["charge"] = idempotency.ToolOptions{Key: schema.KeyUnsupported}
	if r := f.tool("charge", f.key(), `{"amount":1}`); r.Error != nil {
		t.Error(r)
	}
}
