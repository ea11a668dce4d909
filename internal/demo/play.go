package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/internal/fault"
)

const (
	// callTimeout is how long a caller waits for an answer in rows where the
	// answer is lost at once. No row should come near it.
	callTimeout = 3 * time.Second
	// slowCharge and impatience make the timeout rows: the first charge takes
	// the one, the caller waits the other.
	slowCharge = 600 * time.Millisecond
	impatience = 200 * time.Millisecond
)

// play makes one payment and counts what it cost once its server has exited.
func play(ctx context.Context, o *Options, f Fault, s Stack) (Row, error) {
	if err := ctx.Err(); err != nil {
		return Row{}, err
	}
	dir := filepath.Join(o.Dir, string(f)+"-"+string(s))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return Row{}, err
	}
	cfg := serverConfig{dir: dir, stdio: f == FaultStdioKill, extended: s == StackRetryExtended}
	timeout := callTimeout
	if f == FaultTimeout {
		cfg.slowFirst, timeout = slowCharge, impatience
	}
	p, err := openPath(ctx, o.Server, f, cfg)
	if err != nil {
		return Row{}, err
	}
	told, err := payerOf(s)(ctx, p, timeout)
	err = errors.Join(err, p.close())
	if err != nil {
		return Row{}, err
	}
	if err := ctx.Err(); err != nil {
		return Row{}, err // the caller was told of our end, not of the fault
	}
	lost, err := lossOf(f, told, timeout, p.calls())
	if err != nil {
		return Row{}, err
	}
	row := Row{Fault: f, Stack: s, Outcome: told.outcome, SettleMs: told.at.Sub(lost).Round(time.Millisecond).Milliseconds()}
	row.ToolCalls, row.Charges, err = count(dir)
	return row, err
}

// lossOf returns when the answer was lost: when the fault layer performed the
// fault, or when the caller's patience ended.
func lossOf(f Fault, t told, timeout time.Duration, calls []fault.Call) (time.Time, error) {
	lost := t.started.Add(timeout)
	if f != FaultTimeout {
		lost = time.Time{}
		for _, c := range calls {
			if c.Tool == toolName && c.Fate == fault.Faulted {
				lost = c.Lost
				break
			}
		}
		if lost.IsZero() {
			return lost, errors.New("the fault did not happen")
		}
	}
	if t.at.Before(lost) {
		return lost, fmt.Errorf("the caller was told %v before the loss: this row shows something else", lost.Sub(t.at))
	}
	return lost, nil
}
