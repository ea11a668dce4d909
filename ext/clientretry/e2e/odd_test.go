package e2e_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// An oddity is an answer with status 200 that is no response to the call.
type oddity struct {
	name string
	step step
	kind clientretry.LossKind
}

func oddities() []oddity {
	const kEOF, kBad = clientretry.LossEOF, clientretry.LossMalformed
	whole := message(response(ok))
	list := []oddity{
		{"an empty event stream", events(""), kEOF},
		{"an event stream that ends after a progress event", events(message(progressData)), kEOF},
		{"a malformed event before a progress event", events("data: {\"json\n\n", message(progressData)), kBad},
		{"a malformed event after a progress event", events(message(progressData), "data: {\"json\n\n"), kBad},
		{"a malformed event and then the response", events("data: {\"json\n\n", whole), kBad},
		{"a line without a colon", events("event: message\ndat\n\n"), kBad},
		{"a stream that ends inside a field name", events("event: message\ndat"), kEOF},
		{"a stream that ends inside the response", events("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"res"), kEOF},
		{"a comment and nothing else", events(": still there\n\n", ": still there\n\n"), kEOF},
		{"an event of another type", events("event: other\ndata: " + response(ok) + "\n\n"), kEOF},
		{"an empty JSON body", typed("application/json", ""), kEOF},
		{"half a JSON body", typed("application/json", `{"jsonrpc":"2.0","id":ID,"resu`), kBad},
		{"a page", typed("text/html", "<html>sign in</html>"), kBad},
		{"plain text", typed("text/plain", response(ok)), kBad},
		{"no content type", typed("", response(ok)), kBad},
		{"202", status202(202), kBad},
		{"204", status202(204), kBad},
	}
	for name, body := range map[string]string{
		"neither result nor error":       `{"jsonrpc":"2.0","id":ID}`,
		"both result and error":          `{"jsonrpc":"2.0","id":ID,"result":` + ok + `,"error":{"code":-32603,"message":"m"}}`,
		"an error that is a text":        `{"jsonrpc":"2.0","id":ID,"error":"broken"}`,
		"an error without a number":      `{"jsonrpc":"2.0","id":ID,"error":{"code":"-32603","message":"m"}}`,
		"no version":                     `{"id":ID,"result":` + ok + `}`,
		"another version":                `{"jsonrpc":"1.0","id":ID,"result":` + ok + `}`,
		"members in capitals":            `{"jsonrpc":"2.0","ID":ID,"RESULT":` + ok + `}`,
		"an id that is null":             `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}`,
		"an id that is a list":           `{"jsonrpc":"2.0","id":[ID],"result":` + ok + `}`,
		"no id":                          `{"jsonrpc":"2.0","result":` + ok + `}`,
		"a batch of one":                 `[` + response(ok) + `]`,
		"an empty batch":                 `[]`,
		"a text":                         `"ok"`,
		"null":                           `null`,
		"a result that is null":          `{"jsonrpc":"2.0","id":ID,"result":null}`,
		"nesting beyond the SDK's limit": `{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":` + strings.Repeat("[", 1200) + strings.Repeat("]", 1200) + `}}`,
	} {
		list = append(list,
			oddity{"an event with " + name, events(message(body)), kBad},
			oddity{"a body with " + name, typed("application/json", body), kBad})
	}
	for name, id := range map[string]string{"another id": "4711", "the id as text": `"ID"`, "an id near it": "ID5"} {
		body := `{"jsonrpc":"2.0","id":` + id + `,"result":` + ok + `}`
		list = append(list,
			oddity{"an event with " + name, events(message(body)), kEOF}, // a response to something else is no fault
			oddity{"a body with " + name, typed("application/json", body), kBad})
	}
	return list
}

// status202 answers with a status that has no body.
func status202(code int) step {
	return func(p *peer, w httpWriter, r *httpRequest, c wireCall) { w.WriteHeader(code) }
}

func TestAnAnswerThatIsNoResponseIsALossAndTheSessionLivesOn(t *testing.T) {
	for _, odd := range oddities() {
		t.Run(odd.name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				t.Run("extended", func(t *testing.T) {
					p := newPeer(t, modern, declared("ns"), after(odd.step), run)
					s := connectTo(t, p.url, patient())
					o := do(t, t.Context(), s, "charge")
					o.wantResult(t)
					o.wantLosses(t, odd.kind)
					if !o.replayed() || p.runs() != 1 {
						t.Errorf("replayed %v, %d runs", o.replayed(), p.runs())
					}
					p.wantCalls(t, 2, 1)
					wantAlive(t, s, "charge")
				})
				t.Run("unextended", func(t *testing.T) {
					p := newPeer(t, modern, nil, odd.step, run)
					s := connectTo(t, p.url, patient())
					o := do(t, t.Context(), s, "charge")
					if u := o.wantUnknown(t); u.Key != "" {
						t.Errorf("the key is %q", u.Key)
					}
					o.wantLosses(t, odd.kind)
					p.wantCalls(t, 1, 0)
					wantAlive(t, s, "charge")
				})
			})
		})
	}
}

