package servercheck

import "github.com/mcp-idempotency/mcp-idempotency/internal/check"

// Check is a check of a server.
type Check = check.Check[*Peer]

// All are the checks, in the order of the SEP's sections.
func All() []Check {
	var all []Check
	for _, section := range [][]Check{
		capability(), request(), result(), hint(), refusals(), order(), equality(), replay(), join(), disconnect(),
		scope(), rounds(), restart(), plain(),
	} {
		all = append(all, section...)
	}
	return all
}
