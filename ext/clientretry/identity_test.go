package clientretry_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/oauth2"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

func jwt(claims map[string]any) string {
	b, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	enc := base64.RawURLEncoding
	return enc.EncodeToString([]byte(`{"alg":"none"}`)) + "." + enc.EncodeToString(b) + "." + enc.EncodeToString([]byte("sig"))
}

// tokens is an OAuth handler of the SDK with tokens that a test sets.
type tokens struct {
	now       atomic.Value // string
	authorize func() error
}

func (h *tokens) TokenSource(context.Context) (oauth2.TokenSource, error) { return h, nil }

func (h *tokens) Token() (*oauth2.Token, error) {
	s, _ := h.now.Load().(string)
	return &oauth2.Token{AccessToken: s}, nil
}

func (h *tokens) Authorize(_ context.Context, _ *http.Request, resp *http.Response) error {
	resp.Body.Close()
	if h.authorize == nil {
		return errors.New("no authorization here")
	}
	return h.authorize()
}

// X10: between the attempts the token changes.
func TestNoReSendGoesOutAsSomebodyElse(t *testing.T) {
	alice := jwt(map[string]any{"iss": "https://as", "sub": "alice", "exp": 1})
	for name, v := range map[string]struct {
		before, after string
		identity      func(*http.Request) string
		sent          bool
	}{
		"equal opaque token":              {"abc", "abc", nil, true},
		"other opaque token":              {"abc", "abd", nil, false},
		"logged in meanwhile":             {"", "abc", nil, false},
		"refreshed, same subject":         {alice, jwt(map[string]any{"iss": "https://as", "sub": "alice", "exp": 2}), nil, true},
		"other subject":                   {alice, jwt(map[string]any{"iss": "https://as", "sub": "bob", "exp": 2}), nil, false},
		"other issuer":                    {alice, jwt(map[string]any{"iss": "https://bs", "sub": "alice", "exp": 2}), nil, false},
		"no subject":                      {jwt(map[string]any{"iss": "x", "n": 1}), jwt(map[string]any{"iss": "x", "n": 2}), nil, false},
		"the host's word that it is same": {"abc", "abd", func(*http.Request) string { return "me" }, true},
		"the host's word that it is not":  {"abc", "abc", func(r *http.Request) string { return r.Header.Get("Authorization") + rest() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			generations(t, func(t *testing.T, modern bool) {
				h := &tokens{}
				h.now.Store(v.before)
				p := newHTTPPeer(t, modern, declared())
				p.serve = func(c *toolCall, w http.ResponseWriter, _ *http.Request) bool {
					if c.pathCheck() || c.N > 1 {
						return false
					}
					h.now.Store(v.after)
					w.WriteHeader(502)
					return true
				}
				opt := quick()
				opt.Identity = v.identity
				s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, OAuthHandler: h}, opt)
				defer s.Close()
				_, _, err := callCharge(t, s)
				if v.sent && err != nil || !v.sent && told(err) != "unknown" {
					t.Errorf("told %v", err)
				}
				if sent := len(p.seen()) == 2; sent != v.sent || !v.sent && p.pathChecks() != 0 {
					t.Errorf("%d calls and %d path checks", len(p.seen()), p.pathChecks())
				}
				// Another call is nobody's re-send.
				if _, _, err := callCharge(t, s); err != nil {
					t.Errorf("the next call: %v", err)
				}
			})
		})
	}
}

var counter atomic.Int64

// rest makes every word of a host's another one.
func rest() string { return string(rune('a' + counter.Add(1)%26)) }

func TestAuthorizationIsLeftToTheSDKOnce(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared()} {
			h := &tokens{}
			h.now.Store("stale")
			asked := 0
			h.authorize = func() error { asked++; h.now.Store("good"); return nil }
			p := newHTTPPeer(t, modern, settings)
			p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Authorization") == "Bearer good" {
					return false
				}
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, OAuthHandler: h}, quick())
			defer s.Close()
			_, report, err := callCharge(t, s)
			if err != nil || asked != 1 || len(p.seen()) != 2 || report.Attempts != 1 {
				t.Errorf("%v, authorized %d times, %d calls, %+v", err, asked, len(p.seen()), report)
			}
			if keys := p.keys(); keys[0] != keys[1] || (settings != nil) != (keys[0] != "") {
				t.Errorf("keys %q", keys)
			}
		}
	})
}

func TestARefusalThatAuthorizationDoesNotCureLeavesTheSessionAlive(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		for name, authorize := range map[string]func() error{"in vain": func() error { return nil }, "fails": nil} {
			h := &tokens{authorize: authorize}
			h.now.Store("stale")
			p := newHTTPPeer(t, modern, declared())
			p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool {
				if c.N > 2 || name == "fails" && c.N > 1 {
					return false
				}
				w.WriteHeader(http.StatusForbidden)
				return true
			}
			s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, OAuthHandler: h}, quick())
			defer s.Close()
			_, _, err := callCharge(t, s)
			var refusal *clientretry.HTTPError
			if told(err) != "notRun" || !errors.As(err, &refusal) || refusal.Status != 403 {
				t.Errorf("%s: %v", name, err)
			}
			if _, _, err := callCharge(t, s); err != nil || p.dialled() != 1 {
				t.Errorf("%s: the next call: %v, %d handshakes", name, err, p.dialled())
			}
		}
	})
}
