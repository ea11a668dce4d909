package clientretry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// jsonGuard is the body of an application/json response. It gives the SDK the
// response to the call, or an error in its place when what came is something
// else: the SDK would give the session up over it.
type jsonGuard struct {
	x    *exchange
	body io.ReadCloser
	out  *bytes.Reader
}

// Read implements io.Reader.
func (g *jsonGuard) Read(p []byte) (int, error) {
	if g.out == nil {
		g.out = bytes.NewReader(g.x.jsonBody(g.body))
	}
	return g.out.Read(p)
}

// Close implements io.Closer.
func (g *jsonGuard) Close() error {
	g.x.close()
	return g.body.Close()
}

// jsonBody reads the whole body: a JSON text is nothing before its end.
func (x *exchange) jsonBody(body io.Reader) []byte {
	if x.rt.maxJSON >= 0 {
		body = io.LimitReader(body, x.rt.maxJSON+1)
	}
	b, err := io.ReadAll(body)
	x.close()
	var l *Loss
	switch {
	case err != nil:
		l = x.brokenOff(err)
	case len(b) == 0:
		l = newLoss(LossEOF, fmt.Errorf("%w: empty body", errNoResponse))
	case x.rt.maxJSON >= 0 && int64(len(b)) > x.rt.maxJSON:
		l = newLoss(LossTooLarge, fmt.Errorf("%w: more than %d bytes", errTooLarge, x.rt.maxJSON))
	default:
		msg, err := decodeMessage(b)
		if resp, ok := msg.(*jsonrpc.Response); err == nil && ok && resp.ID == x.r.id && wellFormed(resp) {
			x.r.answer(resp)
			return b
		}
		l = newLoss(LossMalformed, fmt.Errorf("%w: the body does not answer the call", errMalformed))
	}
	x.r.lose(l)
	return syntheticError(x.r.id, l)
}

// brokenOff is the loss behind a read error.
func (x *exchange) brokenOff(err error) *Loss {
	switch {
	case x.r.expired():
		return newLoss(LossTimeout, errAttemptTimeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return newLoss(LossEOF, err)
	}
	return newLoss(LossReset, err)
}

// sseGuard is the body of a text/event-stream response. Events pass one by
// one, as they come. When the stream ends without the response to the call, or
// is not what the SDK can read, an event with an error for the call ends it.
type sseGuard struct {
	x    *exchange
	body io.ReadCloser
	src  *sseReader
	out  []byte // of the event that Read is giving out
	done bool   // nothing more is passed on
	rest bool   // the response has come; what follows is read and dropped
	err  error  // what Read returns when out is empty and done

	lastID string
	polled bool // the server asked to be polled for the response (SEP-1699)
	toLong bool // and with a delay that nobody can want
}

func newSSEGuard(x *exchange, body io.ReadCloser) *sseGuard {
	return &sseGuard{x: x, body: body, src: newSSEReader(body, x.rt.maxEvent), err: io.EOF}
}

// Read implements io.Reader.
func (g *sseGuard) Read(p []byte) (int, error) {
	for len(g.out) == 0 {
		if g.rest {
			g.drain()
		}
		if g.done {
			return 0, g.err
		}
		g.next()
	}
	n := copy(p, g.out)
	g.out = g.out[n:]
	return n, nil
}

// Close implements io.Closer.
func (g *sseGuard) Close() error {
	g.x.close()
	return g.body.Close()
}

// drain reads what a server sends after the response, so that the connection
// can be used again, but does not wait for a server that keeps the stream.
func (g *sseGuard) drain() {
	timer := time.AfterFunc(drainTime, g.x.stop)
	_, _ = io.CopyN(io.Discard, g.src, maxErrorBody)
	timer.Stop()
	g.x.close()
	g.rest, g.done = false, true
}

const drainTime = 100 * time.Millisecond

// next reads one event and decides what the SDK gets.
func (g *sseGuard) next() {
	e, err := g.src.next()
	switch {
	case errors.Is(err, errTooLarge):
		g.lose(newLoss(LossTooLarge, err))
		return
	case errors.Is(err, errMalformed):
		g.lose(newLoss(LossMalformed, err))
		return
	}
	if e.message && !g.message(e, err) {
		return
	}
	if err != nil {
		g.ended(err)
		return
	}
	g.note(e)
	g.out = e.raw
}

// message looks at an event with a message. It returns false when that has
// settled what the SDK gets.
func (g *sseGuard) message(e sseEvent, readErr error) (passes bool) {
	msg, err := decodeMessage(e.data)
	resp, isResponse := msg.(*jsonrpc.Response)
	switch {
	case err != nil && readErr != nil:
		return true // cut off in the middle: the end of the stream is what counts
	case err != nil:
		g.lose(newLoss(LossMalformed, fmt.Errorf("%w: an event is not a JSON-RPC message", errMalformed)))
	case isResponse && resp.ID != g.x.r.id:
		// It belongs to no call on this stream, and the SDK would give it to
		// whatever call has the id.
		g.note(e)
	case isResponse && !wellFormed(resp):
		g.lose(newLoss(LossMalformed, fmt.Errorf("%w: neither result nor error, or both", errMalformed)))
	case isResponse:
		g.x.r.answer(resp)
		g.x.r.onWire(nil)
		g.out, g.rest = e.raw, true
		if readErr != nil {
			g.out = append(g.out, "\n\n"...) // complete what the end has cut short
		}
	default:
		return true
	}
	return false
}

// note keeps what a resumption would need.
func (g *sseGuard) note(e sseEvent) {
	if e.id != "" {
		g.lastID = e.id
	}
	if e.retry >= 0 {
		g.polled = true
		g.toLong = e.retry > maxResumeDelay
	}
}

const maxResumeDelay = time.Minute

// ended is the end of the stream without the response. What is cut off of an
// event is dropped: the SDK would take it for a whole one.
func (g *sseGuard) ended(err error) {
	x := g.x
	if x.req.Context().Err() != nil && !x.r.expired() { // the caller's own doing
		g.done, g.err = true, err
		x.close()
		return
	}
	if g.resumable(err) {
		g.done, g.err = true, err // the SDK takes the stream up again
		if g.lastID == "" {       // and looks for the id of an event in this one alone
			g.out = []byte("id: " + x.req.Header.Get("Last-Event-ID") + "\n\n")
		}
		x.close()
		return
	}
	g.lose(x.brokenOff(err))
}

// resumable decides who goes on after a broken stream. A call with a key is
// settled at once: sending it again finds its record, or joins its run. Only
// where the server itself has closed the stream and asked to be polled is that
// what it wants. A call without a key has nothing better than to resume.
func (g *sseGuard) resumable(err error) bool {
	switch {
	case g.lastID == "" && g.x.req.Header.Get("Last-Event-ID") == "":
		return false
	case g.x.r.expired() || g.toLong || g.x.rt.resumes < 1:
		return false
	case g.x.r.a.keyed() && (!g.polled || !errors.Is(err, io.EOF)):
		return false
	case g.x.progress(g.lastID):
		return true
	}
	return !g.x.fruitless()
}

// lose ends the stream with a loss.
func (g *sseGuard) lose(l *Loss) {
	g.x.r.lose(l)
	g.out, g.done = sseMessage(syntheticError(g.x.r.id, l)), true
	g.x.close()
}
