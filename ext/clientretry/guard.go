package clientretry

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
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
	g.x.done()
	return g.body.Close()
}

// jsonBody reads the whole body: a JSON text is nothing before its end.
func (x *exchange) jsonBody(body io.Reader) []byte {
	defer x.done()
	b, err := io.ReadAll(io.LimitReader(body, maxJSONBody+1))
	switch {
	case err != nil:
		x.lostIn(err)
	case len(b) == 0:
		x.a.lose(Loss{Kind: LossEOF, RetryAfter: -1, Err: errors.New("empty body")})
	case len(b) > maxJSONBody:
		x.a.lose(Loss{Kind: LossMalformed, RetryAfter: -1, Err: fmt.Errorf("body exceeds %d bytes", maxJSONBody)})
	case !x.answers(b):
		x.a.lose(Loss{Kind: LossMalformed, RetryAfter: -1, Err: errors.New("the body is not a response to the call")})
	default:
		x.a.answered()
		return b
	}
	return syntheticError(x.id, "response lost")
}

// maxJSONBody bounds a JSON response, in bytes.
const maxJSONBody = 256 << 20

// answers reports whether msg is a well-formed response to this call.
func (x *exchange) answers(msg []byte) bool {
	env, err := wire.ParseEnvelope(msg)
	return err == nil && env.IsResponse() && sameID(env.ID, x.id) && decodable(env)
}

// sameID compares ids as the SDK does: a string is not a number.
func sameID(a, b json.RawMessage) bool {
	return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b))
}

// decodable reports whether the SDK can decode the response, which otherwise
// ends its session.
func decodable(env *wire.Envelope) bool {
	if len(env.Error) == 0 {
		return true
	}
	var e struct {
		Code    *int64 `json:"code"`
		Message *string
	}
	return json.Unmarshal(env.Error, &e) == nil && e.Code != nil
}

// lostIn records the loss behind a read error.
func (x *exchange) lostIn(err error) {
	switch {
	case x.timedOut.Load():
		x.a.lose(Loss{Kind: LossTimeout, RetryAfter: -1, Err: errAttemptTimeout})
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		x.a.lose(Loss{Kind: LossEOF, RetryAfter: -1, Err: err})
	default:
		x.a.lose(Loss{Kind: LossReset, RetryAfter: -1, Err: err})
	}
}

// sseGuard is the body of a text/event-stream response. Events pass one by
// one, as they come. When the stream ends without the response to the call, or
// is not what the SDK can read, an event with an error for the call ends it.
type sseGuard struct {
	x    *exchange
	body io.ReadCloser
	src  *bufio.Reader
	out  []byte // of the event that Read is giving out
	done bool   // nothing more is read from src
	err  error  // what Read returns when out is empty and done
}

func newSSEGuard(x *exchange, body io.ReadCloser) *sseGuard {
	return &sseGuard{x: x, body: body, src: bufio.NewReader(body), err: io.EOF}
}

// Read implements io.Reader.
func (g *sseGuard) Read(p []byte) (int, error) {
	for len(g.out) == 0 {
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
	g.x.done()
	return g.body.Close()
}

// next reads one event and decides what the SDK gets.
func (g *sseGuard) next() {
	e, err := g.readEvent()
	if e.id {
		g.x.resumable = true
	}
	switch {
	case errors.Is(err, errMalformed):
		g.lose(Loss{Kind: LossMalformed, RetryAfter: -1, Err: err})
		return
	case e.message:
		switch env, perr := wire.ParseEnvelope(e.data); {
		case perr != nil || env.Method == "" && len(env.ID) == 0:
			g.lose(Loss{Kind: LossMalformed, RetryAfter: -1, Err: errors.New("an event is not a JSON-RPC message")})
			return
		case g.x.answers(e.data):
			g.out, g.done = append(e.raw, "\n"...), true // complete it, should the end have come first
			g.x.a.answered()
			g.x.done()
			return
		case env.Method == "" && (sameID(env.ID, g.x.id) || !env.IsResponse()):
			g.lose(Loss{Kind: LossMalformed, RetryAfter: -1, Err: errors.New("an event is not a well-formed response")})
			return
		}
		g.x.a.progressed()
	}
	if err == nil {
		g.out = e.raw
		return
	}
	if g.x.resumable && !g.x.a.keyed() && !g.x.timedOut.Load() {
		g.out, g.done, g.err = e.raw, true, err // the SDK takes the stream up again
		g.x.done()
		return
	}
	g.x.lostIn(err)
	g.finish()
}

// lose ends the stream with a loss.
func (g *sseGuard) lose(l Loss) {
	g.x.a.lose(l)
	g.finish()
}

func (g *sseGuard) finish() {
	g.out, g.done = sseEvent(syntheticError(g.x.id, "response lost")), true
	g.x.done()
}

// sseEvent frames a message, after a line end that closes whatever was open.
func sseEvent(data []byte) []byte {
	return append(append([]byte("event: message\ndata: "), data...), "\n\n"...)
}

var errMalformed = errors.New("malformed event")

// sseEvent is one server-sent event.
type sseEventData struct {
	raw     []byte // as it came, with the blank line
	data    []byte
	id      bool
	message bool // has data and is of the type that MCP uses
}

// readEvent reads up to and with the next blank line. At the end of the stream
// it returns what there was, and the error.
func (g *sseGuard) readEvent() (e sseEventData, err error) {
	name := "message"
	for {
		line, err := g.readLine(len(e.raw))
		if errors.Is(err, errMalformed) {
			return e, err
		}
		e.raw = append(e.raw, line...)
		text := bytes.TrimRight(line, "\r\n")
		if len(text) > 0 {
			field, value, ok := bytes.Cut(text, []byte(":"))
			if !ok {
				if err != nil && !errors.Is(err, io.EOF) {
					return e, err // the line was cut, not malformed
				}
				return e, fmt.Errorf("%w: a line without a colon", errMalformed)
			}
			switch value = bytes.TrimSpace(value); string(field) {
			case "event":
				name = string(value)
			case "id":
				e.id = e.id || len(value) > 0
			case "data":
				if e.data != nil {
					e.data = append(e.data, '\n')
				}
				e.data = append(e.data, value...)
			}
		}
		if err != nil || len(text) == 0 {
			e.message = len(e.data) > 0 && (name == "message" || name == "")
			if err != nil && e.message && !json.Valid(e.data) {
				e.message = false // cut in the middle
			}
			return e, err
		}
	}
}

// readLine reads a line of an event that already has n bytes.
func (g *sseGuard) readLine(n int) ([]byte, error) {
	var line []byte
	for {
		part, err := g.src.ReadSlice('\n')
		line = append(line, part...)
		if g.x.rt.maxEvent > 0 && n+len(line) > g.x.rt.maxEvent {
			return nil, fmt.Errorf("%w: larger than %d bytes", errMalformed, g.x.rt.maxEvent)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}
