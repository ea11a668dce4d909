package idempotency_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// sameValue compares two results as JSON values, without what may differ: the
// marker and the envelope of the revision.
func sameValue(t testing.TB, a, b reply) {
	t.Helper()
	if x, y := bare(t, a), bare(t, b); !reflect.DeepEqual(x, y) {
		t.Errorf("answers differ:\n%v\n%v", a, b)
	}
}

func bare(t testing.TB, r reply) any {
	t.Helper()
	whole := map[string]any{}
	raw, err := json.Marshal(map[string]any{"result": r.Result, "error": r.Error})
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&whole); err != nil {
		t.Fatal(err)
	}
	for _, holder := range []string{"result", "error"} {
		m, _ := whole[holder].(map[string]any)
		delete(m, "resultType")
		for _, place := range []string{"_meta", "data"} {
			if meta, ok := m[place].(map[string]any); ok {
				delete(meta, schema.ExtensionID)
				delete(meta, "io.modelcontextprotocol/serverInfo")
				if len(meta) == 0 {
					delete(m, place)
				}
			}
		}
	}
	return whole
}

func TestARepeatIsAnsweredFromTheRecord(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		for _, tool := range []string{"charge", "declines", "raises", "no_effect", "large"} {
			before := f.effects.Load()
			key := f.key()
			first := f.tool(tool, key, `{"amount":12}`)
			second := f.tool(tool, key, `{ "amount": 12.0 }`)
			sameValue(t, first, second)
			if got := f.effects.Load() - before; got != 1 {
				t.Errorf("%s: %d runs, want 1", tool, got)
			}
			if tool == "no_effect" {
				wantReason(t, second, schema.ReasonNoEffect)
				continue
			}
			if first.marker() == nil || first.replayed() {
				t.Errorf("%s: the first answer is not marked as run now: %v", tool, first)
			}
			if !second.replayed() {
				t.Errorf("%s: the second answer is not marked as replayed: %v", tool, second)
			}
		}
	})
}

func TestTheKeyIsAcceptedInBothPlaces(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		key := f.key()
		inMeta := `{"name":"charge","arguments":{"amount":1},"_meta":{"` + schema.MetaKey + `":"` + key + `"}}`
		both := `{"name":"charge","arguments":{"amount":1},"idempotencyKey":"` + key + `","_meta":{"` + schema.MetaKey + `":"` + key + `"}}`
		f.tool("charge", key, `{"amount":1}`)
		for _, params := range []string{inMeta, both} {
			r, err := f.call(t.Context(), "tools/call", params)
			if err != nil || !r.replayed() {
				t.Errorf("%s: %v, %v", params, r, err)
			}
		}
		f.wantEffects(1)
	})
}

func TestAnUnkeyedCallIsNotMarkedAndRunsEachTime(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		for range 2 {
			if r := f.tool("charge", "", `{"amount":1}`); r.marker() != nil {
				t.Errorf("marked: %v", r)
			}
		}
		f.wantEffects(2)
	})
}

func TestTheCapabilityIsDeclaredWithTheParamForm(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		s := f.settings()
		if err := schema.CheckNamespace(s.KeyNamespace); err != nil || s.RetentionMs <= 0 || !s.KeyParam {
			t.Errorf("declared %+v, %v", s, err)
		}
	})
}
