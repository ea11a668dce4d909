package messages

import (
	"reflect"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A Kind is one thing that the JSON Schema defines and that an example can be
// of. Its name is that of its Go type.
type Kind struct {
	Type reflect.Type
	// Category groups the kind in documentation, as the `@category` of MCP's
	// schema.ts does: a method in backquotes, or "Errors".
	Category string
	// Carrier says that members of others are the normal case in the object.
	Carrier bool
	// Doc describes the kind in the words of the wire, for readers who do not
	// read Go.
	Doc string
}

// Name is the kind's name under `$defs`, and the `kind` of its examples.
func (k Kind) Name() string { return k.Type.Name() }

// Part reports whether the kind is of the extension's vocabulary, which is
// package schema, and not a message of MCP around it.
func (k Kind) Part() bool {
	return k.Type.PkgPath() == reflect.TypeFor[schema.ServerSettings]().PkgPath()
}

const (
	discover = "`server/discover`"
	call     = "`tools/call`"
	list     = "`tools/list`"
	errors   = "Errors"

	own, carrier = false, true
)

// Kinds returns every kind, in the order in which a reader meets them.
func Kinds() []Kind {
	return []Kind{
		{reflect.TypeFor[schema.ServerSettings](), discover, own, "What a server says of its idempotency keys, in the `server/discover` and the `initialize` result. Members that a reader does not know are ignored."},
		{reflect.TypeFor[schema.Extensions](), discover, carrier, "What the extension adds to `capabilities.extensions`."},
		{reflect.TypeFor[Capabilities](), discover, carrier, "The `capabilities` of a server."},
		{reflect.TypeFor[DiscoverResult](), discover, carrier, "The result of `server/discover`."},
		{reflect.TypeFor[InitializeResult](), discover, carrier, "The result of `initialize`, up to revision 2025-11-25."},
		{reflect.TypeFor[schema.ToolHint](), list, own, "How a tool treats idempotency keys."},
		{reflect.TypeFor[schema.ToolMeta](), list, carrier, "What the extension adds to the `_meta` of a tool."},
		{reflect.TypeFor[Tool](), list, carrier, "A tool in the result of `tools/list`."},
		{reflect.TypeFor[schema.CallToolParams](), call, carrier, "What the extension reads of, and adds to, the `params` of `tools/call`. The key is in one of its two places, never in both."},
		{reflect.TypeFor[schema.RequestMeta](), call, carrier, "What the extension adds to the `_meta` of a `tools/call` request."},
		{reflect.TypeFor[schema.RequestMarker](), call, own, "Which attempt of its call a request is. For telemetry: servers act the same with and without it."},
		{reflect.TypeFor[CallToolRequest](), call, carrier, "A `tools/call` request."},
		{reflect.TypeFor[schema.ResultMarker](), call, own, "Says that the call's key was honoured. Its absence tells the client that it was not."},
		{reflect.TypeFor[schema.ResultMeta](), call, carrier, "What the extension adds to the `_meta` of a `tools/call` result."},
		{reflect.TypeFor[KeyedResult](), call, carrier, "The result of a `tools/call` whose key was honoured."},
		{reflect.TypeFor[KeyedResultResponse](), call, carrier, "The response to a `tools/call` whose key was honoured, with a result."},
		{reflect.TypeFor[schema.ToolErrorData](), errors, carrier, "What the extension adds to the `data` of an error that a tool raised, where that is absent or an object."},
		{reflect.TypeFor[ToolError](), errors, carrier, "A JSON-RPC error that a tool raised in a call whose key was honoured. It is recorded and replayed like a result."},
		{reflect.TypeFor[ToolErrorResponse](), errors, carrier, "The response to a `tools/call` whose key was honoured, with an error that the tool raised."},
		{reflect.TypeFor[schema.ErrorData](), errors, own, "Why the extension did not answer a call with a result, and what became of the call. A reason of the table comes with the outcome of the table; other reasons may come with any."},
		{reflect.TypeFor[schema.ErrorObject](), errors, own, "An error of the extension itself."},
		{reflect.TypeFor[ErrorResponse](), errors, carrier, "The response to a `tools/call` by which the extension itself answers. Over HTTP its status is 200."},
	}
}
