package everything

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addChangeTools adds the tools that change the server's own lists, so that
// subscribers have something to be told. Each adds an entry and takes it away
// again: the lists are the same for every scenario, whatever ran before.
func addChangeTools(server *mcp.Server) {
	addTool(server, "test_trigger_tool_change", "Changes the list of tools and changes it back.",
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			const name = "test_passing_tool"
			addConstant(server, name, "Exists for a moment.", &mcp.TextContent{Text: "Still here."})
			server.RemoveTools(name)
			return text("The list of tools changed twice."), nil
		})
	addTool(server, "test_trigger_prompt_change", "Changes the list of prompts and changes it back.",
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			prompt := &mcp.Prompt{Name: "test_passing_prompt", Description: "Exists for a moment."}
			addPrompt(server, prompt, says("Still here."))
			server.RemovePrompts(prompt.Name)
			return text("The list of prompts changed twice."), nil
		})
}
