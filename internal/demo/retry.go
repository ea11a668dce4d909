package demo

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// payRetry is the SDK's client with clientretry, whatever the server is.
func payRetry(ctx context.Context, p path, timeout time.Duration) (told, error) {
	opts := &clientretry.Options{
		AttemptTimeout: timeout,
		Deadline:       8 * time.Second,
		BackoffBase:    20 * time.Millisecond,
		BackoffMax:     200 * time.Millisecond,
	}
	if _, ok := p.(*stdioPath); ok {
		opts.Dial = p.dial // a dead process needs a successor
	}
	transport, err := p.dial(ctx)
	if err != nil {
		return told{}, err
	}
	session, err := clientretry.New(newClient(), opts).Connect(ctx, transport, nil)
	if err != nil {
		return told{}, err
	}
	defer func() { _ = session.Close() }() // may be dead, see closeSession
	t := told{started: time.Now()}
	res, err := session.CallTool(ctx, payment())
	t.at, t.outcome = time.Now(), retryOutcome(res, err)
	return t, nil
}

// retryOutcome names what clientretry tells a caller.
func retryOutcome(res *mcp.CallToolResult, err error) Outcome {
	var unknown *clientretry.UnknownOutcomeError
	var notRun *clientretry.NotRunError
	switch {
	case errors.As(err, &unknown):
		return OutcomeUnknown
	case errors.As(err, &notRun):
		return OutcomeFailed
	case err != nil:
		return OutcomeError
	}
	marker, _ := res.Meta[schema.ExtensionID].(map[string]any)
	if replayed, _ := marker["replayed"].(bool); replayed {
		return OutcomeReplayed
	}
	return OutcomeResult
}
