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
// the server has lost its records: then, too, the outcome is unknown.
//
//	retry := clientretry.New(client, nil)
//	session, err := retry.Connect(ctx, transport, nil)
//	…
//	result, err := session.CallTool(ctx, params)
//
// The rules are those of the SEP in sep/, section "Client rules"; the decision
// is the function decide.
package clientretry
