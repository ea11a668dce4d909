package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// Layer is the fault layer of Streamable HTTP: an [http.Handler] in front of
// one upstream URL. It serves HTTP/1.1; over HTTP/2 a reset becomes an
// aborted stream.
type Layer struct {
	*recorder
	opts      Options
	proxy     *httputil.ReverseProxy
	transport *http.Transport

	mu     sync.Mutex
	closed bool
	active sync.WaitGroup
}

// New returns a layer in front of upstream, an absolute http or https URL.
// A request for the path "/" goes to the upstream's own path, any other path
// is joined to it.
func New(upstream string, opts *Options) (*Layer, error) {
	target, err := url.Parse(upstream)
	if err != nil {
		return nil, fmt.Errorf("fault layer: upstream: %w", err)
	}
	if target.Host == "" || target.Scheme != "http" && target.Scheme != "https" {
		return nil, fmt.Errorf("fault layer: upstream %q is not an absolute http or https URL", upstream)
	}
	o := opts.withDefaults()
	if err := o.Rules.check(func(k KindInfo) bool { return k.HTTP }, "HTTP"); err != nil {
		return nil, err
	}
	l := &Layer{recorder: newRecorder(o), opts: o, transport: &http.Transport{
		DisableCompression: true, // or the transport would rewrite the answer
	}}
	l.proxy = &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(target)
			if p := pr.In.URL.Path; p == "" || p == "/" {
				pr.Out.URL.Path, pr.Out.URL.RawPath = target.Path, target.RawPath
			}
		},
		Transport:      l.transport,
		FlushInterval:  -1, // each write at once: progress must arrive while the call runs
		ErrorLog:       log.New(io.Discard, "", 0),
		ModifyResponse: l.afterWork,
		ErrorHandler:   l.noResponse,
	}
	return l, nil
}

// Calls returns what was recorded, oldest first.
func (l *Layer) Calls() []Call { return l.snapshot() }

// Close waits until every request has been dealt with and closes the idle
// connections to the upstream. Close the server in front of it first: a
// request that hangs ends with its connection.
func (l *Layer) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.active.Wait()
	l.transport.CloseIdleConnections()
	return nil
}

func (l *Layer) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.active.Add(1)
	return true
}

// An exchange is one HTTP request on its way through the layer.
type exchange struct {
	layer  *Layer
	calls  []*Call
	action Action // what the first harmed call of the body meets
}

type exchangeKey struct{}

// ServeHTTP forwards the request, or loses it as the rules say.
func (l *Layer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !l.enter() {
		panic(http.ErrAbortHandler)
	}
	defer l.active.Done()

	ex, err := l.read(r)
	if err != nil {
		// The request ended early: the client is gone, nobody to answer.
		panic(http.ErrAbortHandler)
	}
	whole := false
	defer func() {
		if !whole {
			ex.lost(endedEarly(r)) // unless it was lost on purpose
		}
		ex.settled(Delivered)
	}()
	if ex.action.Kind == CutBefore {
		ex.lost(Faulted)
		reset(w)
		return
	}
	if ex.action.Kind != None {
		// A fault cuts the answer's text, so it must not be compressed.
		r.Header.Del("Accept-Encoding")
	}
	l.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, ex)))
	whole = true
}

// endedEarly says whose doing it is that an answer did not get through.
func endedEarly(r *http.Request) Fate {
	if r.Context().Err() != nil {
		return Abandoned
	}
	return UpstreamFailed
}

// read takes in the body of a POST, so that the calls in it are known before
// anything is forwarded, and puts it back.
func (l *Layer) read(r *http.Request) (*exchange, error) {
	ex := &exchange{layer: l}
	if r.Method != http.MethodPost || r.Body == nil {
		return ex, nil
	}
	head, err := io.ReadAll(io.LimitReader(r.Body, l.opts.MaxBodyBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(head)) > l.opts.MaxBodyBytes {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
		return ex, nil
	}
	r.Body = io.NopCloser(bytes.NewReader(head))
	for _, m := range parseMessages(head) {
		c, action := l.received(m)
		ex.calls = append(ex.calls, c)
		if ex.action.Kind == None {
			ex.action = action
		}
	}
	return ex, nil
}

// A finished is the error by which afterWork hands the upstream's answer to
// noResponse, which alone can reach the client's connection.
type finished struct {
	header http.Header
	answer []byte
}

func (*finished) Error() string { return "the work is done and its answer is to be lost" }

// afterWork lets an answer through, or reads it to its end when its call
// meets a fault.
func (l *Layer) afterWork(resp *http.Response) error {
	ex := exchangeOf(resp.Request)
	if ex.action.Kind == None {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, l.opts.MaxBodyBytes))
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if err != nil {
		return err
	}
	for _, c := range ex.calls {
		l.worked(c)
	}
	return &finished{resp.Header, answerIn(resp.Header.Get("Content-Type"), body)}
}

// noResponse runs when the upstream's answer is not to be passed on: by a
// rule, because the client left, or because the upstream failed.
func (l *Layer) noResponse(w http.ResponseWriter, r *http.Request, err error) {
	ex := exchangeOf(r)
	var done *finished
	switch {
	case errors.As(err, &done):
		ex.lost(Faulted)
		perform(w, r, ex.action, done)
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody is left to answer
	default:
		ex.lost(UpstreamFailed)
		http.Error(w, "fault layer: the upstream could not be reached or ended its answer early", http.StatusBadGateway)
	}
}

func exchangeOf(r *http.Request) *exchange {
	return r.Context().Value(exchangeKey{}).(*exchange)
}

func (ex *exchange) lost(fate Fate) {
	for _, c := range ex.calls {
		ex.layer.lost(c, fate)
	}
}

func (ex *exchange) settled(fate Fate) {
	for _, c := range ex.calls {
		ex.layer.settled(c, fate)
	}
}
