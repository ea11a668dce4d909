package clientretry_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

func TestRetryAfterMsIsHonouredAndBounded(t *testing.T) {
	play{script: each(refusal(schema.ReasonCapacityExceeded, after(7000)), done(false))}.run(t, func(t *testing.T, o outcomeOf) {
		if o.err != nil || o.took < 7*time.Second || o.took > 7*time.Second+100*time.Millisecond || o.peer.keys()[0] != o.peer.keys()[1] {
			t.Errorf("%v after %v", o.err, o.took)
		}
	})
	for _, ms := range []int64{math.MaxInt64, 1000 * 3600 * 24 * 365 * 10, 301_000} {
		play{script: each(refusal(schema.ReasonCapacityExceeded, after(ms)))}.run(t, func(t *testing.T, o outcomeOf) {
			if told(o.err) != "notRun" || o.took != 0 {
				t.Errorf("asked to wait %d ms: %v after %v, want an end at once", ms, o.err, o.took)
			}
		})
	}
	play{script: each(refusal(schema.ReasonStillRunning, after(math.MaxInt64))), opt: clientretry.Options{Deadline: -1}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || o.took > time.Hour {
			t.Errorf("%v after %v", o.err, o.took)
		}
	})
}

func TestAServerThatIsForEverInProgressIsGivenUp(t *testing.T) {
	play{script: each(refusal(schema.ReasonStillRunning, after(1000))), opt: clientretry.Options{Attempts: 1000, Deadline: 20 * time.Second}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || o.took > 20*time.Second || len(o.peer.seen()) > 21 {
			t.Errorf("%v after %v and %d calls", o.err, o.took, len(o.peer.seen()))
		}
		if o.report.PathChecks != 0 {
			t.Error("an extension error is proof enough")
		}
	})
}

func TestANamespaceThatIsAlwaysAnotherOneIsGivenUp(t *testing.T) {
	n := 0
	play{script: func(*toolCall) any {
		n++
		return refusal(schema.ReasonNamespaceNotHeld, namespace("ns"+strings.Repeat("x", n%20)))
	}}.run(t, func(t *testing.T, o outcomeOf) {
		keys := o.peer.keys()
		if told(o.err) != "notRun" || len(keys) != 4 {
			t.Fatalf("%v, keys %q", o.err, keys)
		}
		if keys[0] == keys[1] || keys[1] != keys[2] || keys[2] == keys[3] {
			t.Errorf("keys %q, want a new one, the same again, another new one", keys)
		}
	})
}

func TestNothingIsSentAgainAfterTheRetentionTime(t *testing.T) {
	play{settings: declared("retentionMs", 1000), script: each(refusal(schema.ReasonStillRunning, after(400))),
		opt: clientretry.Options{Attempts: 100}}.run(t, func(t *testing.T, o outcomeOf) {
		calls := o.peer.seen()
		if told(o.err) != "unknown" || calls[len(calls)-1].At.Sub(calls[0].At) >= time.Second || len(calls) < 2 {
			t.Errorf("%v, last call after %v", o.err, calls[len(calls)-1].At.Sub(calls[0].At))
		}
	})
	// The path check takes its time, too.
	play{settings: declared("retentionMs", 1000), script: each(proxied), path: func(*toolCall) any {
		time.Sleep(2 * time.Second)
		return refusal(schema.ReasonKeyInvalid)
	}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 {
			t.Errorf("%v after %d calls", o.err, len(o.peer.seen()))
		}
	})
}

// K6.
func TestBackoffIsJitteredExponentialAndCapped(t *testing.T) {
	play{script: each(proxied), opt: clientretry.Options{Attempts: 9, BackoffBase: time.Second, BackoffMax: 4 * time.Second}}.run(t, func(t *testing.T, o outcomeOf) {
		calls := o.peer.seen()
		if len(calls) != 9 {
			t.Fatalf("%d calls", len(calls))
		}
		most, distinct := time.Second, map[time.Duration]bool{}
		for i := 1; i < len(calls); i++ {
			wait := calls[i].At.Sub(calls[i-1].At)
			if distinct[wait] = true; wait < 0 || wait > most {
				t.Errorf("wait %d is %v, more than %v", i, wait, most)
			}
			most = min(2*most, 4*time.Second)
		}
		if len(distinct) < 4 {
			t.Errorf("waits %v are not random", distinct)
		}
	})
}

