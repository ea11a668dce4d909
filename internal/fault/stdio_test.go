package fault

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const serverEnv = "FAULT_TEST_STDIO_SERVER"

// TestMain is also the server process: with serverEnv set to the name of a
// file, it notes each request there and then answers it.
func TestMain(m *testing.M) {
	if name := os.Getenv(serverEnv); name != "" {
		if err := answerLines(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func answerLines(name string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var req struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if err := json.Unmarshal(in.Bytes(), &req); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(f, req.Method); err != nil {
			return err
		}
		if req.ID != nil {
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n", req.ID)
		}
	}
	return in.Err()
}

// A serverProcess runs under a Stdio layer and notes its work in a file.
func startServer(t *testing.T, layer *Stdio, notes string) (*Process, *bufio.Reader) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"="+notes)
	cmd.Stderr = os.Stderr
	p, err := layer.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p, bufio.NewReader(p)
}

func send(t *testing.T, p *Process, id int, method string) {
	t.Helper()
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"name":"charge","idempotencyKey":"ns.k"}}`+"\n", id, method)
	for _, part := range []string{line[:20], line[20:]} { // a pipe keeps no borders
		if _, err := io.WriteString(p, part); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAKilledServerDidTheWorkAndItsSuccessorLives(t *testing.T) {
	notes := t.TempDir() + "/notes"
	layer, err := NewStdio(&Options{Rules: Rules{{Tool: "charge", Nth: 1, Action: Action{Kind: Kill}}}})
	if err != nil {
		t.Fatal(err)
	}
	p, out := startServer(t, layer, notes)
	send(t, p, 1, "tools/list")
	if line, err := out.ReadString('\n'); err != nil || !strings.Contains(line, `"id":1`) {
		t.Fatalf("%q, %v", line, err)
	}
	send(t, p, 2, "tools/call")
	if line, err := out.ReadString('\n'); !errors.Is(err, io.EOF) || line != "" {
		t.Fatalf("the killed server answered %q, %v", line, err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("closing a process that a rule killed: %v", err)
	}
	if st := p.cmd.ProcessState; st == nil || st.Success() {
		t.Errorf("the process ended as %v", st)
	}

	p, out = startServer(t, layer, notes)
	send(t, p, 3, "tools/call")
	if line, err := out.ReadString('\n'); err != nil || !strings.Contains(line, `"id":3`) {
		t.Fatalf("the new server: %q, %v", line, err)
	}
	if err := p.Close(); err != nil || !p.cmd.ProcessState.Success() {
		t.Errorf("closing the new server: %v, %v", err, p.cmd.ProcessState)
	}

	work, err := os.ReadFile(notes)
	if err != nil || string(work) != "tools/list\ntools/call\ntools/call\n" {
		t.Errorf("the servers noted %q, %v", work, err)
	}
	calls := layer.Calls()
	if len(calls) != 3 || calls[0].Fate != Delivered || calls[1].Fate != Faulted || calls[2].Fate != Delivered {
		t.Fatalf("recorded %+v", calls)
	}
	if c := calls[1]; c.Worked.IsZero() || c.Lost.Before(c.Worked) || c.Key != "ns.k" || c.Nth != 1 {
		t.Errorf("the killed call is recorded as %+v", c)
	}
}

func TestAServerThatEndsByItselfIsNoFault(t *testing.T) {
	layer, err := NewStdio(nil)
	if err != nil {
		t.Fatal(err)
	}
	p, out := startServer(t, layer, t.TempDir()+"/notes")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("reading from a dead server: %v", err)
	}
	// Written to a process that is gone, whether the pipe shows it yet or not,
	// a call must not stay open in the record.
	_, _ = io.WriteString(p, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge"}}`+"\n")
	if err := p.Close(); err == nil {
		t.Error("a server that died of itself closed without an error")
	}
	if calls := layer.Calls(); len(calls) != 1 || calls[0].Fate != UpstreamFailed {
		t.Errorf("recorded %+v", calls)
	}
}
