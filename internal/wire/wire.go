// Package wire moves the idempotency key between the two places it can have
// in a `tools/call` request, without touching any other byte of the message.
//
// SDKs decode params into fixed structs and drop the members they do not
// know, but keep `_meta`. So the server side lifts params.idempotencyKey into
// a private `_meta` member before the SDK decodes ([Lifter]), and the client
// side writes the key into the encoded request after the SDK is done with it
// ([Insert]). A message without a key passes both unchanged.
package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A Lifter copies params.idempotencyKey of `tools/call` requests into a
// `_meta` member whose name only this Lifter knows, so that a peer cannot
// write that member itself.
type Lifter struct {
	name string
}

// NewLifter returns a Lifter with a fresh private name.
func NewLifter() *Lifter {
	return &Lifter{name: schema.ParamKey + "#" + rand.Text()}
}

// Name is the private `_meta` member. Its value is an array of every value
// that params.idempotencyKey had, in order; more than one means that the
// member was repeated.
func (l *Lifter) Name() string { return l.name }

// MayHaveKey reports whether a message could have a member called
// idempotencyKey. It has no false negatives: an escaped name counts.
func MayHaveKey(msg []byte) bool {
	return bytes.Contains(msg, []byte(schema.ParamKey)) || bytes.Contains(msg, []byte(`\u`))
}

// onlyInMeta reports whether a look at the bytes is enough to see that there is
// nothing to lift: the key is mentioned once, by its name in `_meta`, and none
// of the members on the way to it can be there twice. False says nothing.
func onlyInMeta(msg []byte) bool {
	once := func(text string) bool { return bytes.Count(msg, []byte(text)) == 1 }
	return once(schema.ParamKey) && once(`"`+schema.MetaKey+`"`) && once(`"_meta"`) &&
		bytes.Count(msg, []byte(`"params"`)) <= 1 && bytes.IndexByte(msg, '\\') < 0
}

// Message returns msg, one JSON-RPC message or a batch, with the key of every
// `tools/call` lifted. Without such a key it returns msg itself. The error
// says that msg is not JSON.
func (l *Lifter) Message(msg []byte) ([]byte, error) {
	if !MayHaveKey(msg) || onlyInMeta(msg) {
		return msg, nil
	}
	trimmed := bytes.TrimLeft(msg, " \t\r\n")
	if len(trimmed) > 0 && trimmed[0] == '[' {
		return l.batch(msg)
	}
	return l.single(msg)
}

func (l *Lifter) batch(msg []byte) ([]byte, error) {
	var elems []json.RawMessage
	if err := json.Unmarshal(msg, &elems); err != nil {
		return nil, err
	}
	changed := false
	for i, e := range elems {
		out, err := l.single(e)
		if err != nil {
			return nil, err
		}
		changed = changed || len(out) != len(e)
		elems[i] = out
	}
	if !changed {
		return msg, nil
	}
	out := []byte{'['} // json.Marshal would rewrite what is inside the elements
	for i, e := range elems {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, e...)
	}
	return append(out, ']'), nil
}

func (l *Lifter) single(msg []byte) ([]byte, error) {
	call := false
	var params []span
	err := eachMember(msg, func(name string, v span) {
		switch name {
		case "method":
			call = call || string(unquote(msg[v.start:v.end])) == schema.MethodCallTool
		case "params":
			params = append(params, v)
		}
	})
	if errors.Is(err, errNotObject) {
		return msg, nil
	}
	if err != nil {
		return nil, err
	}
	if !call {
		return msg, nil
	}
	out := msg
	ambiguous := false // which params count, readers need not agree on
	for _, p := range params {
		keyed, err := hasKey(msg[p.start:p.end])
		if err != nil {
			return nil, err
		}
		ambiguous = ambiguous || keyed && len(params) > 1
	}
	for i := len(params) - 1; i >= 0; i-- { // from the back, so that offsets hold
		p := params[i]
		lifted, err := l.lift(msg[p.start:p.end], ambiguous)
		if err != nil {
			return nil, err
		}
		if len(lifted) != p.end-p.start {
			out = replace(out, p, lifted)
		}
	}
	return out, nil
}

