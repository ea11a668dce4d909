package idempotency

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// parts of schemas and of arguments, to be put together at random.
var (
	propertySchemas = []string{
		`{"type":"string"}`, `{"type":"integer","description":"d"}`, `{"type":"number"}`, `{"type":"boolean","default":true}`,
		`{"type":"integer","minimum":3}`, `{"type":["string","null"]}`, `{"enum":["a"]}`, `{"type":"array","items":{"type":"string"}}`,
		`{"type":"object"}`, `{"type":"string","pattern":"^a"}`, `true`, `{"type":"string","default":"x"}`,
	}
	values = []string{`"a"`, `"b"`, `1`, `1.0`, `1.5`, `-0`, `true`, `null`, `[]`, `["a"]`, `{}`, `1e3`}
	names  = []string{"a", "b", "c", "d"}
	extras = []string{``, `,"additionalProperties":false`, `,"additionalProperties":{"type":"string"}`, `,"minProperties":2`,
		`,"description":"d"`, `,"not":{"required":["a"]}`, `,"propertyNames":{"maxLength":0}`, `,"$schema":"https://json-schema.org/draft/2020-12/schema"`}
)

func TestTheFlatSchemaAcceptsOnlyWhatTheValidatorAccepts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(from []string) string { return from[rng.IntN(len(from))] }
	accepted, flat := 0, 0
	for range 20_000 {
		var props, required, args []string
		for _, n := range names {
			if rng.IntN(3) > 0 {
				props = append(props, `"`+n+`":`+pick(propertySchemas))
			}
			if rng.IntN(4) == 0 {
				required = append(required, `"`+n+`"`)
			}
			if rng.IntN(2) == 0 {
				args = append(args, `"`+n+`":`+pick(values))
			}
		}
		source := `{"type":"object","properties":{` + strings.Join(props, ",") + `},"required":[` + strings.Join(required, ",") + `]` + pick(extras) + `}`
		arguments := json.RawMessage(`{` + strings.Join(args, ",") + `}`)
		var s jsonschema.Schema
		if err := json.Unmarshal([]byte(source), &s); err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		f := newFlatSchema(&s)
		if f == nil {
			continue
		}
		flat++
		if !f.accepts(arguments) {
			continue
		}
		accepted++
		r, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		var v any
		if err := json.Unmarshal(arguments, &v); err != nil {
			t.Fatal(err)
		}
		if err := r.Validate(v); err != nil {
			t.Fatalf("accepted %s for %s: %v", arguments, source, err)
		}
	}
	if flat < 5000 || accepted < 300 {
		t.Errorf("%d flat schemas, %d accepted: too few to mean much", flat, accepted)
	}
}

func TestTheUsualSchemaOfAGoTypeIsFlat(t *testing.T) {
	s, err := jsonschema.For[struct {
		Amount int    `json:"amount" jsonschema:"cents to charge"`
		Card   string `json:"card,omitempty"`
	}](nil)
	if err != nil {
		t.Fatal(err)
	}
	f := newFlatSchema(s)
	if f == nil || !f.accepts(json.RawMessage(`{"amount":1,"card":"x"}`)) || f.accepts(json.RawMessage(`{"card":"x"}`)) {
		t.Errorf("%+v", f)
	}
}
