package idempotency

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// FuzzDecode feeds arbitrary bytes, as a store of another version or a broken
// one may return them, to the codec of outcomes: it never panics, and what it
// does decode can be encoded and decodes to the same answer again.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		``, `?`, `r`, `r{}`, `r{"content":null}`, `r{"content":[{"type":"text","text":"t","_meta":{"n":9007199254740993}}],"_meta":{"a":1e400}}`,
		`r{"content":[],"resultType":"input_required","requestState":"s","inputRequests":{"q":{"method":"elicitation/create","params":{"mode":"form","message":"m","requestedSchema":{"maximum":9007199254740993}}}}}`,
		`r{"content":[{"type":"video"}]}`, `x{"content":[{"type":"video","n":1}],"structuredContent":1e400}`, `x{}`, `xnull`, `r null `, `r[]`,
		`r{"content":[{"type":"resource","resource":{"uri":"u","_meta":{"n":1e400}}}],"content":[]}`, `r{"Content":[1],"content":[{"type":"text"}]}`,
		`e{"code":-32000,"message":"m","data":{"a":1}}`, `e{"code":1,"message":"m","data":[1]}`, `e`, `enull`, `o{"a":1,"_meta":{"b":2}}`, `o{"_meta":1}`, `onull`, `o1`, `nmessage`, `n`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, blob []byte, modern bool) {
		res, err := decode(blob, modern)
		if errors.Is(err, errBlob) {
			return
		}
		var raised *jsonrpc.Error
		if err != nil && !errors.As(err, &raised) || (res == nil) == (err == nil) {
			t.Fatalf("%q: %v, %v", blob, res, err)
		}
		if err != nil {
			if _, err := json.Marshal(raised); err != nil {
				t.Fatalf("%q: %v", blob, err)
			}
			return
		}
		first, err := json.Marshal(res)
		if err != nil {
			t.Fatalf("%q: %v", blob, err)
		}
		again, err := encodeResult(res)
		if err != nil {
			t.Fatalf("%q: %v", blob, err)
		}
		res, err = decode(again, modern)
		if err != nil {
			t.Fatalf("%q became %q: %v", blob, again, err)
		}
		second, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		if !equalJSON(t, first, second) {
			t.Fatalf("%q decodes to\n%s\nand then to\n%s", blob, first, second)
		}
	})
}

func equalJSON(t *testing.T, a, b []byte) bool {
	parse := func(text []byte) (v any) {
		dec := json.NewDecoder(strings.NewReader(string(text)))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return v
	}
	return reflect.DeepEqual(parse(a), parse(b))
}

// FuzzUnwrapState feeds arbitrary text, as a client may send it back, to the
// reading of a round's state.
func FuzzUnwrapState(f *testing.F) {
	f.Add("")
	f.Add("idem1.")
	f.Add("idem1...")
	f.Add("the tool's own")
	f.Add(wrapState(store.Nonce{1}, "ns.key", "the tool's own"))
	f.Add(wrapState(store.Nonce{}, "ns.key", ""))
	f.Add(wrapState(store.Nonce{1}, "no dot", ""))
	f.Add(wrapState(store.Nonce{1}, ".arg:"+strings.Repeat("A", 43), "a.b.c"))
	f.Add("idem1.AQAAAAAAAAAAAAAAAAAA\nAA.bnMua2V5.x")
	f.Fuzz(func(t *testing.T, text string) {
		r, ok := unwrapState(text)
		if ok {
			if r.nonce == (store.Nonce{}) || !isRecordKey(r.key) || !strings.HasSuffix(text, "."+r.state) {
				t.Fatalf("%q: %+v", text, r)
			}
			if again, ok := unwrapState(wrapState(r.nonce, r.key, r.state)); !ok || again != r {
				t.Fatalf("%q: %+v became %+v", text, r, again)
			}
		}
		// Whatever a tool's own state is, it survives.
		if w, ok := unwrapState(wrapState(store.Nonce{1}, "ns.key", text)); !ok || w.state != text || w.key != "ns.key" {
			t.Fatalf("%q: %+v", text, w)
		}
	})
}
