package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// withTokens asks for bearer tokens: a token is the subject's name, a dash,
// and anything.
func withTokens(h http.Handler) http.Handler {
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		subject, _, ok := strings.Cut(token, "-")
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: subject, Expiration: time.Now().Add(time.Hour)}, nil
	}
	return auth.RequireBearerToken(verify, nil)(h)
}

// onAuthenticated runs a test over HTTP as the user alice.
func onAuthenticated(t *testing.T, opt *idempotency.Options, test func(t *testing.T, f *fixture, alice *httpClient)) {
	for name, opts := range map[string]mcp.StreamableHTTPOptions{
		modernRevision: {Stateless: true}, legacyRevision: {}, legacyRevision + "/stateless": {Stateless: true, JSONResponse: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newServer(t, opt, nil)
			c := dialHTTP(t, withTokens(f.idem.Handler(sdkHandler(f.server, opts))), name[:10], opts, "alice-1")
			f.conn = c
			test(t, f, c)
		})
	}
}

func toolAs(t *testing.T, c conn, tool, key, args string) reply {
	t.Helper()
	r, err := c.call(t.Context(), "tools/call", toolParams(tool, key, args))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// E1.
func TestAnotherPrincipalsKeyIsAnotherKey(t *testing.T) {
	onAuthenticated(t, nil, func(t *testing.T, f *fixture, alice *httpClient) {
		key := f.key()
		hers := toolAs(t, alice, "charge", key, `{"amount":1}`)
		his := toolAs(t, alice.as(t, "bob-1"), "charge", key, `{"amount":1}`)
		if hers.Error != nil || his.Error != nil || his.replayed() || string(hers.Result) == string(his.Result) {
			t.Errorf("alice: %v\nbob: %v", hers, his)
		}
		// Nor does he learn that she used it.
		if r := toolAs(t, alice.as(t, "carol-1"), "charge", key, `{"amount":2}`); r.Error != nil || r.replayed() {
			t.Errorf("carol: %v", r)
		}
		sameValue(t, hers, toolAs(t, alice, "charge", key, `{"amount":1}`))
		f.wantEffects(3)
	})
}

func TestARefreshedTokenIsTheSamePrincipal(t *testing.T) {
	onAuthenticated(t, nil, func(t *testing.T, f *fixture, alice *httpClient) {
		key := f.key()
		toolAs(t, alice, "charge", key, `{"amount":1}`)
		if r := toolAs(t, alice.as(t, "alice-2"), "charge", key, `{"amount":1}`); !r.replayed() {
			t.Error(r)
		}
		f.wantEffects(1)
	})
}

func TestAnAuthenticatedRequestWithoutASubjectIsRefused(t *testing.T) {
	onAuthenticated(t, nil, func(t *testing.T, f *fixture, alice *httpClient) {
		nobody := alice.as(t, "-1")
		wantReason(t, toolAs(t, nobody, "charge", f.key(), `{"amount":1}`), schema.ReasonPrincipalUnknown)
		f.wantEffects(0)
		if r := toolAs(t, nobody, "charge", "", `{"amount":1}`); r.Error != nil {
			t.Errorf("without a key: %v", r)
		}
		// Key syntax does not depend on who asks.
		wantReason(t, toolAs(t, nobody, "charge", "bad", `{"amount":1}`), schema.ReasonKeyInvalid)
	})
}

// A continuation is known by its key for its own principal alone.
func TestAStolenStateIsOfNoUse(t *testing.T) {
	onAuthenticated(t, nil, func(t *testing.T, f *fixture, alice *httpClient) {
		if alice.rev != modernRevision {
			return // multi round-trip results are of the modern revision
		}
		d := addDialog(f)
		q := asQuestion(t, f.round(f.key(), oneQuestion, "", ""))
		r, err := alice.as(t, "bob-1").call(t.Context(), "tools/call", roundParams("", oneQuestion, q.RequestState, accept(100)))
		if err != nil || r.replayed() {
			t.Fatal(r, err)
		}
		// It is a call of bob's own, which the tool meets as it would any
		// state that it is sent.
		wantCharged(t, f.round("", oneQuestion, q.RequestState, accept(1)), 1, false)
		d.want(t, 1, 3, 100, 1)
	})
}

// X25: without authentication everyone is one principal; that is why such keys
// need 128 random bits.
func TestAnonymousCallersShareOnePrincipal(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		key := f.key()
		first := f.tool("charge", key, `{"amount":1}`)
		sameValue(t, first, f.tool("charge", key, `{"amount":1}`))
		wantReason(t, f.tool("charge", key, `{"amount":2}`), schema.ReasonKeyMismatch)
		f.wantEffects(1)
	})
}

