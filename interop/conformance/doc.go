// Package conformance holds a server with the idempotency extension against
// the same server without it, in the eyes of the official MCP conformance
// package: every check of every scenario has to come out the same.
//
// It promises nothing about the extension itself, of which the official
// package knows nothing, and nothing about clients.
//
// Its tests are its only content:
//
//	interop/conformance/install.sh
//	SEPCHECK_CONFORMANCE=1 go test ./interop/conformance
//
// Without the variable the tests that need the official package are skipped;
// with it, a missing install is a failure.
//
// The file baseline.json has what the bare server reached when it was last
// written, and the reason for every scenario that it does not pass. Fewer
// passes fail the test, because the everything-server or the SDK got worse;
// more do too, because the file is stale. After a change that explains the
// difference, the counts are written anew with
//
//	SEPCHECK_CONFORMANCE=update go test ./interop/conformance
//
// and the reasons by hand.
package conformance
