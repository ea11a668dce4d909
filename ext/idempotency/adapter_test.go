package idempotency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// unkeyed are messages that an adapter passes on with the bytes they came
// with, odd ones included.
var unkeyed = []string{
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"amount":1}}}`,
	` { "jsonrpc" : "2.0" , "id":1e0,"method":"tools\/call","params":{ } } `,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"idempotencyKey":"x","s":"\u0069dempotencyKey"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"idempotencyKey":"x","` + schema.MetaKey + `":"ns.k"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"idempotencyKey":"x"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","idempotencyKey":"x","params":{}}`,
	`{"jsonrpc":"2.0","id":1,"result":{"idempotencyKey":"x"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["idempotencyKey"]}`,
	`[{"jsonrpc":"2.0","id":1,"method":"ping"}, {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"idempotencyKey"}}]`,
	`{"a":"\ud800","b":"` + "\xff" + `","c":1e999}`,
	`[]`, `null`, `1`, `"idempotencyKey"`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"s":"` + strings.Repeat("é\\n", 50_000) + `"}}`,
}

// keyed are messages whose key an adapter lifts.
var keyed = []string{
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{},"idempotencyKey":"ns.k"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"idempotency\u004bey":"ns.k"}}`,
	`{"p\u0061rams":{"idempotencyKey":"ns.k","_meta":null},"m\u0065thod":"tools\u002fcall","id":1}`,
	` {"params" : { "_meta" : { "mine" : 1.0 } , "idempotencyKey" : [ "ns.k" ] }, "method" : "tools/call" } `,
	`[{"method":"tools/call","params":{"idempotencyKey":"ns.k"}}]`,
	`{"method":"tools/call","params":{"s":"` + strings.Repeat("x", 100_000) + `","idempotencyKey":"ns.k"}}`,
}

// capture is an http.Handler that keeps what it was given.
type capture struct {
	body   []byte
	header http.Header
	length int64
	calls  int
}

func (c *capture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.calls++
	c.body, _ = io.ReadAll(r.Body)
	c.header, c.length = r.Header.Clone(), r.ContentLength
	w.WriteHeader(http.StatusAccepted)
}

func TestABodyWithoutAKeyPassesUnchanged(t *testing.T) {
	var plain, behind capture
	bare, adapted := httptest.NewServer(&plain), httptest.NewServer(idempotency.New(nil).Handler(&behind))
	defer bare.Close()
	defer adapted.Close()
	send := func(url, method, body string, chunked bool) {
		var r io.Reader = strings.NewReader(body)
		if chunked {
			r = io.MultiReader(r)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, url, r)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/json"}, "X-Other": {"a", "b"}, "Idempotency-Key": {"x"}}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusAccepted {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
	}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut} {
		for _, body := range append(unkeyed, `{"a":`, `}`, "", "\n", `{"a":1} x`) {
			for _, chunked := range []bool{false, true} {
				send(bare.URL, method, body, chunked)
				send(adapted.URL, method, body, chunked)
				if !bytes.Equal(plain.body, behind.body) || string(behind.body) != body || plain.length != behind.length {
					t.Errorf("%s %.60q became %.60q, length %d became %d", method, plain.body, behind.body, plain.length, behind.length)
				}
				if got := behind.header.Get("Mcp-Idempotency-Adapter"); len(got) < 20 || strings.Contains(got, schema.ParamKey) {
					t.Errorf("the adapter's header is %q", got)
				}
				behind.header.Del("Mcp-Idempotency-Adapter")
				if !maps.EqualFunc(plain.header, behind.header, func(a, b []string) bool { return reflect.DeepEqual(a, b) }) {
					t.Errorf("header %v became %v", plain.header, behind.header)
				}
			}
		}
	}
}

// lifted checks that out is in with nothing but the private member added.
func lifted(t *testing.T, in, out []byte) {
	t.Helper()
	if bytes.Equal(in, out) || !bytes.Contains(out, []byte(schema.ParamKey+"#")) {
		t.Errorf("not lifted: %.200s", in)
		return
	}
	strip := func(b []byte) any {
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatalf("%.200s: %v", b, err)
		}
		return withoutPrivate(v)
	}
	if a, b := strip(in), strip(out); !reflect.DeepEqual(a, b) {
		t.Errorf("%v\nbecame %v", a, b)
	}
}

