package clientretry

import (
	"bytes"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// decodeMessage decodes a JSON-RPC message. What the SDK is given it must be
// able to decode, or it gives its session up, so its own decoder is the one
// that has to say so. That takes longer than all else that this layer does;
// the common messages, about which there can be no two opinions, are decoded
// here.
func decodeMessage(b []byte) (jsonrpc.Message, error) {
	if msg := decodePlain(b); msg != nil {
		return msg, nil
	}
	return jsonrpc.DecodeMessage(b)
}

// maxPlainDepth is well below the nesting that the SDK takes.
const maxPlainDepth = 500

// decodePlain decodes a request, or a response with a result: an object with
// the members of one, each once and of its type, an id that is an integer, and
// nothing after it. It returns nil for everything else.
func decodePlain(b []byte) jsonrpc.Message {
	if depth(b) > maxPlainDepth {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(b), jsontext.AllowDuplicateNames(true))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return nil
	}
	var version, id, method, params, result []byte
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil
		}
		var into *[]byte
		switch name.String() {
		case "jsonrpc":
			into = &version
		case "id":
			into = &id
		case "method":
			into = &method
		case "params":
			into = &params
		case "result":
			into = &result
		}
		v, err := dec.ReadValue()
		if err != nil || into == nil || *into != nil {
			return nil
		}
		end := int(dec.InputOffset())
		*into = b[end-len(v) : end]
	}
	if _, err := dec.ReadToken(); err != nil { // the closing brace
		return nil
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return nil
	}
	n, err := strconv.ParseInt(string(id), 10, 32) // the SDK counts its ids from 1
	if err != nil || string(version) != `"2.0"` {
		return nil
	}
	mid, err := jsonrpc.MakeID(float64(n))
	switch {
	case err != nil:
	case method == nil && params == nil && len(result) > 0 && result[0] == '{':
		return &jsonrpc.Response{ID: mid, Result: result}
	case result == nil && len(method) > 2 && bytes.IndexByte(method, '\\') < 0 && method[0] == '"' && len(params) > 0 && params[0] == '{':
		return &jsonrpc.Request{ID: mid, Method: string(method[1 : len(method)-1]), Params: params}
	}
	return nil
}

// depth is how deep the objects and arrays of a JSON text are nested, and at
// least that of anything else.
func depth(b []byte) (deepest int) {
	now, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}
