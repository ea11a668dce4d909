package clientretry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
)

// endpoint stands for one connection's transport, so that an attempt is not
// taken for one of another connection whose context it happens to inherit.
type endpoint struct {
	mu      sync.Mutex
	dead    error
	closing sync.WaitGroup // of closes that go on in the background
}

// die marks the connection as broken.
func (e *endpoint) die(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead == nil {
		e.dead = err
	}
}

// broken returns why the connection is dead; nil when it is not.
func (e *endpoint) broken() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead
}

type attemptContext struct{}

// attemptOf returns the attempt of a context if it is one of this endpoint.
func (e *endpoint) attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptContext{}).(*attempt)
	if a == nil || a.endpoint != e {
		return nil
	}
	return a
}

var (
	errAttemptTimeout  = errors.New("attempt timeout")
	errIdentityChanged = errors.New("the request would go out under another identity than an attempt before it")
	errMalformed       = errors.New("malformed response")
	errTooLarge        = errors.New("response too large")
)

// attempt is what the middleware and the transport below the SDK share about
// one pass through the SDK. The context carries it from the one to the other.
// It has one round for every JSON-RPC request; a multi round-trip call has
// several.
type attempt struct {
	endpoint *endpoint
	key      wire.Key // Value is empty for an unkeyed attempt
	identity *identity
	// timeout gives the attempt timeout of the i-th round; zero for none.
	timeout func(i int) time.Duration
	// abort cancels the SDK's own context, which makes it tell the server so.
	// It is for a timeout that finds nothing on the wire to be cancelled.
	abort context.CancelFunc

	mu      sync.Mutex
	rounds  []*round
	foreign bool // a request was held back: it had another identity
	flying  int  // exchanges that go on
	over    bool // the SDK has returned
}

// roundEnd is how a round ended. The zero value is the ambiguous one.
type roundEnd uint8

const (
	// pending: it may run, and no answer has come.
	pending roundEnd = iota
	// answered: a well-formed response to it was handed to the SDK.
	answeredEnd
	// lostEnd: it was given up, see loss.
	lostEnd
	// refusedEnd: a status came in the place of a response, see refusal.
	refusedEnd
)

// round is one JSON-RPC request on the wire.
type round struct {
	a      *attempt
	id     jsonrpc.ID
	sentAt time.Time

	// All below is guarded by a.mu.
	end     roundEnd
	loss    *Loss
	refusal *HTTPError
	rpc     *jsonrpc.Error // what an answered round was answered with, if an error
	interim bool           // it was answered with a question

	timer    *time.Timer
	timedOut bool
	onExpiry func()        // what a timeout does to what is on the wire
	settled  chan struct{} // closed at the end

	denials   int    // 401 and 403 answers
	handedOn  bool   // the last of them went to the SDK as it came
	lastEvent string // id of the last server-sent event
	fruitless int    // streams and requests in a row that did not get further
}

// begin notes that a round is about to be written. A request that the SDK
// sends again, after authorization or a redirect, is the same round.
func (a *attempt) begin(id jsonrpc.ID) *round {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.rounds); n > 0 && a.rounds[n-1].id == id {
		r := a.rounds[n-1]
		if r.end == refusedEnd {
			r.end, r.refusal, r.settled = pending, nil, make(chan struct{})
			r.arm(n - 1)
		}
		return r
	}
	r := &round{a: a, id: id, sentAt: time.Now(), settled: make(chan struct{})}
	a.rounds = append(a.rounds, r)
	r.arm(len(a.rounds) - 1)
	return r
}

// arm starts the attempt timeout. a.mu is held.
func (r *round) arm(i int) {
	if d := r.a.timeout(i); d > 0 {
		r.timer = time.AfterFunc(d, r.expire)
	}
}

// current returns the last round if it is pending.
func (a *attempt) current() *round {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.rounds); n > 0 && a.rounds[n-1].end == pending {
		return a.rounds[n-1]
	}
	return nil
}

