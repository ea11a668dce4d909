package everything

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addPrompts adds the prompts, those that answer at once and the one that
// asks back first.
func addPrompts(server *mcp.Server) {
	addPrompt(server, &mcp.Prompt{
		Name:        "test_simple_prompt",
		Description: "A prompt without arguments.",
	}, says("This is a simple prompt for testing."))

	addPrompt(server, &mcp.Prompt{
		Name:        "test_prompt_with_arguments",
		Description: "A prompt with two arguments.",
		Arguments: []*mcp.PromptArgument{
			{Name: "arg1", Description: "First test argument", Required: true},
			{Name: "arg2", Description: "Second test argument", Required: true},
		},
	}, func(args map[string]string) []mcp.Content {
		return []mcp.Content{&mcp.TextContent{
			Text: fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"]),
		}}
	})

	addPrompt(server, &mcp.Prompt{
		Name:        "test_prompt_with_embedded_resource",
		Description: "A prompt with a resource inside.",
		Arguments: []*mcp.PromptArgument{
			{Name: "resourceUri", Description: "URI of the resource to embed", Required: true},
		},
	}, func(args map[string]string) []mcp.Content {
		return []mcp.Content{
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
				URI:      args["resourceUri"],
				MIMEType: "text/plain",
				Text:     "Embedded resource content for testing.",
			}},
			&mcp.TextContent{Text: "Please process the embedded resource above."},
		}
	})

	addPrompt(server, &mcp.Prompt{
		Name:        "test_prompt_with_image",
		Description: "A prompt with an image inside.",
	}, func(map[string]string) []mcp.Content {
		return []mcp.Content{
			&mcp.ImageContent{Data: redPixel(), MIMEType: "image/png"},
			&mcp.TextContent{Text: "Please analyze the image above."},
		}
	})

	server.AddPrompt(&mcp.Prompt{
		Name:        "test_input_required_result_prompt",
		Description: "A prompt that asks the user before it answers.",
	}, promptAfterQuestion)
}

// addPrompt adds a prompt whose messages all come from the user.
func addPrompt(server *mcp.Server, prompt *mcp.Prompt, contents func(args map[string]string) []mcp.Content) {
	server.AddPrompt(prompt, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		res := &mcp.GetPromptResult{}
		for _, content := range contents(req.Params.Arguments) {
			res.Messages = append(res.Messages, &mcp.PromptMessage{Role: "user", Content: content})
		}
		return res, nil
	})
}

// says gives the contents of a prompt that is one line of text.
func says(line string) func(map[string]string) []mcp.Content {
	return func(map[string]string) []mcp.Content {
		return []mcp.Content{&mcp.TextContent{Text: line}}
	}
}

// promptAfterQuestion shows that a prompt, too, may answer with a question (SEP-2322).
func promptAfterQuestion(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	about, ok := field(req.Params.InputResponses, "user_context", "context")
	if !ok {
		return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{
			"user_context": &mcp.ElicitParams{
				Message:         "What context should the prompt use?",
				RequestedSchema: json.RawMessage(oneString("context")),
			},
		}}, nil
	}
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{
		Role:    "user",
		Content: &mcp.TextContent{Text: "Prompt with context: " + about},
	}}}, nil
}
