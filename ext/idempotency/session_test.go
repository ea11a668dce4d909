package idempotency_test

import (
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A session that ends takes no run with it: a retry on another session of the
// same server joins, or finds the result.
func TestARunOutlivesItsSession(t *testing.T) {
	for _, joins := range []bool{true, false} {
		on(t, append(named("stateful"), named("stdio")...), nil, nil, func(t *testing.T, f *fixture) {
			key := f.key()
			run := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
			f.awaitEntered("g")
			ended := make(chan struct{})
			switch c := f.conn.(type) {
			case *pipeClient:
				c.w.Close()
				close(ended)
				f.conn = dialPipe(t, f.server, f.idem.Transport, c.rev)
			case *httpClient:
				go func() { // the SDK answers when the session's handlers have ended
					defer close(ended)
					req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, c.url, nil)
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Mcp-Session-Id", c.session)
					req.Header.Set("MCP-Protocol-Version", c.rev)
					if resp, err := c.client.Do(req); err == nil {
						resp.Body.Close()
					}
				}()
				f.conn = c.as(t, "")
			}
			if joins {
				retry := f.start(t.Context(), "gated", key, `{"gate":"g"}`)
				eventually(t, "the retry has joined", func() bool { return f.idem.Waiters() == 1 })
				if r := f.finish(retry, "g"); !r.replayed() {
					t.Error(r)
				}
			} else {
				close(f.gate("g"))
				eventually(t, "the run has ended", func() bool { return f.idem.Runs() == 0 })
				if r := f.tool("gated", key, `{"gate":"g"}`); !r.replayed() {
					t.Error(r)
				}
			}
			<-ended
			<-run.done
			f.wantEffects(1)
		})
	}
}

// Two servers with one middleware share its records, whichever revision and
// transport a call comes by.
func TestAllConnectionsOfOneMiddlewareShareItsRecords(t *testing.T) {
	f := newServer(t, nil, nil)
	second := mcp.NewServer(&mcp.Implementation{Name: "second", Version: "1"}, nil)
	f.idem.Install(second)
	mcp.AddTool(second, &mcp.Tool{Name: "gated"}, f.gated)
	key := f.namespaceOf(t) + ".shared"
	var calls []*pending
	var revisions []string
	for _, server := range []*mcp.Server{f.server, second} {
		for _, c := range connectors() {
			peer := &fixture{t: t, conn: c.connect(t, f.idem, server)}
			calls = append(calls, peer.start(t.Context(), "gated", key, `{"gate":"g"}`))
			revisions = append(revisions, peer.revision())
		}
	}
	eventually(t, "all attached", func() bool { return f.idem.Attached() == len(calls) })
	close(f.gate("g"))
	for i, p := range calls {
		r := p.wait(t)
		sameValue(t, calls[0].reply, r)
		wantEnvelope(t, "shared", revisions[i], r)
	}
	f.wantEffects(1)
}
