package servercheck

import (
	"context"
	"fmt"
	"strings"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// noTool is the name of a tool that no server has.
const noTool = "sepcheck_no_such_tool"

func request() []Check {
	return []Check{
		{Info: check.Info{
			ID: "server/request/path-check", Section: "Order of checks", Level: check.Must,
			Title: "a malformed key is answered keyInvalid before the tool is looked for",
			Does:  "Calls a tool that does not exist with the key \"!\", once in each place that the server reads.",
			Why:   "This is how a client proves, before it sends a call again, that its keys reach a server with the extension; without it no lost response is ever retried.",
			Fix:   "Check the key's syntax first of all, before the tool's name.",
		}, Run: pathCheck},
		{Info: check.Info{
			ID: "server/request/syntax", Section: "Request", Level: check.Must,
			Title: "every malformed key is keyInvalid",
			Does:  "Calls a tool that does not exist with keys that are too long, empty, without a namespace, of wrong characters, or no strings.",
			Why:   "A key that one server takes and another refuses is a call that cannot be moved between them.",
			Fix:   "Take 1–255 characters of A–Z a–z 0–9 . _ ~ : - with 1–64 before the first dot and at least one after it, and nothing else.",
		}, Run: malformedKeys},
		{Info: check.Info{
			ID: "server/request/two-keys", Section: "Request", Level: check.Must,
			Title: "two different keys in one request are answered with -32602",
			Does:  "Calls a tool that does not exist with one key in params and another in _meta.",
			Why:   "Two proxies that disagree on which key counts would run the call twice.",
			Fix:   "Compare the two places and refuse when they differ.",
		}, Run: twoKeys},
		{Info: check.Info{
			ID: "server/request/meta", Section: "Request", Level: check.Must,
			Title: "a key in _meta is honoured",
			Does:  "Calls the tool twice with one key in _meta.",
			Why:   "SDKs that predate the extension can only send keys in _meta.",
			Fix:   "Read params._meta[\"" + schema.MetaKey + "\"], whether or not keyParam is declared.",
		}, Run: keyIn("meta")},
		{Info: check.Info{
			ID: "server/request/param", Section: "Request", Level: check.Must,
			Title: "a server that declares keyParam honours a key in params.idempotencyKey",
			Does:  "Calls the tool twice with one key in params.",
			Why:   "A declared keyParam that is not read makes every retry a second execution.",
			Fix:   "Read params.idempotencyKey below an SDK that drops unknown params, or do not declare keyParam.",
		}, Run: keyIn("param")},
		{Info: check.Info{
			ID: "server/request/attempt", Section: "Request", Level: check.Must,
			Title: "the attempt number changes nothing",
			Does:  "Calls the tool with a new key and the attempt number 3, and again with the number 1.",
			Why:   "It is for telemetry: the first attempt may never have arrived.",
			Fix:   "Ignore _meta[\"" + schema.ExtensionID + "\"] in requests.",
		}, Run: attemptNumber},
	}
}

func pathCheck(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	for _, place := range s.places() {
		s.wantReason("a malformed key in "+place, s.call(call{tool: noTool, key: "!", place: place}), schema.ReasonKeyInvalid)
	}
}

// places are where the server says that it reads keys.
func (s *session) places() []string {
	if s.settings.KeyParam {
		return []string{"meta", "param"}
	}
	return []string{"meta"}
}

func malformedKeys(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	ns := s.settings.KeyNamespace
	for name, key := range map[string]string{
		"empty": `""`, "no namespace": `"abcdefghijklmnopqrstuvwxyz"`, "nothing before the dot": `".abcdefghijklmnopqrstuvwxyz"`,
		"nothing after the dot": fmt.Sprintf("%q", ns+"."), "a space": fmt.Sprintf("%q", ns+".abcdefghijklmno pqrstuvwxyz"),
		"a letter that is not ASCII": fmt.Sprintf("%q", ns+".abcdefghijklmnopqrstuvwxyzé"),
		"256 characters":             fmt.Sprintf("%q", ns+"."+strings.Repeat("k", 255-len(ns))),
		"a namespace of 65":          fmt.Sprintf("%q", strings.Repeat("n", 65)+".abcdefghijklmnopqrstuvwxyz"),
		"a number":                   "5", "null": "null", "an object": `{"key":"a.b"}`, "a list": `["a.b"]`,
	} {
		for _, place := range s.places() {
			r := s.callRaw(fmt.Sprintf(`{"name":%q,"arguments":{}%s}`, noTool, s.keyMember(place, key)))
			s.wantReason(fmt.Sprintf("a malformed key (%s) in %s", name, place), r, schema.ReasonKeyInvalid)
		}
	}
}

func twoKeys(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	if !s.settings.KeyParam {
		t.Skipf("the server reads keys in one place")
	}
	r := s.callRaw(fmt.Sprintf(`{"name":%q,"arguments":{},%q:%q,"_meta":{%q:%q}}`, noTool, schema.ParamKey, s.key(), schema.MetaKey, s.key()))
	if r.Error == nil || r.Error.Code != -32602 {
		t.Errorf("two different keys are answered %s, want the error -32602", r)
	}
}

func keyIn(place string) func(context.Context, *check.T, *Peer) {
	return func(ctx context.Context, t *check.T, p *Peer) {
		s := p.on(ctx, t).extended()
		if place == "param" && !s.settings.KeyParam {
			t.Skipf("the server does not declare keyParam")
		}
		sub, done := s.subject()
		defer done()
		c := call{tool: sub.tool, key: s.key(), args: sub.args, place: place}
		s.wantMarked("a first attempt", s.call(c), false)
		s.wantMarked("a second attempt", s.call(c), true)
		sub.wantEffects(1)
	}
}

func attemptNumber(ctx context.Context, t *check.T, p *Peer) {
	s := p.on(ctx, t).extended()
	sub, done := s.subject()
	defer done()
	key := s.key()
	for i, n := range []int{3, 1} {
		r := s.callRaw(fmt.Sprintf(`{"name":%q,"arguments":%s,"_meta":{%q:%q,%q:{"attempt":%d}}}`,
			sub.tool, sub.args, schema.MetaKey, key, schema.ExtensionID, n))
		s.wantMarked(fmt.Sprintf("attempt number %d", n), r, i > 0)
	}
	sub.wantEffects(1)
}
