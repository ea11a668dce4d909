package fault

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A message is what the layer reads of a JSON-RPC request or notification.
type message struct {
	method string
	id     string // raw JSON; empty for a notification
	tool   string // name in the params of a tools/call
	key    string // idempotency key; a key that is not a string as raw JSON
}

func (m message) isCall() bool { return m.method == schema.MethodCallTool }

// parseMessages reads the requests and notifications of a body: one message
// or a batch. What is not JSON-RPC gives none, since a test of bad input must
// be able to pass.
func parseMessages(body []byte) []message {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return nil
	}
	if body[0] != '[' {
		if m, ok := parseMessage(body); ok {
			return []message{m}
		}
		return nil
	}
	var elems []json.RawMessage
	if json.Unmarshal(body, &elems) != nil {
		return nil
	}
	var out []message
	for _, e := range elems {
		if m, ok := parseMessage(e); ok {
			out = append(out, m)
		}
	}
	return out
}

// parseMessage decodes into maps because struct fields would also match
// members whose names differ in case.
func parseMessage(raw []byte) (message, bool) {
	var obj map[string]json.RawMessage
	if json.Unmarshal(raw, &obj) != nil || obj["method"] == nil {
		return message{}, false
	}
	m := message{method: text(obj["method"]), id: string(obj["id"])}
	if !m.isCall() {
		return m, true
	}
	var params, meta map[string]json.RawMessage
	if json.Unmarshal(obj["params"], &params) != nil {
		return m, true
	}
	m.tool = text(params["name"])
	if k := params[schema.ParamKey]; k != nil {
		m.key = text(k)
	} else if json.Unmarshal(params["_meta"], &meta) == nil {
		m.key = text(meta[schema.MetaKey])
	}
	return m, true
}

// responseID returns the raw id of a JSON-RPC response.
func responseID(raw []byte) (string, bool) {
	var obj map[string]json.RawMessage
	if json.Unmarshal(raw, &obj) != nil || obj["method"] != nil || obj["id"] == nil {
		return "", false
	}
	return string(obj["id"]), obj["result"] != nil || obj["error"] != nil
}

// text returns the string that raw encodes, or raw itself.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// answerIn returns the JSON-RPC response in an HTTP body: the data of the
// last event of a stream, or the body itself.
func answerIn(contentType string, body []byte) []byte {
	if !strings.HasPrefix(contentType, "text/event-stream") {
		return body
	}
	var last []byte
	for line := range bytes.Lines(body) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data = bytes.TrimSpace(data); len(data) > 0 {
				last = data
			}
		}
	}
	return last
}

// firstHalf cuts an encoded object so that it can't be valid JSON.
func firstHalf(answer []byte) []byte {
	if len(answer) < 2 {
		return []byte(`{"jsonrpc":"2.0",`)
	}
	return answer[:len(answer)/2]
}
