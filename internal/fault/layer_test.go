package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// whatTheClientSees is, for each fault over HTTP, the check of the client's
// view of it.
func whatTheClientSees(k Kind, s seen) bool {
	stream := s.doErr == nil && s.status == 200 && s.header.Get("Content-Type") == "text/event-stream" &&
		s.header.Get("X-Upstream") == "kept"
	switch k {
	case EOF:
		return stream && s.readErr == nil && s.body == ""
	case Reset:
		return stream && errors.Is(s.readErr, syscall.ECONNRESET) && s.body == ""
	case BrokenEvent:
		data, ok := strings.CutPrefix(s.body, "event: message\ndata: ")
		data = strings.TrimSuffix(data, "\n\n")
		return stream && ok && s.readErr == nil && strings.HasPrefix(answer, data) && data != "" && !json.Valid([]byte(data))
	case BrokenLine:
		return stream && s.readErr == nil && s.body == "event: message\ndat\n\n"
	case CutJSON:
		return s.status == 200 && s.header.Get("Content-Type") == "application/json" && s.readErr == nil &&
			strings.HasPrefix(answer, s.body) && s.body != "" && !json.Valid([]byte(s.body))
	case Status429, Status502, Status503, Status504:
		return s.status == k.status() && s.readErr == nil && s.header.Get("Retry-After") == "2"
	case ResetBeforeHeaders, CutBefore:
		return errors.Is(s.doErr, syscall.ECONNRESET)
	}
	return false
}

func TestEveryFaultLosesTheAnswerAfterTheWorkAndTheNextCallPasses(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		for _, info := range Kinds() {
			if !info.HTTP || info.Kind == None || info.Kind == Hang {
				continue
			}
			t.Run(info.Name, func(t *testing.T) {
				u := newWorker(t)
				u.json = asJSON
				p := newPath(t, u.URL, Rule{Tool: "charge", Nth: 1,
					Action: Action{Kind: info.Kind, RetryAfter: 1500 * time.Millisecond}})

				before := time.Now()
				if got := p.call("charge"); !whatTheClientSees(info.Kind, got) {
					t.Errorf("the client saw %+v", got)
				}
				told := time.Now()
				c := p.await(CallSettled)
				if c.Fate != Faulted || c.Action.Kind != info.Kind || c.Lost.Before(before) || c.Lost.After(told) {
					t.Errorf("recorded %+v, lost outside of %v…%v", c, before, told)
				}
				checkWork(t, u, info.Kind, c)

				if got := p.call("charge"); got.status != 200 || !strings.Contains(got.body, answer) {
					t.Errorf("the second call saw %+v", got)
				}
				if c := p.await(CallSettled); c.Fate != Delivered || c.Nth != 2 || !c.Lost.IsZero() {
					t.Errorf("the second call is recorded as %+v", c)
				}
			})
		}
	}
}

// checkWork holds a fault to its word on what the upstream did before it.
func checkWork(t *testing.T, u *worker, k Kind, c Call) {
	t.Helper()
	if k == CutBefore {
		if u.started.Load() != 0 || !c.Worked.IsZero() {
			t.Errorf("the upstream saw a call that was cut before it: %+v", c)
		}
		return
	}
	if u.finished.Load() != 1 || c.Worked.IsZero() || c.Lost.Before(c.Worked) {
		t.Errorf("the fault came before the work was done: %+v", c)
	}
}

