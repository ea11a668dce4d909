package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// exitGrace is how long a server may take to finish its work and exit.
const exitGrace = 5 * time.Second

// serverCommand returns the command that starts a payment server. The process
// is killed when ctx ends. The buffer gets what it says in trouble.
func serverCommand(ctx context.Context, argv []string, cfg serverConfig) (*exec.Cmd, *tail) {
	args := append(append([]string(nil), argv[1:]...), cfg.args()...)
	cmd := exec.CommandContext(ctx, argv[0], args...)
	said := &tail{}
	cmd.Stderr = said
	cmd.WaitDelay = time.Second
	return cmd, said
}

// httpServer is a payment server process that listens on a port.
type httpServer struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
	said  *tail
}

func startHTTP(ctx context.Context, argv []string, cfg serverConfig) (*httpServer, error) {
	cmd, said := serverCommand(ctx, argv, cfg)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the payment server: %w", err)
	}
	s := &httpServer{cmd: cmd, stdin: stdin, said: said}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the payment server did not say where it listens: %w (%w)", err, s.stop())
	}
	s.url = strings.TrimSpace(line)
	return s, nil
}

// stop ends the server's input, which ends the server, and waits for its exit.
func (s *httpServer) stop() error {
	_ = s.stdin.Close() // a server that died has closed it
	overdue := time.AfterFunc(exitGrace, func() { _ = s.cmd.Process.Kill() })
	defer overdue.Stop()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the payment server ended badly: %w: %s", err, s.said)
	}
	return nil
}

// tail keeps the last bytes that were written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const keep = 2000
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if len(t.buf) > keep {
		t.buf = bytes.Clone(t.buf[len(t.buf)-keep:])
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
