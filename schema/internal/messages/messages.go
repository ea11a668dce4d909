// Package messages describes whole MCP messages with the extension's data in
// them, for the JSON Schema and for the tests of the examples beside it.
//
// The types keep only what the examples are checked for, so they are not for
// programs that speak MCP: those use the types of their SDK.
package messages

import "github.com/mcp-idempotency/mcp-idempotency/schema"

// Capabilities is the capabilities member of the results below.
type Capabilities struct {
	Extensions *schema.Extensions `json:"extensions,omitempty" jsonschema_description:"Extensions that the server has, by identifier."`
}

// DiscoverResult is the result of `server/discover` (from 2026-07-28 on).
type DiscoverResult struct {
	SupportedVersions []string     `json:"supportedVersions" jsonschema_description:"Protocol revisions that the server speaks."`
	Capabilities      Capabilities `json:"capabilities" jsonschema_description:"What the server can do."`
}

// InitializeResult is the result of `initialize` (up to 2025-11-25).
type InitializeResult struct {
	ProtocolVersion string       `json:"protocolVersion" jsonschema_description:"The protocol revision that the server chose."`
	Capabilities    Capabilities `json:"capabilities" jsonschema_description:"What the server can do."`
}

// Tool is one entry of a `tools/list` result.
type Tool struct {
	Name        string           `json:"name" jsonschema_description:"Name of the tool."`
	Description string           `json:"description,omitempty" jsonschema_description:"What the tool does, with a sentence on what a repeat does."`
	InputSchema map[string]any   `json:"inputSchema" jsonschema_description:"JSON Schema of the tool's arguments."`
	Meta        *schema.ToolMeta `json:"_meta,omitempty" jsonschema_description:"Tool metadata."`
}

// CallToolRequest is a whole `tools/call` message.
type CallToolRequest struct {
	JSONRPC string                `json:"jsonrpc" jsonschema:"enum=2.0" jsonschema_description:"The JSON-RPC version."`
	ID      any                   `json:"id" jsonschema:"oneof_type=string;integer" jsonschema_description:"A new one for every attempt."`
	Method  string                `json:"method" jsonschema:"enum=tools/call" jsonschema_description:"The only method that takes an idempotency key."`
	Params  schema.CallToolParams `json:"params" jsonschema_description:"The call."`
}

// KeyedResult is the result of a `tools/call` whose key was honoured. What
// else it holds depends on resultType and is the business of MCP.
type KeyedResult struct {
	ResultType        string            `json:"resultType,omitempty" jsonschema_description:"What kind of result this is. Absent before 2026-07-28."`
	Content           []map[string]any  `json:"content,omitempty" jsonschema_description:"The tool's answer. Absent where resultType says that there is none yet."`
	StructuredContent any               `json:"structuredContent,omitempty" jsonschema_description:"The tool's answer as one JSON value."`
	IsError           bool              `json:"isError,omitempty" jsonschema_description:"Whether the tool failed. A failure is recorded and replayed like any other result."`
	RequestState      string            `json:"requestState,omitempty" jsonschema_description:"State of a multi round-trip call, opaque to the client."`
	Meta              schema.ResultMeta `json:"_meta" jsonschema_description:"Result metadata with the marker."`
}

// KeyedResultResponse is the whole message around a [KeyedResult].
type KeyedResultResponse struct {
	JSONRPC string      `json:"jsonrpc" jsonschema:"enum=2.0" jsonschema_description:"The JSON-RPC version."`
	ID      any         `json:"id" jsonschema:"oneof_type=string;integer" jsonschema_description:"The id of this attempt's request."`
	Result  KeyedResult `json:"result" jsonschema_description:"The result."`
}

// ToolError is the error member of a response to a call in which the tool
// raised a JSON-RPC error, and whose key was honoured.
type ToolError struct {
	Code    int    `json:"code" jsonschema_description:"The tool's code; never that of the extension's own errors."`
	Message string `json:"message" jsonschema_description:"The tool's message."`
	Data    any    `json:"data" jsonschema_description:"The tool's data. An object, also one that the server had to add, has the marker; other values stay as they are."`
}

// ToolErrorResponse is the whole message around a [ToolError].
type ToolErrorResponse struct {
	JSONRPC string    `json:"jsonrpc" jsonschema:"enum=2.0" jsonschema_description:"The JSON-RPC version."`
	ID      any       `json:"id" jsonschema:"oneof_type=string;integer" jsonschema_description:"The id of this attempt's request."`
	Error   ToolError `json:"error" jsonschema_description:"The tool's error."`
}

// ErrorResponse is the whole message around a [schema.ErrorObject].
type ErrorResponse struct {
	JSONRPC string             `json:"jsonrpc" jsonschema:"enum=2.0" jsonschema_description:"The JSON-RPC version."`
	ID      any                `json:"id" jsonschema:"oneof_type=string;integer" jsonschema_description:"The id of this attempt's request."`
	Error   schema.ErrorObject `json:"error" jsonschema_description:"The extension's error."`
}
