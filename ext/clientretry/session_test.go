package clientretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
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

// onPipes runs a test on a clock of its own, over both generations.
func onPipes(t *testing.T, test func(t *testing.T, modern bool)) {
	for name, modern := range map[string]bool{"modern": true, "legacy": false} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { test(t, modern) }) })
	}
}

func call(t *testing.T, s *clientretry.Session, tool string) (clientretry.Report, time.Duration, error) {
	t.Helper()
	ctx, report := clientretry.WithReport(t.Context())
	began := time.Now()
	_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool})
	return *report, time.Since(began), err
}

func TestADeadConnectionSettlesEveryCallAtOnce(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		for _, settings := range []any{nil, declared()} {
			var peer *pipePeer
			var seen atomic.Int64
			peer = newPipePeer(modern, settings, func(*toolCall) any {
				if seen.Add(1) == 10 {
					peer.last().die()
				}
				return nil
			})
			s := open(t, peer, nil)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					report, took, err := call(t, s, "charge")
					if told(err) != "unknown" || took != 0 || report.Attempts != 1 || report.Losses[0].Kind != clientretry.LossEOF {
						t.Errorf("%v after %v, %+v", err, took, report)
					}
				})
			}
			wg.Wait()
			if _, _, err := call(t, s, "charge"); told(err) != "notRun" || !errors.Is(err, mcp.ErrConnectionClosed) && !errors.Is(err, io.EOF) {
				t.Errorf("a call on a dead connection: %v", err)
			}
			s.Close()
		}
	})
}

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

func TestAnAttemptTimeoutOnAPipeIsFollowedByAReSendAndTheLateResponseIsDropped(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, declared(), func(c *toolCall) any {
			if c.N == 1 {
				time.Sleep(90 * time.Second)
				return `{"resultType":"complete","content":[{"type":"text","text":"late"}]}`
			}
			time.Sleep(time.Minute / 2)
			return done(true)
		})
		s := open(t, peer, nil)
		defer s.Close()
		report, took, err := call(t, s, "charge")
		if err != nil || report.Losses[0].Kind != clientretry.LossTimeout || !report.Replayed || took < 90*time.Second {
			t.Errorf("%v after %v, %+v", err, took, report)
		}
		time.Sleep(time.Minute)
		if _, _, err := call(t, s, "charge"); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}

func TestWithoutAKeyThereIsNoTimeoutUnlessOneIsSet(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, nil, func(c *toolCall) any { time.Sleep(time.Hour); return done() })
		s := open(t, peer, &clientretry.Options{ToolTimeouts: map[string]time.Duration{"slow": time.Minute}})
		defer s.Close()
		if _, took, err := call(t, s, "charge"); err != nil || took != time.Hour {
			t.Errorf("%v after %v", err, took)
		}
		if _, took, err := call(t, s, "slow"); told(err) != "unknown" || took != time.Minute {
			t.Errorf("%v after %v", err, took)
		}
		time.Sleep(time.Hour)
	})
}

func TestAPeerThatDoesNotReadBlocksNobody(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, declared(), each(done(false)))
		peer.block = make(chan struct{})
		s := open(t, peer, &clientretry.Options{Attempts: 1})
		report, took, err := call(t, s, "charge")
		if told(err) != "unknown" || took != time.Minute || report.Losses[0].Kind != clientretry.LossTimeout {
			t.Errorf("%v after %v, %+v", err, took, report)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"}); told(err) != "unknown" || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		s.Close()
	})
}

func TestAResponseOnAPipeThatIsNoneIsALoss(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, declared(), each("null", done(true)))
		s := open(t, peer, nil)
		defer s.Close()
		if report, _, err := call(t, s, "charge"); err != nil || report.Losses[0].Kind != clientretry.LossMalformed {
			t.Errorf("%v, %+v", err, report)
		}
	})
}