func TestAFaultWaitsForTheEndOfTheAnswerAndNotForItsStart(t *testing.T) {
	u := newWorker(t)
	u.hold = make(chan struct{})
	finishedAtLoss := make(chan int32, 1)
	s, err := Serve(u.URL, &Options{
		Rules: Rules{{Action: Action{Kind: Reset}}},
		OnEvent: func(e Event) {
			if e.Phase == CallLost {
				finishedAtLoss <- u.finished.Load()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	done := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(request(context.Background(), s.URL, "charge"))
		if err == nil {
			_ = resp.Body.Close()
		}
		done <- err
	}()
	u.hold <- struct{}{} // the call is in the middle of its work, its headers and progress sent
	if n := <-finishedAtLoss; n != 1 {
		t.Errorf("%d calls were worked off when the answer was lost, want 1", n)
	}
	<-done
}

func TestAHangingCallEndsWhenTheClientLeaves(t *testing.T) {
	u := newWorker(t)
	p := newPath(t, u.URL, Rule{Action: Action{Kind: Hang}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := p.client.Do(request(ctx, p.URL, "charge"))
		done <- err
	}()
	c := p.await(CallLost)
	checkWork(t, u, Hang, c)
	select {
	case err := <-done:
		t.Fatalf("the call was answered: %v", err)
	default:
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	if c := p.await(CallSettled); c.Fate != Faulted {
		t.Errorf("recorded as %v", c.Fate)
	}
}

func TestAHangingCallEndsWhenTheLayerCloses(t *testing.T) {
	u := newWorker(t)
	p := newPath(t, u.URL, Rule{Action: Action{Kind: Hang}})
	done := make(chan seen, 1)
	go func() { done <- p.call("charge") }()
	p.await(CallLost)
	_ = p.http.Close()
	if got := <-done; got.doErr == nil {
		t.Errorf("the client saw %+v", got)
	}
}

func TestAClientThatLeavesIsRecordedAndTheUpstreamIsTold(t *testing.T) {
	u := newWorker(t)
	u.hold = make(chan struct{})
	p := newPath(t, u.URL)
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := p.client.Do(request(ctx, p.URL, "charge")) // returns with the first event
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = resp.Body.Close()
	if c := p.await(CallSettled); c.Fate != Abandoned || c.Lost.IsZero() {
		t.Errorf("recorded %+v", c)
	}
	<-u.stopped
}

func TestAnUpstreamThatIsGoneIsA502AndNoFault(t *testing.T) {
	u := newWorker(t)
	p := newPath(t, u.URL)
	u.Close()
	if got := p.call("charge"); got.status != http.StatusBadGateway {
		t.Errorf("the client saw %+v", got)
	}
	if c := p.await(CallSettled); c.Fate != UpstreamFailed {
		t.Errorf("recorded %+v", c)
	}
}

func TestARecorderKeepsEveryMessageInOrderWithItsKey(t *testing.T) {
	u := newWorker(t)
	u.json = true
	p := newPath(t, u.URL+"/mcp")
	p.call("charge")
	p.call("refund")
	p.call("charge")
	for range 3 {
		p.await(CallSettled)
	}
	var got []string
	for i, c := range p.Calls() {
		if c.Seq != i+1 || c.ID != "1" || c.Key != "ns.k1" || c.Method != "tools/call" || c.Fate != Delivered {
			t.Errorf("call %d is recorded as %+v", i, c)
		}
		got = append(got, c.Tool+string(rune('0'+c.Nth)))
	}
	if s := strings.Join(got, " "); s != "charge1 refund1 charge2" {
		t.Errorf("recorded %s", s)
	}
}

func TestWhatIsNotJSONRPCPassesUnharmedAndUnrecorded(t *testing.T) {
	u := newWorker(t)
	u.json = true
	p := newPath(t, u.URL, Rule{Action: Action{Kind: Reset}})
	for _, body := range []string{"{", `{"id":1,"result":{}}`} {
		resp, err := p.client.Post(p.URL, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: status %d", body, resp.StatusCode)
		}
	}
	if calls := p.Calls(); len(calls) != 0 {
		t.Errorf("recorded %+v", calls)
	}
}

func TestARequestAboveTheBoundPassesWhole(t *testing.T) {
	size := make(chan int, 1)
	u := newWorker(t)
	u.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		size <- len(b)
	})
	s, err := Serve(u.URL, &Options{MaxBodyBytes: 100, Rules: Rules{{Action: Action{Kind: Reset}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post(s.URL, "application/json", bytes.NewReader(make([]byte, 5000)))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if n := <-size; n != 5000 {
		t.Errorf("the upstream got %d bytes of 5000", n)
	}
}

func TestTheRecordIsBounded(t *testing.T) {
	r := newRecorder((&Options{MaxCalls: 3}).withDefaults())
	for range 10 {
		r.received(message{method: "tools/list"})
	}
	if calls := r.snapshot(); len(calls) != 3 || calls[0].Seq != 8 {
		t.Errorf("kept %+v", calls)
	}
}

func TestNothingIsLeftRunningWhenTheLayerIsClosed(t *testing.T) {
	t.Run("faults", func(t *testing.T) {
		for _, info := range Kinds() {
			if !info.HTTP || info.Kind == Hang {
				continue
			}
			u := newWorker(t)
			p := newPath(t, u.URL, Rule{Nth: 1, Action: Action{Kind: info.Kind}})
			p.call("charge")
			p.call("charge")
		}
	}) // its cleanups have run
	// The client's and the upstream's own goroutines end shortly after their
	// connections, so they get a moment; the layer's must be gone by now.
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	for _, g := range strings.Split(stacks, "\n\n") {
		if strings.Contains(g, "fault.(*Layer)") || strings.Contains(g, "fault.Serve") || strings.Contains(g, "fault.(*Server)") {
			t.Errorf("left running:\n%s", g)
		}
	}
}
