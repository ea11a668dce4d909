package clientretry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// roundTripper sits between the SDK and the network. It writes the key into
// `tools/call` requests, and when the response to one is lost it hands the SDK
// a JSON-RPC error in its place, so that one lost response does not end the
// session for the calls after it.
type roundTripper struct {
	base     http.RoundTripper
	endpoint *endpoint
	maxEvent int   // bytes of a server-sent event; not positive: no bound
	maxJSON  int64 // bytes of a JSON body; negative: no bound
	resumes  int   // how often the SDK asks for a broken stream
	oauth    bool  // the SDK handles 401 and 403
}

// wrapHTTP returns a copy of the transport that sends through a roundTripper.
func wrapHTTP(t *mcp.StreamableClientTransport, e *endpoint, maxJSON int64) *mcp.StreamableClientTransport {
	c := *t
	hc := http.Client{}
	if t.HTTPClient != nil {
		hc = *t.HTTPClient
	}
	rt := &roundTripper{
		base: hc.Transport, endpoint: e, maxEvent: t.MaxEventSize, maxJSON: maxJSON,
		resumes: t.MaxRetries, oauth: t.OAuthHandler != nil,
	}
	if rt.base == nil {
		rt.base = http.DefaultTransport
	}
	if rt.maxEvent == 0 {
		rt.maxEvent = mcp.DefaultMaxEventSize
	}
	if rt.resumes == 0 {
		rt.resumes = 5 // the SDK's default
	}
	hc.Transport = rt
	c.HTTPClient = &hc
	return &c
}

// RoundTrip implements http.RoundTripper.
func (rt *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	a := rt.endpoint.attemptOf(req.Context())
	switch {
	case a == nil:
	case req.Method == http.MethodPost:
		return rt.post(req, a)
	case req.Method == http.MethodGet && req.Header.Get("Last-Event-ID") != "":
		return rt.resume(req, a)
	case req.Method == http.MethodGet && req.Response != nil:
		return rt.follow(req, a)
	}
	return rt.base.RoundTrip(req)
}

// post sends what may be a `tools/call`. The context of one also reaches the
// notifications about it, which are none of this layer's.
func (rt *roundTripper) post(req *http.Request, a *attempt) (*http.Response, error) {
	body, err := readBody(req)
	if err != nil {
		return nil, err
	}
	msg, err := decodeMessage(body)
	call, ok := msg.(*jsonrpc.Request)
	if err != nil || !ok || !call.IsCall() || call.Method != schema.MethodCallTool {
		return rt.base.RoundTrip(req)
	}
	if req.Response == nil && !a.identity.same(req) { // a redirect is no re-send
		a.hold()
		closeBody(req)
		return synthetic(req, call.ID, errIdentityChanged), nil
	}
	if err := req.Context().Err(); err != nil { // before anything is on the wire
		closeBody(req)
		return nil, err
	}
	var keyed []byte
	if a.keyed() {
		if keyed, err = wire.Insert(body, a.key); err != nil {
			return nil, fmt.Errorf("writing the idempotency key: %w", err)
		}
	}
	x := &exchange{rt: rt, r: a.begin(call.ID), req: req}
	out := x.open()
	if a.keyed() {
		closeBody(req)
		out.Body = io.NopCloser(bytes.NewReader(keyed))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(keyed)), nil }
		out.ContentLength = int64(len(keyed))
	}
	x.trace.once(out)
	return x.send(out)
}

// readBody returns a copy of the body and leaves the request as it was.
func readBody(req *http.Request) ([]byte, error) {
	switch {
	case req.Body == nil:
		return nil, nil
	case req.GetBody == nil:
		b, err := io.ReadAll(req.Body)
		closeBody(req)
		req.Body = io.NopCloser(bytes.NewReader(b))
		return b, err
	}
	r, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// follow is what a redirect made of a `tools/call`: a GET. Whatever it brings
// is looked at like the response to the call.
func (rt *roundTripper) follow(req *http.Request, a *attempt) (*http.Response, error) {
	r := a.current()
	if r == nil {
		return rt.base.RoundTrip(req)
	}
	x := &exchange{rt: rt, r: r, req: req}
	return x.send(x.open())
}

// exchange is one HTTP request for a round, and its response.
type exchange struct {
	rt    *roundTripper
	r     *round
	req   *http.Request
	trace wireTrace
	stop  context.CancelFunc
	ended sync.Once
}

// open returns the request as it goes out: the same but for its context. The
// attempt timeout cancels that context alone, and not the one that the SDK
// watches, which would tell the server to cancel.
func (x *exchange) open() *http.Request {
	ctx, cancel := context.WithCancel(x.req.Context())
	x.stop = cancel
	x.r.a.enter()
	x.r.onWire(cancel)
	return x.req.Clone(x.trace.watch(ctx))
}

// close ends the exchange, whatever is left of it.
func (x *exchange) close() {
	x.ended.Do(func() {
		x.r.onWire(nil)
		x.stop()
		x.r.a.leave()
	})
}

func (x *exchange) send(out *http.Request) (*http.Response, error) {
	resp, err := x.rt.base.RoundTrip(out)
	if err != nil {
		x.close()
		return x.failed(err)
	}
	if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
		x.r.a.identity.fix(x.req)
	}
	return x.receive(resp), nil
}

// failed handles an exchange that gave no response at all.
func (x *exchange) failed(err error) (*http.Response, error) {
	if x.trace.unsent() && x.req.Method == http.MethodPost { // the GET of a redirect was a POST that arrived
		x.r.lose(newLoss(LossNotSent, err))
		return synthetic(x.req, x.r.id, err), nil
	}
	x.r.a.identity.fix(x.req)
	switch {
	case x.r.expired():
		x.r.lose(newLoss(LossTimeout, errAttemptTimeout)) // err looks like the caller's own cancellation
	case x.req.Context().Err() != nil:
		return nil, err // the caller's own doing, handled above
	default:
		x.r.lose(newLoss(LossReset, err))
	}
	return synthetic(x.req, x.r.id, err), nil
}

// lost settles the round and gives the SDK a response that says so.
func (x *exchange) lost(l *Loss) *http.Response {
	x.close()
	x.r.lose(l)
	return synthetic(x.req, x.r.id, l)
}

// synthetic is the response that the SDK gets in place of one that was lost.
func synthetic(req *http.Request, id jsonrpc.ID, cause error) *http.Response {
	return newResponse(req, "application/json", syntheticError(id, cause))
}

func newResponse(req *http.Request, contentType string, body []byte) *http.Response {
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {contentType}},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       req,
	}
}

// syntheticError is a JSON-RPC error for a call. Its code says nothing: the
// middleware above the SDK acts on what the attempt recorded.
func syntheticError(id jsonrpc.ID, cause error) []byte {
	b, err := jsonrpc.EncodeMessage(syntheticResponse(id, cause))
	if err != nil {
		panic(err) // an id that was decoded encodes
	}
	return b
}

func syntheticResponse(id jsonrpc.ID, cause error) *jsonrpc.Response {
	return &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "clientretry: " + cause.Error()}}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// contentType is the media type of a response, in lower case.
func contentType(h http.Header) string {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

var errNoResponse = errors.New("no JSON-RPC response")
