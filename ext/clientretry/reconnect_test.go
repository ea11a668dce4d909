package clientretry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func TestADeadConnectionIsMadeAnewOnceForAllCallsThatNeedIt(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		var peer *pipePeer
		var seen, dials atomic.Int64
		peer = newPipePeer(modern, declared(), func(c *toolCall) any {
			switch n := seen.Add(1); {
			case n < 20:
				return nil
			case n == 20:
				peer.last().die()
				return nil
			}
			return done(true)
		})
		s := open(t, peer, &clientretry.Options{Dial: func(ctx context.Context) (mcp.Transport, error) {
			dials.Add(1)
			time.Sleep(time.Second)
			return peer, nil
		}})
		defer s.Close()
		first := s.ClientSession
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if report, _, err := call(t, s, "charge"); err != nil || !report.Replayed || report.Attempts != 2 {
					t.Errorf("%v, %+v", err, report)
				}
			})
		}
		wg.Wait()
		if dials.Load() != 1 || s.ClientSession != first {
			t.Errorf("%d dials, the first session is still there: %v", dials.Load(), s.ClientSession == first)
		}
		// The embedded session goes on with the new connection.
		if _, err := s.ClientSession.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge"}); err != nil {
			t.Errorf("a call through the embedded session: %v", err)
		}
		if _, err := s.ListTools(t.Context(), nil); err != nil {
			t.Errorf("another method: %v", err)
		}
	})
}

func TestEveryMethodFindsItsWayBackToADeadServer(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, nil, each(done()))
		s := open(t, peer, &clientretry.Options{Dial: peer.dial})
		defer s.Close()
		peer.last().die()
		synctest.Wait()
		if _, err := s.ListTools(t.Context(), nil); err != nil {
			t.Errorf("tools/list: %v", err)
		}
		peer.last().die()
		synctest.Wait()
		if report, _, err := call(t, s, "charge"); err != nil || report.Attempts != 1 || len(report.Losses) != 0 {
			t.Errorf("a call without a key, that had not been sent: %v, %+v", err, report)
		}
	})
}

func TestTheCapabilityIsReadAgainAfterReconnecting(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		for name, v := range map[string]struct {
			now  any
			told string
			keys int
		}{
			"withdrawn":         {nil, "unknown", 1},
			"invalid":           {declared("retentionMs", 0), "unknown", 1},
			"another namespace": {declared("keyNamespace", "ns2"), "result", 2},
			"in the param":      {declared("keyParam", true), "result", 2},
		} {
			var peer *pipePeer
			peer = newPipePeer(modern, declared(), func(c *toolCall) any {
				if c.N == 1 {
					peer.last().die()
					return nil
				}
				return done(true)
			})
			s := open(t, peer, &clientretry.Options{Dial: func(context.Context) (mcp.Transport, error) {
				peer.settings = v.now
				return peer, nil
			}})
			report, _, err := call(t, s, "charge")
			keys := peer.keys()
			if told(err) != v.told || len(keys) != v.keys || keys[0] != keys[len(keys)-1] {
				t.Errorf("%s: %v, keys %q, %+v", name, err, keys, report)
			}
			if name == "in the param" && !peer.seen()[1].InParam {
				t.Error("the key is not where the new server reads it")
			}
			settings, ok := s.Declared()
			if ok != (v.told == "result") || ok && s.InitializeResult().Capabilities.Extensions[schema.ExtensionID] == nil {
				t.Errorf("%s: declared is %+v, %v", name, settings, ok)
			}
			s.Close()
		}
	})
}

// The path to the new process is another path.
func TestAProofDoesNotOutliveItsConnection(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		var peer *pipePeer
		peer = newPipePeer(modern, declared(), func(c *toolCall) any {
			if c.N == 2 {
				peer.last().die()
				return nil
			}
			return done(c.N > 2)
		})
		s := open(t, peer, &clientretry.Options{Dial: peer.dial})
		defer s.Close()
		if _, _, err := call(t, s, "charge"); err != nil {
			t.Fatal(err)
		}
		if report, _, err := call(t, s, "charge"); err != nil || report.PathChecks != 1 {
			t.Errorf("%v, %+v", err, report)
		}
	})
}

func TestDiallingIsRepeatedWithinTheBoundsOfTheCall(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		for name, v := range map[string]struct {
			down int // dials that fail
			lost bool
			told string
		}{
			"back in time, idle": {2, false, "result"}, "back in time, lost": {2, true, "result"},
			"down, idle": {100, false, "notRun"}, "down, lost": {100, true, "unknown"},
		} {
			var peer *pipePeer
			peer = newPipePeer(modern, declared(), func(c *toolCall) any {
				if v.lost && c.N == 1 {
					peer.last().die()
					return nil
				}
				return done(v.lost)
			})
			dials, down := 0, errors.New("nobody there")
			s := open(t, peer, &clientretry.Options{Dial: func(context.Context) (mcp.Transport, error) {
				if dials++; dials <= v.down {
					return nil, down
				}
				return peer, nil
			}})
			if !v.lost {
				peer.last().die()
				synctest.Wait()
			}
			_, _, err := call(t, s, "charge")
			if told(err) != v.told || v.told != "result" && !errors.Is(err, down) || dials > 4 {
				t.Errorf("%s: %v after %d dials", name, err, dials)
			}
			s.Close()
		}
	})
}

