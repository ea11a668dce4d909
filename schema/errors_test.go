package schema_test

import (
	"fmt"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func outcomes() []schema.Outcome {
	return []schema.Outcome{
		schema.OutcomeNotRun,
		schema.OutcomeNeverRan,
		schema.OutcomeInProgress,
		schema.OutcomeCompleted,
		schema.OutcomeUnknown,
	}
}

func TestKnownReasonsComeWithTheirOutcomeAlone(t *testing.T) {
	data := definitionOf(t, "ErrorData")
	for _, row := range schema.Reasons() {
		for _, o := range outcomes() {
			err := data.Validate(map[string]any{"reason": string(row.Reason), "outcome": string(o)})
			if allowed := err == nil; allowed != (o == row.Outcome) {
				t.Errorf("the schema allows %s with %s: %t; its outcome is %s", row.Reason, o, allowed, row.Outcome)
			}
		}
	}
}

func TestUnknownReasonsComeWithAnyOutcome(t *testing.T) {
	data := definitionOf(t, "ErrorData")
	for _, o := range outcomes() {
		if err := data.Validate(map[string]any{"reason": "regionDraining", "outcome": string(o)}); err != nil {
			t.Errorf("outcome %s: %v", o, err)
		}
	}
}

func TestOutcomeOfFollowsTheTable(t *testing.T) {
	seen := make(map[schema.Reason]bool)
	for _, row := range schema.Reasons() {
		if seen[row.Reason] {
			t.Errorf("the table has %s twice", row.Reason)
		}
		seen[row.Reason] = true
		if got, ok := schema.OutcomeOf(row.Reason); !ok || got != row.Outcome {
			t.Errorf("OutcomeOf(%s) = %q, %t; the table says %s", row.Reason, got, ok, row.Outcome)
		}
		if row.When == "" {
			t.Errorf("the table does not say when %s is answered", row.Reason)
		}
	}
	if got, ok := schema.OutcomeOf("regionDraining"); ok || got != "" {
		t.Errorf("OutcomeOf of an unknown reason = %q, %t; want none", got, ok)
	}
}

func TestTheTableIsTheCallers(t *testing.T) {
	schema.Reasons()[0].Outcome = "changed"
	if got, _ := schema.OutcomeOf(schema.ReasonKeyMismatch); got != schema.OutcomeNotRun {
		t.Errorf("a caller's write to the table changed OutcomeOf: %s", got)
	}
}

// The names in struct tags cannot be constants, so they are written twice.
func TestStructTagsUseTheDeclaredNames(t *testing.T) {
	marker := &schema.ResultMarker{}
	for _, c := range []struct {
		value any
		want  string
	}{
		{schema.Extensions{Idempotency: &schema.ServerSettings{KeyNamespace: "n", RetentionMs: 1}}, fmt.Sprintf(`{%q:{"keyNamespace":"n","retentionMs":1}}`, schema.ExtensionID)},
		{schema.CallToolParams{Name: "t", IdempotencyKey: "n.k"}, fmt.Sprintf(`{"name":"t",%q:"n.k"}`, schema.ParamKey)},
		{schema.RequestMeta{IdempotencyKey: "n.k", Attempt: &schema.RequestMarker{Attempt: 2}}, fmt.Sprintf(`{%q:"n.k",%q:{"attempt":2}}`, schema.MetaKey, schema.ExtensionID)},
		{schema.ResultMeta{Marker: marker}, fmt.Sprintf(`{%q:{"replayed":false}}`, schema.ExtensionID)},
		{schema.ToolErrorData{Marker: marker}, fmt.Sprintf(`{%q:{"replayed":false}}`, schema.ExtensionID)},
		{schema.ToolMeta{Hint: &schema.ToolHint{Key: schema.KeyRequired}}, fmt.Sprintf(`{%q:{"key":"required"}}`, schema.ExtensionID)},
	} {
		if got := string(mustJSON(t, c.value)); got != c.want {
			t.Errorf("%T is written as %s, want %s", c.value, got, c.want)
		}
	}
}

func TestTheSchemaKnowsEveryKeyUse(t *testing.T) {
	hint := definitionOf(t, "ToolHint")
	for _, use := range []schema.KeyUse{schema.KeyOptional, schema.KeyRequired, schema.KeyUnsupported} {
		if err := hint.Validate(map[string]any{"key": string(use)}); err != nil {
			t.Errorf("%s: %v", use, err)
		}
	}
}
