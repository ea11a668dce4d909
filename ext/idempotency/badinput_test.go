package idempotency_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// badRequest is a `tools/call` that is refused before anything runs.
type badRequest struct {
	name   string
	params string // NS stands for the declared namespace
	reason schema.Reason
	code   int // of JSON-RPC, when reason is empty
}

const anyCode = -1

const goodArgs = `"name":"charge","arguments":{"amount":1}`

func badKeys() []badRequest {
	var list []badRequest
	both := func(name, value string, reason schema.Reason) {
		list = append(list,
			badRequest{name + " in params", `{` + goodArgs + `,"idempotencyKey":` + value + `}`, reason, 0},
			badRequest{name + " in _meta", `{` + goodArgs + `,"_meta":{"` + schema.MetaKey + `":` + value + `}}`, reason, 0})
	}
	both("too long", `"NS.`+strings.Repeat("k", 255)+`"`, schema.ReasonKeyInvalid)
	both("huge", `"NS.`+strings.Repeat("k", 100_000)+`"`, schema.ReasonKeyInvalid)
	both("empty", `""`, schema.ReasonKeyInvalid)
	both("no dot", `"NS"`, schema.ReasonKeyInvalid)
	both("nothing after the dot", `"NS."`, schema.ReasonKeyInvalid)
	both("nothing before the dot", `".key"`, schema.ReasonKeyInvalid)
	both("only a dot", `"."`, schema.ReasonKeyInvalid)
	both("a record key of an argument", `".arg:LCJe3SKIWC6vfWRBT8j4ZP1kJYCIEQvNYcNHWQ4pXMA"`, schema.ReasonKeyInvalid)
	both("namespace too long", `"`+strings.Repeat("n", 65)+`.key"`, schema.ReasonKeyInvalid)
	for name, c := range map[string]string{
		"space": " ", "slash": "/", "plus": "+", "equals": "=", "percent": "%", "at": "@", "comma": ",", "quote": `\"`, "backslash": `\\`,
		"newline": `\n`, "tab": `\t`, "nul": `\u0000`, "escape": `\u001b`, "del": `\u007f`, "latin": "é", "wide digit": "１", "emoji": "😀",
		"separator": `\u2028`, "lone surrogate": `\ud800`, "invalid UTF-8": "\xff", "brace": "{", "asterisk": "*",
	} {
		both(name+" in the key", `"NS.ke`+c+`y"`, schema.ReasonKeyInvalid)
	}
	both("newline in the namespace", `"N\nS.key"`, schema.ReasonKeyInvalid)
	both("other namespace", `"other.key"`, schema.ReasonNamespaceNotHeld)
	both("namespace in other case", `"X-NS.key"`, schema.ReasonNamespaceNotHeld)
	for name, v := range map[string]string{"number": "1", "zero": "0", "null": "null", "true": "true", "object": `{"a":"NS.k"}`, "array": `["NS.k"]`} {
		both(name, v, schema.ReasonKeyInvalid)
	}
	return append(list,
		badRequest{"both places, different", `{` + goodArgs + `,"idempotencyKey":"NS.a","_meta":{"` + schema.MetaKey + `":"NS.b"}}`, "", jsonrpc.CodeInvalidParams},
		badRequest{"both places, one not a string", `{` + goodArgs + `,"idempotencyKey":"NS.a","_meta":{"` + schema.MetaKey + `":1}}`, "", jsonrpc.CodeInvalidParams},
		badRequest{"both places, neither a string", `{` + goodArgs + `,"idempotencyKey":1,"_meta":{"` + schema.MetaKey + `":1}}`, "", jsonrpc.CodeInvalidParams},
		badRequest{"twice in params", `{` + goodArgs + `,"idempotencyKey":"NS.a","idempotencyKey":"NS.b"}`, "", jsonrpc.CodeInvalidParams},
		badRequest{"twice in params, once escaped", `{` + goodArgs + `,"idempotencyKey":"NS.a","idempotency\u004bey":"NS.b"}`, "", jsonrpc.CodeInvalidParams},
		badRequest{"in the path check", `{"name":"no_such_tool","idempotencyKey":"!"}`, schema.ReasonKeyInvalid, 0},
	)
}

