package schema

// The types in this file are the objects of other parts of MCP in which the
// extension's data travels, reduced to the members that the extension adds.
// They are for reading a message and for describing it; a program that writes
// one keeps the members that are not listed here.

// Extensions is the part of capabilities.extensions that the extension adds.
type Extensions struct {
	// Idempotency is nil when the server does not have the extension.
	Idempotency *ServerSettings `json:"io.modelcontextprotocol/idempotency,omitempty" jsonschema_description:"Present if the server has the extension."`
}

// ResultMeta is the part of a result's `_meta` that the extension adds.
type ResultMeta struct {
	// Marker is nil when the key was not honoured.
	Marker *ResultMarker `json:"io.modelcontextprotocol/idempotency,omitempty" jsonschema_description:"Present on every result of a call whose key was honoured."`
}

// ToolErrorData is the part that the extension adds to the data member of a
// JSON-RPC error that a tool raised, where data is absent or an object.
type ToolErrorData struct {
	// Marker is nil when the key was not honoured.
	Marker *ResultMarker `json:"io.modelcontextprotocol/idempotency,omitempty" jsonschema_description:"Present on every error that a tool raised in a call whose key was honoured."`
}

// ToolMeta is the part of a tool's `_meta` that the extension adds.
type ToolMeta struct {
	// Hint is nil when the server says nothing of the tool.
	Hint *ToolHint `json:"io.modelcontextprotocol/idempotency,omitempty" jsonschema_description:"How the tool treats keys. Absent when the server does not say."`
}

// ErrorObject is the error member of the JSON-RPC response by which the
// extension itself answers a call.
type ErrorObject struct {
	// Code is always [ErrorCode].
	Code int `json:"code" jsonschema:"enum=-31409" jsonschema_description:"The one code of the extension's errors."`

	// Message is for people; programs read Data.
	Message string `json:"message" jsonschema_description:"One sentence for people. Programs read data."`

	// Data says what became of the call.
	Data ErrorData `json:"data" jsonschema_description:"Why the call was not answered with a result, and what became of it."`
}
