package clientretry

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
)

// endpoint stands for one connection's transport, so that an attempt is not
// taken for one of another connection whose context it happens to inherit.
type endpoint struct {
	mu   sync.Mutex
	dead error
}

// die marks the connection as broken.
func (e *endpoint) die(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead == nil {
		e.dead = err
	}
}

func (e *endpoint) broken() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead != nil
}

type attemptContext struct{}

// attempt is what the middleware and the transport below the SDK share about
// one attempt. The context carries it from the one to the other.
type attempt struct {
	endpoint *endpoint
	key      wire.Key // Value is empty for an unkeyed attempt
	timeout  time.Duration
	identity *identity

	mu      sync.Mutex
	id      json.RawMessage // of the last round
	rounds  []time.Time     // when each round was sent
	waiting bool            // the last round has no answer yet
	loss    *Loss
	refusal *HTTPError
	denied  int // 401 and 403 answers
	resumes int // GETs after which no event came
	changed bool
}

// attemptOf returns the attempt of a context if it is one of this endpoint.
func (e *endpoint) attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptContext{}).(*attempt)
	if a == nil || a.endpoint != e {
		return nil
	}
	return a
}

// sending notes that a round is about to be written.
func (a *attempt) sending(id json.RawMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.id = id
	a.rounds = append(a.rounds, time.Now())
	a.waiting = true
	a.resumes = 0
}

// answered notes that the round has its answer.
func (a *attempt) answered() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = false
}

// progressed notes that a resumed stream gave something.
func (a *attempt) progressed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resumes = 0
}

// lose records the first loss of the attempt.
func (a *attempt) lose(l Loss) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss == nil {
		l.At = time.Now()
		a.loss = &l
	}
}

// refuse records a definite refusal.
func (a *attempt) refuse(e *HTTPError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refusal == nil {
		a.refusal = e
	}
}

// keyed reports whether the attempt carries a key.
func (a *attempt) keyed() bool { return a.key.Value != "" }

// seen is a snapshot of what the transport saw.
type seen struct {
	rounds  []time.Time
	waiting bool
	loss    *Loss
	refusal *HTTPError
	changed bool
}

func (a *attempt) seen() seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	return seen{slices.Clone(a.rounds), a.waiting, a.loss, a.refusal, a.changed}
}
