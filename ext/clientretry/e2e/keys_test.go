package e2e_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// K1.
func TestEveryCallHasAKeyOfItsOwnAndEveryAttemptTheCalls(t *testing.T) {
	p := newPeer(t, true, declared("ns"))
	n := 0
	p.script = []step{func(p *peer, w httpWriter, r *httpRequest, c wireCall) {
		if n++; n%2 == 1 {
			after(status(502))(p, w, r, c)
			return
		}
		run(p, w, r, c)
	}}
	s := connectTo(t, p.url, patient())
	const total = 50
	for range total {
		do(t, t.Context(), s, "charge").wantResult(t)
	}
	seen, ids := map[string]int{}, map[string]bool{}
	for _, c := range p.wantCalls(t, 2*total, total) {
		seen[c.Key]++
		if ids[string(c.ID)] {
			t.Errorf("the JSON-RPC id %s comes twice", c.ID)
		}
		ids[string(c.ID)] = true
		ns, local, err := schema.ParseKey(c.Key)
		if err != nil || ns != "ns" {
			t.Fatalf("the key is %q: %v", c.Key, err)
		}
		// 26 characters of an alphabet of 32 are 130 bits.
		if len(local) < 26 {
			t.Errorf("the key %q is short", c.Key)
		}
	}
	if len(seen) != total {
		t.Errorf("%d keys for %d calls", len(seen), total)
	}
	for key, times := range seen {
		if times != 2 {
			t.Errorf("the key %q was sent %d times", key, times)
		}
	}
}

// Every position of a key takes many values: no part of it is a constant, a
// clock or a counter.
func TestTheRandomPartOfAKeyIsRandomThroughout(t *testing.T) {
	p := newPeer(t, true, declared("ns"))
	s := connectTo(t, p.url, nil)
	const keys = 400
	var at [26]map[byte]int
	for range keys {
		key, err := s.MintKey()
		if err != nil {
			t.Fatal(err)
		}
		_, local, _ := strings.Cut(key, ".")
		for i := range at {
			if at[i] == nil {
				at[i] = map[byte]int{}
			}
			at[i][local[i]]++
		}
	}
	for i, values := range at {
		if len(values) < 25 { // of 32; fewer come by chance less than once in 10⁹
			t.Errorf("position %d took %d values in %d keys", i, len(values), keys)
		}
		for v, times := range values {
			if times > keys/6 {
				t.Errorf("position %d was %q %d times", i, v, times)
			}
		}
	}
}

func TestTheKeyGoesWhereTheServerReadsIt(t *testing.T) {
	for name, c := range map[string]struct {
		settings map[string]any
		param    bool
	}{
		"the param":              {declared("ns"), true},
		"_meta":                  {map[string]any{"keyNamespace": "ns", "retentionMs": 1000}, false},
		"_meta, said explicitly": {map[string]any{"keyNamespace": "ns", "retentionMs": 1000, "keyParam": false, "future": []int{1}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, c.settings, after(status(502)), run)
				s := connectTo(t, p.url, patient())
				params := &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{"own": 1}}
				if _, err := s.CallTool(t.Context(), params); err != nil {
					t.Fatal(err)
				}
				for _, call := range p.wantCalls(t, 2, 1) {
					if call.InParam != c.param || call.BothForms || !strings.Contains(call.Body, `"own":1`) {
						t.Errorf("the call is %s", call.Body)
					}
				}
			})
		})
	}
}

func TestAnythingButAProperCapabilityIsNotDeclared(t *testing.T) {
	for name, settings := range map[string]any{
		"a text":                      "yes",
		"true":                        true,
		"a list":                      []any{declared("ns")},
		"an empty object":             map[string]any{},
		"no namespace":                map[string]any{"retentionMs": 1000},
		"no retention":                map[string]any{"keyNamespace": "ns"},
		"a namespace that is a count": map[string]any{"keyNamespace": 7, "retentionMs": 1000},
		"an empty namespace":          map[string]any{"keyNamespace": "", "retentionMs": 1000},
		"a namespace with a dot":      map[string]any{"keyNamespace": "a.b", "retentionMs": 1000},
		"a namespace with a space":    map[string]any{"keyNamespace": "a b", "retentionMs": 1000},
		"a namespace too long":        map[string]any{"keyNamespace": strings.Repeat("a", 65), "retentionMs": 1000},
		"a retention of zero":         map[string]any{"keyNamespace": "ns", "retentionMs": 0},
		"a retention below zero":      map[string]any{"keyNamespace": "ns", "retentionMs": -1},
		"a retention that is a text":  map[string]any{"keyNamespace": "ns", "retentionMs": "1000"},
		"a retention with a fraction": map[string]any{"keyNamespace": "ns", "retentionMs": 1000.5},
		"a keyParam that is a text":   map[string]any{"keyNamespace": "ns", "retentionMs": 1000, "keyParam": "true"},
		"in other spelling":           map[string]any{"KeyNamespace": "ns", "RetentionMs": 1000},
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, settings, status(502), run)
				s := connectTo(t, p.url, patient())
				if d, ok := s.Declared(); ok {
					t.Fatalf("it counts as %+v", d)
				}
				if _, err := s.MintKey(); !errors.Is(err, clientretry.ErrNotDeclared) {
					t.Errorf("MintKey: %v", err)
				}
				do(t, t.Context(), s, "charge").wantUnknown(t)
				if c := p.wantCalls(t, 1, 0); strings.Contains(c[0].Body, "idempotency") {
					t.Errorf("the call is %s", c[0].Body)
				}
			})
		})
	}
}

