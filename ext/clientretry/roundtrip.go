package clientretry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

var (
	errAttemptTimeout  = errors.New("attempt timeout")
	errIdentityChanged = errors.New("the request would go out under another identity than the attempt before it")
)

// roundTripper sits between the SDK and the network. It writes the key into
// `tools/call` requests, and when the response to one is lost it hands the SDK
// a JSON-RPC error in its place, so that one lost response does not end the
// session for the calls after it.
type roundTripper struct {
	base     http.RoundTripper
	endpoint *endpoint
	maxEvent int
	oauth    bool // the SDK handles 401 and 403
}

// wrapHTTP returns a copy of the transport that sends through a roundTripper.
func wrapHTTP(t *mcp.StreamableClientTransport, e *endpoint) *mcp.StreamableClientTransport {
	c := *t
	hc := http.Client{}
	if t.HTTPClient != nil {
		hc = *t.HTTPClient
	}
	rt := &roundTripper{base: hc.Transport, endpoint: e, maxEvent: t.MaxEventSize, oauth: t.OAuthHandler != nil}
	if rt.base == nil {
		rt.base = http.DefaultTransport
	}
	if rt.maxEvent == 0 {
		rt.maxEvent = mcp.DefaultMaxEventSize
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
		return rt.base.RoundTrip(req)
	case req.Method == http.MethodGet && req.Header.Get("Last-Event-ID") != "":
		return rt.resume(req, a)
	case req.Method != http.MethodPost || req.GetBody == nil:
		return rt.base.RoundTrip(req)
	}
	body, err := readBody(req)
	if err != nil {
		return nil, err
	}
	env, err := wire.ParseEnvelope(body)
	if err != nil || env.Method != schema.MethodCallTool {
		return rt.base.RoundTrip(req)
	}
	x := &exchange{rt: rt, a: a, id: env.ID}
	return x.send(req, body)
}

// readBody returns a copy of the body, without touching what will be sent.
func readBody(req *http.Request) ([]byte, error) {
	r, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// exchange is one `tools/call` on the wire.
type exchange struct {
	rt *roundTripper
	a  *attempt
	id json.RawMessage

	done      func()      // stops the timeout; set by send
	timedOut  atomic.Bool // the attempt timeout cancelled the exchange
	resumable bool        // an event had an id
}

// send makes the exchange. Its timeout cancels the exchange alone, and not the
// context that the SDK watches, which would tell the server to cancel.
func (x *exchange) send(req *http.Request, body []byte) (*http.Response, error) {
	if req.Response == nil && !x.a.identity.same(req) { // not a redirect
		x.a.mu.Lock()
		x.a.changed = true
		x.a.mu.Unlock()
		closeBody(req)
		return x.synthetic(req, errIdentityChanged), nil
	}
	out, err := x.outgoing(req, body)
	if err != nil {
		return nil, err
	}
	x.a.sending(x.id)
	resp, err := x.rt.base.RoundTrip(out)
	if err != nil {
		x.done()
		return x.failed(req, err)
	}
	if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
		x.a.identity.fix(req)
	}
	return x.receive(req, resp)
}

// outgoing prepares the request. Without a key only its context differs.
func (x *exchange) outgoing(req *http.Request, body []byte) (*http.Request, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(x.a.timeout, func() {
		x.timedOut.Store(true)
		cancel(errAttemptTimeout)
	})
	x.done = func() { timer.Stop(); cancel(nil) }
	out := req.Clone(ctx)
	if x.a.keyed() {
		keyed, err := wire.Insert(body, x.a.key)
		if err != nil {
			x.done()
			return nil, fmt.Errorf("writing the idempotency key: %w", err)
		}
		closeBody(req)
		out.Body = io.NopCloser(bytes.NewReader(keyed))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(keyed)), nil }
		out.ContentLength = int64(len(keyed))
	}
	if out.Header.Get("Idempotency-Key") != "" || out.Header.Get("X-Idempotency-Key") != "" {
		// net/http would take these for leave to re-send by itself.
		out.GetBody = nil
	}
	return out, nil
}

// failed handles an exchange that gave no response at all.
func (x *exchange) failed(req *http.Request, err error) (*http.Response, error) {
	var op *net.OpError
	switch {
	case x.timedOut.Load():
		x.a.identity.fix(req)
		x.a.lose(Loss{Kind: LossTimeout, RetryAfter: -1, Err: err})
	case errors.As(err, &op) && op.Op == "dial":
		x.a.lose(Loss{Kind: LossNotSent, RetryAfter: -1, Err: err})
	case req.Context().Err() != nil:
		x.a.identity.fix(req)
		return nil, err // the caller's own doing, handled above
	default:
		x.a.identity.fix(req)
		x.a.lose(Loss{Kind: LossReset, RetryAfter: -1, Err: err})
	}
	return x.synthetic(req, err), nil
}

// receive decides what of a response the SDK gets to see.
func (x *exchange) receive(req *http.Request, resp *http.Response) (*http.Response, error) {
	switch status := resp.StatusCode; {
	case status >= 300 && status < 400 && resp.Header.Get("Location") != "":
		x.done()
		return resp, nil // http.Client follows, and comes here again
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		x.done()
		return x.denied(req, resp), nil
	case status >= 200 && status < 300:
		return x.success(req, resp), nil
	default:
		defer x.done()
		return x.failure(req, resp), nil
	}
}