// Whoever guesses an anonymous key reads its result.
func TestAnonymousKeysMustBeLongEnoughNotToBeGuessed(t *testing.T) {
	for _, least := range []int{22, 40} {
		t.Run(strconv.Itoa(least), func(t *testing.T) {
			opt := func() *idempotency.Options { return &idempotency.Options{MinAnonymousKey: least} }
			onEach(t, opt, func(t *testing.T, f *fixture) {
				ns := f.namespace() + "."
				long := strings.Repeat("k", least)
				wantReason(t, f.tool("charge", ns+long[1:], `{"amount":1}`), schema.ReasonKeyInvalid)
				f.wantEffects(0)
				if r := f.tool("charge", ns+long, `{"amount":1}`); r.Error != nil || r.replayed() {
					t.Error(r)
				}
				f.wantEffects(1)
			})
		})
	}
	t.Run("not for those who are known", func(t *testing.T) {
		opt := func() *idempotency.Options {
			return &idempotency.Options{MinAnonymousKey: 22, Principal: func(context.Context, *mcp.CallToolRequest) (string, error) { return "alice", nil }}
		}
		onEach(t, opt, func(t *testing.T, f *fixture) {
			if r := f.tool("charge", f.namespace()+".1", `{"amount":1}`); r.Error != nil {
				t.Error(r)
			}
		})
	})
	if d := idempotency.New(nil).MinAnonymousKey(); d != 22 {
		t.Errorf("the default is %d", d)
	}
}

func TestThePrincipalFunctionDecides(t *testing.T) {
	var who atomic.Value
	who.Store("a")
	opt := &idempotency.Options{Principal: func(context.Context, *mcp.CallToolRequest) (string, error) { return who.Load().(string), nil }}
	for _, c := range connectors() {
		f := newFixture(t, c, opt)
		key := f.key()
		for i, principal := range []string{"a", "", "A", "a\x00", "a.b"} {
			who.Store(principal)
			if r := f.tool("charge", key, `{"amount":1}`); r.replayed() || r.Error != nil {
				t.Errorf("principal %q: %v", principal, r)
			}
			if r := f.tool("charge", key, `{"amount":1}`); !r.replayed() {
				t.Errorf("principal %q again: %v", principal, r)
			}
			f.wantEffects(int64(i + 1))
		}
		who.Store("a")
	}
}

// E5.
func TestAReplayIsAuthorizedLikeAFirstCall(t *testing.T) {
	var denied atomic.Bool
	opt := func() *idempotency.Options {
		return &idempotency.Options{Authorize: func(context.Context, *mcp.CallToolRequest) error {
			if denied.Load() {
				return &jsonrpc.Error{Code: -32099, Message: "not allowed", Data: json.RawMessage(`{"a":1}`)}
			}
			return nil
		}}
	}
	for _, c := range connectors() {
		f := newFixture(t, c, opt())
		key := f.key()
		first := f.tool("charge", key, `{"amount":1}`)
		denied.Store(true)
		for _, r := range []reply{
			f.tool("charge", key, `{"amount":1}`), f.tool("charge", key, `{"amount":2}`), f.tool("charge", f.key(), `{"amount":1}`),
			f.tool("charge", "bad", `{"amount":1}`), f.tool("no_such_tool", key, `{}`),
		} {
			if r.Error == nil || r.Error.Code != -32099 || string(r.Error.Data) != `{"a":1}` {
				t.Errorf("%s: got %v, want the error of Authorize", c.name, r)
			}
		}
		denied.Store(false)
		sameValue(t, first, f.tool("charge", key, `{"amount":1}`))
		f.wantEffects(1)
	}
}

