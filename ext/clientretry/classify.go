package clientretry

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// classify says how an attempt ended, from what the transport saw and from
// what the server said, never from a text. It replaces *err by the cause to
// report. It returns nil when the call has ended.
func (c *call) classify(ctx context.Context, l *link, a *attempt, res mcp.Result, err *error) *event {
	s := a.seen()
	c.sent = c.sent || len(s.rounds) > 0
	for i, at := range s.rounds {
		if i == len(c.rounds) {
			c.rounds = append(c.rounds, at)
		}
		c.roundAt = c.rounds[i]
	}
	if len(s.rounds) > 1 {
		// Rounds before the last one ran; from here the call is never "not run".
		c.h.open = c.h.open || *err != nil && c.transportFault(s)
	}
	switch {
	case *err == nil:
		return c.classifyResult(l, res)
	case s.changed:
		*err = c.ended(errIdentityChanged)
		return nil
	case ctx.Err() != nil:
		if len(s.rounds) > 0 {
			c.h.open = true
			c.report.Losses = append(c.report.Losses, Loss{Kind: LossCancelled, At: time.Now(), RetryAfter: -1, Err: *err})
		}
		if c.h.open {
			*err = c.unknown(*err)
		}
		return nil
	case s.loss != nil:
		*err = c.lose(*s.loss)
		return lossEvent(s)
	case s.refusal != nil:
		*err = s.refusal
		return &event{kind: refused, wait: -1}
	case len(s.rounds) == 0:
		*err = c.lose(Loss{Kind: LossNotSent, At: time.Now(), RetryAfter: -1, Err: *err})
		return &event{kind: notSent, wait: -1}
	case s.waiting:
		*err = c.lose(Loss{Kind: LossOther, At: time.Now(), RetryAfter: -1, Err: *err})
		return &event{wait: -1}
	}
	return c.classifyError(l, err)
}

// transportFault reports whether the round got no answer.
func (c *call) transportFault(s seen) bool {
	return s.loss != nil || s.refusal != nil || s.waiting || s.changed
}

func lossEvent(s seen) *event {
	e := &event{kind: lost, wait: s.loss.RetryAfter}
	if len(s.rounds) > 1 {
		return e
	}
	switch s.loss.Kind {
	case LossNotSent:
		e.kind = notSent
	case LossSession:
		e.kind = sessionEnded
	}
	return e
}

func (c *call) classifyResult(l *link, res mcp.Result) *event {
	replayed, ok := isReplayed(res.GetMeta()[schema.ExtensionID])
	if !ok || c.key == "" {
		return &event{kind: unmarkedResult, wait: -1}
	}
	l.prove()
	c.report.KeyHonoured, c.report.Replayed = true, replayed
	return &event{kind: marked, wait: -1}
}

// classifyError sorts the errors that the server, or the SDK, gave.
func (c *call) classifyError(l *link, err *error) *event {
	var e *jsonrpc.Error
	if !errors.As(*err, &e) {
		return &event{kind: unmarkedError, wait: -1}
	}
	if replayed, ok := errorMarker(e.Data); ok && c.key != "" {
		l.prove()
		c.report.KeyHonoured, c.report.Replayed = true, replayed
		return &event{kind: marked, wait: -1}
	}
	if data, ok := extensionData(*err); ok && c.key != "" {
		l.prove()
		l.renamed(data.KeyNamespace)
		c.report.KeyHonoured = true
		if schema.CheckNamespace(data.KeyNamespace) != nil {
			data.KeyNamespace = ""
		}
		wait := time.Duration(-1)
		if data.RetryAfterMs != nil && *data.RetryAfterMs >= 0 {
			wait = milliseconds(*data.RetryAfterMs)
		}
		return &event{kind: extension, data: data, wait: wait}
	}
	if e.Code == codeServer || e.Code == codeTimeout {
		// Proxies put a lost response into these.
		*err = c.lose(Loss{Kind: LossProxy, At: time.Now(), RetryAfter: -1, Err: *err})
		return &event{kind: lost, wait: -1}
	}
	return &event{kind: unmarkedError, wait: -1}
}

// JSON-RPC codes that do not say whether the call ran.
const (
	codeServer  = -32000
	codeTimeout = -32001
)

// extensionData returns the data of an error of the extension.
func extensionData(err error) (data schema.ErrorData, ok bool) {
	var e *jsonrpc.Error
	if !errors.As(err, &e) || e.Code != schema.ErrorCode {
		return data, false
	}
	if json.Unmarshal(e.Data, &data) != nil {
		return schema.ErrorData{Outcome: schema.OutcomeUnknown}, true
	}
	return data, true
}