func TestADialThatHangsIsBoundedByTheDialTimeoutAndByTheCall(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, declared(), each(done(false)))
		s := open(t, peer, &clientretry.Options{DialTimeout: 10 * time.Second, Attempts: 1, Dial: func(ctx context.Context) (mcp.Transport, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		defer s.Close()
		peer.last().die()
		synctest.Wait()
		if _, took, err := call(t, s, "charge"); told(err) != "notRun" || took != 10*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"})
		if told(err) != "notRun" || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestAServerOfAnotherGenerationIsNotASuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, declared(), each(done(false)))
		s := open(t, peer, &clientretry.Options{Dial: peer.dial})
		defer s.Close()
		peer.modern = false
		peer.last().die()
		synctest.Wait()
		if _, _, err := call(t, s, "charge"); told(err) != "notRun" || !strings.Contains(err.Error(), "open a new session") {
			t.Errorf("%v", err)
		}
		peer.modern = true
		if _, _, err := call(t, s, "charge"); err != nil {
			t.Errorf("back again: %v", err)
		}
	})
	// A legacy session stays one when the server could do more by now.
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(false, declared(), each(done(false)))
		s := open(t, peer, &clientretry.Options{Dial: peer.dial})
		defer s.Close()
		peer.modern = true
		peer.last().die()
		synctest.Wait()
		if _, _, err := call(t, s, "charge"); err != nil || s.InitializeResult().ProtocolVersion != "2025-11-25" {
			t.Errorf("%v, %s", err, s.InitializeResult().ProtocolVersion)
		}
	})
}

// A 404 ends a session of the older revision, whatever body comes with it.
func TestASessionThatIsGoneIsMadeAnewAndTheCallGoesOn(t *testing.T) {
	for name, body := range map[string]string{"plain": "session not found", "JSON-RPC": `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []struct {
				settings any
				opt      clientretry.Options
				told     string
				keys     int
			}{
				{declared(), clientretry.Options{}, "result", 2},
				{nil, clientretry.Options{}, "notRun", 1},
			} {
				p := newHTTPPeer(t, false, v.settings)
				p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool {
					if r.Header.Get("Mcp-Session-Id") != "session-1" {
						return false
					}
					w.WriteHeader(404)
					_, _ = io.WriteString(w, body)
					return true
				}
				v.opt.BackoffBase = time.Millisecond
				s := openHTTP(t, p, &v.opt)
				_, report, err := callCharge(t, s)
				if told(err) != v.told || len(p.seen()) != v.keys || p.pathChecks() != 0 {
					t.Errorf("%v, keys %q, %+v", err, p.keys(), report)
				}
				if v.told == "notRun" && !errors.Is(err, mcp.ErrSessionMissing) {
					t.Errorf("cause: %v", err)
				}
				if _, _, err := callCharge(t, s); err != nil || p.dialled() != 2 {
					t.Errorf("the next call: %v, %d handshakes", err, p.dialled())
				}
			}
		})
	}
}

// A restarted server with another namespace: the call that finds the session
// gone has not run, and needs no unknown outcome.
func TestARestartBetweenTwoCallsCostsNothing(t *testing.T) {
	p := newHTTPPeer(t, false, declared())
	s := openHTTP(t, p, quick())
	if _, _, err := callCharge(t, s); err != nil {
		t.Fatal(err)
	}
	p.settings = declared("keyNamespace", "ns2")
	p.serve = func(_ *toolCall, w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Mcp-Session-Id") != "session-1" {
			return false
		}
		w.WriteHeader(404)
		return true
	}
	p.script = func(c *toolCall) any {
		if !strings.HasPrefix(c.Key, "ns2.") {
			return refusal(schema.ReasonNamespaceNotHeld, namespace("ns2"))
		}
		return done(false)
	}
	if _, report, err := callCharge(t, s); err != nil || report.PossibleDuplicate {
		t.Errorf("%v, %+v", err, report)
	}
	strict := quick()
	strict.Strict = true
	p2 := newHTTPPeer(t, false, declared())
	p2.serve, p2.script = p.serve, p.script
	s2 := openHTTP(t, p2, strict)
	if _, _, err := callCharge(t, s2); told(err) != "unknown" {
		t.Errorf("strict: %v", err)
	}
}

// What kills the SDK's session besides a call: the stream of server messages.
func TestASessionThatDiedOfSomethingElseIsMadeAnew(t *testing.T) {
	for _, settings := range []any{nil, declared()} {
		p := newHTTPPeer(t, false, settings)
		var gets atomic.Int64
		kill := make(chan struct{})
		p.get = func(w http.ResponseWriter, r *http.Request) {
			typed(w, sse, 200)
			_ = http.NewResponseController(w).Flush()
			if gets.Add(1) == 1 {
				select {
				case <-kill:
				case <-r.Context().Done():
				}
				_, _ = io.WriteString(w, "rubbish\n\n")
				return
			}
			<-r.Context().Done()
		}
		s := openHTTP(t, p, &clientretry.Options{Attempts: 1})
		if _, _, err := callCharge(t, s); err != nil {
			t.Fatal(err)
		}
		close(kill)
		if err := s.ClientSession.Wait(); err == nil {
			t.Fatal("the SDK's session has survived, and the test shows nothing")
		}
		if _, report, err := callCharge(t, s); err != nil || report.Attempts != 1 || p.dialled() != 2 {
			t.Errorf("%v, %+v, %d handshakes", err, report, p.dialled())
		}
	}
}