// Params is [Lifter.Message] for the params of a `tools/call` alone.
func (l *Lifter) Params(params []byte) ([]byte, error) {
	if !MayHaveKey(params) || onlyInMeta(params) {
		return params, nil
	}
	return l.lift(params, false)
}

// lift adds the private member to params that have a key in any place whose
// meaning readers may not agree on: a member of params, or one that is
// repeated.
func (l *Lifter) lift(params []byte, ambiguous bool) ([]byte, error) {
	p, err := places(params)
	if err != nil || !ambiguous && p.keys == nil && !p.repeated() {
		return params, err
	}
	if ambiguous || p.repeated() {
		// Two values that are not even strings: nobody takes them for one key.
		return putMeta(params, p.metas, l.name, []byte(`[null,null]`)), nil
	}
	return putMeta(params, p.metas, l.name, append(p.keys, ']')), nil
}

func hasKey(params []byte) (bool, error) {
	p, err := places(params)
	return p.keys != nil || p.inMeta > 0, err
}

// keyPlaces are the places in params that have to do with a key.
type keyPlaces struct {
	keys   []byte // the values of params.idempotencyKey, an array without its end
	metas  []span // the values of `_meta`
	inMeta int    // how many of their members are a key
}

// repeated reports whether a member that a key is in is there twice. A
// repeated param is told by its values.
func (p keyPlaces) repeated() bool {
	return p.inMeta > 1 || len(p.metas) > 1 && (p.inMeta > 0 || p.keys != nil)
}

// places finds them; in params that are no object there are none.
func places(params []byte) (p keyPlaces, err error) {
	err = eachMember(params, func(name string, v span) {
		switch name {
		case schema.ParamKey:
			sep := byte(',')
			if p.keys == nil {
				sep = '['
			}
			p.keys = append(append(p.keys, sep), params[v.start:v.end]...)
		case "_meta":
			p.metas = append(p.metas, v)
		}
	})
	for _, m := range p.metas {
		// What is no object has no members and no key.
		_ = eachMember(params[m.start:m.end], func(name string, _ span) {
			if name == schema.MetaKey {
				p.inMeta++
			}
		})
	}
	if errors.Is(err, errNotObject) {
		return p, nil
	}
	return p, err
}

// Key is what [Insert] writes.
type Key struct {
	// Value is the idempotency key, or any string for a path check.
	Value string
	// Param puts it into params.idempotencyKey, otherwise into `_meta`.
	Param bool
	// Attempt, when above 1, is announced in `_meta`.
	Attempt int
}

// ErrNoParams says that a message is not a request with an object as params.
var ErrNoParams = errors.New("not a request with params")

// Insert returns a copy of msg, one encoded JSON-RPC request, with the key in
// its params. Every other byte stays as it is.
func Insert(msg []byte, key Key) ([]byte, error) {
	var params span
	err := eachMember(msg, func(name string, v span) {
		if name == "params" {
			params = v
		}
	})
	if err != nil {
		return nil, err
	}
	if params.end == 0 {
		return nil, ErrNoParams
	}
	out, err := InsertParams(msg[params.start:params.end], key)
	if err != nil {
		return nil, err
	}
	return replace(msg, params, out), nil
}

// InsertParams is [Insert] for the params alone.
func InsertParams(params []byte, key Key) ([]byte, error) {
	value, err := json.Marshal(key.Value)
	if err != nil {
		return nil, err
	}
	if !key.Param {
		if params, err = addMeta(params, schema.MetaKey, value); err != nil {
			return nil, err
		}
	}
	if key.Attempt > 1 {
		marker := []byte(`{"attempt":` + strconv.Itoa(key.Attempt) + `}`)
		if params, err = addMeta(params, schema.ExtensionID, marker); err != nil {
			return nil, err
		}
	}
	if key.Param {
		start := bytes.IndexByte(params, '{')
		if start < 0 {
			return nil, ErrNoParams
		}
		params = addMember(params, span{start, len(params)}, schema.ParamKey, value)
	}
	return params, nil
}