// hold notes that a request was not sent because of its identity.
func (a *attempt) hold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.foreign = true
}

// keyed reports whether the attempt carries a key.
func (a *attempt) keyed() bool { return a.key.Value != "" }

// onWire says what a timeout is to do; nil when nothing of the round is on the
// wire, as between a broken stream and its resumption. A timeout that has
// passed already does it at once.
func (r *round) onWire(f func()) {
	r.a.mu.Lock()
	r.onExpiry = f
	late := r.timedOut && f != nil
	r.a.mu.Unlock()
	if late {
		f()
	}
}

// expire is the attempt timeout.
func (r *round) expire() {
	r.a.mu.Lock()
	if r.end != pending {
		r.a.mu.Unlock()
		return
	}
	r.timedOut = true
	stop := r.onExpiry
	r.a.mu.Unlock()
	if stop != nil {
		stop() // and what reads from the wire sees to the rest
		return
	}
	r.lose(newLoss(LossTimeout, errAttemptTimeout))
	r.a.abort()
}

// expired reports whether the attempt timeout has passed.
func (r *round) expired() bool {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	return r.timedOut
}

// finish ends the round, once. It reports whether it did.
func (r *round) finish(end roundEnd, set func()) bool {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if r.end != pending {
		return false
	}
	r.end = end
	set()
	if r.timer != nil {
		r.timer.Stop()
	}
	close(r.settled)
	return true
}

// lose records the loss of the round.
func (r *round) lose(l *Loss) bool {
	return r.finish(lostEnd, func() { r.loss = l })
}

// refuse records a definite refusal.
func (r *round) refuse(e *HTTPError) {
	r.finish(refusedEnd, func() { r.refusal = e })
}

// answer records the response to the round.
func (r *round) answer(resp *jsonrpc.Response) {
	var rpc *jsonrpc.Error
	errors.As(resp.Error, &rpc)
	interim := isInterim(resp.Result)
	r.finish(answeredEnd, func() { r.rpc, r.interim = rpc, interim })
}

// isInterim reports whether a result asks for input, and so is not the end of
// its call.
func isInterim(result json.RawMessage) bool {
	if !bytes.Contains(result, []byte("input_required")) {
		return false
	}
	var r struct {
		ResultType string `json:"resultType"`
	}
	return json.Unmarshal(result, &r) == nil && r.ResultType == "input_required"
}

// seen is a snapshot of what the transport saw.
type seen struct {
	sent    []time.Time // when each round was
	foreign bool
	begun   bool // a round was answered with a question
	// Of the last round, see there.
	end      roundEnd
	loss     *Loss
	refusal  *HTTPError
	rpc      *jsonrpc.Error
	interim  bool
	handedOn bool
}

func (a *attempt) seen() seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := seen{foreign: a.foreign}
	for _, r := range a.rounds {
		s.sent = append(s.sent, r.sentAt)
		s.begun = s.begun || r.interim
		s.end, s.loss, s.refusal, s.rpc, s.interim, s.handedOn = r.end, r.loss, r.refusal, r.rpc, r.interim, r.handedOn
	}
	s.sent = slices.Clip(s.sent)
	return s
}

// enter and leave frame an exchange.
func (a *attempt) enter() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flying++
}

func (a *attempt) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flying--
	a.release()
}

// close ends what the attempt has running.
func (a *attempt) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, r := range a.rounds {
		if r.timer != nil {
			r.timer.Stop()
		}
	}
	a.release()
}

// release lets go of the context of an attempt that is over. Not before its
// last exchange: what follows a response is read so that the connection can be
// used again. a.mu is held.
func (a *attempt) release() {
	if a.over && a.flying == 0 {
		a.abort()
	}
}

// wellFormed reports whether a response that the SDK can decode is one: a
// result or an error, and not both or neither.
func wellFormed(r *jsonrpc.Response) bool {
	result := len(r.Result) > 0 && string(r.Result) != "null"
	return result != (r.Error != nil)
}