// denied lets the SDK's OAuth handler try once, and settles the call then.
func (x *exchange) denied(req *http.Request, resp *http.Response) *http.Response {
	x.a.mu.Lock()
	x.a.denied++
	x.a.waiting = false
	first := x.a.denied == 1
	x.a.mu.Unlock()
	if first && x.rt.oauth {
		return resp
	}
	body := drain(resp, 512)
	x.a.refuse(&HTTPError{Status: resp.StatusCode, Body: body})
	return x.synthetic(req, fmt.Errorf("HTTP %d", resp.StatusCode))
}

func (x *exchange) success(req *http.Request, resp *http.Response) *http.Response {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "application/json":
		resp.Body = &jsonGuard{x: x, body: resp.Body}
		resp.ContentLength = -1
		return resp
	case "text/event-stream":
		resp.Body = newSSEGuard(x, resp.Body)
		resp.ContentLength = -1
		return resp
	}
	drain(resp, 0)
	x.done()
	x.a.lose(Loss{Kind: LossMalformed, RetryAfter: -1, Status: resp.StatusCode,
		Err: fmt.Errorf("content type %q", resp.Header.Get("Content-Type"))})
	return x.synthetic(req, errors.New("no JSON-RPC response"))
}

// failure sorts the statuses that are not success.
func (x *exchange) failure(req *http.Request, resp *http.Response) *http.Response {
	status := resp.StatusCode
	body := drain(resp, maxErrorBody)
	wait := retryAfter(resp.Header.Get("Retry-After"))
	switch {
	case status == http.StatusNotFound && req.Header.Get("Mcp-Session-Id") != "":
		x.rt.endpoint.die(mcp.ErrSessionMissing)
		x.a.lose(Loss{Kind: LossSession, Status: status, RetryAfter: wait, Err: mcp.ErrSessionMissing})
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status == http.StatusBadGateway,
		status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout,
		status == http.StatusInternalServerError && !isErrorResponse(body):
		x.a.lose(Loss{Kind: LossStatus, Status: status, RetryAfter: wait})
	case isErrorResponse(body):
		x.a.answered()
		resp.Body = io.NopCloser(strings.NewReader(body))
		return resp
	default:
		x.a.refuse(&HTTPError{Status: status, Body: body[:min(len(body), 512)]})
	}
	return x.synthetic(req, fmt.Errorf("HTTP %d", status))
}

// resume passes the SDK's attempts to take a broken stream up again, for a
// call without a key, and settles the call when they lead nowhere.
func (rt *roundTripper) resume(req *http.Request, a *attempt) (*http.Response, error) {
	const fruitless = 2
	a.mu.Lock()
	if len(a.rounds) == 0 {
		a.mu.Unlock()
		return rt.base.RoundTrip(req)
	}
	x := &exchange{rt: rt, a: a, id: a.id, resumable: true}
	a.resumes++
	exhausted := a.resumes > fruitless
	left := a.timeout - time.Since(a.rounds[len(a.rounds)-1])
	a.mu.Unlock()
	if !exhausted && left > 0 {
		ctx, cancel := context.WithCancelCause(req.Context())
		timer := time.AfterFunc(left, func() { x.timedOut.Store(true); cancel(errAttemptTimeout) })
		x.done = func() { timer.Stop(); cancel(nil) }
		resp, err := rt.base.RoundTrip(req.Clone(ctx))
		if err == nil && resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
			resp.Body = newSSEGuard(x, resp.Body)
			return resp, nil
		}
		x.done()
		if err == nil {
			drain(resp, 0)
		} else if req.Context().Err() != nil {
			return nil, err
		}
	}
	kind := LossEOF
	if left <= 0 || x.timedOut.Load() {
		kind = LossTimeout
	}
	a.lose(Loss{Kind: kind, RetryAfter: -1, Err: errors.New("the stream could not be resumed")})
	resp := x.synthetic(req, errors.New("the stream could not be resumed"))
	resp.Header.Set("Content-Type", "text/event-stream")
	resp.Body = io.NopCloser(bytes.NewReader(sseEvent(syntheticError(x.id, "the stream could not be resumed"))))
	return resp, nil
}

// synthetic is the response that the SDK gets in place of one that was lost.
func (x *exchange) synthetic(req *http.Request, cause error) *http.Response {
	body := syntheticError(x.id, cause.Error())
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {"application/json"}},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       req,
	}
}

// syntheticError is a JSON-RPC error for a call. Its code says nothing: the
// middleware above the SDK acts on what the attempt recorded.
func syntheticError(id json.RawMessage, message string) []byte {
	b, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id,
		"error": map[string]any{"code": -32603, "message": "clientretry: " + message},
	})
	if err != nil {
		panic(err) // id was JSON when it came
	}
	return b
}

const maxErrorBody = 64 << 10

// drain reads at most n bytes of a body and closes it.
func drain(resp *http.Response, n int64) string {
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, n))
	return string(b)
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

func isErrorResponse(body string) bool {
	env, err := wire.ParseEnvelope([]byte(body))
	return err == nil && len(env.Error) > 0 && string(env.Error) != "null" && len(env.Result) == 0
}

// retryAfter reads a Retry-After header, in seconds or as a date; negative
// when there is none that can be read.
func retryAfter(value string) time.Duration {
	if value == "" {
		return -1
	}
	if s, err := strconv.ParseInt(value, 10, 64); err == nil {
		if s < 0 || s > int64(maxWait/time.Second) {
			return maxWait
		}
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), maxWait)
	}
	return -1
}

// maxWait bounds what a server can ask a client to wait.
const maxWait = time.Hour
