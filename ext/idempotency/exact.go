package idempotency

import (
	"bytes"
	"encoding/json"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// decodeResult decodes a result so that it encodes to an equal JSON value:
// where the SDK's types would send numbers through float64, or lose content
// that they do not know, the recorded bytes are kept. exact says that the
// types cannot hold the content; modern, that the result type is to be put in.
func decodeResult(body []byte, exact, modern bool) (*mcp.CallToolResult, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return nil, errBlob
	}
	known := body
	if exact {
		var err error
		if known, err = skeleton(members); err != nil {
			return nil, err
		}
	}
	if _, typed := members["resultType"]; modern && !typed {
		known = withResultType(known)
	}
	res := new(mcp.CallToolResult)
	if err := json.Unmarshal(known, res); err != nil {
		if exact {
			return nil, err
		}
		return decodeResult(body, true, modern) // such as numbers that no float64 holds
	}
	return res, keepResultExact(res, members, exact)
}

// keepResultExact puts the recorded bytes into a decoded result.
func keepResultExact(res *mcp.CallToolResult, members map[string]json.RawMessage, exact bool) error {
	if structured, ok := members["structuredContent"]; ok {
		res.StructuredContent = structured
	}
	if err := keepExact(&res.Meta, members["_meta"]); err != nil {
		return err
	}
	if err := keepQuestionsExact(res.InputRequests, members["inputRequests"]); err != nil {
		return err
	}
	var content []json.RawMessage
	if raw, ok := members["content"]; ok {
		if err := json.Unmarshal(raw, &content); err != nil {
			return err
		}
	}
	if !exact && len(content) != len(res.Content) {
		return errBlob
	}
	if content == nil {
		res.Content = nil // the SDK sends null with questions
	}
	for i, c := range content {
		if exact {
			res.Content = append(res.Content, rawContent{json: c})
		} else if err := keepContentExact(res.Content[i], c); err != nil {
			return err
		}
	}
	return nil
}

// emptyResult is a result without content in the form of a revision.
func emptyResult(modern bool) *mcp.CallToolResult {
	res, err := decodeResult([]byte(`{"content":[]}`), false, modern)
	if err != nil {
		panic(err) // a constant
	}
	return res
}

// skeleton returns the result without what is kept as bytes.
func skeleton(members map[string]json.RawMessage) ([]byte, error) {
	rest := maps.Clone(members)
	rest["content"] = json.RawMessage(`[]`)
	delete(rest, "_meta")
	delete(rest, "structuredContent")
	return json.Marshal(rest)
}

// withResultType adds the member that results have from 2026-07-28 on, and
// that only decoding can set.
func withResultType(object []byte) []byte {
	const member = `"resultType":"complete"}`
	head := bytes.TrimRight(object, " \t\r\n")
	head = bytes.TrimRight(head[:len(head)-1], " \t\r\n") // without its brace
	out := make([]byte, 0, len(head)+1+len(member))
	if out = append(out, head...); head[len(head)-1] != '{' {
		out = append(out, ',')
	}
	return append(out, member...)
}

// rawContent is content that encodes to the bytes that it was recorded with.
// It embeds one of the SDK's types only to be content at all.
type rawContent struct {
	*mcp.TextContent
	json json.RawMessage
}

// MarshalJSON implements mcp.Content.
func (c rawContent) MarshalJSON() ([]byte, error) { return c.json, nil }

// sdkContent reports whether all content is of the types that a tool's result
// may have and the SDK decodes. A handler can bring in others by embedding.
func sdkContent(content []mcp.Content) bool {
	for _, c := range content {
		switch c.(type) {
		case *mcp.TextContent, *mcp.ImageContent, *mcp.AudioContent, *mcp.ResourceLink, *mcp.EmbeddedResource:
		default:
			return false
		}
	}
	return true
}

// keepExact puts the members of a recorded `_meta` into a decoded one.
func keepExact(meta *mcp.Meta, recorded json.RawMessage) error {
	if len(recorded) == 0 {
		return nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(recorded, &raw); err != nil || raw == nil {
		return err
	}
	*meta = make(mcp.Meta, len(raw)+2)
	for name, v := range raw {
		(*meta)[name] = v
	}
	return nil
}

// keepContentExact keeps the `_meta` of one content.
func keepContentExact(c mcp.Content, body json.RawMessage) error {
	if !bytes.Contains(body, []byte(`"_meta"`)) {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return err
	}
	switch c := c.(type) {
	case *mcp.TextContent:
		return keepExact(&c.Meta, members["_meta"])
	case *mcp.ImageContent:
		return keepExact(&c.Meta, members["_meta"])
	case *mcp.AudioContent:
		return keepExact(&c.Meta, members["_meta"])
	case *mcp.ResourceLink:
		return keepExact(&c.Meta, members["_meta"])
	case *mcp.EmbeddedResource:
		var inner map[string]json.RawMessage
		if c.Resource != nil {
			if err := json.Unmarshal(members["resource"], &inner); err != nil {
				return err
			}
			if err := keepExact(&c.Resource.Meta, inner["_meta"]); err != nil {
				return err
			}
		}
		return keepExact(&c.Meta, members["_meta"])
	}
	return nil
}

// keepQuestionsExact keeps the schemas that elicitations ask for.
func keepQuestionsExact(asked mcp.InputRequestMap, recorded json.RawMessage) error {
	if len(asked) == 0 {
		return nil
	}
	var raw map[string]struct {
		Params map[string]json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(recorded, &raw); err != nil {
		return err
	}
	for id, r := range raw {
		if e, ok := asked[id].(*mcp.ElicitParams); ok && r.Params["requestedSchema"] != nil {
			e.RequestedSchema = r.Params["requestedSchema"]
		}
	}
	return nil
}
