package idempotency

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
)

func TestEqualArgumentsHaveEqualFingerprints(t *testing.T) {
	for _, group := range [][]string{
		{``, `{}`, ` { } `},
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, ` { "b" : 2.0 , "a" : 1e0 } `, `{"\u0061":10e-1,"b":0.2e1}`},
		{`{"a":0}`, `{"a":-0}`, `{"a":0.000}`, `{"a":0e99}`, `{"a":-0.0e-5}`},
		{`{"a":100}`, `{"a":1e2}`, `{"a":1E+2}`, `{"a":100.000}`, `{"a":1000e-1}`},
		{`{"a":1e400}`, `{"a":1` + strings.Repeat("0", 400) + `}`, `{"a":0.1e401}`},
		{`{"a":1e21}`, `{"a":1` + strings.Repeat("0", 21) + `}`},
		{`{"a":1.5}`, `{"a":15e-1}`, `{"a":1.50}`},
		{`{"a":"é/"}`, `{"a":"\u00e9\/"}`},
		{`{"a":[{"y":"\\\"1.0","x":1}]}`, `{"a":[{"x":1.0,"y":"\\\"1.0"}]}`},
	} {
		want, err := fingerprint("t", json.RawMessage(group[0]))
		if err != nil {
			t.Fatalf("%s: %v", group[0], err)
		}
		for _, other := range group[1:] {
			got, err := fingerprint("t", json.RawMessage(other))
			if err != nil {
				t.Errorf("%s: %v", other, err)
			}
			if got != want {
				t.Errorf("%s and %s differ", group[0], other)
			}
		}
	}
}

func TestDifferentRequestsHaveDifferentFingerprints(t *testing.T) {
	seen := map[[32]byte]string{}
	for _, r := range [][2]string{
		{"t", `{}`}, {"u", `{}`}, {"t{}", ``}, {"t", `{"a":null}`}, {"t", `{"a":{}}`}, {"t", `{"a":[]}`},
		{"t", `{"a":9007199254740992}`}, {"t", `{"a":9007199254740993}`}, // 2⁵³ and 2⁵³+1
		{"t", `{"a":0.1}`}, {"t", `{"a":0.1000000000000000055511151231257827}`}, // one float64
		{"t", `{"a":1}`}, {"t", `{"a":"1"}`}, {"t", `{"a":-1}`}, {"t", `{"a":true}`}, {"t", `{"a":1e5}`}, {"t", `{"a":1e-5}`},
		{"t", `{"a":1e400}`}, {"t", `{"a":1e401}`}, {"t", `{"a":[1,2]}`}, {"t", `{"a":[2,1]}`}, {"t", `{"a":12}`},
		{"t", `{"a":"e\u0301"}`}, {"t", `{"a":"é"}`}, {"t", `{"A":1}`}, {"t", `{"a":"1.0"}`},
	} {
		f, err := fingerprint(r[0], json.RawMessage(r[1]))
		if err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		if other, ok := seen[f]; ok {
			t.Errorf("%v collides with %s", r, other)
		}
		seen[f] = r[0] + r[1]
	}
}

func TestAmbiguousArgumentsAreRefused(t *testing.T) {
	for _, args := range []string{
		`{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `{"x":{"a":1,"a":2}}`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}",
		`null`, `[]`, `"{}"`, `1`, `{"a":1e99999999999}`, `{"a":01}`, `{"a":}`, `{`, `{} {}`,
		strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000),
	} {
		if _, err := fingerprint("t", json.RawMessage(args)); err == nil {
			t.Errorf("no error for %.40s", args)
		}
	}
}

func FuzzExactNumber(f *testing.F) {
	f.Add("1.50e3", "1500")
	f.Add("-0", "0")
	f.Add("9007199254740993", "9007199254740992")
	f.Fuzz(func(t *testing.T, a, b string) {
		va, vb := value(a), value(b)
		if va == nil || vb == nil {
			return
		}
		fa, errA := fingerprint("t", json.RawMessage(`{"n":`+a+`}`))
		fb, errB := fingerprint("t", json.RawMessage(`{"n":`+b+`}`))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if (va.Cmp(vb) == 0) != (fa == fb) {
			t.Fatalf("%s and %s: equal values %v, equal fingerprints %v", a, b, va.Cmp(vb) == 0, fa == fb)
		}
	})
}

// value is the exact value of a JSON number, nil for what is none or is too
// large to compute.
func value(n string) *big.Rat {
	if !json.Valid([]byte(n)) || len(n) > 30 || strings.TrimLeft(n, "-0123456789.eE+") != "" {
		return nil
	}
	if i := strings.IndexAny(n, "eE"); i >= 0 && len(strings.TrimLeft(n[i+1:], "+-0")) > 3 {
		return nil
	}
	r, ok := new(big.Rat).SetString(n)
	if !ok {
		return nil
	}
	return r
}

func BenchmarkFingerprint(b *testing.B) {
	args := json.RawMessage(`{"amount":4200,"currency":"EUR","customer":{"id":"cus_9s6XKzkNRiz8i3","name":"Ada Lovelace"},"lines":[` +
		strings.Repeat(`{"sku":"A-1","quantity":3,"unit":1400,"note":"first of the month"},`, 12) + `{"sku":"B","quantity":1,"unit":0}]}`)
	b.SetBytes(int64(len(args)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fingerprint("charge_card", args); err != nil {
			b.Fatal(err)
		}
	}
}
