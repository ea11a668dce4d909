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
