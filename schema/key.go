package schema

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of keys and namespaces, in characters (all are ASCII).
const (
	MaxKeyLen       = 255
	MaxNamespaceLen = 64
)

// ErrKeyInvalid is matched by every error of [ParseKey] and [CheckNamespace].
var ErrKeyInvalid = errors.New("malformed idempotency key")

// ParseKey checks an idempotency key and splits it at its first dot into the
// namespace and the rest. A key is 1–255 characters of A–Z a–z 0–9 . _ ~ : -
// and has 1–64 characters before its first dot and at least one after it
// (SEP, "Request"). The error matches [ErrKeyInvalid] and does not repeat the
// whole key.
func ParseKey(key string) (namespace, local string, err error) {
	if key == "" {
		return "", "", fmt.Errorf("%w: it is empty", ErrKeyInvalid)
	}
	if len(key) > MaxKeyLen {
		return "", "", fmt.Errorf("%w: %d characters, the limit is %d", ErrKeyInvalid, len(key), MaxKeyLen)
	}
	for i := 0; i < len(key); i++ {
		if !keyChar(key[i]) {
			return "", "", fmt.Errorf("%w: byte %d is not one of A-Z a-z 0-9 . _ ~ : -", ErrKeyInvalid, i)
		}
	}
	namespace, local, ok := strings.Cut(key, ".")
	switch {
	case !ok:
		return "", "", fmt.Errorf("%w: it has no dot after a namespace", ErrKeyInvalid)
	case namespace == "":
		return "", "", fmt.Errorf("%w: nothing before its first dot", ErrKeyInvalid)
	case len(namespace) > MaxNamespaceLen:
		return "", "", fmt.Errorf("%w: %d characters before its first dot, the limit is %d", ErrKeyInvalid, len(namespace), MaxNamespaceLen)
	case local == "":
		return "", "", fmt.Errorf("%w: nothing after its namespace", ErrKeyInvalid)
	}
	return namespace, local, nil
}

// CheckNamespace reports whether a string can be a key namespace: 1–64
// characters of the key alphabet without the dot (SEP, "Capability"). The
// error matches [ErrKeyInvalid].
func CheckNamespace(ns string) error {
	if ns == "" || len(ns) > MaxNamespaceLen {
		return fmt.Errorf("%w: a namespace has 1 to %d characters, not %d", ErrKeyInvalid, MaxNamespaceLen, len(ns))
	}
	for i := 0; i < len(ns); i++ {
		if ns[i] == '.' || !keyChar(ns[i]) {
			return fmt.Errorf("%w: byte %d of the namespace is not one of A-Z a-z 0-9 _ ~ : -", ErrKeyInvalid, i)
		}
	}
	return nil
}

// ShortKey returns a form of the key that is fit for logs and messages: up to
// 12 characters of the namespace, which is no secret, and of the rest up to 6
// and never more than half. A string without a namespace counts as all rest.
// Bytes that no key has are shown as question marks, so that a malformed key
// cannot forge a line of a log.
func ShortKey(key string) string {
	const keepNamespace, keepLocal = 12, 6
	prefix, local := "", key
	if ns, rest, ok := strings.Cut(key, "."); ok && len(ns) <= MaxNamespaceLen {
		prefix, local = printable(ns)+".", rest
		if len(ns) > keepNamespace {
			prefix = printable(ns[:keepNamespace]) + "…."
		}
	}
	if local == "" {
		return prefix
	}
	return prefix + printable(local[:min(keepLocal, len(local)/2)]) + "…"
}

func printable(s string) string {
	b := []byte(s)
	for i, c := range b {
		if !keyChar(c) {
			b[i] = '?'
		}
	}
	return string(b)
}

func keyChar(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '.' || c == '_' || c == '~' || c == ':' || c == '-'
}
