package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func TestMessagesWithoutAKeyPassUnchanged(t *testing.T) {
	l := NewLifter()
	for _, msg := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"idempotencyKey":"not a key of the call"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"idempotencyKey":"other method"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"idempotencyKey":"x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["idempotencyKey"]}`,
		` [ {"jsonrpc":"2.0","id":1,"method":"ping"} , {"x":"idempotencyKey"} ]`,
		`"idempotencyKey"`,
		`{ "method" : "tools/call" , "params" : { "name" : "\u00e9" } }`,
	} {
		out, err := l.Message([]byte(msg))
		if err != nil {
			t.Errorf("%s: %v", msg, err)
		}
		if string(out) != msg {
			t.Errorf("changed\n%s\ninto\n%s", msg, out)
		}
	}
}

func TestALiftedKeyIsFoundInMetaAndTheRestIsUnchanged(t *testing.T) {
	l := NewLifter()
	for name, tc := range map[string]struct{ params, want string }{
		"no meta":      {`{"name":"a","idempotencyKey":"n.k"}`, `["n.k"]`},
		"meta":         {`{"_meta":{"progressToken":1},"idempotencyKey":"n.k","name":"a"}`, `["n.k"]`},
		"empty meta":   {`{"_meta": { },"idempotencyKey":"n.k"}`, `["n.k"]`},
		"null meta":    {`{"_meta":null,"idempotencyKey":"n.k"}`, `["n.k"]`},
		"escaped name": {`{"name":"a","idempotency\u004bey":"n.k"}`, `["n.k"]`},
		"not a string": {`{"name":"a","idempotencyKey":{"a":[1]}}`, `[{"a":[1]}]`},
		"repeated":     {`{"name":"a","idempotencyKey":"n.k","idempotencyKey":"n.l"}`, `["n.k","n.l"]`},
	} {
		t.Run(name, func(t *testing.T) {
			msg := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + tc.params + `}`
			for _, m := range []string{msg, "[" + msg + "]"} {
				out, err := l.Message([]byte(m))
				if err != nil {
					t.Fatal(err)
				}
				out = bytes.TrimSuffix(bytes.TrimPrefix(out, []byte("[")), []byte("]"))
				var got struct {
					Params struct {
						Meta map[string]json.RawMessage `json:"_meta"`
					} `json:"params"`
				}
				if err := json.Unmarshal(out, &got); err != nil {
					t.Fatalf("%v in %s", err, out)
				}
				if string(got.Params.Meta[l.Name()]) != tc.want {
					t.Errorf("lifted %s, want %s", got.Params.Meta[l.Name()], tc.want)
				}
				// Taking the private member out again must give the message back.
				text := `"` + l.Name() + `":` + tc.want
				back := strings.ReplaceAll(string(out), text+",", "")
				back = strings.ReplaceAll(back, text, "")
				if !strings.Contains(tc.params, `"_meta"`) {
					back = strings.Replace(back, `"_meta":{},`, "", 1)
				}
				if strings.Contains(tc.params, "null") {
					back = strings.Replace(back, `"_meta":{}`, `"_meta":null`, 1)
				}
				if back != msg {
					t.Errorf("more than the key changed:\n%s\n%s", msg, back)
				}
			}
		})
	}
}

