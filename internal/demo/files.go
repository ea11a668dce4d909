package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// The two files that a payment server writes, in its directory.
const (
	ledgerName = "ledger.jsonl"
	callsName  = "calls.jsonl"
)

// lines appends JSON lines to a file, each in one write, so that a process
// that is killed leaves whole lines.
type lines struct {
	mu   sync.Mutex
	file *os.File
	sync bool // flush each line to the disk
}

func openLines(dir, name string, flush bool) (*lines, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &lines{file: f, sync: flush}, nil
}

func (l *lines) append(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return err
	}
	if l.sync {
		return l.file.Sync()
	}
	return nil
}

func (l *lines) Close() error { return l.file.Close() }

// charge is a line of the ledger.
type charge struct {
	At     time.Time `json:"at"`
	Amount int64     `json:"amount"`
}

// received is a line of the call log.
type received struct {
	At   time.Time       `json:"at"`
	Tool string          `json:"tool"`
	ID   json.RawMessage `json:"id"`
	Key  string          `json:"key,omitempty"`
}

// logCall notes a message if it is a `tools/call`.
func logCall(log *lines, msg []byte) error {
	e, err := wire.ParseEnvelope(msg)
	if err != nil || e.Method != schema.MethodCallTool {
		return nil // not a call: for the SDK to judge
	}
	var p schema.CallToolParams
	_ = json.Unmarshal(e.Params, &p) // what can't be read stays empty in the log
	key := p.IdempotencyKey
	if key == "" && p.Meta != nil {
		key = p.Meta.IdempotencyKey
	}
	return log.append(received{At: time.Now(), Tool: p.Name, ID: e.ID, Key: key})
}

// count reads the server's two files: the calls of the tool, which leaves out
// the path checks of clientretry, and the charges.
func count(dir string) (toolCalls, charges int, err error) {
	err = eachLine(dir, callsName, func(line []byte) error {
		var r received
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		if r.Tool == toolName {
			toolCalls++
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	err = eachLine(dir, ledgerName, func([]byte) error { charges++; return nil })
	return toolCalls, charges, err
}

func eachLine(dir, name string, f func([]byte) error) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the payment server left no %s: it never started", name)
	}
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		if err := f(line); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
