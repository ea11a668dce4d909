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
// Three lines for a server (see the example of [New]):
//
//	idem := idempotency.New(nil)
//	idem.Install(server)
//	http.ListenAndServe(addr, idem.Handler(mcpHandler)) // or server.Run(ctx, idem.Transport(&mcp.StdioTransport{}))
//
// The rules are those of the SEP in sep/; the names of its sections are given
// where a rule is implemented.
package idempotency
