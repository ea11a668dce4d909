package schema_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_~:-"

type keyCase struct {
	key       string
	namespace string // of a well-formed key
	local     string
}

// keyCases is the table for keys; a case without a namespace is malformed.
func keyCases() []keyCase {
	long := strings.Repeat("n", schema.MaxNamespaceLen)
	full := strings.Repeat("k", schema.MaxKeyLen-len("ns."))
	return []keyCase{
		{"a.b", "a", "b"},
		{"q7k2vmx4.4T7QGZ2NHW5BXEK3YVJ6MRDUAC", "q7k2vmx4", "4T7QGZ2NHW5BXEK3YVJ6MRDUAC"},
		{"ns.a.b.c", "ns", "a.b.c"},
		{"ns..", "ns", "."},
		{"ns..x", "ns", ".x"},
		{"~:-_.~:-_.", "~:-_", "~:-_."},
		{alphabet[:33] + "." + alphabet + ".", alphabet[:33], alphabet + "."},
		{long + ".k", long, "k"},
		{"ns." + full, "ns", full},
		{"", "", ""},
		{".", "", ""},
		{"..", "", ""},
		{"ns", "", ""},
		{"ns.", "", ""},
		{".k", "", ""},
		{"..k", "", ""},
		{long + "n.k", "", ""},
		{"ns." + full + "k", "", ""},
		{long, "", ""},
		{"ns.k ", "", ""},
		{" ns.k", "", ""},
		{"n s.k", "", ""},
		{"ns.k/k", "", ""},
		{"ns.k=", "", ""},
		{"ns.k+", "", ""},
		{"ns.k\n", "", ""},
		{"ns\n.k", "", ""},
		{"ns.k\x00", "", ""},
		{"ns.k\x7f", "", ""},
		{"ns.é", "", ""},
		{"né.k", "", ""},
		{"ns.１", "", ""},
		{"ns.\xff", "", ""},
		{"ns.k\u2028", "", ""},
		{"[ns].k", "", ""},
		{"ns.@k", "", ""},
		{"ns.`k", "", ""},
		{"ns.{k", "", ""},
	}
}

// The schema has each of the two forms in two places.
func schemasOf(t testing.TB, paths ...string) []*jsonschema.Schema {
	var schemas []*jsonschema.Schema
	for _, p := range paths {
		schemas = append(schemas, definitionOf(t, p))
	}
	return schemas
}

func keySchemas(t testing.TB) []*jsonschema.Schema {
	return schemasOf(t,
		"CallToolParams/properties/idempotencyKey",
		"RequestMeta/properties/io.modelcontextprotocol~1idempotencyKey")
}

func namespaceSchemas(t testing.TB) []*jsonschema.Schema {
	return schemasOf(t,
		"ServerSettings/properties/keyNamespace",
		"ErrorData/properties/keyNamespace")
}

func TestParseKeySplitsAtTheFirstDot(t *testing.T) {
	for _, c := range keyCases() {
		ns, local, err := schema.ParseKey(c.key)
		if ns != c.namespace || local != c.local || (err == nil) != (c.namespace != "") {
			t.Errorf("ParseKey(%q) = %q, %q, %v; want %q, %q", c.key, ns, local, err, c.namespace, c.local)
		}
	}
}

func TestEveryByteOutsideTheAlphabetMakesAKeyMalformed(t *testing.T) {
	for c := range 256 {
		inKey := strings.IndexByte(alphabet+".", byte(c)) >= 0
		inNamespace := strings.IndexByte(alphabet, byte(c)) >= 0
		if _, _, err := schema.ParseKey("ns.k" + string([]byte{byte(c)})); (err == nil) != inKey {
			t.Errorf("byte %#x in a key: %v", c, err)
		}
		if err := schema.CheckNamespace("ns" + string([]byte{byte(c)})); (err == nil) != inNamespace {
			t.Errorf("byte %#x in a namespace: %v", c, err)
		}
	}
}

