package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// holder runs keys of its namespace and refuses others, as the SEP has it.
func holder(namespace func() string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		ns := namespace()
		if got, _, err := schema.ParseKey(c.Key); err != nil || got != ns {
			extension("namespaceNotHeld", "notRun", "keyNamespace", fmt.Sprintf("%q", ns))(p, w, r, c)
			return
		}
		run(p, w, r, c)
	}
}

func TestAKeyOfAnOldNamespaceIsReplacedUnseenByTheCaller(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		p := newPeer(t, modern, declared("old"), holder(func() string { return "new" }))
		s := connectTo(t, p.url, patient())
		o := do(t, t.Context(), s, "charge")
		o.wantResult(t)
		calls := p.wantCalls(t, 2, 0)
		if !strings.HasPrefix(calls[0].Key, "old.") || !strings.HasPrefix(calls[1].Key, "new.") || o.report.Key != calls[1].Key {
			t.Errorf("the keys are %q and %q, the report says %q", calls[0].Key, calls[1].Key, o.report.Key)
		}
		if len(o.report.Losses) != 0 || p.runs() != 1 {
			t.Errorf("%+v, %d runs", o.report, p.runs())
		}
		// What the server said of itself is remembered.
		do(t, t.Context(), s, "charge").wantResult(t)
		if calls := p.wantCalls(t, 3, 0); !strings.HasPrefix(calls[2].Key, "new.") {
			t.Errorf("the key is %q", calls[2].Key)
		}
		if d, _ := s.Declared(); d.KeyNamespace != "new" {
			t.Errorf("%+v", d)
		}
		if key, err := s.MintKey(); err != nil || !strings.HasPrefix(key, "new.") {
			t.Errorf("%q, %v", key, err)
		}
	})
}

// X2, K7. One send, two deliveries.
func TestAfterALossTheKeyIsKeptThoughTheNamespaceIsGone(t *testing.T) {
	for _, strict := range []bool{false, true} {
		for name, second := range map[string]step{
			"namespaceNotHeld": extension("namespaceNotHeld", "notRun", "keyNamespace", `"new"`),
			"capacityExceeded": extension("capacityExceeded", "notRun", "retryAfterMs", "1"),
		} {
			p := newPeer(t, true, declared("ns"), after(reset), second)
			opt := patient()
			opt.Strict = strict
			do(t, t.Context(), connectTo(t, p.url, opt), "charge").wantUnknown(t)
			wantSameKey(t, p.wantCalls(t, 4, 1))
			if p.runs() != 1 {
				t.Errorf("%s: %d runs", name, p.runs())
			}
		}
	}
}

// X2, strict: what a refusal says of one delivery it does not say of another.
func TestStrictTrustsNoRefusal(t *testing.T) {
	for name, refusal := range map[string]step{
		"namespaceNotHeld": extension("namespaceNotHeld", "notRun", "keyNamespace", `"new"`),
		"capacityExceeded": extension("capacityExceeded", "notRun", "retryAfterMs", "1"),
		"keyMismatch":      extension("keyMismatch", "notRun"),
		"keyUnsupported":   extension("keyUnsupported", "notRun"),
		"400":              status(400),
		"401":              status(401),
		"404 in a session": status(404),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, false, declared("ns"), refusal)
			opt := patient()
			opt.Strict = true
			do(t, t.Context(), connectTo(t, p.url, opt), "charge").wantUnknown(t)
			calls, _ := p.seen()
			wantSameKey(t, calls)
		})
	}
	t.Run("neverRan is no matter of trust", func(t *testing.T) {
		p := newPeer(t, false, declared("ns"), extension("noEffect", "neverRan"))
		opt := patient()
		opt.Strict = true
		do(t, t.Context(), connectTo(t, p.url, opt), "charge").wantNotRun(t)
	})
}