func badArguments() []badRequest {
	keyed := func(name, args string) badRequest {
		return badRequest{name, `{"name":"charge","arguments":` + args + `,"idempotencyKey":"NS.bad"}`, "", jsonrpc.CodeInvalidParams}
	}
	return []badRequest{
		keyed("null", `null`),
		keyed("an array", `[1]`),
		keyed("a string", `"{}"`),
		keyed("a number", `1`),
		keyed("more than a megabyte", `{"amount":1,"note":"`+strings.Repeat("x", 1<<20)+`"}`),
		keyed("duplicate members", `{"amount":1,"amount":1}`),
		keyed("duplicate members, once escaped", `{"amount":1,"am\u006funt":2}`),
		keyed("duplicate members, nested", `{"amount":1,"x":[{"a":1,"a":1}]}`),
		keyed("lone surrogate", `{"amount":1,"x":"\ud800"}`),
		keyed("lone surrogate in a name", `{"amount":1,"\udc00":1}`),
		keyed("invalid UTF-8", "{\"amount\":1,\"x\":\"\xff\"}"),
		// The SDK's check of the request's headers may meet it first.
		{"a number beyond reason", `{"name":"charge","arguments":{"amount":1,"x":1e99999999999},"idempotencyKey":"NS.bad"}`, "", anyCode},
		{"unknown tool", `{"name":"no_such_tool","arguments":{},"idempotencyKey":"NS.bad"}`, "", jsonrpc.CodeInvalidParams},
	}
}

func TestBadInputIsRefusedAndRecordsNothing(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		ns := f.namespace()
		for _, bad := range append(badKeys(), badArguments()...) {
			r, err := f.call(t.Context(), "tools/call", strings.ReplaceAll(bad.params, "NS", ns))
			switch {
			case err != nil:
				t.Fatalf("%s: %v", bad.name, err)
			case bad.reason != "":
				t.Run(strings.ReplaceAll(bad.name, " ", "_"), func(t *testing.T) { wantReason(t, r, bad.reason) })
			case r.Error == nil || r.Error.Code != bad.code && bad.code != anyCode:
				t.Errorf("%s: got %.300v, want the code %d", bad.name, r, bad.code)
			}
		}
		f.wantNothingRecorded()
	})
}

// wantNothingRecorded checks that nothing ran or was recorded, and that the
// server still serves.
func (f *fixture) wantNothingRecorded() {
	f.t.Helper()
	f.wantEffects(0)
	if st := f.memory.Stats(); st.Records != 0 || st.ResultBytes != 0 || f.idem.Runs() != 0 {
		f.t.Errorf("recorded: %+v, %d runs", st, f.idem.Runs())
	}
	if r := f.tool("charge", f.key(), `{"amount":1}`); r.Error != nil || r.replayed() {
		f.t.Errorf("afterwards: %v", r)
	}
}

// Good input at its limits.
func TestKeysAndArgumentsUpToTheirLimitsAreTaken(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		ns := f.namespace()
		long := ns + "." + strings.Repeat("k", schema.MaxKeyLen-len(ns)-1)
		odd := ns + "..~:-_.A.z.09"
		for _, key := range []string{long, odd, ns + "..", ns + ".k"} {
			if r := f.tool("charge", key, `{"amount":1}`); r.Error != nil || r.replayed() {
				t.Errorf("%s: %v", key, r)
			}
		}
		f.wantEffects(4)
	})
	on(t, []connector{connectors()[1], connectors()[5]}, nil, nil, func(t *testing.T, f *fixture) {
		note := strings.Repeat("x", 1<<20-len(`{"amount":1,"effect_id":""}`))
		if r := f.tool("charge", f.key(), `{"amount":1,"effect_id":"`+note+`"}`); r.Error != nil {
			t.Errorf("1 MiB of arguments: %.200v", r)
		}
	})
}

// S6. A call that does not reach its handler spends no key.
func TestInvalidArgumentsLeaveTheKeyUsable(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		key := f.key()
		for _, args := range []string{`{"amount":"one"}`, `{}`, `{"amount":1,"other":true}`} {
			keyed, bare := f.tool("charge", key, args), f.tool("charge", "", args)
			sameValue(t, bare, keyed)
			if m := keyed.marker(); m == nil || m.Replayed {
				t.Errorf("%s: %v", args, keyed)
			}
			if !strings.Contains(string(keyed.Result), `"isError":true`) {
				t.Errorf("%s: %v", args, keyed)
			}
		}
		if st := f.memory.Stats(); st.Records != 0 {
			t.Errorf("recorded: %+v", st)
		}
		if r := f.tool("charge", key, `{"amount":1}`); r.Error != nil || r.replayed() {
			t.Errorf("with good arguments: %v", r)
		}
		f.wantEffects(1)
	})
}

// Arguments that the SDK's own decoder refuses to nest so deep.
func TestDeepNestingIsRefusedWithoutARecord(t *testing.T) {
	for _, depth := range []int{2_000, 100_000} {
		onEach(t, nil, func(t *testing.T, f *fixture) {
			deep := strings.Repeat(`[`, depth) + strings.Repeat(`]`, depth)
			r, err := f.call(t.Context(), "tools/call", fmt.Sprintf(
				`{"name":"charge","arguments":{"amount":1,"x":%s},"idempotencyKey":"%s.deep"}`, deep, f.namespaceOf(t)))
			if _, ok := f.conn.(*httpClient); ok {
				if r.status != http.StatusBadRequest || r.Result != nil {
					t.Errorf("got %.300v, status %d, %v", r, r.status, err)
				}
			} else {
				// As without the extension, a stdio session ends with it.
				if err == nil {
					t.Errorf("got %.300v", r)
				}
				f.conn = dialPipe(t, f.server, f.idem.Transport, f.revision())
			}
			f.wantNothingRecorded()
		})
	}
}