func withoutPrivate(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = withoutPrivate(v[i])
		}
	case map[string]any:
		for name, m := range v {
			if strings.HasPrefix(name, schema.ParamKey+"#") {
				delete(v, name)
			} else if v[name] = withoutPrivate(m); name == "_meta" {
				if o, ok := v[name].(map[string]any); v[name] == nil || ok && len(o) == 0 {
					delete(v, name)
				}
			}
		}
	}
	return v
}

func TestABodyWithAKeyGainsOneMember(t *testing.T) {
	var behind capture
	adapted := httptest.NewServer(idempotency.New(nil).Handler(&behind))
	defer adapted.Close()
	for _, body := range keyed {
		resp, err := http.Post(adapted.URL, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		lifted(t, []byte(body), behind.body)
		if behind.length != int64(len(behind.body)) {
			t.Errorf("length %d, body of %d", behind.length, len(behind.body))
		}
	}
}

// read is what the SDK reads from a stdio stream behind the adapter.
func read(stream io.Reader) ([]byte, error) {
	t := idempotency.New(nil).Transport(&mcp.IOTransport{Reader: io.NopCloser(stream)}).(*mcp.IOTransport)
	return io.ReadAll(t.Reader)
}

func TestLinesWithoutAKeyPassUnchanged(t *testing.T) {
	pretty := "{\n  \"jsonrpc\": \"2.0\",\n  \"method\": \"tools/call\",\n  \"params\": {\n    \"arguments\": {\n      \"idempotencyKey\": \"}\\\"{\"\n    }\n  }\n}\n"
	streams := []string{
		strings.Join(unkeyed, "\n") + "\n", strings.Join(unkeyed, "\r\n") + "\r\n", strings.Join(unkeyed, "\n\n"),
		"", "\n\n\n", "{", "}}}}\n{}\n", `{"a":"` + "\n" + `"}` + "\n", "idempotencyKey\nidempotencyKey\n",
		pretty, pretty + unkeyed[0] + "\n" + pretty, "[\n" + unkeyed[0] + "\n,\n" + unkeyed[1] + "\n]\n",
	}
	for _, s := range streams {
		for name, reader := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "eof": iotest.DataErrReader,
		} {
			if got, err := read(reader(strings.NewReader(s))); err != nil || string(got) != s {
				t.Errorf("%s: %.100q became %.100q, %v", name, s, got, err)
			}
		}
	}
	if got, err := read(io.MultiReader(strings.NewReader("{}\n{"), iotest.ErrReader(errDown))); !errors.Is(err, errDown) || string(got) != "{}\n{" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestLinesWithAKeyAreLifted(t *testing.T) {
	for _, reader := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader} {
		got, err := read(reader(strings.NewReader(strings.Join(append(keyed, unkeyed...), "\n") + "\n")))
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.Split(bytes.TrimSuffix(got, []byte("\n")), []byte("\n"))
		for i, line := range lines[:len(keyed)] {
			lifted(t, []byte(keyed[i]), line)
		}
		for i, line := range lines[len(keyed):] {
			if string(line) != unkeyed[i] {
				t.Errorf("%.100q became %.100q", unkeyed[i], line)
			}
		}
	}
	// The last line of a stream needs no end.
	got, err := read(strings.NewReader(keyed[0]))
	if err != nil {
		t.Fatal(err)
	}
	lifted(t, []byte(keyed[0]), got)
}

