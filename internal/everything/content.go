package everything

import (
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addContentTools adds the tools that show each kind of content once.
func addContentTools(server *mcp.Server) {
	image := &mcp.ImageContent{Data: redPixel(), MIMEType: "image/png"}

	addConstant(server, "test_simple_text", "Returns a line of text.",
		&mcp.TextContent{Text: "This is a simple text response for testing."})
	addConstant(server, "test_image_content", "Returns an image.", image)
	addConstant(server, "test_audio_content", "Returns a sound.",
		&mcp.AudioContent{Data: silence(), MIMEType: "audio/wav"})
	addConstant(server, "test_embedded_resource", "Returns a resource inside the result.",
		&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
			URI:      "test://embedded-resource",
			MIMEType: "text/plain",
			Text:     "This is an embedded resource content.",
		}})
	addConstant(server, "test_multiple_content_types", "Returns text, an image and a resource.",
		&mcp.TextContent{Text: "Multiple content types test:"},
		image,
		&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
			URI:      "test://mixed-content-resource",
			MIMEType: "application/json",
			Text:     `{"test":"data","value":123}`,
		}})
	addTool(server, "test_error_handling", "Always fails.",
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			return nil, errors.New("This tool intentionally returns an error for testing") //lint:ignore ST1005 the scenario fixes the text
		})
}