func TestCloseEndsCallsThatWaitAndLeavesNothingBehind(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, declared(), each(refusal(schema.ReasonStillRunning, after(60_000))))
		s := open(t, peer, &clientretry.Options{Dial: peer.dial})
		ended := make(chan error)
		go func() {
			_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge"})
			ended <- err
		}()
		time.Sleep(time.Second)
		began := time.Now()
		s.Close()
		if err := <-ended; time.Since(began) != 0 || told(err) != "unknown" || !errors.Is(err, mcp.ErrConnectionClosed) {
			t.Errorf("%v", err)
		}
		if _, _, err := call(t, s, "charge"); told(err) != "error" || !errors.Is(err, mcp.ErrConnectionClosed) {
			t.Errorf("a call on a closed session: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		// The bubble fails the test if a goroutine stays behind.
	})
}

func TestOtherSessionsOfTheClientAreLeftAlone(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
		clientretry.New(client, nil)
		peer := newPipePeer(modern, declared(), each(proxied))
		s, err := client.Connect(t.Context(), peer, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "charge"}); told(err) != "error" || peer.keys()[0] != "" {
			t.Errorf("%v, keys %q", err, peer.keys())
		}
	})
}

// A handler of the client's that calls a tool makes another call: neither the
// key nor the report nor the attempt of the outer one is its own.
func TestACallFromWithinACallIsAnotherCall(t *testing.T) {
	onPipes(t, func(t *testing.T, modern bool) {
		peer := newPipePeer(modern, declared(), func(c *toolCall) any { return done(false) })
		var s *clientretry.Session
		client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
		client.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if p, ok := req.GetParams().(*mcp.CallToolParams); ok && p.Name == "outer" {
					if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "inner"}); err != nil {
						t.Error(err)
					}
					if _, err := s.ListTools(ctx, nil); err != nil {
						t.Error(err)
					}
				}
				return next(ctx, method, req)
			}
		})
		var err error
		if s, err = clientretry.New(client, nil).Connect(t.Context(), peer, nil); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		key, err := s.MintKey()
		if err != nil {
			t.Fatal(err)
		}
		ctx, report := clientretry.WithReport(clientretry.WithKey(t.Context(), key))
		if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "outer"}); err != nil {
			t.Fatal(err)
		}
		for _, c := range peer.seen() {
			if (c.Key == key) != (c.Name == "outer") {
				t.Errorf("%s has the key %s", c.Name, c.Key)
			}
		}
		if report.Key != key || report.Attempts != 1 {
			t.Errorf("report %+v", report)
		}
	})
}

func TestHintsOfListedToolsAreHeeded(t *testing.T) {
	p := newHTTPPeer(t, true, declared())
	s := openHTTP(t, p, quick())
	list := func(hint string) {
		p.list(map[string]any{"name": "charge", "inputSchema": map[string]any{"type": "object"},
			"_meta": map[string]any{schema.ExtensionID: map[string]any{"key": hint}}})
		if _, err := s.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	list("unsupported")
	if _, report, err := callCharge(t, s); err != nil || report.Key != "" {
		t.Errorf("unsupported: %v, %+v", err, report)
	}
	p.play(each(nil))
	if _, report, err := callCharge(t, s); told(err) != "unknown" || report.Attempts != 1 {
		t.Errorf("unsupported, lost: %v, %+v", err, report)
	}
	p.play(func(c *toolCall) any {
		if c.Key == "" {
			return refusal(schema.ReasonKeyRequired)
		}
		return done(false)
	})
	if _, _, err := callCharge(t, s); told(err) != "notRun" {
		t.Errorf("the hint is stale: %v", err)
	}
	if _, report, err := callCharge(t, s); err != nil || report.Key == "" {
		t.Errorf("and has been forgotten: %v, %+v", err, report)
	}
	for _, hint := range []string{"optional", "required", "somethingNew", ""} {
		list("unsupported")
		list(hint)
		if _, report, err := callCharge(t, s); err != nil || report.Key == "" {
			t.Errorf("%q: %v, %+v", hint, err, report)
		}
	}
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

func TestManyCallsAtOnceOverABadPath(t *testing.T) {
	generations(t, func(t *testing.T, modern bool) {
		runs := sync.Map{}
		p := newHTTPPeer(t, modern, declared())
		answer := func(c *toolCall) any {
			_, again := runs.LoadOrStore(c.Key, true)
			return done(again)
		}
		var n atomic.Int64
		p.serve = func(c *toolCall, w http.ResponseWriter, _ *http.Request) bool {
			if c.pathCheck() {
				return false
			}
			a := answer(c)
			switch n.Add(1) % 4 {
			case 0:
				w.WriteHeader(502)
			case 1:
				body(sse, "data: {\n\n")(c, w, nil)
			default:
				typed(w, jsonType, 200)
				_, _ = w.Write(response(c.ID, a))
			}
			return true
		}
		s := openHTTP(t, p, &clientretry.Options{Attempts: 30, BackoffBase: time.Millisecond, BackoffMax: 5 * time.Millisecond})
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				if _, report, err := callCharge(t, s); err != nil || report.PossibleDuplicate {
					t.Errorf("%v, %+v", err, report)
				}
			})
		}
		wg.Wait()
		size := 0
		runs.Range(func(any, any) bool { size++; return true })
		if size != 64 {
			t.Errorf("%d keys ran, want 64", size)
		}
	})
}

