package fault

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A worker is an upstream that answers each POST with a progress event and a
// result, and counts the calls that it has worked off.
type worker struct {
	*httptest.Server
	json     bool          // answer with application/json and no progress
	hold     chan struct{} // if set, wait here between progress and result
	started  atomic.Int32
	finished atomic.Int32
	stopped  chan struct{} // receives when a held call was cancelled
}

const answer = `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`

func newWorker(t *testing.T) *worker {
	w := &worker{stopped: make(chan struct{}, 1)}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

func (u *worker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	u.started.Add(1)
	w.Header().Set("X-Upstream", "kept")
	if u.json {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
		u.finished.Add(1)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n")
	_ = http.NewResponseController(w).Flush()
	if u.hold != nil {
		select {
		case <-u.hold:
		case <-r.Context().Done():
			u.stopped <- struct{}{}
			return
		}
	}
	_, _ = io.WriteString(w, "event: message\ndata: "+answer+"\n\n")
	_ = http.NewResponseController(w).Flush()
	u.finished.Add(1)
}

// A path is a served layer whose events the test can wait for.
type path struct {
	*Server
	t      *testing.T
	client *http.Client
	events chan Event
}

func newPath(t *testing.T, upstream string, rules ...Rule) *path {
	t.Helper()
	p := &path{t: t, events: make(chan Event, 100)}
	transport := &http.Transport{}
	p.client = &http.Client{Transport: transport}
	s, err := Serve(upstream, &Options{Rules: rules, OnEvent: func(e Event) { p.events <- e }})
	if err != nil {
		t.Fatal(err)
	}
	p.Server = s
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Errorf("closing the layer: %v", err)
		}
	})
	return p
}

// await returns the next event of the phase.
func (p *path) await(phase Phase) Call {
	p.t.Helper()
	late := time.After(10 * time.Second)
	for {
		select {
		case e := <-p.events:
			if e.Phase == phase {
				return e.Call
			}
		case <-late:
			p.t.Fatalf("phase %d was never reached", phase)
		}
	}
}

func request(ctx context.Context, url, tool string) *http.Request {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"idempotencyKey":"ns.k1"}}`, tool)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		panic(err) // a mistake in the test
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	return r
}

// What a client got to see of an answer.
type seen struct {
	doErr   error // no answer at all
	status  int
	header  http.Header
	body    string
	readErr error // the answer ended early
}

func (p *path) call(tool string) seen {
	resp, err := p.client.Do(request(context.Background(), p.URL, tool))
	if err != nil {
		return seen{doErr: err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return seen{status: resp.StatusCode, header: resp.Header, body: string(body), readErr: err}
}
