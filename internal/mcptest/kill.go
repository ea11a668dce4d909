package mcptest

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Process is a server in a process of its own: the test binary, which is told
// by an environment variable to be one, and prints its URL as its first line.
type Process struct {
	*Client
	cmd *exec.Cmd
}

// Start runs the test binary again, with arguments and an environment variable
// that says what it is. The process ends with this one, whose end closes its
// standard input.
func Start(t testing.TB, env string, args ...string) *Process {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{cmd: exec.Command(exe, args...)}
	p.cmd.Env = append(os.Environ(), env)
	p.cmd.Stderr = os.Stderr
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v", err)
	}
	p.Client = New(t, strings.TrimSpace(line))
	return p
}

// Kill ends the process at once, as a crash does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// A Campaign kills servers at random instants, while calls of two tools with
// the same effect are under way: exact has it in the transaction of its record,
// plain by itself. Both take {"call": string}, and their structured result is
// {"number": the effect's}.
type Campaign struct {
	// Kills in all, by Lanes side by side, each with a server of its own.
	Kills, Lanes int
	// Start starts a server.
	Start func() *Process
	// Effects tells how many effects a call has had, and the number of the
	// first.
	Effects func(call string) (n int, first int64)
}

// A sent call is one that has been tried at least once.
type sent struct {
	tool, key, call string
	lost            int // attempts whose response was lost
	answer          Reply
}

// Run demands that every call of the exact tool ends with a result and has its
// effect once; that one of the plain tool has it at most once, with an unknown
// outcome only when a response of it was lost.
func (c Campaign) Run(t *testing.T) {
	var mu sync.Mutex
	var all []*sent
	var wg sync.WaitGroup
	for range c.Lanes {
		wg.Go(func() {
			p := c.Start()
			for range c.Kills / c.Lanes {
				made, lost := p.callsUntilKilled(t)
				mu.Lock()
				all = append(all, made...)
				mu.Unlock()
				p = c.Start()
				var again sync.WaitGroup
				for _, s := range lost {
					again.Go(func() { s.settle(t, p) })
				}
				again.Wait()
			}
			p.Kill()
		})
	}
	wg.Wait()
	c.judge(t, all)
}

// callsUntilKilled makes calls from several goroutines and kills the process at
// a random instant. It returns the calls, and those whose response was lost.
func (p *Process) callsUntilKilled(t testing.TB) (all, lost []*sent) {
	ns, err := p.Namespace(context.Background())
	if err != nil {
		t.Errorf("namespace: %v", err)
		return nil, nil
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := i; ; n++ {
				s := &sent{tool: []string{"exact", "plain"}[n%2], key: ns + "." + rand.Text(), call: rand.Text()}
				err := s.try(context.Background(), p)
				mu.Lock()
				all = append(all, s)
				if err != nil {
					lost = append(lost, s)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	instant, err := rand.Int(rand.Reader, big.NewInt(int64(60*time.Millisecond)))
	if err != nil {
		t.Error(err)
	}
	// A timer is what this is about: the instant is not to depend on what the
	// server does.
	<-time.After(time.Duration(instant.Int64()))
	p.Kill()
	wg.Wait()
	return all, lost
}

func (s *sent) try(ctx context.Context, p *Process) error {
	r, err := p.Try(ctx, s.tool, s.key, fmt.Sprintf(`{"call":%q}`, s.call))
	if err != nil {
		s.lost++
		return err
	}
	s.answer = r
	return nil
}

// settle sends the call again until it is answered with more than "later".
func (s *sent) settle(t testing.TB, p *Process) {
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if err := s.try(context.Background(), p); err != nil {
			t.Errorf("a server that was not killed: %v", err)
			return
		}
		if s.answer.Reason != "stillRunning" && s.answer.Reason != "storeUnavailable" {
			return
		}
	}
	t.Errorf("%s %s is not answered: %s", s.tool, s.call, s.answer)
}

// judge compares what callers were told with what happened.
func (c Campaign) judge(t *testing.T, all []*sent) {
	var exact, plain, lost, replayed, unknown int
	for _, s := range all {
		effects, number := c.Effects(s.call)
		result := string(s.answer.StructuredContent) == fmt.Sprintf(`{"number":%d}`, number) && s.answer.Replayed != nil
		if s.lost > 0 {
			lost++
			if result && *s.answer.Replayed {
				replayed++
			}
		}
		switch {
		case s.tool == "exact":
			exact++
			if effects != 1 || !result {
				t.Errorf("exact: %d effects (number %d), told %s", effects, number, s.answer)
			}
		case effects > 1:
			t.Errorf("plain: %d effects, told %s", effects, s.answer)
		case s.answer.Reason == "outcomeUnknown" && s.lost > 0:
			unknown++
		case effects != 1 || !result:
			t.Errorf("plain: %d effects (number %d), %d responses lost, told %s", effects, number, s.lost, s.answer)
		default:
			plain++
		}
	}
	t.Logf("%d kills; %d exact calls and %d plain ones with a result; of %d calls with a lost response %d had run and were replayed, and %d plain ones are of unknown outcome",
		c.Kills, exact, plain, lost, replayed, unknown)
	if lost == 0 || replayed == 0 {
		t.Error("the kills hit nothing")
	}
}

// ServeChild is what the process of [Start] does: it serves on a free port,
// prints its URL, and ends when its standard input does.
func ServeChild(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		_ = srv.Close()
	}()
	fmt.Printf("http://%s\n", l.Addr())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