func TestNoGoroutineOfAnHTTPSessionStaysBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, modern := range []bool{true, false} {
		p := newFaultyPeer(t, modern, declared(), faultsOnTheWire["no event in time"])
		hc := &http.Client{Transport: &http.Transport{}}
		s := open(t, &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: hc}, quick())
		if _, _, err := callCharge(t, s); err != nil {
			t.Error(err)
		}
		s.Close()
		hc.CloseIdleConnections()
		p.CloseClientConnections()
		p.Server.Close()
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestNegativeBoundsAreAMistakeAndOptionsAreCopied(t *testing.T) {
	for name, o := range map[string]clientretry.Options{
		"Attempts": {Attempts: -1}, "AttemptTimeout": {AttemptTimeout: -1}, "BackoffBase": {BackoffBase: -1},
		"BackoffMax": {BackoffMax: -1}, "DialTimeout": {DialTimeout: -1}, "ToolTimeouts": {ToolTimeouts: map[string]time.Duration{"x": -1}},
	} {
		func() {
			defer func() {
				if msg := fmt.Sprint(recover()); !strings.Contains(msg, name) {
					t.Errorf("%s: %s", name, msg)
				}
			}()
			clientretry.New(mcp.NewClient(&mcp.Implementation{Name: "a", Version: "1"}, nil), &o)
		}()
	}
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, nil, func(*toolCall) any { time.Sleep(time.Hour); return done() })
		o := clientretry.Options{ToolTimeouts: map[string]time.Duration{"charge": time.Minute}}
		s := open(t, peer, &o)
		defer s.Close()
		o.ToolTimeouts["charge"], o.AttemptTimeout = 0, time.Second
		if _, took, _ := call(t, s, "charge"); took != time.Minute {
			t.Errorf("the options were changed afterwards: %v", took)
		}
		time.Sleep(time.Hour)
	})
}

func TestAnHTTPTransportInDisguiseIsRefused(t *testing.T) {
	p := newHTTPPeer(t, true, nil)
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	disguised := struct{ mcp.Transport }{&mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: &http.Client{Transport: &http.Transport{}}}}
	if _, err := clientretry.New(client, nil).Connect(t.Context(), disguised, nil); err == nil || !strings.Contains(err.Error(), "StreamableClientTransport") {
		t.Errorf("%v", err)
	}
	if _, err := clientretry.New(client, nil).Connect(t.Context(), nil, nil); err == nil {
		t.Error("connected to nothing")
	}
	r := clientretry.New(client, &clientretry.Options{Dial: func(context.Context) (mcp.Transport, error) {
		return &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: &http.Client{Transport: &http.Transport{}}}, nil
	}})
	s, err := r.Connect(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
