package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// deaths are ways of a process to lose its answer, and whether the charge was
// made.
var deaths = map[string]bool{
	"exit-before": false, "exit-after": true, "close-stdout": true, "garbage": true, "garbage-json": true, "half": true,
}

func TestADeadProcessIsFollowedByAnotherThatKnowsTheKey(t *testing.T) {
	for death, charged := range deaths {
		for _, generation := range []string{"modern", "legacy"} {
			t.Run(death+"/"+generation, func(t *testing.T) {
				t.Parallel()
				c := newChildren(t, "extended "+generation+" "+death)
				s := c.connect(patient(), true)
				o := do(t, t.Context(), s, "charge")
				o.wantResult(t)
				if len(o.report.Losses) != 1 || !o.replayed() {
					t.Errorf("%+v", o.report)
				}
				// The scripted server claims a key before it charges, as a
				// record does.
				if charged {
					c.wantLedger(1, 2)
				} else {
					c.wantLedger(0, 2)
				}
				// Every method of the session finds the new process.
				if err := s.Ping(t.Context(), nil); err != nil && generation == "legacy" {
					t.Errorf("ping: %v", err)
				}
				if _, err := s.ListTools(t.Context(), nil); err != nil {
					t.Errorf("tools/list: %v", err)
				}
				if _, err := s.ClientSession.ListTools(t.Context(), nil); err != nil {
					t.Errorf("tools/list on the first session: %v", err)
				}
				wantAlive(t, s, "charge")
				if err := s.Close(); err != nil {
					t.Errorf("closing: %v", err)
				}
				c.wantGone()
			})
		}
	}
}

func TestADeadProcessOfAnUnextendedServerLeavesTheOutcomeUnknown(t *testing.T) {
	for death := range deaths {
		for _, kind := range []string{"sdk", "legacy"} {
			t.Run(death+"/"+kind, func(t *testing.T) {
				t.Parallel()
				c := newChildren(t, kind+" "+death)
				s := c.connect(patient(), true)
				o := do(t, t.Context(), s, "charge")
				u := o.wantUnknown(t)
				if u.Attempts != 1 || u.Key != "" {
					t.Errorf("%+v", u)
				}
				before := len(c.lines("ledger"))
				wantAlive(t, s, "charge")
				c.wantLedger(before+1, 2)
				s.Close()
				c.wantGone()
			})
		}
	}
}

// The extension's memory store dies with its process, and says so.
func TestAProcessThatLosesItsRecordsLeavesTheOutcomeUnknown(t *testing.T) {
	for _, death := range []string{"exit-after", "exit-before", "garbage"} {
		t.Run(death, func(t *testing.T) {
			t.Parallel()
			c := newChildren(t, "sdk extended "+death)
			s := c.connect(patient(), true)
			u := do(t, t.Context(), s, "charge").wantUnknown(t)
			if u.Attempts < 2 || u.Key == "" {
				t.Errorf("%+v", u)
			}
			if got := len(c.lines("ledger")); got > 1 {
				t.Errorf("%d charges", got)
			}
			before := len(c.lines("ledger"))
			wantAlive(t, s, "charge")
			c.wantLedger(before+1, 2)
			s.Close()
			c.wantGone()
		})
	}
}

func TestAKilledProcess(t *testing.T) {
	for _, moment := range []string{"wait-before", "wait-after"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			c := newChildren(t, "extended modern "+moment)
			s := c.connect(patient(), true)
			done := start(t.Context(), s, "charge")
			eventually(t, "the tool runs", func() bool { return len(c.lines("waiting")) == 1 })
			pid, err := strconv.Atoi(c.lines("waiting")[0])
			if err != nil {
				t.Fatal(err)
			}
			p, err := os.FindProcess(pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			o := <-done
			o.wantResult(t)
			o.wantLosses(t, clientretry.LossEOF)
			if n := len(c.lines("ledger")); (n == 1) != (moment == "wait-after") {
				t.Errorf("%d charges", n)
			}
			s.Close()
			c.wantGone()
		})
	}
}

func TestWithoutAWayToDialADeadProcessStaysDead(t *testing.T) {
	for _, how := range []string{"extended modern exit-after", "legacy exit-after"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := newChildren(t, how)
			s := c.connect(patient(), false)
			do(t, t.Context(), s, "charge").wantUnknown(t)
			// The next call was not sent: that is known.
			do(t, t.Context(), s, "charge").wantNotRun(t)
			c.wantLedger(1, 1)
			s.Close()
			c.wantGone()
		})
	}
}

