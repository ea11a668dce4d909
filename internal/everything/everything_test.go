package everything

//lint:file-ignore SA1019 the scenarios test sampling, logging and roots, which revision 2026-07-28 deprecates

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connect connects a client that answers every question to a fresh server.
func connect(t *testing.T, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	serverSide, clientSide := mcp.NewInMemoryTransports()
	server, err := New().Connect(t.Context(), serverSide, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1.0.0"}, opts)
	client.AddRoots(&mcp.Root{Name: "home", URI: "file:///home"})
	session, err := client.Connect(t.Context(), clientSide, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		session.Close()
		if err := server.Wait(); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return session
}

// helpful returns the options of a client that has an answer to everything.
func helpful() *mcp.ClientOptions {
	return &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "test", Content: &mcp.TextContent{Text: "Paris"}}, nil
		},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{
				"name": "Ada", "color": "blue", "ok": true,
			}}, nil
		},
	}
}

func TestToolsThatAskAreCalledUntilTheyAnswer(t *testing.T) {
	session := connect(t, helpful())
	for tool, want := range map[string]string{
		"test_simple_text":                           "This is a simple text response for testing.",
		"test_input_required_result_elicitation":     "Hello, Ada!",
		"test_input_required_result_sampling":        "Paris",
		"test_input_required_result_list_roots":      "home: file:///home",
		"test_input_required_result_capabilities":    "Nothing left to ask.",
		"test_input_required_result_multiple_inputs": "Paris Ada (1 roots)",
		"test_input_required_result_multi_round":     "Ada likes blue.",
		"test_input_required_result_request_state":   "state-ok",
	} {
		res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool})
		if err != nil {
			t.Errorf("%s: %v", tool, err)
			continue
		}
		if got := firstText(res); got != want || res.IsError {
			t.Errorf("%s: %q (error: %t), want %q", tool, got, res.IsError, want)
		}
	}
}

func TestStateThatTheServerDidNotSignIsRefused(t *testing.T) {
	session := connect(t, nil)
	sign := newSigner()
	for _, state := range []string{"", ".", "confirm", "a.b", "!.!", sign.sign("confirm")} {
		_, err := session.CallTool(t.Context(), &mcp.CallToolParams{
			Name:           "test_input_required_result_tampered_state",
			InputResponses: mcp.InputResponseMap{"confirm": &mcp.ElicitResult{Action: "accept"}},
			RequestState:   state,
		})
		var refused *jsonrpc.Error
		if !errors.As(err, &refused) || refused.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("state %q: error %v, want code %d", state, err, jsonrpc.CodeInvalidParams)
		}
	}
	if got, err := sign.open(sign.sign("its own")); err != nil || got != "its own" {
		t.Errorf("a signed state opens as %q, %v", got, err)
	}
}

func TestClientWithoutSamplingIsTold(t *testing.T) {
	_, err := connect(t, nil).CallTool(t.Context(), &mcp.CallToolParams{Name: "test_missing_capability"})
	var refused *jsonrpc.Error
	if !errors.As(err, &refused) || refused.Code != mcp.CodeMissingRequiredClientCapabilities {
		t.Fatalf("error %v, want code %d", err, mcp.CodeMissingRequiredClientCapabilities)
	}
	var data struct {
		RequiredCapabilities map[string]any `json:"requiredCapabilities"`
	}
	if err := json.Unmarshal(refused.Data, &data); err != nil {
		t.Fatal(err)
	}
	if _, named := data.RequiredCapabilities["sampling"]; !named {
		t.Errorf("data = %s, want it to name sampling", refused.Data)
	}
}

func TestChangeToolsLeaveTheListsAsTheyWere(t *testing.T) {
	session := connect(t, nil)
	list := func() string {
		tools, err := session.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		prompts, err := session.ListPrompts(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range tools.Tools {
			names = append(names, tool.Name)
		}
		for _, prompt := range prompts.Prompts {
			names = append(names, prompt.Name)
		}
		return strings.Join(names, " ")
	}
	before := list()
	for _, tool := range []string{"test_trigger_tool_change", "test_trigger_prompt_change"} {
		if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool}); err != nil {
			t.Fatal(err)
		}
	}
	if after := list(); after != before {
		t.Errorf("lists after = %s\nbefore = %s", after, before)
	}
}

// firstText returns the text of a result's first block.
func firstText(res *mcp.CallToolResult) string {
	if len(res.Content) == 0 {
		return ""
	}
	content, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		return ""
	}
	return content.Text
}
