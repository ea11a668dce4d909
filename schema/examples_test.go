package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
	"github.com/mcp-idempotency/mcp-idempotency/schema/internal/messages"
)

// example is the envelope that examples/README.md describes.
type example struct {
	Description string          `json:"description"`
	Kind        string          `json:"kind"`
	Why         string          `json:"why"`
	At          *string         `json:"at"`
	Value       json.RawMessage `json:"value"`
}

// examples reads a directory of examples, by file name.
func examples(t *testing.T, dir string) map[string]example {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("examples", dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("examples/%s: no files, error %v", dir, err)
	}
	found := make(map[string]example)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := json.NewDecoder(strings.NewReader(string(data)))
		d.DisallowUnknownFields()
		var e example
		if err := d.Decode(&e); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found[filepath.Base(file)] = e
	}
	return found
}

// kinds is messages.Kinds by name.
func kinds() map[string]messages.Kind {
	byName := make(map[string]messages.Kind)
	for _, k := range messages.Kinds() {
		byName[k.Name()] = k
	}
	return byName
}

func (e example) validate(t *testing.T) error {
	t.Helper()
	var v any
	if err := decode(e.Value, &v); err != nil {
		t.Fatal(err)
	}
	return definitionOf(t, e.Kind).Validate(v)
}

func TestValidExamplesFitTheSchema(t *testing.T) {
	for name, e := range examples(t, "valid") {
		t.Run(name, func(t *testing.T) {
			if err := e.validate(t); err != nil {
				t.Errorf("%s\n%v", e.Description, err)
			}
		})
	}
}

func TestInvalidExamplesBreakTheirRuleAndNoOther(t *testing.T) {
	for name, e := range examples(t, "invalid") {
		t.Run(name, func(t *testing.T) {
			if e.At == nil {
				t.Fatal("an invalid example says where it breaks its rule, in at")
			}
			err := e.validate(t)
			var invalid *jsonschema.ValidationError
			if !errors.As(err, &invalid) {
				t.Fatalf("the schema allows it, error %v: %s", err, e.Why)
			}
			for _, place := range causes(invalid) {
				if place != *e.At {
					t.Errorf("the schema objects at %q, the rule is broken at %q: %v", place, *e.At, invalid)
				}
			}
		})
	}
}

// causes returns the places, as JSON Pointers, of the errors at the bottom of
// a validation error.
func causes(err *jsonschema.ValidationError) []string {
	if len(err.Causes) == 0 {
		var pointer strings.Builder
		for _, token := range err.InstanceLocation {
			pointer.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(token))
		}
		return []string{pointer.String()}
	}
	var places []string
	for _, c := range err.Causes {
		places = append(places, causes(c)...)
	}
	return places
}

func TestExamplesExplainThemselves(t *testing.T) {
	for _, dir := range []string{"valid", "invalid"} {
		for name, e := range examples(t, dir) {
			switch {
			case e.Description == "" || len(e.Value) == 0:
				t.Errorf("%s/%s lacks its description or its value", dir, name)
			case (dir == "invalid") != (e.Why != "") || (dir == "invalid") != (e.At != nil):
				t.Errorf("%s/%s: why and at belong to invalid examples, and both of them", dir, name)
			case !strings.HasPrefix(name, kebab(e.Kind)+"-"):
				t.Errorf("%s/%s does not start with the name of its kind, %s", dir, name, kebab(e.Kind))
			}
		}
	}
}

func kebab(name string) string {
	var b strings.Builder
	for i, c := range name {
		if unicode.IsUpper(c) && i > 0 {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

func TestEveryKindHasValidAndInvalidExamples(t *testing.T) {
	root, _ := readJSON(t, "schema.json").(map[string]any)
	defs, _ := root["$defs"].(map[string]any)
	byName := kinds()
	for name := range defs {
		if _, ok := byName[name]; !ok {
			t.Errorf("the definition %s is no kind", name)
		}
	}
	for _, dir := range []string{"valid", "invalid"} {
		seen := make(map[string]bool)
		for file, e := range examples(t, dir) {
			seen[e.Kind] = true
			if defs[e.Kind] == nil {
				t.Errorf("%s/%s: there is no definition %q", dir, file, e.Kind)
			}
		}
		for name := range byName {
			if !seen[name] {
				t.Errorf("no example of %s in examples/%s", name, dir)
			}
		}
	}
}

func TestEveryReasonHasAnExample(t *testing.T) {
	seen := make(map[schema.Reason]bool)
	for file, e := range examples(t, "valid") {
		if e.Kind != "ErrorResponse" {
			continue
		}
		var msg messages.ErrorResponse
		if err := decode(e.Value, &msg); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		reason := msg.Error.Data.Reason
		seen[reason] = true
		if want := "error-response-" + kebab(string(reason)) + ".json"; file != want {
			t.Errorf("%s shows %s: name it %s", file, reason, want)
		}
	}
	for _, row := range schema.Reasons() {
		if !seen[row.Reason] {
			t.Errorf("no example of the reason %s in examples/valid", row.Reason)
		}
	}
}

func TestGoTypesKeepEveryMemberTheyKnow(t *testing.T) {
	byName := kinds()
	for name, e := range examples(t, "valid") {
		t.Run(name, func(t *testing.T) {
			var sent any
			if err := decode(e.Value, &sent); err != nil {
				t.Fatal(err)
			}
			typ := byName[e.Kind].Type
			value := reflect.New(typ)
			if err := decode(e.Value, value.Interface()); err != nil {
				t.Fatal(err)
			}
			encoded, err := json.Marshal(value.Interface())
			if err != nil {
				t.Fatal(err)
			}
			var got any
			if err := decode(encoded, &got); err != nil {
				t.Fatal(err)
			}
			if want := known(sent, typ); !reflect.DeepEqual(got, want) {
				t.Errorf("decoded and encoded:\n%s\nwant\n%s", encoded, mustJSON(t, want))
			}
		})
	}
}

// known reduces a JSON value to what a Go type can hold: without members that
// the type does not list, which readers ignore, and without members whose
// value means the same as their absence.
func known(v any, t reflect.Type) any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	object, ok := v.(map[string]any)
	if !ok || t.Kind() != reflect.Struct {
		return v
	}
	kept := make(map[string]any)
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		member, present := object[name]
		empty := member == false || member == "" || fmt.Sprint(member) == "0"
		if !present || empty && options == "omitempty" && f.Type.Kind() != reflect.Pointer {
			continue
		}
		kept[name] = known(member, f.Type)
	}
	return kept
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