func TestAClosedNamespaceLeadsToANewKeyEvenAfterALoss(t *testing.T) {
	closed := extension("namespaceClosed", "neverRan", "keyNamespace", `"new"`)
	for _, strict := range []bool{false, true} {
		opt := patient()
		opt.Strict = strict
		p := newPeer(t, true, declared("old"), closed, run)
		do(t, t.Context(), connectTo(t, p.url, opt), "charge").wantResult(t)
		calls := p.wantCalls(t, 2, 0)
		if calls[0].Key == calls[1].Key || !strings.HasPrefix(calls[1].Key, "new.") {
			t.Errorf("the keys are %q and %q", calls[0].Key, calls[1].Key)
		}
		p = newPeer(t, true, declared("old"), reset, closed, run)
		do(t, t.Context(), connectTo(t, p.url, opt), "charge").wantResult(t)
		if calls := p.wantCalls(t, 3, 1); calls[1].Key != calls[0].Key || calls[2].Key == calls[0].Key || p.runs() != 1 {
			t.Errorf("%d runs", p.runs())
		}
	}
}

// Without a namespace to mint in there is nothing to go on with but the key.
func TestAnUnusableNamespaceIsIgnored(t *testing.T) {
	for _, ns := range []string{`""`, `"a.b"`, `"a b"`, `"` + strings.Repeat("a", 65) + `"`, `"ü"`} {
		p := newPeer(t, true, declared("ns"), extension("namespaceNotHeld", "notRun", "keyNamespace", ns))
		s := connectTo(t, p.url, patient())
		do(t, t.Context(), s, "charge").wantNotRun(t)
		wantSameKey(t, p.wantCalls(t, 4, 0))
		if d, _ := s.Declared(); d.KeyNamespace != "ns" {
			t.Errorf("the namespace became %q", d.KeyNamespace)
		}
	}
}

func TestAServerThatNamesWrongNamespacesForEverIsLeftAtTheBound(t *testing.T) {
	n := 0
	p := newPeer(t, true, declared("ns"), func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		n++
		extension("namespaceNotHeld", "notRun", "keyNamespace", fmt.Sprintf(`"n%d"`, n))(p, w, r, c)
	})
	o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
	if e := o.wantNotRun(t); e.Attempts != 4 || e.Data == nil || e.Data.Reason != schema.ReasonNamespaceNotHeld {
		t.Errorf("%+v", e)
	}
	// A new key is followed by one more try with it: another replica may hold it.
	calls := p.wantCalls(t, 4, 0)
	if calls[0].Key == calls[1].Key || calls[1].Key != calls[2].Key || calls[2].Key == calls[3].Key {
		t.Errorf("the keys are %q, %q, %q, %q", calls[0].Key, calls[1].Key, calls[2].Key, calls[3].Key)
	}
}

// X13. Unshared replicas behind a strict round robin.
func TestUnsharedReplicasBehindARoundRobinRunNothingTwice(t *testing.T) {
	for _, replicas := range []int{2, 3} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			servers := make([]*payments, replicas)
			proxies := make([]*httputil.ReverseProxy, replicas)
			for i := range servers {
				servers[i] = newPayments(t, true, true, i%2 == 0)
				target, err := url.Parse(servers[i].path.URL)
				if err != nil {
					t.Fatal(err)
				}
				proxies[i] = httputil.NewSingleHostReverseProxy(target)
				proxies[i].FlushInterval = -1
			}
			var next atomic.Int64
			balancer := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				proxies[int(next.Add(1))%replicas].ServeHTTP(w, r)
			}))
			s := connectTo(t, balancer, patient())
			results := 0
			for range 12 {
				o := do(t, t.Context(), s, "charge")
				if o.err == nil {
					results++
				} else {
					o.wantNotRun(t)
				}
			}
			charges := 0
			for _, p := range servers {
				charges += int(p.charges.Load())
			}
			if charges != results {
				t.Errorf("%d charges for %d results", charges, results)
			}
			if replicas == 2 && results != 12 {
				t.Errorf("%d of 12 calls settled with a result within their attempts", results)
			}
			t.Logf("%d replicas: %d of 12 calls had a result, none ran twice", replicas, results)
		})
	}
}

// The server forgets what it has, and declares so by its namespace.
func TestARestartedServersNamespaceNeverRunsALostCallAgain(t *testing.T) {
	var restarted atomic.Bool
	p := newPeer(t, true, declared("ns1"), after(reset), holder(func() string {
		restarted.Store(true)
		return "ns2"
	}))
	o := do(t, t.Context(), connectTo(t, p.url, patient()), "charge")
	o.wantUnknown(t)
	if p.runs() != 1 || !restarted.Load() || o.report.Losses[0].Kind != clientretry.LossReset {
		t.Errorf("%d runs, %+v", p.runs(), o.report)
	}
}
