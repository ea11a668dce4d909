// Package everything builds the server that the official MCP conformance
// package asks for: the tools, prompts and resources its server scenarios call
// by name, with the answers their descriptions demand.
//
// It promises that every call of [New] gives a fresh server with no state
// shared with any other, so that a bare one and one with the idempotency
// extension can be compared. It does not promise to be useful for anything
// else: most tools answer with a constant.
//
//	server := everything.New()
//	handler := mcp.NewStreamableHTTPHandler(
//		func(*http.Request) *mcp.Server { return server }, nil)
//
// The names and texts are the conformance package's own (versions 0.1.16 and
// 0.2.0-alpha.12), which is why they are not ours to improve.
package everything