func TestAGivenKeyIsSentAsItIs(t *testing.T) {
	p := newPeer(t, true, declared("ns"), after(status(502)), run)
	s := connectTo(t, p.url, patient())
	key, err := s.MintKey()
	if err != nil || !strings.HasPrefix(key, "ns.") {
		t.Fatal(key, err)
	}
	o := do(t, clientretry.WithKey(t.Context(), key), s, "charge")
	o.wantResult(t)
	for _, c := range p.wantCalls(t, 2, 1) {
		if c.Key != key {
			t.Errorf("the key is %q", c.Key)
		}
	}
	if o.report.Key != key {
		t.Errorf("the report says %q", o.report.Key)
	}
}

func TestAMalformedGivenKeyIsRefusedBeforeAnythingIsSent(t *testing.T) {
	for _, settings := range []any{nil, declared("ns")} {
		p := newPeer(t, true, settings, run)
		s := connectTo(t, p.url, patient())
		for _, key := range []string{"nodot", ".local", "ns.", "ns.a b", "ns.ü", strings.Repeat("a", 65) + ".x", "ns." + strings.Repeat("a", 253)} {
			n := do(t, clientretry.WithKey(t.Context(), key), s, "charge").wantNotRun(t)
			if !errors.Is(n, schema.ErrKeyInvalid) || n.Attempts != 0 {
				t.Errorf("%q: %+v", key, n)
			}
		}
		p.wantCalls(t, 0, 0)
	}
}

// The key may have run while the server took keys, before it was rolled back.
func TestACallWithAGivenKeyIsNotMadeWithoutIt(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		p := newPeer(t, modern, nil, run)
		s := connectTo(t, p.url, patient())
		u := do(t, clientretry.WithKey(t.Context(), "ns.abcdefghijklmnop"), s, "charge").wantUnknown(t)
		p.wantCalls(t, 0, 0)
		if u.Key != "ns.abcdefghijklmnop" || u.Attempts != 0 {
			t.Errorf("%+v", u)
		}
	})
}

// X1. A key that was handed out may have run elsewhere.
func TestAGivenKeyIsNeverReplacedByAnother(t *testing.T) {
	for name, refusal := range map[string]step{
		"namespaceNotHeld": extension("namespaceNotHeld", "notRun", "keyNamespace", `"ns2"`),
		"and again later":  extension("namespaceNotHeld", "notRun", "keyNamespace", `"ns2"`, "retryAfterMs", "1"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, true, declared("ns2"), refusal)
			s := connectTo(t, p.url, patient())
			u := do(t, clientretry.WithKey(t.Context(), "ns1.abcdefghijklmnop"), s, "charge").wantUnknown(t)
			if u.Key != "ns1.abcdefghijklmnop" {
				t.Errorf("%+v", u)
			}
			for _, c := range p.wantCalls(t, 4, 0) {
				if c.Key != u.Key {
					t.Errorf("the key is %q", c.Key)
				}
			}
		})
	}
	t.Run("namespaceClosed", func(t *testing.T) { // says that it never ran, whoever had it
		p := newPeer(t, true, declared("ns2"), extension("namespaceClosed", "neverRan", "keyNamespace", `"ns2"`), run)
		s := connectTo(t, p.url, patient())
		do(t, clientretry.WithKey(t.Context(), "ns1.abcdefghijklmnop"), s, "charge").wantNotRun(t)
		p.wantCalls(t, 1, 0)
	})
}

func TestAKeyIsForOneCallOfOneContext(t *testing.T) {
	p := newPeer(t, true, declared("ns"))
	s := connectTo(t, p.url, patient())
	key, err := s.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	do(t, clientretry.WithKey(context.Background(), key), s, "charge")
	do(t, context.Background(), s, "charge")
	calls := p.wantCalls(t, 2, 0)
	if calls[0].Key != key || calls[1].Key == key || calls[1].Key == "" {
		t.Errorf("the keys are %q and %q", calls[0].Key, calls[1].Key)
	}
	// The empty key is none.
	do(t, clientretry.WithKey(context.Background(), ""), s, "charge")
	if calls := p.wantCalls(t, 3, 0); calls[2].Key == "" || calls[2].Key == key {
		t.Errorf("the key is %q", calls[2].Key)
	}
}

// A key written into _meta by hand would be a second one beside the layer's.
func TestAKeyInTheCallersMetaIsRefusedBeforeItIsSentTwice(t *testing.T) {
	for name, settings := range map[string]any{"param": declared("ns"), "_meta": map[string]any{"keyNamespace": "ns", "retentionMs": 1000}} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, true, settings)
			s := connectTo(t, p.url, patient())
			_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{schema.MetaKey: "ns.byhand"}})
			var notRun *clientretry.NotRunError
			if !errors.As(err, &notRun) {
				t.Errorf("the caller got %v", err)
			}
			p.wantCalls(t, 0, 0)
		})
	}
	p := newPeer(t, true, nil)
	s := connectTo(t, p.url, patient())
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge", Meta: mcp.Meta{schema.MetaKey: "ns.byhand"}}); err != nil {
		t.Error(err)
	}
	if c := p.wantCalls(t, 1, 0); c[0].Key != "ns.byhand" {
		t.Errorf("the call is %s", c[0].Body)
	}
}

func TestErrorsShortenTheKeyAndKeepItWhole(t *testing.T) {
	p := newPeer(t, true, declared("ns"), status(502), extension("resultUnavailable", "completed"))
	s := connectTo(t, p.url, patient())
	o := do(t, t.Context(), s, "charge")
	var lost *clientretry.ResultLostError
	if !errors.As(o.err, &lost) {
		t.Fatal(o.err)
	}
	key := p.wantCalls(t, 2, 1)[0].Key
	if lost.Key != key || strings.Contains(lost.Error(), key) || !strings.Contains(lost.Error(), schema.ShortKey(key)) {
		t.Errorf("%v", lost)
	}
}
