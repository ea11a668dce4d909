package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// What a store keeps of an ended call is one byte that says what follows, and
// the JSON of it.
const (
	blobResult   = 'r' // a *mcp.CallToolResult
	blobExact    = 'x' // one whose content the SDK's types cannot hold
	blobOther    = 'o' // another mcp.Result, as middleware may return
	blobError    = 'e' // a JSON-RPC error that the tool raised
	blobNoEffect = 'n' // the message of a NoEffect
)

var errBlob = errors.New("the store returned an outcome that this version cannot read")

// encodeResult makes the blob of a result.
func encodeResult(res mcp.Result) ([]byte, error) {
	kind := byte(blobOther)
	tool, isTool := res.(*mcp.CallToolResult)
	switch {
	case isTool && sdkContent(tool.Content):
		kind = blobResult
	case isTool:
		kind = blobExact
	}
	encode := func() ([]byte, error) { return json.Marshal(res) }
	if isTool {
		encode = tool.MarshalJSON // is valid JSON: no need to go over it again
	}
	b, err := encode()
	if err != nil {
		return nil, err
	}
	// The result type belongs to the revision of the request and not to the
	// result: decode adds it where the revision has it.
	if rest, ok := bytes.CutSuffix(b, []byte(`,"resultType":"complete"}`)); ok && isTool {
		b = append(rest, '}')
	}
	return slices.Insert(b, 0, kind), nil
}

// encodeError makes the blob of an error that the tool raised.
func encodeError(e *jsonrpc.Error) ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return append([]byte{blobError}, b...), nil
}

func encodeNoEffect(message string) []byte {
	return append([]byte{blobNoEffect}, message...)
}

// decode makes a caller's own copy of a recorded answer, marked as replayed
// and in the form of the caller's revision. No two callers share a pointer:
// the SDK writes into what it is given.
func decode(blob []byte, modern bool) (mcp.Result, error) {
	if len(blob) == 0 {
		return nil, errBlob
	}
	switch kind, body := blob[0], blob[1:]; kind {
	case blobResult, blobExact:
		res, err := decodeResult(body, kind == blobExact, modern)
		if err != nil {
			return nil, fmt.Errorf("%w: %v", errBlob, err)
		}
		return markResult(res, true), nil
	case blobOther:
		if !isResult(body) {
			return nil, errBlob
		}
		return markResult(&rawResult{body: body}, true), nil
	case blobError:
		var e jsonrpc.Error
		if err := json.Unmarshal(body, &e); err != nil {
			return nil, fmt.Errorf("%w: %v", errBlob, err)
		}
		return nil, markError(&e, true)
	case blobNoEffect:
		return nil, noEffectError(string(body))
	}
	return nil, errBlob
}

// markResult puts the extension's marker into a result's `_meta`.
func markResult(res mcp.Result, replayed bool) mcp.Result {
	meta := make(map[string]any, len(res.GetMeta())+2)
	for k, v := range res.GetMeta() {
		meta[k] = v
	}
	meta[schema.ExtensionID] = schema.ResultMarker{Replayed: replayed}
	res.SetMeta(meta)
	return res
}

// markError puts the marker into the data of an error that the tool raised,
// where data is absent or an object.
func markError(e *jsonrpc.Error, replayed bool) *jsonrpc.Error {
	marked := &jsonrpc.Error{Code: e.Code, Message: e.Message, Data: e.Data}
	data := map[string]json.RawMessage{}
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &data); err != nil || data == nil {
			return marked
		}
	}
	data[schema.ExtensionID], _ = json.Marshal(schema.ResultMarker{Replayed: replayed}) // one bool
	marked.Data, _ = json.Marshal(data)                                                 // valid JSON all through
	return marked
}

func noEffectError(message string) *jsonrpc.Error {
	return extError(schema.ReasonNoEffect, 0, "", "%s", message)
}

// wireError is the JSON-RPC error that the SDK would send for err.
func wireError(err error) *jsonrpc.Error {
	if e, ok := err.(*jsonrpc.Error); ok { //nolint:errorlint // as the SDK does
		return e
	}
	e := &jsonrpc.Error{Message: err.Error()}
	var inner *jsonrpc.Error
	if errors.As(err, &inner) {
		e.Code = inner.Code
	}
	return e
}

// ownError is wireError for what the tool raised. Some codes say to a client
// what the tool cannot mean, and then become an internal error: the
// extension's own, which would be the server's word on this call, and, when
// data has no place for the marker that says otherwise, those into which
// proxies put a lost response (SEP, "Errors").
func ownError(err error) *jsonrpc.Error {
	e := wireError(err)
	lossCode := e.Code == codeServerError || e.Code == codeTimeout
	if e.Code != schema.ErrorCode && !(lossCode && len(e.Data) > 0 && !isObject(e.Data)) {
		return e
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: e.Message, Data: e.Data}
}

func isObject(data json.RawMessage) bool {
	return bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{"))
}

// JSON-RPC codes that proxies answer with when they lost a response.
const (
	codeServerError = -32000
	codeTimeout     = -32001
)

// rawResult replays a result whose type is not the SDK's.
type rawResult struct {
	mcp.ResultBase
	body json.RawMessage
}

// isResult reports whether rawResult can encode the bytes.
func isResult(b []byte) bool {
	var res *struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	return json.Unmarshal(b, &res) == nil && res != nil
}

// MarshalJSON merges `_meta` into the recorded result.
func (r *rawResult) MarshalJSON() ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(r.body, &members); err != nil {
		return nil, err
	}
	meta := mcp.Meta{}
	if err := keepExact(&meta, members["_meta"]); err != nil {
		return nil, err
	}
	for k, v := range r.GetMeta() {
		meta[k] = v
	}
	b, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	members["_meta"] = b
	return json.Marshal(members)
}
