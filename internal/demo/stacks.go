package demo

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A payer is a stack's client: it makes one payment over a path. The error
// is for a row that could not be played; what the caller of the tool was told
// is in told.
type payer func(ctx context.Context, p path, timeout time.Duration) (told, error)

// told is what a caller learned, and the two moments around it.
type told struct {
	outcome Outcome
	started time.Time // when the tool was called
	at      time.Time // when the call returned
}

func payerOf(s Stack) payer {
	switch s {
	case StackPlain:
		return payPlain
	case StackLoop:
		return payLoop
	}
	return payRetry
}

func payment() *mcp.CallToolParams {
	return &mcp.CallToolParams{Name: toolName, Arguments: map[string]any{"amount": 4200}}
}

func newClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "shop", Version: "1.0.0"}, nil)
}

func connect(ctx context.Context, p path) (*mcp.ClientSession, error) {
	t, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	return newClient().Connect(ctx, t, nil)
}

// payPlain is the SDK as the manual shows it: one call with a deadline.
func payPlain(ctx context.Context, p path, timeout time.Duration) (told, error) {
	session, err := connect(ctx, p)
	if err != nil {
		return told{}, err
	}
	defer closeSession(session)
	t := told{started: time.Now()}
	_, err = callOnce(ctx, session, timeout)
	t.at, t.outcome = time.Now(), plainOutcome(err)
	return t, nil
}

// payLoop is what people write by hand: on an error call again, three times
// at most, with a new connection if the old one is dead.
func payLoop(ctx context.Context, p path, timeout time.Duration) (told, error) {
	session, err := connect(ctx, p)
	if err != nil {
		return told{}, err
	}
	defer func() { closeSession(session) }()
	t := told{started: time.Now()}
	_, err = callOnce(ctx, session, timeout)
	for again := 0; err != nil && again < 3; again++ {
		if errors.Is(err, mcp.ErrConnectionClosed) {
			closeSession(session)
			if session, err = connect(ctx, p); err != nil {
				break
			}
		}
		_, err = callOnce(ctx, session, timeout)
	}
	t.at, t.outcome = time.Now(), plainOutcome(err)
	return t, nil
}

func callOnce(ctx context.Context, session *mcp.ClientSession, timeout time.Duration) (*mcp.CallToolResult, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return session.CallTool(ctx, payment())
}

// plainOutcome is all that a caller of the plain SDK can know.
func plainOutcome(err error) Outcome {
	if err != nil {
		return OutcomeError
	}
	return OutcomeResult
}

// closeSession closes a session whose connection may be dead already, which
// is then all that the error says.
func closeSession(s *mcp.ClientSession) {
	if s != nil {
		_ = s.Close()
	}
}
