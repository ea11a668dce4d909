package everything

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addSchemaTools adds the tools whose input schemas are what is tested. They
// are added untyped, so that the schema goes out as it is written here.
func addSchemaTools(server *mcp.Server) {
	accept := func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text("Accepted."), nil
	}
	server.AddTool(&mcp.Tool{
		Name:        "json_schema_2020_12_tool",
		Description: "Takes arguments described with JSON Schema 2020-12 keywords.",
		InputSchema: json.RawMessage(keywordsSchema),
	}, accept)
	server.AddTool(&mcp.Tool{
		Name:        "test_header_mirroring",
		Description: "Takes an argument that the client repeats in a header (SEP-2243).",
		InputSchema: json.RawMessage(mirroredSchema),
	}, accept)
}

// keywordsSchema has the keywords that SEP-1613 and SEP-2106 want preserved.
const keywordsSchema = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {
		"address": {
			"$anchor": "addressDef",
			"type": "object",
			"properties": {"street": {"type": "string"}, "city": {"type": "string"}}
		}
	},
	"properties": {
		"name": {"type": "string"},
		"address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]},
		"phone": {"type": "string"},
		"email": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
	"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
	"then": {"required": ["phone"]},
	"else": {"required": ["email"]},
	"additionalProperties": false
}`

// mirroredSchema has one property that travels in the header Mcp-Param-Region too.
const mirroredSchema = `{
	"type": "object",
	"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}
}`
