package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// errNoKey says that a request carries no key.
var errNoKey = errors.New("no key")

// requestKey returns the idempotency key of a request and checks its form
// (SEP, "Request"). The error is errNoKey or what to answer.
//
// private is the `_meta` member into which the wire adapter has lifted
// params.idempotencyKey, as an array of its values.
func requestKey(meta mcp.Meta, private string) (string, error) {
	inMeta, hasMeta := meta[schema.MetaKey]
	lifted, hasParam := meta[private].([]any)
	if !hasMeta && (!hasParam || len(lifted) == 0) {
		return "", errNoKey
	}
	values := lifted
	if hasMeta {
		values = append(values[:len(values):len(values)], inMeta)
	}
	key, isString := values[0].(string)
	for _, v := range values[1:] {
		other, ok := v.(string)
		if !ok || !isString || other != key {
			return "", invalidParams("the request has more than one idempotency key (params.%s and _meta[%q]) and they differ; send one",
				schema.ParamKey, schema.MetaKey)
		}
	}
	if !isString {
		return "", extError(schema.ReasonKeyInvalid, 0, "", "the idempotency key is not a string")
	}
	if _, _, err := schema.ParseKey(key); err != nil {
		return "", extError(schema.ReasonKeyInvalid, 0, "", "%v", err)
	}
	return key, nil
}

// argumentKey returns the record key for the value of the tool's own key
// argument, or errNoKey when the call does not have it. Such keys start with a
// dot: they have no namespace. The tool's name is part of it, since arguments
// of one name need not mean the same in two tools.
func argumentKey(tool, argument string, arguments json.RawMessage) (string, error) {
	if argument == "" {
		return "", errNoKey
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &members); err != nil {
		return "", errNoKey // not an object: refused by its fingerprint
	}
	raw, ok := members[argument]
	if !ok || string(raw) == "null" {
		return "", errNoKey
	}
	var value string
	switch {
	case raw[0] == '"':
		if err := json.Unmarshal(raw, &value); err != nil || value == "" || utf8.RuneCountInString(value) > schema.MaxKeyLen {
			return "", badArgumentKey(argument)
		}
		value = `"` + value // which no number starts with
	case raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9':
		if !plainInteger(raw) || bytes.HasPrefix(raw, []byte("-0")) {
			return "", badArgumentKey(argument)
		}
		value = string(raw)
	default:
		return "", badArgumentKey(argument)
	}
	sum := sha256.Sum256([]byte(tool + "\x00" + argument + "\x00" + value))
	return argumentPrefix + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// argumentPrefix starts the record keys that stand for a tool's argument.
const argumentPrefix = ".arg:"

// isRecordKey reports whether requestKey or argumentKey can have made the key.
func isRecordKey(key string) bool {
	if digest, ok := strings.CutPrefix(key, argumentPrefix); ok {
		sum, err := base64.RawURLEncoding.Strict().DecodeString(digest)
		return err == nil && len(sum) == sha256.Size && !strings.ContainsAny(digest, "\r\n")
	}
	_, _, err := schema.ParseKey(key)
	return err == nil
}

func badArgumentKey(argument string) *jsonrpc.Error {
	return extError(schema.ReasonKeyInvalid, 0, "",
		"the argument %q identifies the call and must be a string of 1 to %d characters or an integer", argument, schema.MaxKeyLen)
}