func TestKeyErrorsMatchErrKeyInvalidAndKeepTheKeyToThemselves(t *testing.T) {
	const secret = "4T7QGZ2NHW5BXEK3YVJ6MRDUAC"
	for _, key := range []string{secret, secret + ".", "." + secret, "ns." + secret + "/", "ns." + strings.Repeat(secret, 10), strings.Repeat("n", 65) + "." + secret} {
		_, _, err := schema.ParseKey(key)
		if !errors.Is(err, schema.ErrKeyInvalid) {
			t.Errorf("ParseKey(%q) = %v, want ErrKeyInvalid", key, err)
		} else if strings.Contains(err.Error(), secret[:8]) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
	for _, ns := range []string{"", "a.b", strings.Repeat("n", 65)} {
		if err := schema.CheckNamespace(ns); !errors.Is(err, schema.ErrKeyInvalid) {
			t.Errorf("CheckNamespace(%q) = %v, want ErrKeyInvalid", ns, err)
		}
	}
}

func TestParseKeyAndTheSchemaAgree(t *testing.T) {
	schemas := keySchemas(t)
	for _, c := range keyCases() {
		agreeOnKey(t, schemas, c.key)
	}
}

func TestCheckNamespaceAndTheSchemaAgree(t *testing.T) {
	schemas := namespaceSchemas(t)
	for _, c := range keyCases() {
		agreeOnNamespace(t, schemas, c.key)
		before, _, _ := strings.Cut(c.key, ".")
		agreeOnNamespace(t, schemas, before)
	}
}

func FuzzKey(f *testing.F) {
	for _, c := range keyCases() {
		f.Add(c.key)
	}
	keys, namespaces := keySchemas(f), namespaceSchemas(f)
	f.Fuzz(func(t *testing.T, s string) {
		agreeOnKey(t, keys, s)
		agreeOnNamespace(t, namespaces, s)
		checkShortKey(t, s)
		ns, local, err := schema.ParseKey(s)
		if err != nil {
			return
		}
		if ns+"."+local != s || strings.Contains(ns, ".") || local == "" {
			t.Errorf("ParseKey(%q) = %q, %q", s, ns, local)
		}
		if err := schema.CheckNamespace(ns); err != nil {
			t.Errorf("the namespace %q of a key is none: %v", ns, err)
		}
	})
}

func agreeOnKey(t *testing.T, schemas []*jsonschema.Schema, s string) {
	t.Helper()
	_, _, err := schema.ParseKey(s)
	for _, k := range schemas {
		if invalid := k.Validate(s); (invalid == nil) != (err == nil) {
			t.Errorf("%q: ParseKey says %v, %s says %v", s, err, k.Location, invalid)
		}
	}
}

func agreeOnNamespace(t *testing.T, schemas []*jsonschema.Schema, s string) {
	t.Helper()
	err := schema.CheckNamespace(s)
	for _, n := range schemas {
		if invalid := n.Validate(s); (invalid == nil) != (err == nil) {
			t.Errorf("%q: CheckNamespace says %v, %s says %v", s, err, n.Location, invalid)
		}
	}
}

func TestShortKeyShowsTheNamespaceAndTheStartOfTheRest(t *testing.T) {
	for key, want := range map[string]string{
		"q7k2vmx4.4T7QGZ2NHW5BXEK3YVJ6MRDUAC": "q7k2vmx4.4T7QGZ…",
		"payments-eu-central-1.4T7QGZ2NHW5B":  "payments-eu-….4T7QGZ…",
		"ns.order.A-10427":                    "ns.order.…",
		"ns.abcd":                             "ns.ab…",
		"ns.a":                                "ns.…",
		"ns.":                                 "ns.",
		"":                                    "",
		"4T7QGZ2NHW5BXEK3YVJ6MRDUAC":          "4T7QGZ…",
		"secret":                              "sec…",
		"n\ns.forged: line\n of the log":      "n?s.forged…",
		"ns.ééééé":                            "ns.?????…",
		strings.Repeat("n", 65) + ".k":        "nnnnnn…",
	} {
		if got := schema.ShortKey(key); got != want {
			t.Errorf("ShortKey(%q) = %q, want %q", key, got, want)
		}
	}
}

func TestShortKeyNeverShowsMoreThanHalfOfTheSecret(t *testing.T) {
	for _, c := range keyCases() {
		checkShortKey(t, c.key)
	}
}

// checkShortKey checks what ShortKey promises for any string: at most 12
// characters of the namespace, at most 6 and at most half of the rest, and
// nothing that could break a line of a log.
func checkShortKey(t *testing.T, key string) {
	t.Helper()
	short := schema.ShortKey(key)
	if !utf8.ValidString(short) {
		t.Errorf("ShortKey(%q) = %q is not UTF-8", key, short)
	}
	if strings.Trim(short, alphabet+".?…") != "" {
		t.Errorf("ShortKey(%q) = %q shows characters that no key has", key, short)
	}
	secret, shown := key, short
	if ns, local, ok := strings.Cut(key, "."); ok && len(ns) <= schema.MaxNamespaceLen {
		secret = local
		ns, shown, _ = strings.Cut(short, ".")
		if len(strings.TrimSuffix(ns, "…")) > 12 {
			t.Errorf("ShortKey(%q) = %q shows more than 12 characters of the namespace", key, short)
		}
	}
	shown, cut := strings.CutSuffix(shown, "…")
	if len(shown) > 6 || len(shown) > len(secret)/2 || cut != (secret != "") {
		t.Errorf("ShortKey(%q) = %q shows too much of %q", key, short, secret)
	}
}