func addMeta(params []byte, name string, value []byte) ([]byte, error) {
	var metas []span
	err := eachMember(params, func(n string, v span) {
		if n == "_meta" {
			metas = append(metas, v)
		}
	})
	if err != nil {
		return nil, err
	}
	return putMeta(params, metas, name, value), nil
}

// putMeta adds a member to the `_meta` objects at metas, and makes one where
// there is none. A `_meta` that is neither object nor null stays as it is:
// no SDK lets such a request through.
func putMeta(params []byte, metas []span, name string, value []byte) []byte {
	if len(metas) == 0 {
		object := append(append([]byte(`{`+strconv.Quote(name)+`:`), value...), '}')
		return addMember(params, span{bytes.IndexByte(params, '{'), len(params)}, "_meta", object)
	}
	for i := len(metas) - 1; i >= 0; i-- {
		m := metas[i]
		switch params[m.start] {
		case '{':
			params = addMember(params, m, name, value)
		case 'n':
			object := append(append([]byte(`{`+strconv.Quote(name)+`:`), value...), '}')
			params = replace(params, m, object)
		}
	}
	return params
}

// addMember returns doc with a member put first into the object at o.
func addMember(doc []byte, o span, name string, value []byte) []byte {
	rest := bytes.TrimLeft(doc[o.start+1:o.end], " \t\r\n")
	out := make([]byte, 0, len(doc)+len(name)+len(value)+4)
	out = append(out, doc[:o.start+1]...)
	out = append(out, '"')
	out = append(out, name...) // all names used here are plain ASCII
	out = append(out, '"', ':')
	out = append(out, value...)
	if len(rest) > 0 && rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, doc[o.start+1:]...)
}

func replace(doc []byte, at span, with []byte) []byte {
	out := make([]byte, 0, len(doc)-(at.end-at.start)+len(with))
	out = append(out, doc[:at.start]...)
	out = append(out, with...)
	return append(out, doc[at.end:]...)
}

// Envelope is what the client's transport layer must know of an encoded
// message to route it.
type Envelope struct {
	// ID is the raw JSON of the id; empty for a notification.
	ID json.RawMessage `json:"id"`
	// Method is empty for a response.
	Method string `json:"method"`
	// Params of a request, raw.
	Params json.RawMessage `json:"params"`
	// Result and Error of a response, raw.
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// IsResponse reports whether the envelope is a well-formed response.
func (e *Envelope) IsResponse() bool {
	return e.Method == "" && len(e.ID) > 0 && (len(e.Result) > 0) != (len(e.Error) > 0)
}

// ParseEnvelope decodes one JSON-RPC message shallowly.
func ParseEnvelope(msg []byte) (*Envelope, error) {
	var e Envelope
	if err := json.Unmarshal(msg, &e); err != nil {
		return nil, err
	}
	if string(e.Error) == "null" {
		e.Error = nil // some peers send it beside a result
	}
	return &e, nil
}

// A span is a half-open range of bytes.
type span struct{ start, end int }

var errNotObject = errors.New("not a JSON object")

// ErrTrailing says that more than one JSON value was given for a message. A
// reader that takes them apart would see a key in the second.
var ErrTrailing = errors.New("more than one JSON value")

// eachMember calls f with the name and the place of the value of every member
// of the object in doc, duplicates included. doc may have space around it.
func eachMember(doc []byte, f func(name string, value span)) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(doc),
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if dec.PeekKind() != '{' {
		if _, err := dec.ReadToken(); err != nil {
			return fmt.Errorf("invalid JSON: %w", err)
		}
		return errNotObject
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return fmt.Errorf("invalid JSON: %w", err)
		}
		n := name.String() // before the next read makes the token void
		v, err := dec.ReadValue()
		if err != nil {
			return fmt.Errorf("invalid JSON: %w", err)
		}
		end := int(dec.InputOffset())
		f(n, span{end - len(v), end})
	}
	if _, err := dec.ReadToken(); err != nil {
		return fmt.Errorf("invalid JSON: %w", err)
	}
	if len(bytes.TrimLeft(doc[dec.InputOffset():], " \t\r\n")) > 0 {
		return ErrTrailing
	}
	return nil
}

func unquote(quoted []byte) []byte {
	out, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return nil
	}
	return out
}
