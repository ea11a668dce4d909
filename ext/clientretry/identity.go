package clientretry

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
)

// identity remembers as whom a call was first sent: no re-send goes out as
// somebody else, whose record would be another (SEP, "Client rules").
type identity struct {
	of func(*http.Request) string

	mu    sync.Mutex
	fixed bool
	first string
}

// same reports whether the request goes out as the one that may have run did.
func (i *identity) same(req *http.Request) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.fixed || i.first == i.of(req)
}

// fix is called when the request may have run, and not while it is merely
// being authorized.
func (i *identity) fix(req *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.fixed {
		i.fixed, i.first = true, i.of(req)
	}
}

// authorization is the default identity: the subject of a JWT, which a token
// refresh keeps, else the Authorization header as it is. The token is this
// client's own, so its claims need no verification here.
func authorization(req *http.Request) string {
	header := req.Header.Get("Authorization")
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return header
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return header
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return header
	}
	var claims struct {
		Issuer  string `json:"iss"`
		Subject string `json:"sub"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Subject == "" {
		return header
	}
	return "jwt\x00" + claims.Issuer + "\x00" + claims.Subject
}
