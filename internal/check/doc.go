// Package check is what every check of sepcheck is made of: a small value that
// names a rule of the SEP and a function that tries a peer against it; a runner
// that runs checks side by side within limits; and the reports.
//
// It knows nothing of MCP. The checks are in the packages below it, one file for
// each section of the SEP: servercheck tries servers, clientcheck clients. A new
// check is one more value in one file:
//
//	var replayEqual = check.Check[*Peer]{
//		Info: check.Info{
//			ID: "server/replay/equal", Section: "Order of checks", Level: check.Must,
//			Title: "a replay equals the first result",
//			…
//		},
//		Run: func(ctx context.Context, t *check.T, p *Peer) { … },
//	}
package check
