package rawmcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// stdioConn speaks to a process, one line a message.
type stdioConn struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	ids       atomic.Int64
	revision  string
	handshake Reply
	errs      tail

	writing sync.Mutex
	mu      sync.Mutex
	pending map[string]chan Reply // nil when the process hung up
	ended   error
	read    chan struct{} // closed when nothing more comes
	once    sync.Once
}

// DialStdio starts the command and makes the handshake. The process is in a
// group of its own, which Close kills when it does not end by itself. The error
// matches [ErrUnreachable] or [ErrNotMCP].
func DialStdio(ctx context.Context, cmd *exec.Cmd, opt *Options) (Conn, error) {
	o := opt.withDefaults()
	c := &stdioConn{cmd: cmd, pending: map[string]chan Reply{}, read: make(chan struct{})}
	ownGroup(cmd)
	cmd.Stderr = &c.errs
	cmd.WaitDelay = time.Second // for those who inherited its output
	out, err := cmd.StdoutPipe()
	if err == nil {
		c.in, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	go c.receive(out, o.MaxBytes)
	var last error
	for _, h := range handshakes(o.Revision) {
		c.revision = h.revision
		r, err := c.Call(ctx, h.method, h.params)
		switch {
		case err == nil && h.agreed(r):
			c.handshake = r
			if h.revision == Legacy {
				err = c.Notify(ctx, "notifications/initialized", `{}`)
			}
			return c, err
		case err == nil:
			last = fmt.Errorf("%w: %s is answered %s", ErrNotMCP, h.method, r)
			continue
		}
		_ = c.Close()
		if text := c.errs.String(); text != "" {
			err = fmt.Errorf("%w; it wrote %q", err, text)
		}
		if errors.Is(err, ErrNotMCP) || errors.Is(err, ErrTooLong) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	_ = c.Close()
	return nil, last
}

func (c *stdioConn) Revision() string { return c.revision }
func (c *stdioConn) Handshake() Reply { return c.handshake }

func (c *stdioConn) Call(ctx context.Context, method, params string) (Reply, error) {
	return c.CallID(ctx, strconv.FormatInt(c.ids.Add(1), 10), method, params)
}

func (c *stdioConn) CallID(ctx context.Context, id, method, params string) (Reply, error) {
	answer := make(chan Reply, 1)
	c.mu.Lock()
	if c.pending == nil {
		defer c.mu.Unlock()
		return Reply{}, c.ended
	}
	c.pending[id] = answer
	c.mu.Unlock()
	if err := c.write(ctx, message(c.revision, id, method, params)); err != nil {
		return Reply{}, err
	}
	select {
	case r, ok := <-answer:
		if !ok {
			c.mu.Lock()
			defer c.mu.Unlock()
			trace(ctx, "--", c.ended.Error())
			return Reply{}, c.ended
		}
		b, _ := json.Marshal(r) // it was JSON
		trace(ctx, "<-", string(b))
		return r, nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
		trace(ctx, "--", "not waited for any longer")
		return Reply{}, context.Cause(ctx)
	}
}

func (c *stdioConn) Notify(ctx context.Context, method, params string) error {
	return c.write(ctx, message(c.revision, "", method, params))
}

func (c *stdioConn) write(ctx context.Context, line string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	trace(ctx, "->", line)
	_, err := io.WriteString(c.in, line+"\n")
	return err
}

// receive hands responses to those who wait for them, until the process hangs
// up or says what is no message.
func (c *stdioConn) receive(out io.Reader, limit int64) {
	defer close(c.read)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, int(limit))
	err := errors.New("the process ended its output")
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var r Reply
		if e := json.Unmarshal(lines.Bytes(), &r); e != nil {
			err = fmt.Errorf("%w: it wrote %.100q", ErrNotMCP, lines.Bytes())
			break
		}
		if r.Result == nil && r.Error == nil {
			continue // a notification, or a request of the server's
		}
		c.mu.Lock()
		if answer, ok := c.pending[string(r.ID)]; ok {
			delete(c.pending, string(r.ID))
			answer <- r
		}
		c.mu.Unlock()
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		err = fmt.Errorf("%w: above %d bytes", ErrTooLong, limit)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, answer := range c.pending {
		close(answer)
	}
	c.pending, c.ended = nil, err
}

// Close ends the process: by the end of its input, and half a second later by
// force, with everything that it started.
func (c *stdioConn) Close() error {
	c.once.Do(func() {
		_ = c.in.Close()
		force := time.AfterFunc(500*time.Millisecond, func() { killGroup(c.cmd) })
		defer force.Stop()
		<-c.read
		_ = c.cmd.Wait() // how it ended is nobody's business
		killGroup(c.cmd) // what it has left behind
	})
	return nil
}

// Kill ends the process at once, as a crash does.
func (c *stdioConn) Kill() {
	killGroup(c.cmd)
	_ = c.Close()
}

// tail keeps the last bytes that are written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const keep = 500
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > keep {
		t.b = append([]byte(nil), t.b[len(t.b)-keep:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