func TestACapabilityThatIsGoneAfterAReconnectEndsTheCall(t *testing.T) {
	c := newChildren(t, "extended once modern exit-after")
	s := c.connect(patient(), true)
	u := do(t, t.Context(), s, "charge").wantUnknown(t)
	if u.Attempts != 1 || u.Key == "" {
		t.Errorf("%+v", u)
	}
	if _, ok := s.Declared(); ok {
		t.Error("the new process is said to declare the extension")
	}
	c.wantLedger(1, 2)
	for _, m := range c.lines("methods")[1:] {
		if strings.HasPrefix(m, "tools/call") && strings.Contains(m, "ns.") && m != c.lines("methods")[1] {
			t.Errorf("a key went to the new process: %s", m)
		}
	}
	// The next call has no key, and works.
	o := do(t, t.Context(), s, "charge")
	o.wantResult(t)
	if o.report.Key != "" {
		t.Errorf("%+v", o.report)
	}
}

// X1. The host that minted the key died; another restores it.
func TestAKeyThatAJournalRestoredIsKeptTowardsAServerThatForgot(t *testing.T) {
	c := newChildren(t, "sdk extended")
	one := c.connect(patient(), true)
	key, err := one.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	do(t, clientretry.WithKey(t.Context(), key), one, "charge").wantResult(t)
	one.Close() // the server's process ends, its records with it

	two := c.connect(patient(), true)
	u := do(t, clientretry.WithKey(t.Context(), key), two, "charge").wantUnknown(t)
	if u.Key != key || u.Attempts != 4 {
		t.Errorf("%+v", u)
	}
	c.wantLedger(1, 2)
}

func TestCallsUnderWayWhenTheProcessDiesShareOneReconnect(t *testing.T) {
	c := newChildren(t, "extended modern exit-after")
	s := c.connect(patient(), true)
	var all sync.WaitGroup
	outcomes := make([]outcome, 20)
	for i := range outcomes {
		all.Go(func() { outcomes[i] = do(t, context.Background(), s, "charge") })
	}
	all.Wait()
	for i, o := range outcomes {
		if o.err != nil {
			t.Errorf("call %d: %v (%+v)", i, o.err, o.report)
		}
	}
	if n := len(c.all()); n != 2 {
		t.Errorf("%d processes", n)
	}
	keys := map[string]int{}
	for _, key := range c.lines("ledger") {
		if keys[key]++; keys[key] > 1 {
			t.Errorf("the key %q was charged %d times", key, keys[key])
		}
	}
	s.Close()
	c.wantGone()
}

func TestAServerThatDoesNotAnswerIsLeftAndNotToldToCancel(t *testing.T) {
	for _, how := range []string{"extended modern silent", "legacy silent"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := newChildren(t, how)
			s := c.connect(impatient(), true)
			o := do(t, t.Context(), s, "charge")
			if strings.HasPrefix(how, "extended") {
				o.wantResult(t)
			} else {
				o.wantUnknown(t)
			}
			wantAlive(t, s, "charge")
			c.wantLedger(2, 1)
			s.Close()
			for _, m := range c.lines("methods") {
				if strings.HasPrefix(m, "notifications/cancelled") {
					t.Error(m)
				}
			}
			c.wantGone()
		})
	}
}

func TestTheCallersCancellationGoesToTheProcess(t *testing.T) {
	c := newChildren(t, "extended modern silent")
	s := c.connect(patient(), true)
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, s, "charge")
	eventually(t, "the tool runs", func() bool { return len(c.lines("ledger")) == 1 })
	cancel()
	if u := (<-done).wantUnknown(t); !errors.Is(u, context.Canceled) {
		t.Errorf("%v", u)
	}
	eventually(t, "the cancellation arrives", func() bool {
		return strings.Contains(fmt.Sprint(c.lines("methods")), "notifications/cancelled")
	})
}

func TestAnHTTPServerThatIsKilledInMidCallAndComesBack(t *testing.T) {
	for _, how := range []string{"extended modern wait-after", "extended wait-after", "modern wait-after", "wait-after"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := newChildren(t, how)
			cmd, url := c.listen()
			opt := patient()
			opt.BackoffMax = 200 * time.Millisecond // a new process takes its time
			opt.BackoffBase, opt.Attempts = opt.BackoffMax, 50
			s := connectTo(t, url, opt)
			done := start(t.Context(), s, "charge")
			eventually(t, "the tool runs", func() bool { return len(c.lines("waiting")) == 1 })
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			again, _ := c.listen()
			u := (<-done).wantUnknown(t)
			if extended := strings.HasPrefix(how, "extended"); extended != (u.Key != "") || extended != (u.Attempts > 1) {
				t.Errorf("%+v", u)
			}
			c.wantLedger(1, 2)
			// A session that is gone was not sent anything that ran.
			o := do(t, t.Context(), s, "charge")
			if how == "wait-after" && o.err != nil {
				o.wantNotRun(t)
				o = do(t, t.Context(), s, "charge")
			}
			o.wantResult(t)
			c.wantLedger(2, 2)
			s.Close()
			_ = again.Process.Kill()
			_ = again.Wait()
		})
	}
}
