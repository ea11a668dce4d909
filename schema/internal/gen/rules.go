package main

import (
	"fmt"
	"slices"

	"github.com/invopop/jsonschema"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A rule is a constraint between members, which struct tags cannot express.
type rule struct {
	says string
	add  func(jsonschema.Definitions) error
}

func rules() []rule {
	return []rule{
		{"the key is in params or in _meta, never in both", oneKey},
		{"a reason of the table comes with its outcome", reasonsFitOutcomes},
		{"a result of a keyed call has the marker", markedResult},
		{"a tool's error has the marker where data is an object", markedToolError},
		{"a tool's error does not use the extension's code", toolErrorCode},
	}
}

func oneKey(defs jsonschema.Definitions) error {
	params, err := definition(defs, "CallToolParams", "_meta", schema.ParamKey)
	if err != nil {
		return err
	}
	params.Not = having("_meta", &jsonschema.Schema{Type: "object", Required: []string{schema.MetaKey}})
	params.Not.Required = []string{schema.ParamKey, "_meta"}
	return nil
}

// reasonsFitOutcomes leaves reasons that the table does not have open, since
// readers handle them by their outcome alone.
func reasonsFitOutcomes(defs jsonschema.Definitions) error {
	data, err := definition(defs, "ErrorData", "reason", "outcome")
	if err != nil {
		return err
	}
	for _, group := range byOutcome() {
		reasons := make([]any, len(group.reasons))
		for i, r := range group.reasons {
			reasons[i] = r.Reason
		}
		known := having("reason", &jsonschema.Schema{Enum: reasons})
		known.Required = []string{"reason"}
		data.AllOf = append(data.AllOf, &jsonschema.Schema{
			If:   known,
			Then: having("outcome", &jsonschema.Schema{Const: group.outcome}),
		})
	}
	return nil
}

func markedResult(defs jsonschema.Definitions) error {
	result, err := definition(defs, "KeyedResult", "_meta")
	if err != nil {
		return err
	}
	meta, _ := result.Properties.Get("_meta")
	meta.Required = []string{schema.ExtensionID}
	return nil
}

func markedToolError(defs jsonschema.Definitions) error {
	toolError, err := definition(defs, "ToolError", "data")
	if err != nil {
		return err
	}
	data, _ := toolError.Properties.Get("data")
	data.If = &jsonschema.Schema{Type: "object"}
	data.Then = &jsonschema.Schema{Ref: "#/$defs/ToolErrorData", Required: []string{schema.ExtensionID}}
	return nil
}

func toolErrorCode(defs jsonschema.Definitions) error {
	toolError, err := definition(defs, "ToolError", "code")
	if err != nil {
		return err
	}
	code, _ := toolError.Properties.Get("code")
	code.Not = &jsonschema.Schema{Const: schema.ErrorCode}
	return nil
}

// definition finds a definition and checks that it has the members that a
// rule is about: a rule on a renamed member would hold nothing back.
func definition(defs jsonschema.Definitions, name string, members ...string) (*jsonschema.Schema, error) {
	def := defs[name]
	if def == nil {
		return nil, fmt.Errorf("there is no definition %s", name)
	}
	for _, m := range members {
		if _, ok := def.Properties.Get(m); !ok {
			return nil, fmt.Errorf("definition %s has no member %s", name, m)
		}
	}
	return def, nil
}

// having is the schema of objects whose member, if they have it, fits s.
func having(member string, s *jsonschema.Schema) *jsonschema.Schema {
	p := jsonschema.NewProperties()
	p.Set(member, s)
	return &jsonschema.Schema{Properties: p}
}

// outcomeGroup is the rows of the table of reasons that share an outcome.
type outcomeGroup struct {
	outcome schema.Outcome
	reasons []schema.ReasonInfo
}

// byOutcome groups the table of reasons, both levels in the table's order.
func byOutcome() []outcomeGroup {
	var groups []outcomeGroup
	for _, row := range schema.Reasons() {
		i := slices.IndexFunc(groups, func(g outcomeGroup) bool { return g.outcome == row.Outcome })
		if i < 0 {
			i = len(groups)
			groups = append(groups, outcomeGroup{outcome: row.Outcome})
		}
		groups[i].reasons = append(groups[i].reasons, row)
	}
	return groups
}
