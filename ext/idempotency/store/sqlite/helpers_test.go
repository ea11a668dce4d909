package sqlite_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// childEnv makes the test binary be another process: its value is the name of
// what it does, the rest are its arguments.
const childEnv = "IDEMPOTENCY_SQLITE_TEST_CHILD"

// children are what other processes do. They print what they have done, a line
// each, in the order in which they did it.
func children() map[string]func(ctx context.Context, path string, args []string) error {
	return map[string]func(context.Context, string, []string) error{
		"open": childOpen, "calls": childCalls, "contend": childContend, "hold": childHold, "serve": childServe,
	}
}

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		if err := children()[what](context.Background(), os.Args[1], os.Args[2:]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A child is another process that has the same file open.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	errs  bytes.Buffer
	lines []string
}

func startChild(t testing.TB, what, path string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe, append([]string{path}, args...)...)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+what)
	c.cmd.Stderr = &c.errs
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.kill() })
	return c
}

// line returns the next line that the process prints; "" when it has ended.
func (c *child) line() string {
	if !c.out.Scan() {
		return ""
	}
	c.lines = append(c.lines, c.out.Text())
	return c.out.Text()
}

// rest returns all lines, once the process has ended.
func (c *child) rest() []string {
	for c.line() != "" {
	}
	return c.lines
}

// kill ends the process at once, as a crash does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	c.rest()
	_ = c.cmd.Wait()
}

// wait demands that the process ends by itself and without an error.
func (c *child) wait(t testing.TB) []string {
	t.Helper()
	lines := c.rest()
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("a child ended with %v: %v %s", err, lines, c.errs.String())
	}
	return lines
}

func dbPath(t testing.TB) string { return filepath.Join(t.TempDir(), "records.db") }

func mustOpen(t testing.TB, path string, opt sqlite.Options) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), path, &opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustClose(t testing.TB, s *sqlite.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func current(t testing.TB, s *sqlite.Store) string {
	t.Helper()
	ns, err := s.Current(context.Background())
	if err != nil {
		t.Fatalf("Current: %v", err)
	}
	return ns.Name
}

// attempt is a first attempt with a new key; the fingerprint is the same for
// all.
func attempt(namespace string) store.Attempt {
	return attemptOf(store.ID{Principal: "user@example.com", Key: namespace + "." + rand.Text()})
}

func attemptOf(id store.ID) store.Attempt {
	a := store.Attempt{ID: id, Fingerprint: store.Fingerprint{1}, Lease: 30 * time.Second}
	_, _ = rand.Read(a.Token[:]) // never fails
	return a
}

func again(a store.Attempt) store.Attempt { return attemptOf(a.ID) }

func ref(a store.Attempt) store.RunRef { return store.RunRef{ID: a.ID, Token: a.Token} }

func expect(t testing.TB, s *sqlite.Store, a store.Attempt, want store.Verdict) store.Reservation {
	t.Helper()
	res, err := s.Reserve(context.Background(), a)
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	if res.Verdict != want {
		t.Fatalf("Reserve: verdict %d, want %d", res.Verdict, want)
	}
	return res
}

// call reserves and completes a new key.
func call(t testing.TB, s *sqlite.Store, outcome string) store.Attempt {
	t.Helper()
	a := attempt(current(t, s))
	expect(t, s, a, store.Run)
	complete(t, s, a, outcome)
	return a
}

func complete(t testing.TB, s *sqlite.Store, a store.Attempt, outcome string) {
	t.Helper()
	if err := s.Record(context.Background(), ref(a), store.End{Event: store.Complete, Outcome: []byte(outcome)}); err != nil {
		t.Fatalf("Record: %v", err)
	}
}

func replays(t testing.TB, s *sqlite.Store, a store.Attempt, outcome string) {
	t.Helper()
	if res := expect(t, s, again(a), store.Known); string(res.Record.Outcome) != outcome {
		t.Fatalf("replayed %q, want %q", res.Record.Outcome, outcome)
	}
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// fields splits a line into its first word and the number after it.
func fields(line string) (word string, n int) {
	word, rest, _ := strings.Cut(line, " ")
	return word, atoi(rest)
}
