// Package idempotency makes the tools of an MCP server safe to call again: a
// `tools/call` that carries an idempotency key runs at most once, and a repeat
// of it gets the first answer.
//
// It promises that, while the server holds the records of a key's namespace, a
// key never runs twice; that duplicates in flight wait for the first and share
// its answer; and that a caller is told the truth about what ran, including
// that nobody knows.
//
// It does not promise that a call runs at all, nor, with a store that dies
// with the process, that a repeat after a crash finds its answer: it is then
// refused, not run. A tool that dies in the middle of its effect leaves an
// unknown outcome; only a tool whose effect and record are written in one
// transaction has none.
//
// What a call is refused for before it runs (an unknown tool, arguments that do
// not fit the tool's schema) is not recorded, so that its key can be used
// again. Two things only the SDK finds, and later: arguments that the schema
// allows and the handler's Go type cannot hold, such as an integer above 2⁶³,
// are recorded as the error that the tool answers with, and the key is spent;
// and messages nested deeper than 1000 levels end in the SDK's own error, or,
// on stdio, with the connection.
//
// Three lines for a server (see the example of [New]):
//
//	idem := idempotency.New(nil)
//	idem.Install(server)
//	http.ListenAndServe(addr, idem.Handler(mcpHandler)) // or server.Run(ctx, idem.Transport(&mcp.StdioTransport{}))
//
// The rules are those of the SEP in sep/; the names of its sections are given
// where a rule is implemented.
package idempotency
