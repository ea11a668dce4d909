// Package schema holds the wire types of the MCP idempotency extension,
// io.modelcontextprotocol/idempotency, and nothing else.
//
// It is the one place that knows a JSON member name of the extension. The
// server middleware (ext/idempotency), the client layer (ext/clientretry) and
// the conformance checks (cmd/sepcheck) all use these types, and the JSON
// Schema, the TypeScript fragment and the example messages beside them are
// generated from them or checked against them.
//
// It does not judge messages: decoding a value into these types checks no rule
// beyond the types of its members, except that [ParseKey] and [CheckNamespace]
// check keys and namespaces. The rules as a whole are in schema.json.
//
// The package imports the standard library alone, so that any Go program can
// use it without taking on an SDK.
package schema

//go:generate go run ./internal/gen -out .
