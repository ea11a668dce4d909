package main

import (
	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/internal/check/servercheck"
)

// allChecks are the checks of every command, in their order.
func allChecks() []check.Info {
	return check.Infos(servercheck.All())
}
