package everything

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// signer makes request states that a client can carry but not change. Its key
// lives as long as the server.
type signer struct{ key []byte }

func newSigner() signer {
	key := make([]byte, sha256.Size)
	rand.Read(key) // never fails: see crypto/rand
	return signer{key: key}
}

// sign returns payload with its signature.
func (s signer) sign(payload string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(payload)) + "." + encode(s.mac(payload))
}

// open returns the payload of a state made by sign, or the error to answer
// with when the state is not one of ours.
func (s signer) open(state string) (string, error) {
	decode := base64.RawURLEncoding.DecodeString
	payload, mac, _ := strings.Cut(state, ".")
	plain, err := decode(payload)
	if err != nil {
		return "", errState()
	}
	got, err := decode(mac)
	if err != nil || !hmac.Equal(got, s.mac(string(plain))) {
		return "", errState()
	}
	return string(plain), nil
}

func (s signer) mac(payload string) []byte {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(payload))
	return h.Sum(nil)
}

// errState is a JSON-RPC error and not a result with isError: the call is
// refused, the tool has not run.
func errState() error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidParams,
		Message: "requestState is not one that this server signed",
	}
}