// Middleware added before Install runs once per execution, and middleware
// added after it sees every attempt and may refuse it.
func TestMiddlewareOutsideSeesEveryAttemptAndInsideEveryRun(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	var inside, outside atomic.Int64
	var refuse atomic.Bool
	count := func(n *atomic.Int64) mcp.Middleware {
		return func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == schema.MethodCallTool {
					if n.Add(1); n == &outside && refuse.Load() {
						return nil, errors.New("refused outside")
					}
				}
				return next(ctx, method, req)
			}
		}
	}
	server.AddReceivingMiddleware(count(&inside))
	idem := idempotency.New(&idempotency.Options{Store: memory.New(nil)})
	idem.Install(server)
	server.AddReceivingMiddleware(count(&outside))
	f := &fixture{t: t, idem: idem, server: server, conn: dialPipe(t, server, idem.Transport, modernRevision)}
	key := f.key()
	for range 3 {
		f.tool("charge", key, `{"amount":1}`)
	}
	refuse.Store(true)
	if r := f.tool("charge", key, `{"amount":1}`); r.Error == nil || !strings.Contains(r.Error.Message, "refused outside") {
		t.Error(r)
	}
	if inside.Load() != 1 || outside.Load() != 4 {
		t.Errorf("inside saw %d, outside %d; want 1 and 4", inside.Load(), outside.Load())
	}
}

// Authorization inside the layer hides a tool from a caller: nothing is
// recorded, and the key can be used when it is allowed.
func TestAToolThatTheCallerMayNotSeeDoesNotExist(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	var runs atomic.Int64
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, any, error) {
		runs.Add(1)
		return nil, nil, nil
	})
	var hide atomic.Bool
	hide.Store(true)
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if list, ok := res.(*mcp.ListToolsResult); ok && hide.Load() {
				return &mcp.ListToolsResult{Tools: []*mcp.Tool{}}, err
			} else if ok {
				return list, err
			}
			return res, err
		}
	})
	mem := memory.New(nil)
	idem := idempotency.New(&idempotency.Options{Store: mem})
	idem.Install(server)
	f := &fixture{t: t, idem: idem, server: server, conn: dialPipe(t, server, idem.Transport, modernRevision)}
	key := f.key()
	if r := f.tool("charge", key, `{"amount":1}`); r.Error == nil || r.Error.Code != jsonrpc.CodeInvalidParams {
		t.Error(r)
	}
	if st := mem.Stats(); st.Records != 0 || runs.Load() != 0 {
		t.Errorf("%+v, %d runs", st, runs.Load())
	}
	hide.Store(false)
	if r := f.tool("charge", key, `{"amount":1}`); r.Error != nil {
		t.Error(r)
	}
	hide.Store(true)
	if r := f.tool("charge", key, `{"amount":1}`); !r.replayed() {
		t.Error("a known key is answered whatever became of the tool: ", r)
	}
}

// X26, as far as it is about arguments that are compared.
func TestArgumentsAreComparedByTheirExactValue(t *testing.T) {
	onEach(t, nil, func(t *testing.T, f *fixture) {
		mcp.AddTool(f.server, &mcp.Tool{Name: "any", InputSchema: map[string]any{"type": "object"}},
			func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
				f.effects.Add(1)
				return nil, nil, nil
			})
		key := f.key()
		f.tool("any", key, `{"id":9007199254740992,"s":"é","l":[1,2]}`)
		for _, same := range []string{`{"l":[1.0,2e0],"s":"\u00e9","id":9007199254740992.0}`, ` {"id" : 9007199254740992 , "l":[ 1, 2 ],"s":"é" }`} {
			if r := f.tool("any", key, same); !r.replayed() {
				t.Errorf("%s: %v", same, r)
			}
		}
		for _, other := range []string{
			`{"id":9007199254740993,"s":"é","l":[1,2]}`, `{"id":"9007199254740992","s":"é","l":[1,2]}`, `{"id":9007199254740992,"s":"e\u0301","l":[1,2]}`,
			`{"id":9007199254740992,"s":"é","l":[2,1]}`, `{"id":9007199254740992,"s":"é"}`, `{"id":9007199254740992,"s":"é","l":[1,2],"x":null}`, `{}`,
		} {
			wantReason(t, f.tool("any", key, other), schema.ReasonKeyMismatch)
		}
		f.wantEffects(1)

		key = f.key()
		absent := fmt.Sprintf(`{"name":"any","idempotencyKey":%q}`, key)
		if r, err := f.call(t.Context(), "tools/call", absent); err != nil || r.Error != nil {
			t.Error(r, err)
		}
		if r := f.tool("any", key, `{}`); !r.replayed() {
			t.Errorf("absent arguments are not equal to {}: %v", r)
		}
		f.wantEffects(2)
	})
}
