// Package clientretry makes the tool calls of an MCP client survive lost
// responses, without running a tool twice.
//
// Towards a server that declares the idempotency extension every call carries
// a key, is sent again after a loss, and gets the first run's answer. Towards
// any other server the bytes on the wire are those of the SDK alone, a call is
// sent once, and a lost response is reported as what it is, as soon as it is
// seen: an [UnknownOutcomeError]. A broken response costs the call that it
// belonged to, and not the session.
//
// It does not make an unextended server safe to retry, does not persist calls
// over a crash of its own process, and cannot tell what became of a call when
// the server has lost its records: then, too, the outcome is unknown. It is
// for an unmodified client of the official SDK; its only part below the SDK is
// an http.RoundTripper, or on other transports a mcp.Connection.
//
//	retry := clientretry.New(client, nil)
//	session, err := retry.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil)
//	if err != nil {
//		return err
//	}
//	result, err := session.CallTool(ctx, params)
//
// # What a caller learns
//
// A call ends in one of six ways: its result; the result of an earlier attempt,
// replayed ([Report] says so); the tool's own error, as the SDK gives it;
// [NotRunError], it has not run and will not; [ResultLostError], it ran and
// its result is not to be had; [UnknownOutcomeError], nobody can tell. Only
// the last two, and results, say that the tool may have had an effect.
//
// # How it decides
//
// The rules are those of the SEP in sep/, section "Client rules". What follows
// from how an attempt ended is a table (decide.go), looked up by a pure
// function; what an attempt ended in is taken from what the transport saw and
// the server said, never from the text of an error. What cannot be classified
// counts as "may have run".
package clientretry
