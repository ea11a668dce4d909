package idempotency

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// A round of a multi round-trip call is named by a nonce, which travels in the
// requestState that the client echoes (SEP, "Multi round-trip calls"):
//
//	idem1.<nonce>.<key>.<the tool's own state>
//
// Nonce and key are base64url. The key is there so that a continuation which
// lost its key is still known; a forged one finds a record of the caller's own
// principal with another nonce, or none.
const statePrefix = "idem1."

// A round is what an attempt carries of the round that it continues.
type round struct {
	nonce store.Nonce
	key   string
	state string // the tool's own
}

func newNonce() (n store.Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

func wrapState(nonce store.Nonce, key, state string) string {
	return statePrefix + base64.RawURLEncoding.EncodeToString(nonce[:]) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(key)) + "." + state
}

// unwrapState undoes wrapState; ok is false when the state is not ours.
func unwrapState(wrapped string) (r round, ok bool) {
	rest, ok := strings.CutPrefix(wrapped, statePrefix)
	if !ok {
		return round{}, false
	}
	parts := strings.SplitN(rest, ".", 3)
	if len(parts) != 3 {
		return round{}, false
	}
	nonce, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil || len(nonce) != len(r.nonce) {
		return round{}, false
	}
	key, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || !isRecordKey(string(key)) {
		return round{}, false
	}
	copy(r.nonce[:], nonce)
	r.key, r.state = string(key), parts[2]
	return r, r.nonce != store.Nonce{}
}

// answersOf digests what a continuation answers. The SDK has decoded the
// responses already, so equal answers encode to equal bytes.
func answersOf(responses mcp.InputResponseMap) (store.Fingerprint, error) {
	if len(responses) == 0 {
		return store.Fingerprint{}, nil
	}
	b, err := json.Marshal(responses)
	if err != nil {
		return store.Fingerprint{}, err
	}
	return sha256.Sum256(b), nil
}