func TestAKeyInARepeatedMemberIsLiftedAsNoKeyAtAll(t *testing.T) {
	l := NewLifter()
	key := `"` + schema.MetaKey + `":"n.k"`
	for _, params := range []string{
		`"params":{"name":"a","idempotencyKey":"n.k"},"params":{"name":"a"}`,
		`"params":{"name":"a","_meta":{` + key + `}},"params":{"name":"a"}`,
		`"params":{"name":"a","_meta":{},"_meta":{"b":2},"idempotencyKey":"n.k"}`,
		`"params":{"name":"a","_meta":{` + key + `},"_meta":{}}`,
		`"params":{"name":"a","_meta":{` + key + `,` + key + `}}`,
	} {
		out, err := l.Message([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call",` + params + `}`))
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Params struct {
				Meta map[string]json.RawMessage `json:"_meta"`
			} `json:"params"`
		}
		if err := json.Unmarshal(out, &got); err != nil || string(got.Params.Meta[l.Name()]) != `[null,null]` {
			t.Errorf("%s: lifted %s, %v", params, got.Params.Meta[l.Name()], err)
		}
	}
}

func TestTwoValuesInOneMessageAreAnError(t *testing.T) {
	_, err := NewLifter().Message([]byte(`{"id":9,"method":"ping"}` + "\r" + `{"method":"tools/call","params":{"idempotencyKey":"n.k"}}`))
	if !errors.Is(err, ErrTrailing) {
		t.Errorf("got %v", err)
	}
}

func TestBrokenJSONIsAnErrorAndNotSilence(t *testing.T) {
	for _, msg := range []string{
		`{"method":"tools/call","params":{"idempotencyKey":"a`,
		`{"idempotencyKey"`, `[{"idempotencyKey":1},`,
	} {
		if _, err := NewLifter().Message([]byte(msg)); err == nil {
			t.Errorf("no error for %s", msg)
		}
	}
}

func TestInsertPutsTheKeyInOnePlace(t *testing.T) {
	const msg = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a","arguments":{"b":1e400}}}`
	for _, tc := range []struct {
		key  Key
		want string
	}{
		{Key{Value: "n.k", Param: true}, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"idempotencyKey":"n.k","name":"a","arguments":{"b":1e400}}}`},
		{Key{Value: "n.k"}, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"_meta":{"` + schema.MetaKey + `":"n.k"},"name":"a","arguments":{"b":1e400}}}`},
		{Key{Value: "n.k", Attempt: 1}, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"_meta":{"` + schema.MetaKey + `":"n.k"},"name":"a","arguments":{"b":1e400}}}`},
		{Key{Value: "n.k", Param: true, Attempt: 2}, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"idempotencyKey":"n.k","_meta":{"` + schema.ExtensionID + `":{"attempt":2}},"name":"a","arguments":{"b":1e400}}}`},
	} {
		out, err := Insert([]byte(msg), tc.key)
		if err != nil {
			t.Fatal(err)
		}
		if string(out) != tc.want {
			t.Errorf("got  %s\nwant %s", out, tc.want)
		}
	}
	if _, err := Insert([]byte(`{"method":"x"}`), Key{Value: "n.k"}); err == nil {
		t.Error("inserted a key into a message without params")
	}
}

// A look at the bytes must not let anything through that a reading would lift.
func TestAKeyThatMayBeElsewhereIsLookedForByReading(t *testing.T) {
	const key = `"io.modelcontextprotocol/idempotencyKey":"n.k"`
	plain := `{"method":"tools/call","params":{"name":"a","_meta":{` + key + `}}}`
	if !onlyInMeta([]byte(plain)) {
		t.Error("the common form is read")
	}
	for name, msg := range map[string]string{
		"param":           `{"method":"tools/call","params":{"idempotencyKey":"n.k","_meta":{}}}`,
		"both":            `{"method":"tools/call","params":{"idempotencyKey":"n.k","_meta":{` + key + `}}}`,
		"escaped param":   `{"method":"tools/call","params":{"idempotency\u004bey":"n.k","_meta":{` + key + `}}}`,
		"repeated key":    `{"method":"tools/call","params":{"_meta":{` + key + `,` + key + `}}}`,
		"repeated meta":   `{"method":"tools/call","params":{"_meta":{` + key + `},"_meta":{}}}`,
		"escaped meta":    `{"method":"tools/call","params":{"_meta":{` + key + `},"\u005fmeta":{}}}`,
		"repeated params": `{"method":"tools/call","params":{"_meta":{` + key + `}},"params":{}}`,
		"escaped params":  `{"method":"tools/call","params":{"_meta":{` + key + `}},"\u0070arams":{}}`,
	} {
		if onlyInMeta([]byte(msg)) {
			t.Errorf("%s: taken for a key in _meta alone", name)
		}
	}
}

func FuzzLift(f *testing.F) {
	f.Add([]byte(`{"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/idempotencyKey":"n.k"}}}`))
	f.Add([]byte(`{"method":"tools/call","params":{"idempotencyKey":"n.k","_meta":{}}}`))
	f.Add([]byte(`[{"method":"tools/call","params":{"idempotencyKey":"n.k"}}]`))
	f.Add([]byte(`{"method":"tools/call","params":{"name":"\ud800"}}`))
	f.Fuzz(func(t *testing.T, msg []byte) {
		l := &Lifter{name: "idempotencyKey#fuzz"}
		out, err := l.Message(msg)
		if err != nil {
			return
		}
		if !MayHaveKey(msg) && !bytes.Equal(out, msg) {
			t.Fatalf("a message without a key changed: %q", out)
		}
		if onlyInMeta(msg) {
			if read, err := l.single(msg); err == nil && !bytes.Equal(read, msg) {
				t.Fatalf("a look was enough, and a reading lifts: %q", read)
			}
		}
		if json.Valid(msg) && !json.Valid(out) {
			t.Fatalf("valid JSON became invalid: %q", out)
		}
	})
}
