package schema

// Names on the wire. The SEP's Specification section proposes each of them.
const (
	// ExtensionID identifies the extension in capabilities.extensions, and is
	// the `_meta` member under which results, requests and tools carry the
	// extension's data.
	ExtensionID = "io.modelcontextprotocol/idempotency"

	// MetaKey is the request `_meta` member that carries the idempotency key
	// to a server that does not read the parameter (SEP, "Request").
	MetaKey = "io.modelcontextprotocol/idempotencyKey"

	// ParamKey is the member of `tools/call` params that carries the
	// idempotency key to a server that declares keyParam (SEP, "Request").
	ParamKey = "idempotencyKey"

	// MethodCallTool is the only method that takes an idempotency key.
	MethodCallTool = "tools/call"

	// ErrorCode is the JSON-RPC code of every error that the extension itself
	// raises (SEP, "Errors"). It lies outside -32768…-32000, which JSON-RPC and
	// MCP keep for themselves.
	ErrorCode = -31409
)

// ServerSettings is the value of capabilities.extensions[ExtensionID], in the
// `server/discover` and the `initialize` result (SEP, "Capability"). Members
// that a reader does not know are ignored.
type ServerSettings struct {
	// KeyNamespace names the set of records that this server can vouch for.
	// 1–64 characters of the key alphabet without the dot.
	KeyNamespace string `json:"keyNamespace" jsonschema:"minLength=1,maxLength=64,pattern=^[A-Za-z0-9_~:-]+$" jsonschema_description:"Names the set of records that this server can vouch for. Every key starts with it and a dot."`

	// RetentionMs is how long, in milliseconds, a record is kept at least
	// after its call finished. Always positive.
	RetentionMs int64 `json:"retentionMs" jsonschema:"minimum=1" jsonschema_description:"How long, in milliseconds, a record is kept at least after its call finished."`

	// KeyParam is true when the server reads params.idempotencyKey itself;
	// otherwise a client sends the key in `_meta`.
	KeyParam bool `json:"keyParam,omitempty" jsonschema_description:"Whether the server reads the key from params.idempotencyKey. Without it the key travels in _meta."`
}

// CallToolParams is the part of `tools/call` params that the extension reads
// or adds. Arguments is any JSON object.
type CallToolParams struct {
	// Name of the tool.
	Name string `json:"name" jsonschema_description:"Name of the tool."`

	// Arguments of the call; absent means the same as an empty object. A
	// decoder rounds integers above 2⁵³ here unless it uses json.Number.
	Arguments map[string]any `json:"arguments,omitempty" jsonschema_description:"Arguments of the call. Absent means the same as an empty object."`

	// IdempotencyKey is minted once per intended call and sent again,
	// unchanged, with every further attempt. See [ParseKey] for its form.
	IdempotencyKey string `json:"idempotencyKey,omitempty" jsonschema:"minLength=3,maxLength=255,pattern=^[A-Za-z0-9_~:-]{1\\,64}\\.[A-Za-z0-9._~:-]+$" jsonschema_description:"Minted by the client once per intended call and reused on every attempt of it. Starts with the server's keyNamespace and a dot."`

	// Meta is the request's `_meta`.
	Meta *RequestMeta `json:"_meta,omitempty" jsonschema_description:"Request metadata."`
}

// RequestMeta is the part of a request's `_meta` that the extension reads.
type RequestMeta struct {
	// IdempotencyKey is the key of a client whose server does not declare
	// keyParam. Never sent together with params.idempotencyKey.
	IdempotencyKey string `json:"io.modelcontextprotocol/idempotencyKey,omitempty" jsonschema:"minLength=3,maxLength=255,pattern=^[A-Za-z0-9_~:-]{1\\,64}\\.[A-Za-z0-9._~:-]+$" jsonschema_description:"The key, for a server that has the extension and does not declare keyParam."`

	// Attempt says which attempt of its call a request is.
	Attempt *RequestMarker `json:"io.modelcontextprotocol/idempotency,omitempty" jsonschema_description:"Which attempt of its call this request is."`
}

// RequestMarker is the request's `_meta`[ExtensionID]. It is telemetry:
// servers act the same with and without it.
type RequestMarker struct {
	// Attempt counts from 1; a client sends it from 2 on.
	Attempt int `json:"attempt" jsonschema:"minimum=1" jsonschema_description:"Counts from 1. A client may send it from the second attempt on."`
}

// ResultMarker is `_meta`[ExtensionID] of every result of a keyed call, and
// error.data[ExtensionID] of a JSON-RPC error that the tool raised. Its
// absence tells the client that the key was not honoured (SEP, "Result").
type ResultMarker struct {
	// Replayed is true when this request did not run the tool: the answer
	// comes from a record, or from a run that another attempt had started.
	Replayed bool `json:"replayed" jsonschema_description:"Whether the answer comes from the record of the call and not from a run that this request started."`
}

// KeyUse says how a tool treats keys. The zero value means KeyOptional.
type KeyUse string

// How a tool treats keys (SEP, "Tool hint").
const (
	KeyOptional    KeyUse = "optional"
	KeyRequired    KeyUse = "required"
	KeyUnsupported KeyUse = "unsupported"
)

// ToolHint is a tool's `_meta`[ExtensionID] in `tools/list`.
type ToolHint struct {
	// Key says how the tool treats keys.
	Key KeyUse `json:"key" jsonschema:"enum=optional,enum=required,enum=unsupported" jsonschema_description:"Whether a call of the tool may, must or cannot carry a key."`

	// MaxExecutionMs is the longest, in milliseconds, that the server lets a
	// call run. Absent when the server does not say.
	MaxExecutionMs int64 `json:"maxExecutionMs,omitempty" jsonschema:"minimum=1" jsonschema_description:"The longest, in milliseconds, that the server lets a call of the tool run."`
}
