package idempotency

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
)

// A flatSchema knows, of an input schema of the commonest kind, enough to
// accept most valid arguments without the full validator, which would cost as
// much as the rest of a call's record keeping. It only ever accepts: what it
// does not accept is for the full validator to judge.
type flatSchema struct {
	kinds    map[string]flatKind // by property
	required []string
}

// flatKind is what a property may be: one of the primitive types.
type flatKind byte

const (
	flatString flatKind = iota + 1
	flatNumber
	flatInteger
	flatBoolean
)

// newFlatSchema returns nil for every schema that says more than which of its
// properties have which primitive type, and which are required.
func newFlatSchema(s *jsonschema.Schema) *flatSchema {
	known := *s
	known.Type, known.Properties, known.Required = "", nil, nil
	// What these allow or refuse are members that are not accepted here.
	known.AdditionalProperties, known.PropertyOrder = nil, nil
	if s.Type != "object" || !onlyAnnotated(known) {
		return nil
	}
	flat := &flatSchema{kinds: make(map[string]flatKind, len(s.Properties)), required: slices.Clone(s.Required)}
	for name, p := range s.Properties {
		rest := *p
		rest.Type = ""
		// Defaults apply to absent properties, and the full validator has
		// found at the start that they are valid.
		rest.Default = nil
		kind := map[string]flatKind{
			"string": flatString, "number": flatNumber, "integer": flatInteger, "boolean": flatBoolean,
		}[p.Type]
		if kind != 0 && onlyAnnotated(rest) {
			flat.kinds[name] = kind
		}
	}
	return flat
}

// onlyAnnotated reports whether a schema has no keyword but annotations.
func onlyAnnotated(s jsonschema.Schema) bool {
	s.Schema, s.Comment, s.Title, s.Description, s.Examples = "", "", "", "", nil
	s.Deprecated, s.ReadOnly, s.WriteOnly = false, false, false
	return reflect.DeepEqual(s, jsonschema.Schema{})
}

// accepts reports whether the arguments are certainly valid.
func (f *flatSchema) accepts(arguments json.RawMessage) bool {
	missing := len(f.required)
	if len(arguments) == 0 {
		return missing == 0
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(arguments))
	if dec.PeekKind() != '{' {
		return false
	}
	_, _ = dec.ReadToken() // the brace that was peeked at
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return false
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil || !f.kinds[name].accepts(value) {
			return false
		}
		if slices.Contains(f.required, name) {
			missing--
		}
	}
	return missing == 0
}

func (k flatKind) accepts(v jsontext.Value) bool {
	switch v.Kind() {
	case '"':
		return k == flatString
	case '0':
		return k == flatNumber || k == flatInteger && plainInteger(v)
	case 't', 'f':
		return k == flatBoolean
	}
	return false
}
