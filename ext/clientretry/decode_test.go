package clientretry

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// messages are what a peer may send, sense or nonsense.
func messages() []string {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	all := []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}`,
		` {"jsonrpc" : "2.0" , "id" : 7 , "result" : { "content" : [ ] } } `,
		`{"result":{"a":"}{\"]["},"id":2,"jsonrpc":"2.0"}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x","arguments":{"n":9007199254740993}}}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools\/call","params":{}}`,
		`{"jsonrpc":"2.0","id":3,"method":"t\u006fols/call","params":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":null}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"m"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"extra":1}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"params":{}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"method":"x"}`,
		`{"jsonrpc":"2.0","id":1,"result":null}`,
		`{"jsonrpc":"2.0","id":1,"result":[]}`,
		`{"jsonrpc":"2.0","id":1,"result":"x"}`,
		`{"jsonrpc":"2.0","id":1,"result":{}} {"jsonrpc":"2.0","id":2,"result":{}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}garbage`,
		`{"jsonrpc":"2.0","id":1,"id":2,"result":{}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"result":{"b":1}}`,
		`{"jsonrpc":"1.0","id":1,"result":{}}`, `{"id":1,"result":{}}`,
		`{"JSONRPC":"2.0","ID":1,"RESULT":{}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"a":1}`, `{"jsonrpc":"2.0","id":1,"result":`, ``, `null`, `[]`, `"x"`, `{`,
		`[{"jsonrpc":"2.0","id":1,"result":{}}]`,
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"\xff\"}}",
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"\x01\"}}",
		`{"jsonrpc":"2.0","id":1,"result":{"a":"\ud800"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"a":01}}`, `{"jsonrpc":"2.0","id":1,"result":{"a":1e999}}`, `{"jsonrpc":"2.0","id":1,"result":{"a":1,}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"a":` + deep(400) + `}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"a":` + deep(998) + `}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"a":` + deep(1200) + `}}`,
	}
	for _, id := range []string{"0", "-1", "1.0", "1.5", "1e2", `"1"`, "null", "true", "[1]", "2147483647", "2147483648", "9007199254740993", "01"} {
		all = append(all, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id))
	}
	return all
}

func TestWhatIsDecodedHereTheSDKDecodesToTheSame(t *testing.T) {
	for _, m := range messages() {
		wantSameDecoding(t, []byte(m))
	}
}

func wantSameDecoding(t *testing.T, m []byte) {
	t.Helper()
	plain := decodePlain(bytes.Clone(m))
	if plain == nil {
		return
	}
	sdk, err := jsonrpc.DecodeMessage(m)
	if err != nil {
		t.Errorf("%q is decoded here, and the SDK says %v", m, err)
		return
	}
	if !reflect.DeepEqual(normal(plain), normal(sdk)) {
		t.Errorf("%q is decoded as %+v here and as %+v by the SDK", m, plain, sdk)
	}
}

// normal makes messages comparable that differ in space alone.
func normal(m jsonrpc.Message) any {
	switch m := m.(type) {
	case *jsonrpc.Request:
		return []any{m.ID, m.Method, string(bytes.TrimSpace(m.Params))}
	case *jsonrpc.Response:
		return []any{m.ID, string(bytes.TrimSpace(m.Result)), m.Error}
	}
	return m
}

func TestCommonMessagesAreDecodedWithoutTheSDK(t *testing.T) {
	for _, m := range messages()[:4] {
		if decodePlain([]byte(m)) == nil {
			t.Errorf("%s is left to the SDK", m)
		}
	}
}

func FuzzWhatIsDecodedHereTheSDKDecodesToTheSame(f *testing.F) {
	for _, m := range messages() {
		f.Add([]byte(m))
	}
	f.Fuzz(func(t *testing.T, m []byte) { wantSameDecoding(t, m) })
}

func BenchmarkDecode(b *testing.B) {
	m := []byte(`{"jsonrpc":"2.0","id":5,"result":{"resultType":"complete","content":[{"type":"text","text":"{\"number\":4200}"}],"structuredContent":{"number":4200}}}`)
	for name, decode := range map[string]func([]byte) (jsonrpc.Message, error){"here": decodeMessage, "sdk": jsonrpc.DecodeMessage} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decode(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
