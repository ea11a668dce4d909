package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/invopop/jsonschema"

	"github.com/mcp-idempotency/mcp-idempotency/schema/internal/messages"
)

// schemaID identifies the schema; it is also where the file can be had.
const schemaID = "https://raw.githubusercontent.com/mcp-idempotency/mcp-idempotency/main/schema/schema.json"

// document is the root of schema.json. It constrains nothing: a validator
// picks a kind by "#/$defs/<kind>".
type document struct {
	Comment     string                 `json:"$comment"` // first, where readers look
	Schema      string                 `json:"$schema"`
	ID          string                 `json:"$id"`
	Title       string                 `json:"title"`
	Description string                 `json:"description"`
	Defs        jsonschema.Definitions `json:"$defs"`
}

func jsonSchema() ([]byte, error) {
	defs, err := definitions()
	if err != nil {
		return nil, err
	}
	compact, err := json.Marshal(document{
		Comment:     notice,
		Schema:      jsonschema.Version,
		ID:          schemaID,
		Title:       "MCP idempotency extension",
		Description: "The wire types of the extension and the MCP messages that carry them, each under $defs. All objects are open: members that are not listed here are allowed.",
		Defs:        defs,
	})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, compact, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// definitions reflects every kind and adds the rules that tags cannot say.
func definitions() (jsonschema.Definitions, error) {
	defs := jsonschema.Definitions{}
	reflector := jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: true}
	kinds := messages.Kinds()
	for _, k := range kinds {
		for name, def := range reflector.ReflectFromType(k.Type).Definitions {
			defs[name] = def
		}
	}
	for _, k := range kinds {
		defs[k.Name()].Description = k.Doc
	}
	if len(defs) != len(kinds) {
		return nil, fmt.Errorf("%d types reached from %d kinds: add the missing ones to messages.Kinds", len(defs), len(kinds))
	}
	for _, def := range defs {
		for p := range def.Properties.ValuesFromOldest() {
			if len(p.Enum) == 1 { // tags have no const
				p.Const, p.Enum = p.Enum[0], nil
			}
		}
	}
	for _, r := range rules() {
		if err := r.add(defs); err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.says, err)
		}
	}
	return defs, nil
}
