// Package rawmcp is a client of MCP that has no mind of its own: its caller
// writes the params of every request and reads the bytes of every response. It
// speaks Streamable HTTP and stdio, in the revisions 2026-07-28 and 2025-11-25.
package rawmcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// Revisions of the protocol that a [Conn] speaks.
const (
	Modern = "2026-07-28" // stateless, with server/discover
	Legacy = "2025-11-25" // with initialize and, on HTTP, sessions
)

// Errors that are matched by what a Conn returns. Any other error of a call is
// the loss of its response.
var (
	// ErrNotMCP says that what answered does not speak MCP.
	ErrNotMCP = errors.New("it does not speak MCP")
	// ErrUnreachable says that nothing answered.
	ErrUnreachable = errors.New("it cannot be reached")
	// ErrTooLong says that a message was longer than the limit.
	ErrTooLong = errors.New("the message is too long")
)

// DefaultMaxBytes bounds one message of a server.
const DefaultMaxBytes = 8 << 20

// Options of a connection. Nil and the zero value work.
type Options struct {
	// Revision to speak: [Modern] or [Legacy]. Empty: the first of the two
	// that the server answers to.
	Revision string
	// Header is sent with every HTTP request.
	Header map[string]string
	// MaxBytes bounds one message of the server. Zero means [DefaultMaxBytes].
	MaxBytes int64
}

func (o *Options) withDefaults() Options {
	var out Options
	if o != nil {
		out = *o
	}
	if out.MaxBytes <= 0 {
		out.MaxBytes = DefaultMaxBytes
	}
	return out
}

// A Conn is a connection to a server that has answered the handshake. It is
// safe for concurrent use.
type Conn interface {
	// Call sends a request and returns its response. params is a JSON object,
	// to whose `_meta` is added what the revision demands. When ctx ends the
	// caller is gone: over HTTP the connection is closed, on stdio nothing is
	// sent.
	Call(ctx context.Context, method, params string) (Reply, error)
	// CallID is Call with an id of the caller's own, raw JSON.
	CallID(ctx context.Context, id, method, params string) (Reply, error)
	// Notify sends a notification.
	Notify(ctx context.Context, method, params string) error
	// Revision is the one that is spoken.
	Revision() string
	// Handshake is the response to server/discover or initialize.
	Handshake() Reply
	// Close ends the connection, and on stdio the process.
	Close() error
}

// Error is a JSON-RPC error.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Reply is a response.
type Reply struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
	// Status is HTTP's; zero on stdio.
	Status int `json:"-"`
}

// String is the response in short, for messages.
func (r Reply) String() string {
	const most = 300
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	s := string(b)
	if len(s) > most {
		s = s[:most] + "…"
	}
	if r.Status != 0 && r.Status != 200 {
		s = fmt.Sprintf("HTTP %d: %s", r.Status, s)
	}
	return s
}

// Extension returns the data of an error of the extension; ok is false for
// every other response.
func (r Reply) Extension() (data schema.ErrorData, ok bool) {
	if r.Error == nil || r.Error.Code != schema.ErrorCode {
		return data, false
	}
	return data, json.Unmarshal(r.Error.Data, &data) == nil
}

// Reason is that of an error of the extension; empty for any other response.
func (r Reply) Reason() schema.Reason {
	data, _ := r.Extension()
	return data.Reason
}

// Marker returns the extension's marker, of the result or of the error that a
// tool raised.
func (r Reply) Marker() (m schema.ResultMarker, ok bool) {
	var holder struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if r.Error != nil {
		if json.Unmarshal(r.Error.Data, &holder.Meta) != nil {
			return m, false
		}
	} else if json.Unmarshal(r.Result, &holder) != nil {
		return m, false
	}
	raw, ok := holder.Meta[schema.ExtensionID]
	if !ok {
		return m, false
	}
	var members map[string]any
	if json.Unmarshal(raw, &members) != nil {
		return m, false
	}
	m.Replayed, ok = members["replayed"].(bool)
	return m, ok
}

// Decode reads the result into v.
func (r Reply) Decode(v any) error {
	if r.Error != nil {
		return fmt.Errorf("the answer is an error: %s", r)
	}
	return json.Unmarshal(r.Result, v)
}

// requestMeta are the members that the revision demands in `_meta`.
func requestMeta(revision string) string {
	if revision != Modern {
		return ""
	}
	return `"io.modelcontextprotocol/protocolVersion":"` + Modern + `",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"sepcheck","version":"0"},` +
		`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}`
}

// withMeta adds them to params, whose own bytes stay as they are.
func withMeta(revision, params string) string {
	meta := requestMeta(revision)
	if meta == "" {
		return params
	}
	if before, after, ok := strings.Cut(params, `"_meta":{`); ok {
		if !strings.HasPrefix(after, "}") {
			meta += ","
		}
		return before + `"_meta":{` + meta + after
	}
	rest := strings.TrimSpace(params)[1:]
	if rest != "}" {
		rest = "," + rest
	}
	return `{"_meta":{` + meta + `}` + rest
}

// message is a request, or a notification when the id is empty.
func message(revision, id, method, params string) string {
	if id != "" {
		id = `"id":` + id + `,`
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0",%s"method":%q,"params":%s}`, id, method, withMeta(revision, params))
}

// handshakes are what a client may begin with, in the order in which it tries.
func handshakes(want string) []handshake {
	all := []handshake{
		{Modern, "server/discover", `{}`},
		{Legacy, "initialize", `{"protocolVersion":"` + Legacy + `","capabilities":{},"clientInfo":{"name":"sepcheck","version":"0"}}`},
	}
	for _, h := range all {
		if h.revision == want {
			return []handshake{h}
		}
	}
	return all
}

type handshake struct{ revision, method, params string }

// agreed reports whether the response is one to this handshake.
func (h handshake) agreed(r Reply) bool {
	var res struct {
		ProtocolVersion   string   `json:"protocolVersion"`
		SupportedVersions []string `json:"supportedVersions"`
		Capabilities      *struct{}
	}
	if r.Error != nil || json.Unmarshal(r.Result, &res) != nil || res.Capabilities == nil {
		return false
	}
	return h.revision == Modern || res.ProtocolVersion == Legacy
}

type traceKey struct{}

// WithTrace has frames of every request with the context handed to f: "->" for
// what is sent, "<-" for what comes back, "--" for what happens to the
// connection.
func WithTrace(ctx context.Context, f func(dir, text string)) context.Context {
	return context.WithValue(ctx, traceKey{}, f)
}

func trace(ctx context.Context, dir, text string) {
	if f, ok := ctx.Value(traceKey{}).(func(dir, text string)); ok {
		f(dir, text)
	}
}
