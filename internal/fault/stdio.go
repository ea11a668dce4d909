package fault

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Stdio is the fault layer of the stdio transport. It starts server processes
// and sits on their pipes; calls are counted over all processes that it
// started, so that a restarted server does not meet the same fault again.
type Stdio struct {
	*recorder
	opts Options
}

// NewStdio returns a layer without a process.
func NewStdio(opts *Options) (*Stdio, error) {
	o := opts.withDefaults()
	if err := o.Rules.check(func(k KindInfo) bool { return k.Stdio }, "stdio"); err != nil {
		return nil, err
	}
	return &Stdio{recorder: newRecorder(o), opts: o}, nil
}

// Calls returns what was recorded, oldest first.
func (s *Stdio) Calls() []Call { return s.snapshot() }

// Start starts cmd, whose Stdin and Stdout must be nil. It must be the server
// itself: of a wrapper that starts the server, only the wrapper is killed. Use
// the result as the Reader and the Writer of an [mcp.IOTransport].
//
// [mcp.IOTransport]: https://pkg.go.dev/github.com/modelcontextprotocol/go-sdk/mcp#IOTransport
func (s *Stdio) Start(cmd *exec.Cmd) (*Process, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("fault layer: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("fault layer: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("fault layer: %w", err)
	}
	return &Process{
		layer: s, cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout),
		open: map[string]*Call{},
	}, nil
}

// exitGrace is how long a process may take to exit once its input is closed.
const exitGrace = 5 * time.Second

// Process is a running server, as the client's end of its pipes.
type Process struct {
	layer  *Stdio
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader

	sent []byte // what was written of a line so far; used by Write alone
	rest []byte // what was not yet read of a line; used by Read alone

	mu   sync.Mutex
	open map[string]*Call // requests without an answer, by id
	over bool             // the server's output has ended: no answer will come
	dead bool             // killed by a rule

	closing  sync.Once
	closeErr error
}

// Write sends bytes to the server and records the requests in them. It must
// not be called concurrently.
func (p *Process) Write(b []byte) (int, error) {
	p.sent = append(p.sent, b...)
	for {
		line, after, whole := bytes.Cut(p.sent, []byte("\n"))
		if !whole {
			break
		}
		for _, m := range parseMessages(line) {
			c, _ := p.layer.received(m)
			if m.id == "" {
				p.layer.settled(c, Delivered)
				continue
			}
			p.mu.Lock()
			p.open[m.id] = c
			p.mu.Unlock()
		}
		p.sent = after
	}
	if int64(len(p.sent)) > p.layer.opts.MaxBodyBytes {
		p.sent = nil // too long to be recorded
	}
	n, err := p.stdin.Write(b)
	p.mu.Lock()
	gone := err != nil || p.over
	p.mu.Unlock()
	if gone {
		p.ended() // Read saw the end before these calls were open
	}
	return n, err
}

// Read receives bytes from the server. When a line answers a call that is to
// be killed, the process dies and the line is dropped.
func (p *Process) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		line, err := p.stdout.ReadBytes('\n')
		if p.answers(line) {
			return 0, p.kill()
		}
		if len(line) == 0 {
			p.ended()
			if errors.Is(err, os.ErrClosed) {
				err = io.EOF // closed by our own Close
			}
			return 0, err
		}
		p.rest = line
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// answers settles the call that a line answers, and reports whether the
// process has to die instead.
func (p *Process) answers(line []byte) bool {
	id, ok := responseID(line)
	if !ok {
		return false
	}
	p.mu.Lock()
	c := p.open[id]
	p.mu.Unlock()
	if c == nil {
		return false
	}
	if c.Action.Kind != Kill { // Action never changes after received
		p.forget(id)
		p.layer.settled(c, Delivered)
		return false
	}
	p.layer.worked(c)
	return true
}

func (p *Process) forget(id string) {
	p.mu.Lock()
	delete(p.open, id)
	p.mu.Unlock()
}

// kill kills the process and waits until its output ends, as a client on the
// bare pipe would see it.
func (p *Process) kill() error {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	for _, c := range p.takeOpen() {
		p.layer.lost(c, Faulted) // also the calls that shared its fate
		defer p.layer.settled(c, Faulted)
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("fault layer: the server could not be killed: %w", err)
	}
	_, _ = io.Copy(io.Discard, p.stdout) // ends with the process
	return io.EOF
}

// ended settles what the server left open when its output ended by itself.
func (p *Process) ended() {
	for _, c := range p.takeOpen() {
		p.layer.lost(c, UpstreamFailed)
		p.layer.settled(c, UpstreamFailed)
	}
}

// takeOpen empties the set of open calls, now that none will be answered.
func (p *Process) takeOpen() []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	calls := make([]*Call, 0, len(p.open))
	for id, c := range p.open {
		calls = append(calls, c)
		delete(p.open, id)
	}
	return calls
}

// Close closes the server's input and waits until the process has exited; one
// that does not is killed after five seconds. It returns how the process
// ended, which is no error when a rule killed it.
func (p *Process) Close() error {
	p.closing.Do(func() {
		_ = p.stdin.Close() // a dead process has closed it already
		overdue := time.AfterFunc(exitGrace, func() { _ = p.cmd.Process.Kill() })
		err := p.cmd.Wait()
		overdue.Stop()
		p.mu.Lock()
		dead := p.dead
		p.mu.Unlock()
		if err != nil && !dead {
			p.closeErr = fmt.Errorf("fault layer: the server process: %w", err)
		}
	})
	return p.closeErr
}