// The SDK puts a message that spans lines together: its key must not get by
// unseen, wherever the lines break.
func TestAMessageThatSpansLinesCannotHideItsKey(t *testing.T) {
	for _, msg := range keyed[:5] {
		for i := 1; i < len(msg); i++ {
			if strings.ContainsRune(` {}[],:`, rune(msg[i])) || strings.ContainsRune(` {}[],:`, rune(msg[i-1])) {
				split := msg[:i] + "\n" + msg[i:] + "\n"
				if strings.TrimSpace(msg[:i]) == "" || strings.TrimSpace(msg[i:]) == "" || !json.Valid([]byte(split)) {
					continue
				}
				got, err := read(strings.NewReader(unkeyed[0] + "\n" + split + unkeyed[0] + "\n"))
				if err == nil || !strings.Contains(err.Error(), "spans lines") {
					t.Errorf("%q passed as %q, %v", split, got, err)
				}
				if rest, ok := strings.CutPrefix(string(got), unkeyed[0]+"\n"); !ok || json.Valid([]byte(rest)) {
					t.Errorf("%q: the SDK is given %q", split, got)
				}
			}
		}
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(keyed[0]), "", "  "); err != nil {
		t.Fatal(err)
	}
	if got, err := read(&pretty); err == nil || json.Valid(got) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestALineIsBoundedByTheTransportsLimit(t *testing.T) {
	for name, stream := range map[string]string{
		"one line":   `{"s":"` + strings.Repeat("x", 200<<10) + `"}` + "\n",
		"many lines": strings.Repeat("[\n", 100<<10),
	} {
		for limit, ok := range map[int]bool{100 << 10: false, 300 << 10: true, -1: true} {
			tr := idempotency.New(nil).Transport(&mcp.IOTransport{Reader: io.NopCloser(strings.NewReader(stream)), MaxLineLength: limit}).(*mcp.IOTransport)
			if tr.MaxLineLength != limit {
				t.Errorf("the SDK is given the limit %d", tr.MaxLineLength)
			}
			if _, err := io.ReadAll(tr.Reader); (err == nil) != ok {
				t.Errorf("%s, limit %d: %v", name, limit, err)
			}
		}
	}
}

type closer struct {
	io.Reader
	closed int
}

func (c *closer) Close() error { c.closed++; return errDown }

func TestTheTransportBelowIsClosedAndWrittenAsBefore(t *testing.T) {
	c, w := &closer{Reader: strings.NewReader("")}, &struct{ io.WriteCloser }{}
	tr := idempotency.New(nil).Transport(&mcp.IOTransport{Reader: c, Writer: w}).(*mcp.IOTransport)
	if err := tr.Reader.Close(); !errors.Is(err, errDown) || c.closed != 1 || tr.Writer != io.WriteCloser(w) {
		t.Errorf("%v, closed %d times", err, c.closed)
	}
}

func TestAnHTTPTransportIsRefused(t *testing.T) {
	idem := idempotency.New(nil)
	for _, tr := range []mcp.Transport{&mcp.StreamableServerTransport{}, &mcp.StreamableClientTransport{}, &mcp.SSEServerTransport{}} {
		if _, err := idem.Transport(tr).Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "Idempotency.Handler") {
			t.Errorf("%T: %v", tr, err)
		}
	}
}

// Revisions up to 2025-03-26 have batches.
func TestKeysInBatchesAreSeen(t *testing.T) {
	const rev = "2025-03-26"
	opts := mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}
	for _, c := range []connector{
		{"http", func(t testing.TB, idem *idempotency.Idempotency, server *mcp.Server) conn {
			return dialHTTP(t, idem.Handler(sdkHandler(server, opts)), rev, opts, "")
		}},
		{"stdio", pipeConn(rev)},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c, nil)
			ns := f.namespaceOf(t)
			call := func(id int, key string) string {
				return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, id, toolParams("charge", key, `{"amount":1}`))
			}
			batch := "[" + call(1001, ns+".a") + ", " + call(1002, ns+".b") + "," + call(1003, "") + "," + call(1004, ns+".a") + "]"
			if h, ok := f.conn.(*httpClient); ok {
				if status, body := post(t, h, strings.NewReader(batch), int64(len(batch))); status != http.StatusOK || strings.Count(body, `"replayed"`) != 3 {
					t.Errorf("status %d, %s", status, body)
				}
				// More than JSON, which the SDK would take: refused, since the
				// adapter cannot see the keys in it.
				for _, more := range []string{batch + "x", batch + batch, strings.ReplaceAll(batch, "idempotencyKey", `idempotency\u004bey`) + "x"} {
					if status, body := post(t, h, strings.NewReader(more), int64(len(more))); status != http.StatusBadRequest {
						t.Errorf("status %d, %s", status, body)
					}
				}
			} else {
				p := f.conn.(*pipeClient)
				p.send(batch)
				eventually(t, "three have run", func() bool { return f.effects.Load() == 3 })
			}
			for _, key := range []string{".a", ".b"} {
				if r := f.tool("charge", ns+key, `{"amount":1}`); !r.replayed() {
					t.Errorf("%s: %v", key, r)
				}
			}
			f.wantEffects(3)
		})
	}
}