func TestACallThatCannotWaitEndsWhenTheLossIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPipePeer(true, declared(), each(refusal(schema.ReasonStillRunning, after(5000))))
		s := open(t, peer, nil)
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"})
		if told(err) != "unknown" || time.Since(began) != 0 {
			t.Errorf("%v after %v, though the next attempt could not come before the deadline", err, time.Since(began))
		}
	})
}

// What an answer has taught holds for the calls after it.
func TestWhatTheServerHasSaidIsRemembered(t *testing.T) {
	p := newHTTPPeer(t, true, declared())
	s := openHTTP(t, p, quick())
	p.play(func(c *toolCall) any {
		if !strings.HasPrefix(c.Key, "ns2.") {
			return refusal(schema.ReasonNamespaceNotHeld, namespace("ns2"))
		}
		return done(false)
	})
	for i := range 2 {
		if _, report, err := callCharge(t, s); err != nil || report.Attempts != 2-i {
			t.Errorf("call %d: %v, %+v", i, err, report)
		}
	}
	if key, err := s.MintKey(); err != nil || !strings.HasPrefix(key, "ns2.") {
		t.Errorf("MintKey: %q, %v", key, err)
	}
	p.play(func(c *toolCall) any {
		if c.Key != "" {
			return refusal(schema.ReasonKeyUnsupported)
		}
		return done()
	})
	for i := range 2 {
		if _, report, err := callCharge(t, s); err != nil || report.Attempts != 2-i || report.Key != "" {
			t.Errorf("call %d: %v, %+v", i, err, report)
		}
	}
}

func TestAReportIsOfTheFirstCallWithItsContext(t *testing.T) {
	p := newHTTPPeer(t, true, declared())
	s := openHTTP(t, p, quick())
	ctx, report := clientretry.WithReport(t.Context())
	for range 2 {
		if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "charge"}); err != nil {
			t.Fatal(err)
		}
	}
	if report.Key != p.keys()[0] || p.keys()[0] == p.keys()[1] {
		t.Errorf("the report is of %s, the calls were %q", report.Key, p.keys())
	}
}

func TestAttemptsOneNeverReSends(t *testing.T) {
	play{script: each(proxied, done(true)), opt: clientretry.Options{Attempts: 1}}.run(t, func(t *testing.T, o outcomeOf) {
		if told(o.err) != "unknown" || len(o.peer.seen()) != 1 || o.peer.pathChecks() != 0 {
			t.Errorf("%v, %d calls", o.err, len(o.peer.seen()))
		}
	})
}

func TestTheMessagesShortenTheKeyAndSayWhatToDo(t *testing.T) {
	play{script: each(proxied), opt: clientretry.Options{Attempts: 1}}.run(t, func(t *testing.T, o outcomeOf) {
		var unknown *clientretry.UnknownOutcomeError
		if !errors.As(o.err, &unknown) || unknown.Key != o.peer.keys()[0] || unknown.Attempts != 1 || unknown.Tool != "charge" {
			t.Fatalf("%+v", unknown)
		}
		text := o.err.Error()
		if strings.Contains(text, unknown.Key) || !strings.Contains(text, schema.ShortKey(unknown.Key)) || !strings.Contains(text, "check its effect") {
			t.Errorf("message: %s", text)
		}
		var loss *clientretry.Loss
		if !errors.As(o.err, &loss) || loss.Kind != clientretry.LossProxy || loss.At.IsZero() {
			t.Errorf("cause %+v", loss)
		}
	})
}