// post sends one raw body.
func post(t *testing.T, c *httpClient, body io.Reader, length int64) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = length
	for name, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": c.rev, "Mcp-Session-Id": c.session, "Mcp-Method": "tools/call", "Mcp-Name": "charge"} {
		if v != "" {
			req.Header.Set(name, v)
		}
	}
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestHugeAndBrokenBodiesAreRefused(t *testing.T) {
	on(t, named("http"), nil, nil, func(t *testing.T, f *fixture) {
		c := f.conn.(*httpClient)
		huge := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + goodArgs + `,"idempotencyKey":"` + strings.Repeat("k", 5<<20) + `"}}`
		for _, length := range []int64{int64(len(huge)), -1} {
			if status, body := post(t, c, strings.NewReader(huge), length); status != http.StatusRequestEntityTooLarge {
				t.Errorf("length %d: status %d, %.200s", length, status, body)
			}
		}
		params := withMeta(c.rev, `{`+goodArgs+`,"idempotencyKey":"`+f.namespaceOf(t)+`.broken"}`)
		whole := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
		for _, cut := range []int{0, 1, len(whole) / 2, len(whole) - 1} {
			if status, body := post(t, c, strings.NewReader(whole[:cut]), int64(cut)); status != http.StatusBadRequest {
				t.Errorf("cut at %d: status %d, %.200s", cut, status, body)
			}
		}
		for _, body := range []string{`idempotencyKey`, `"idempotencyKey"`, `[` + whole + `]x`, `[` + whole, strings.Replace(whole, `"amount":1`, `"amount":01`, 1)} {
			if status, got := post(t, c, strings.NewReader(body), int64(len(body))); status != http.StatusBadRequest {
				t.Errorf("%.60s: status %d, %.200s", body, status, got)
			}
		}
		f.wantNothingRecorded()
	})
}

func TestBrokenLinesEndTheSessionAndNotTheServer(t *testing.T) {
	for _, rev := range []string{modernRevision, legacyRevision} {
		for name, line := range map[string]string{
			"cut":       `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + goodArgs + `,"idempotencyKey":"NS.broken"}`,
			"not JSON":  `idempotencyKey`,
			"too long":  `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"idempotencyKey":"` + strings.Repeat("k", 17<<20) + `"}}`,
			"malformed": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"idempotencyKey":NS}}`,
		} {
			t.Run(name+" "+rev, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, connector{"stdio", pipeConn(rev)}, nil)
				c := f.conn.(*pipeClient)
				go c.send(strings.ReplaceAll(line, "NS", f.namespaceOf(t)))
				if name == "cut" {
					c.w.Close()
				}
				<-c.served
				f.conn = dialPipe(t, f.server, f.idem.Transport, rev)
				f.wantNothingRecorded()
			})
		}
	}
}

func TestRequestBodiesUpToTheLimitPass(t *testing.T) {
	opt := func() *idempotency.Options { return &idempotency.Options{MaxRequestBytes: 2000} }
	on(t, named("http"), opt, nil, func(t *testing.T, f *fixture) {
		c := f.conn.(*httpClient)
		head := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` +
			strings.TrimSuffix(withMeta(c.rev, `{`+goodArgs+`,"idempotencyKey":"`+f.namespaceOf(t)+`.size"}`), "}") + `,"pad":""}}`
		for _, size := range []int{1999, 2000, 2001} {
			body := strings.Replace(head, `"pad":""`, `"pad":`+strconv.Quote(strings.Repeat("x", size-len(head))), 1)
			want := http.StatusOK
			if size > 2000 {
				want = http.StatusRequestEntityTooLarge
			}
			if status, got := post(t, c, strings.NewReader(body), int64(len(body))); len(body) != size || status != want {
				t.Errorf("%d bytes: status %d, want %d: %.200s", len(body), status, want, got)
			}
		}
	})
}

// What the adapter refuses is judged by JSON, and not by words in the text.
func TestTheWordInArgumentsIsNoKey(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		r := f.tool("charge", "", `{"amount":1,"effect_id":"idempotencyKey \u006b"}`)
		if r.Error != nil || r.marker() != nil {
			t.Error(r)
		}
		if !json.Valid(r.Result) {
			t.Error(r)
		}
	})
}
