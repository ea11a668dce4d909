package idempotency

import (
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var errNoSubject = errors.New("the request is authenticated, but its token has no subject (auth.TokenInfo.UserID is empty)")

// tokenPrincipal is the default of Options.Principal.
func tokenPrincipal(_ context.Context, req *mcp.CallToolRequest) (string, error) {
	if req.Extra == nil || req.Extra.TokenInfo == nil {
		return "", nil
	}
	if req.Extra.TokenInfo.UserID == "" {
		return "", errNoSubject
	}
	return req.Extra.TokenInfo.UserID, nil
}
