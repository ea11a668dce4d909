package clientretry

import (
	"context"
	"encoding/json"
	"errors"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// This file turns what an attempt ended in into an event, from what the
// transport saw and what the server said, never from a text; and into what the
// caller is told.

// classify says how an attempt ended, and with what cause.
func (c *call) classify(ctx context.Context, l *link, s seen, res mcp.Result, err error) (mcp.Result, event, error) {
	switch {
	case err == nil:
		return res, c.result(l, res), nil
	case s.foreign:
		return nil, plain(otherIdentity), errIdentityChanged
	case len(s.sent) == 0 && ctx.Err() != nil:
		return nil, plain(cancelledBefore), err
	case len(s.sent) == 0:
		return nil, plain(noConnection), err
	case s.end == answeredEnd && s.rpc != nil:
		e, cause := c.rpcError(l, s.rpc, err)
		return nil, e, cause
	case ctx.Err() != nil && s.end != lostEnd:
		return nil, plain(cancelled), c.lose(newLoss(LossCancelled, err))
	case s.end == answeredEnd && s.interim && isClosed(err):
		return nil, plain(notSent), err // the connection died while the question was being answered
	case s.end == answeredEnd && s.interim:
		return nil, plain(unmarkedError), err // a handler of the client's own failed
	case s.end == answeredEnd:
		return nil, plain(undecodable), err
	case s.end == refusedEnd:
		if s.handedOn { // and the SDK's OAuth handler has failed over it
			return nil, plain(refused), errors.Join(s.refusal, err)
		}
		return nil, plain(refused), s.refusal
	case s.end == lostEnd:
		return nil, lossEvent(s.loss), c.lose(s.loss)
	}
	return nil, plain(lost), c.lose(newLoss(LossOther, err))
}

func lossEvent(l *Loss) event {
	e := event{kind: lost, wait: l.RetryAfter}
	switch l.Kind {
	case LossNotSent:
		e.kind = notSent
	case LossSession:
		e.kind = sessionEnded
	case LossTooLarge:
		e.kind = tooLarge
	case LossStatus:
		if errors.Is(l.Err, errUnlisted) {
			e.kind = unlisted
		}
	}
	return e
}

func (c *call) result(l *link, res mcp.Result) event {
	replayed, ok := isReplayed(res.GetMeta()[schema.ExtensionID])
	if !ok || c.key == "" {
		return plain(unmarkedResult)
	}
	l.prove()
	c.report.KeyHonoured, c.report.Replayed = true, replayed
	return plain(marked)
}

// rpcError sorts the JSON-RPC errors that the server has answered with.
func (c *call) rpcError(l *link, rpc *jsonrpc.Error, err error) (event, error) {
	var told *jsonrpc.Error
	if !errors.As(err, &told) || told.Code != rpc.Code {
		err = errors.Join(err, rpc) // the SDK has said something else of it
	}
	if replayed, ok := errorMarker(rpc.Data); ok && c.key != "" {
		l.prove()
		c.report.KeyHonoured, c.report.Replayed = true, replayed
		return plain(marked), err
	}
	if data, ok := extensionData(rpc); ok && l.declared() != nil {
		return c.extension(l, data), err
	}
	if rpc.Code == codeServer || rpc.Code == codeTimeout {
		// Proxies put a lost response into these.
		return plain(lost), c.lose(newLoss(LossProxy, err))
	}
	return plain(unmarkedError), err
}

// extension is an error of the extension itself.
func (c *call) extension(l *link, data schema.ErrorData) event {
	e := plain(extensionEvent(data))
	if data.RetryAfterMs != nil && *data.RetryAfterMs >= 0 {
		e.wait = milliseconds(*data.RetryAfterMs)
	}
	if schema.CheckNamespace(data.KeyNamespace) == nil {
		e.namespace = data.KeyNamespace
		l.renamed(e.namespace)
	}
	if c.key != "" && provesPath(data) {
		l.prove()
		c.report.KeyHonoured = true
	}
	switch {
	case e.kind == extKeyUnsupported:
		l.hint(c.params.Name, true)
	case data.Reason == schema.ReasonKeyRequired:
		l.hint(c.params.Name, false)
	case e.kind == extRunning, e.kind == extRunningWaiting:
		c.report.Losses = append(c.report.Losses, *newLoss(LossInProgress, nil))
	}
	return e
}

// JSON-RPC codes that do not say whether the call ran.
const (
	codeServer  = -32000
	codeTimeout = -32001
)

// extensionData returns the data of an error of the extension. Data that
// cannot be read says that nothing is known.
func extensionData(rpc *jsonrpc.Error) (data schema.ErrorData, ok bool) {
	if rpc.Code != schema.ErrorCode {
		return data, false
	}
	if json.Unmarshal(rpc.Data, &data) != nil {
		return schema.ErrorData{Outcome: schema.OutcomeUnknown}, true
	}
	return data, true
}

// lose notes a loss in the report and returns it as the cause.
func (c *call) lose(l *Loss) error {
	c.report.Losses = append(c.report.Losses, *l)
	if l.Kind != LossNotSent && l.Kind != LossPathCheck {
		c.since = l.At
	}
	c.opt.Logger.Info("clientretry: response lost", "tool", c.params.Name, "key", schema.ShortKey(c.key),
		"attempt", c.report.Attempts, "kind", l.Kind.String())
	return l
}

// duplicate notes that the tool may have run twice.
func (c *call) duplicate() {
	c.report.PossibleDuplicate = true
	c.opt.Logger.Warn("clientretry: the tool may have run twice: a call that was sent again was answered without a sign that its key was known",
		"tool", c.params.Name, "key", schema.ShortKey(c.key), "attempts", c.report.Attempts)
}

// ended ends a call that a bound, or the caller, stopped.
func (c *call) ended(cause error) error {
	if c.h.open() {
		return c.unknown(cause)
	}
	return c.notRun(cause)
}

func (c *call) unknown(cause error) error {
	return &UnknownOutcomeError{Tool: c.params.Name, Key: c.key, Attempts: c.report.Attempts, Cause: cause}
}

func (c *call) notRun(cause error) error {
	e := &NotRunError{Tool: c.params.Name, Key: c.key, Attempts: c.report.Attempts, Cause: cause}
	var rpc *jsonrpc.Error
	if errors.As(cause, &rpc) {
		if data, ok := extensionData(rpc); ok {
			e.Data = &data
		}
	}
	return e
}

// The path check: a call of a tool that does not exist with a key that is
// malformed. Since a server with the extension checks the key first, the
// answer tells whether keys arrive, and nothing runs in either case.
const (
	pathCheckTool = "idempotency_path_check"
	pathCheckKey  = "!"
)

var errNoProof = errors.New("a response was lost, and there is no proof that idempotency keys reach the server: nothing was sent again")

// checkPath makes the path check. Its error says that the path is not proven.
func (c *call) checkPath(ctx context.Context, l *link) (event, error) {
	c.report.PathChecks++
	meta := maps.Clone(c.params.Meta)
	delete(meta, "progressToken") // progress of this would be taken for the call's
	params := &mcp.CallToolParams{Meta: meta, Name: pathCheckTool, Arguments: map[string]any{}}
	a, _, err := c.send(ctx, l, params, pathCheckKey, 0)
	s := a.seen()
	switch {
	case s.foreign:
		return plain(otherIdentity), errIdentityChanged
	case s.end == answeredEnd && s.rpc != nil:
		data, ok := extensionData(s.rpc)
		switch {
		case ok && data.Reason == schema.ReasonKeyInvalid:
			l.prove()
			return event{}, nil
		case s.rpc.Code == codeServer, s.rpc.Code == codeTimeout:
			return plain(pathLost), c.lose(newLoss(LossPathCheck, s.rpc))
		}
		return plain(pathUnproven), errors.Join(errNoProof, s.rpc)
	case ctx.Err() != nil:
		return plain(cancelledBefore), ctx.Err()
	case s.end == answeredEnd:
		return plain(pathUnproven), errNoProof
	case s.end == refusedEnd:
		return plain(pathUnproven), errors.Join(errNoProof, s.refusal)
	}
	e := plain(pathLost)
	if s.loss != nil {
		err, e.wait = s.loss, s.loss.RetryAfter
	}
	return e, c.lose(newLoss(LossPathCheck, err))
}
