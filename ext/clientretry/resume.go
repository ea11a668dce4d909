package clientretry

import (
	"errors"
	"net/http"
)

var errNotResumed = errors.New("the stream could not be resumed")

// maxFruitless is how many streams and requests in a row may bring nothing new
// before a call is settled.
const maxFruitless = 3

// resume handles the SDK's attempts to take a broken stream up again. It lets
// them through, and settles the call when they lead nowhere, which would end
// the SDK's session.
func (rt *roundTripper) resume(req *http.Request, a *attempt) (*http.Response, error) {
	r := a.current()
	if r == nil { // settled meanwhile
		s := a.seen()
		if len(s.sent) == 0 {
			return rt.base.RoundTrip(req)
		}
		a.mu.Lock()
		id := a.rounds[len(a.rounds)-1].id
		a.mu.Unlock()
		return newResponse(req, "text/event-stream", sseMessage(syntheticError(id, errNotResumed))), nil
	}
	x := &exchange{rt: rt, r: r, req: req}
	resp, err := rt.base.RoundTrip(x.open())
	if err == nil && resp.StatusCode == http.StatusOK && contentType(resp.Header) == "text/event-stream" {
		resp.Body = newSSEGuard(x, resp.Body)
		resp.ContentLength = -1
		return resp, nil
	}
	again := err != nil
	if err == nil {
		drain(resp, 0)
		again = resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500
		err = &HTTPError{Status: resp.StatusCode}
	}
	x.close()
	switch {
	case req.Context().Err() != nil && !r.expired():
		return nil, err
	case r.expired():
		r.lose(newLoss(LossTimeout, errAttemptTimeout))
	case again && !x.fruitless():
		return nil, err // the SDK waits, and asks again
	default:
		l := newLoss(LossResume, errors.Join(errNotResumed, err))
		if resp != nil {
			l.Status = resp.StatusCode
		}
		r.lose(l)
	}
	return newResponse(req, "text/event-stream", sseMessage(syntheticError(r.id, errNotResumed))), nil
}

// fruitless counts what brought nothing, and reports whether it is enough. The
// SDK must not be the first to give up.
func (x *exchange) fruitless() bool {
	x.r.a.mu.Lock()
	defer x.r.a.mu.Unlock()
	x.r.fruitless++
	return x.r.fruitless >= min(maxFruitless, x.rt.resumes)
}

// progress notes the id of the last event of a stream.
func (x *exchange) progress(id string) (further bool) {
	x.r.a.mu.Lock()
	defer x.r.a.mu.Unlock()
	if id == "" || id == x.r.lastEvent {
		return false
	}
	x.r.lastEvent, x.r.fruitless = id, 0
	return true
}