// A well-formed result that makes no sense: the call ran, and its repeat would
// be answered with the same.
func TestAResultThatCannotBeReadIsLostAndTheCallIsNotSentAgain(t *testing.T) {
	for name, result := range map[string]string{
		"a text":          `"ok"`,
		"a list":          `[` + ok + `]`,
		"unknown content": `{"content":[{"type":"hologram"}]}`,
		"content as map":  `{"content":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				for _, settings := range []any{nil, declared("ns")} {
					p := newPeer(t, modern, settings, answer(result), run)
					s := connectTo(t, p.url, patient())
					o := do(t, t.Context(), s, "charge")
					var lost *clientretry.ResultLostError
					if !errors.As(o.err, &lost) || lost.Attempts != 1 || lost.Key != o.report.Key {
						t.Errorf("the caller got %v and %#v", o.res, o.err)
					}
					p.wantCalls(t, 1, 0)
					wantAlive(t, s, "charge")
				}
			})
		})
	}
}

func TestAnUnusualResponseIsStillAResponse(t *testing.T) {
	for name, s := range map[string]step{
		"error null beside a result":        typed("application/json", `{"jsonrpc":"2.0","id":ID,"result":`+ok+`,"error":null}`),
		"the same in an event":              events(message(`{"jsonrpc":"2.0","id":ID,"error":null,"result":` + ok + `}`)),
		"space around the body":             typed("application/json", "\r\n "+response(ok)+" \n"),
		"a content type with a charset":     typed("Application/JSON; charset=utf-8", response(ok)),
		"an event stream with a charset":    eventsTyped("text/event-stream;charset=UTF-8", message(response(ok))),
		"an event without a type":           events("data: " + response(ok) + "\n\n"),
		"an event without the space":        events("data:" + response(ok) + "\n\n"),
		"an event in two lines":             events("data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":ID,\"result\":" + ok + "}\n\n"),
		"an event with CRLF":                events("event: message\r\ndata: " + response(ok) + "\r\n\r\n"),
		"an event without its blank line":   events("data: " + response(ok) + "\n"),
		"an event without its line end":     events("data: " + response(ok)),
		"an event in pieces":                events("event: mess", "age\nda", "ta: {\"jsonrpc\":", "\"2.0\",\"id\":ID,\"result\":"+ok, "}\n", "\n"),
		"comments, retry and unknown field": events(": hi\n\nretry: 10\n\nfoo: bar\ndata: " + response(ok) + "\n\n"),
		"another JSON text after it":        typed("application/json", response(ok)+response(ok)),
		"another response before it":        events(message(`{"jsonrpc":"2.0","id":4711,"result":{}}`), message(response(ok))),
		"an id with a fraction of zero":     typed("application/json", `{"jsonrpc":"2.0","id":ID.0,"result":`+ok+`}`),
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				p := newPeer(t, modern, nil, s)
				session := connectTo(t, p.url, patient())
				do(t, t.Context(), session, "read").wantResult(t)
				wantAlive(t, session, "read")
			})
		})
	}
}

// JSON-RPC 1.0 wrote a null result beside an error.
func TestANullResultBesideAnErrorIsAnError(t *testing.T) {
	onGenerations(t, func(t *testing.T, modern bool) {
		p := newPeer(t, modern, nil, typed("application/json", `{"jsonrpc":"2.0","id":ID,"result":null,"error":{"code":-32011,"message":"no funds"}}`))
		s := connectTo(t, p.url, patient())
		wantCode(t, do(t, t.Context(), s, "charge"), -32011)
	})
}

// Every copy of it would be as large, so that there is nothing to send again for.
func TestAResponseBeyondTheClientsLimitIsLostAtOnce(t *testing.T) {
	big := strings.Repeat("x", 20_000)
	limit := func(tr *mcp.StreamableClientTransport) { tr.MaxEventSize = 4096 }
	for name, s := range map[string]step{
		"in one line":   events(message(`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"` + big + `"}]}}`)),
		"in many lines": events(strings.Repeat("data: "+big[:100]+"\n", 300) + "\n"),
		"without end":   thenHang(events("data: " + big)),
		"as a body":     typed("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"`+big+`"}]}}`),
	} {
		t.Run(name, func(t *testing.T) {
			onGenerations(t, func(t *testing.T, modern bool) {
				for _, settings := range []any{nil, declared("ns")} {
					p := newPeer(t, modern, settings, s, events(message(response(ok))))
					opt := patient()
					opt.MaxResponseBytes = 4096
					session := connectTo(t, p.url, opt, limit)
					o := do(t, t.Context(), session, "read")
					o.wantUnknown(t)
					o.wantLosses(t, clientretry.LossTooLarge)
					p.wantCalls(t, 1, 0)
					wantAlive(t, session, "read")
				}
			})
		})
	}
	t.Run("without a limit it passes", func(t *testing.T) {
		p := newPeer(t, true, nil, events(message(`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"`+big+`"}]}}`)))
		s := connectTo(t, p.url, patient(), func(tr *mcp.StreamableClientTransport) { tr.MaxEventSize = -1 })
		do(t, t.Context(), s, "read").wantResult(t)
	})
}
