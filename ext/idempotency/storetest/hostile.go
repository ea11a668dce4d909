package storetest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func hostileTests() []contract {
	return []contract{
		{rule: "keys and principals are bytes and nothing else", check: hostileNames},
		{rule: "names that differ in anything are different", check: nearNames},
		{rule: "outcomes and questions are bytes and nothing else", check: hostileOutcomes},
		{rule: "outcomes of 8 MiB come back whole", check: largeOutcome},
	}
}

// hostile are strings that have broken other stores: SQL, Lua, Redis and
// format injection, NUL, invalid UTF-8, what case folding or normalization
// would join, and long ones.
func hostile() []string {
	return []string{
		"", "'", `"`, "`", `\`, "%", "_", "*", "{", "}", "?", ":1", "$1", "@p", "--", ";", "\n", "\r\n", "\t",
		"'; DROP TABLE records; --", `" OR "1"="1`, "x') ON CONFLICT DO NOTHING; --",
		`]] return redis.call('FLUSHALL') --[[`, "') redis.call('SET', KEYS[1], '1", "{slot}a", "*3\r\n$3\r\nSET\r\n",
		"%s%n%x", "${x}", "{{.}}", "../../etc/passwd", "null", "true", "0", "-1", "NaN",
		"\x00", "a\x00", "a\x00b", "\xff\xfe", "\xed\xa0\x80", "\xc0\x80", "\u00e9", "e\u0301", "\u00df", "ss", "\u0130", "\u212a", "\u202e", "😀",
		strings.Repeat("a", 255), strings.Repeat("\xff", 255), strings.Repeat("'", 4096),
	}
}

func hostileNames(w *world) {
	ns := w.namespace(w.a).Name
	outcome := func(key, p string) []byte { return fmt.Appendf(nil, "%q of %q", key, p) }
	var all []store.Attempt
	for i, h := range hostile() {
		for _, id := range []store.ID{
			{Principal: "p", Key: ns + "." + h}, {Principal: h, Key: ns + ".k"}, {Principal: h, Key: ns + "." + h}, {Principal: h, Key: "." + h},
		} {
			if i > 0 && h == "" {
				continue
			}
			a := attempt(id)
			w.record(w.a, w.run(w.a, a), store.End{Event: store.Complete, Outcome: outcome(id.Key, id.Principal)})
			all = append(all, a)
		}
		w.expect(w.b, attempt(store.ID{Principal: "p", Key: "no" + h + ".k"}), store.NamespaceNotHeld)
	}
	for _, a := range all {
		w.expectKnown(w.b, again(a), store.Completed, outcome(a.Key, a.Principal))
	}
	w.expect(w.b, attempt(idIn(ns)), store.Run) // and the store still works
}

// nearNames are pairs that a careless join of principal and key confuses.
func nearNames(w *world) {
	ns := w.namespace(w.a).Name
	for i, id := range []store.ID{
		{Principal: "a", Key: ns + ".bc"}, {Principal: "ab", Key: ns + ".c"}, {Principal: "", Key: ns + ".abc"},
		{Principal: "a:" + ns, Key: ns + ".b"}, {Principal: "a", Key: ns + "." + ns + ".b"},
		{Principal: "a\x00" + ns + ".b", Key: ns + ".x"}, {Principal: "a", Key: ns + ".b\x00" + ns + ".x"},
		{Principal: "a/", Key: ns + ".k"}, {Principal: "a", Key: ns + "./k"},
		{Principal: "A", Key: ns + ".K"}, {Principal: "a", Key: ns + ".k"}, {Principal: "a", Key: ns + ".k "},
		{Principal: "a", Key: ns + "."}, {Principal: "a", Key: "." + ns + "."}, {Principal: "a", Key: ".k"}, {Principal: "a", Key: "..k"},
	} {
		a := attempt(id)
		w.record(w.a, w.run(w.a, a), complete(fmt.Sprint(i)))
		w.expectKnown(w.b, again(a), store.Completed, []byte(fmt.Sprint(i)))
	}
}

func hostileOutcomes(w *world) {
	for _, h := range hostile() {
		a, n := attempt(w.id()), nonce()
		w.record(w.a, w.run(w.a, a), ask(n, h))
		w.expectAsked(w.b, again(a), n, h)
		r := w.run(w.b, continuing(a, n, h))
		w.record(w.b, r, store.End{Event: store.Complete, Outcome: []byte(h)})
		w.expectKnown(w.a, again(a), store.Completed, []byte(h))
	}
}

func largeOutcome(w *world) {
	outcome := make([]byte, 8<<20)
	_, _ = rand.Read(outcome) // never fails
	a := attempt(w.id())
	r := w.run(w.a, a)
	w.record(w.a, r, store.End{Event: store.Complete, Outcome: outcome})
	w.record(w.a, r, store.End{Event: store.Complete, Outcome: outcome})
	for _, s := range []store.Store{w.a, w.b} {
		if got := w.expect(s, again(a), store.Known).Record.Outcome; !bytes.Equal(got, outcome) {
			w.Errorf("%d bytes came back as %d others", len(outcome), len(got))
		}
	}
}
