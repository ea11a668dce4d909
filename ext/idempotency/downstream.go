package idempotency

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

type keyContext struct{}

// DownstreamKey returns a key that a tool handler passes on to an API which
// deduplicates by itself, so that the guarantee does not end at this server:
// the same for every attempt of the call, different for different calls,
// callers and steps. step names which of the handler's requests it is for. It
// is 43 characters of A–Z a–z 0–9 - _ and does not reveal the caller's key. ok
// is false when the call has no key.
func DownstreamKey(ctx context.Context, step string) (key string, ok bool) {
	id, ok := ctx.Value(keyContext{}).(store.ID)
	if !ok {
		return "", false
	}
	mac := hmac.New(sha256.New, []byte(id.Key))
	mac.Write([]byte(id.Principal))
	mac.Write([]byte{0})
	mac.Write([]byte(step))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), true
}
