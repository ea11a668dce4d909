package schema_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// definitionOf compiles one definition of schema.json, named by the path
// below $defs. The compiler checks the whole file against the meta-schema.
func definitionOf(t testing.TB, path string) *jsonschema.Schema {
	t.Helper()
	const url = "schema.json"
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(url, readJSON(t, "schema.json")); err != nil {
		t.Fatal(err)
	}
	s, err := compiler.Compile(url + "#/$defs/" + path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readJSON(t testing.TB, file string) any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := decode(data, &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

// decode is json.Unmarshal without the rounding of numbers.
func decode(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(v)
}
