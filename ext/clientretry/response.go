package clientretry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// receive decides what of a response the SDK gets to see.
func (x *exchange) receive(resp *http.Response) *http.Response {
	switch status := resp.StatusCode; {
	case x.req.Method != http.MethodPost && (status < 200 || status >= 400):
		// A redirect has made a GET of the call: what is refused is that.
		drain(resp, 0)
		l := newLoss(LossMalformed, fmt.Errorf("%w: the call was redirected to a GET", errNoResponse))
		l.Status = status
		return x.lost(l)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return x.denied(resp)
	case status >= 200 && status < 300:
		return x.success(resp)
	case redirects(status) && resp.Header.Get("Location") != "":
		x.close()
		return resp // http.Client follows, and comes here again
	}
	return x.failure(resp)
}

func redirects(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// denied lets the SDK's OAuth handler try once, and settles the call then.
func (x *exchange) denied(resp *http.Response) *http.Response {
	x.r.a.mu.Lock()
	x.r.denials++
	x.r.handedOn = x.r.denials == 1 && x.rt.oauth
	handOn := x.r.handedOn
	x.r.a.mu.Unlock()
	body := drain(resp, maxErrorBody)
	x.close()
	if handOn {
		x.r.refuse(&HTTPError{Status: resp.StatusCode})
		resp.Body = io.NopCloser(bytes.NewReader(body))
		return resp
	}
	refusal := &HTTPError{Status: resp.StatusCode, Body: string(body[:min(len(body), 512)])}
	x.r.refuse(refusal)
	return synthetic(x.req, x.r.id, refusal)
}

func (x *exchange) success(resp *http.Response) *http.Response {
	if sid := x.req.Header.Get("Mcp-Session-Id"); sid != "" && resp.Header.Get("Mcp-Session-Id") != sid {
		resp.Header.Del("Mcp-Session-Id") // another id would end the SDK's session
	}
	switch contentType(resp.Header) {
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
	l := newLoss(LossMalformed, fmt.Errorf("%w in content of type %q", errNoResponse, resp.Header.Get("Content-Type")))
	l.Status = resp.StatusCode
	return x.lost(l)
}

// failure sorts the statuses that are neither success nor about authorization.
func (x *exchange) failure(resp *http.Response) *http.Response {
	status := resp.StatusCode
	body := drain(resp, maxErrorBody)
	rpc, isRPC := x.rpcError(body)
	l := newLoss(LossStatus, nil)
	l.Status, l.RetryAfter = status, retryAfter(resp.Header.Get("Retry-After"))
	switch {
	case status == http.StatusNotFound && x.req.Header.Get("Mcp-Session-Id") != "":
		// Whatever the body says: some servers wrap this in a JSON-RPC error.
		x.rt.endpoint.die(mcp.ErrSessionMissing)
		l.Kind, l.Err = LossSession, mcp.ErrSessionMissing
		return x.lost(l)
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status == http.StatusBadGateway,
		status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout,
		status == http.StatusInternalServerError && !isRPC:
		return x.lost(l)
	case isRPC:
		x.close()
		return x.rpcFailure(resp, body, rpc)
	case status < 400:
		l.Kind, l.Err = LossMalformed, errNoResponse
		return x.lost(l)
	case !surelyRefused(status):
		// It may hide an effect, as a CDN's 524 does, and the SEP's list of
		// statuses after which to send again does not have it.
		l.Err = errUnlisted
		return x.lost(l)
	}
	x.close()
	refusal := &HTTPError{Status: status, Body: string(body[:min(len(body), 512)])}
	x.r.refuse(refusal)
	return synthetic(x.req, x.r.id, refusal)
}

// rpcFailure hands on a JSON-RPC error that came with a status. Where the SDK
// would throw it away, or end its session over an absent id, it gets it as the
// response that it is.
func (x *exchange) rpcFailure(resp *http.Response, body []byte, rpc *jsonrpc.Error) *http.Response {
	x.r.answer(&jsonrpc.Response{ID: x.r.id, Error: rpc})
	if msg, err := jsonrpc.DecodeMessage(body); err == nil && resp.StatusCode != http.StatusInternalServerError {
		if r, ok := msg.(*jsonrpc.Response); ok && r.ID == x.r.id {
			resp.Body = io.NopCloser(bytes.NewReader(body))
			return resp
		}
	}
	data, err := jsonrpc.EncodeMessage(&jsonrpc.Response{ID: x.r.id, Error: rpc})
	if err != nil {
		data = syntheticError(x.r.id, rpc)
	}
	return newResponse(x.req, "application/json", data)
}

// rpcError reads a body that is a JSON-RPC error for this round, or for a
// request whose id the server could not read.
func (x *exchange) rpcError(body []byte) (*jsonrpc.Error, bool) {
	var e struct {
		ID     json.RawMessage `json:"id"`
		Method json.RawMessage `json:"method"`
		Error  *struct {
			Code    *int64          `json:"code"`
			Message string          `json:"message"`
			Data    json.RawMessage `json:"data"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &e) != nil || e.Error == nil || e.Error.Code == nil || len(e.Method) > 0 {
		return nil, false
	}
	if len(e.ID) > 0 && string(e.ID) != "null" {
		var v any
		if json.Unmarshal(e.ID, &v) != nil {
			return nil, false
		}
		if id, err := jsonrpc.MakeID(v); err != nil || id != x.r.id {
			return nil, false
		}
	}
	return &jsonrpc.Error{Code: *e.Error.Code, Message: e.Error.Message, Data: e.Error.Data}, true
}

// errUnlisted marks a status that licenses no re-send.
var errUnlisted = errors.New("a status after which nothing is sent again")

const maxErrorBody = 64 << 10

// drain reads at most n bytes of a body and closes it.
func drain(resp *http.Response, n int64) []byte {
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, n))
	return b
}

// retryAfter reads a Retry-After header, in seconds or as a date; negative
// when there is none that can be read.
func retryAfter(value string) time.Duration {
	if s, err := strconv.ParseInt(value, 10, 64); err == nil {
		if s < 0 {
			return -1
		}
		return min(time.Duration(min(s, int64(maxWait/time.Second)))*time.Second, maxWait)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), maxWait)
	}
	return -1
}

// maxWait bounds what a server can ask a client to wait where nothing else
// does.
const maxWait = time.Hour

// surelyRefused reports whether a status, without a JSON-RPC body, says that
// whoever sent it did not let the request through. Every other one may hide an
// effect: a CDN's 524 does, and so may a 499 or a 409 that something in between
// made of an answer.
func surelyRefused(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusProxyAuthRequired,
		http.StatusLengthRequired, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
		http.StatusUnsupportedMediaType, http.StatusMisdirectedRequest, http.StatusUpgradeRequired,
		http.StatusRequestHeaderFieldsTooLarge, http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return true
	}
	return false
}
