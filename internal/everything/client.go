package everything

//lint:file-ignore SA1019 the scenarios test sampling, which revision 2026-07-28 deprecates

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addClientTools adds the tools that send the client a request of their own
// while they run, as revisions up to 2025-11-25 do it. For the way of
// 2026-07-28 see addRoundTools.
func addClientTools(server *mcp.Server) {
	addTool(server, "test_sampling", "Asks the client's model.", sample)
	addTool(server, "test_elicitation", "Asks the user.",
		func(ctx context.Context, req *mcp.CallToolRequest, in struct {
			Message string `json:"message" jsonschema:"what to show the user"`
		}) (*mcp.CallToolResult, error) {
			return elicit(ctx, req, "User response", in.Message, contactForm)
		})
	addTool(server, "test_elicitation_sep1034_defaults", "Asks the user, with a default for each kind of field.",
		func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
			return elicit(ctx, req, "Elicitation completed", "Please look at the defaults.", defaultsForm)
		})
	addTool(server, "test_elicitation_sep1330_enums", "Asks the user, with each kind of choice.",
		func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
			return elicit(ctx, req, "Elicitation completed", "Please choose.", choicesForm)
		})
	addTool(server, "test_missing_capability", "Answers only clients that declare sampling.", needSampling)
}

func sample(ctx context.Context, req *mcp.CallToolRequest, in struct {
	Prompt string `json:"prompt" jsonschema:"what to ask the model"`
}) (*mcp.CallToolResult, error) {
	res, err := req.Session.CreateMessage(ctx, question(in.Prompt, 100))
	if err != nil {
		return nil, err
	}
	answer, ok := res.Content.(*mcp.TextContent)
	if !ok {
		return text("LLM response: (not text)"), nil
	}
	return text("LLM response: %s", answer.Text), nil
}

// question is a sampling request with one message from the user.
func question(prompt string, maxTokens int64) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{
		Messages:  []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: prompt}}},
		MaxTokens: maxTokens,
	}
}

func elicit(ctx context.Context, req *mcp.CallToolRequest, label, message, form string) (*mcp.CallToolResult, error) {
	res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
		Message:         message,
		RequestedSchema: json.RawMessage(form),
	})
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(res.Content)
	if err != nil {
		return nil, err
	}
	return text("%s: action=%s, content=%s", label, res.Action, content), nil
}

// needSampling refuses a client that has not declared sampling with the error
// that SEP-2575 demands; it never samples.
func needSampling(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if caps := req.ClientCapabilities(); caps != nil && caps.Sampling != nil {
		return text("The client declares sampling."), nil
	}
	data, err := json.Marshal(mcp.MissingRequiredClientCapabilityData{
		RequiredCapabilities: &mcp.ClientCapabilities{Sampling: &mcp.SamplingCapabilities{}},
	})
	if err != nil {
		return nil, err
	}
	return nil, &jsonrpc.Error{
		Code:    mcp.CodeMissingRequiredClientCapabilities,
		Message: "this tool needs the client's sampling capability",
		Data:    data,
	}
}
