package clientretry_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// serverEnv makes a server process of the test binary. Its value is the
// directory of the ledger and what the server does to its first call.
const serverEnv = "CLIENTRETRY_TEST_SERVER"

func TestMain(m *testing.M) {
	if spec := os.Getenv(serverEnv); spec != "" {
		serveStdio(spec)
		return
	}
	os.Exit(m.Run())
}

// serveStdio is a server on stdio that charges a key once and writes every
// charge into a ledger that outlives it.
func serveStdio(spec string) {
	dir, mode, _ := strings.Cut(spec, "|")
	mode, plain := strings.CutSuffix(mode, ",plain")
	b := &brain{modern: true}
	if !plain {
		b.settings = declared("keyParam", true)
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || len(m.ID) == 0 {
			continue
		}
		if m.Method != schema.MethodCallTool {
			answer := b.handshake(m.Method)
			if answer == nil {
				answer = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "unknown method"}
			}
			fmt.Printf("%s\n", response(m.ID, answer))
			continue
		}
		c := b.note(m.ID, m.Params, nil, nil)
		if c.pathCheck() {
			fmt.Printf("%s\n", response(m.ID, refusal(schema.ReasonKeyInvalid)))
			continue
		}
		answer := pay(dir, c)
		if _, err := os.Stat(filepath.Join(dir, "failed")); err != nil {
			_ = os.WriteFile(filepath.Join(dir, "failed"), nil, 0o600)
			switch mode {
			case "exit":
				os.Exit(3)
			case "mute": // and stay, with the input open
				os.Stdout.Close()
				for in.Scan() {
				}
				time.Sleep(time.Minute)
			case "cut":
				full := response(m.ID, answer)
				fmt.Printf("%s", full[:len(full)/2])
				os.Exit(3)
			}
		}
		fmt.Printf("%s\n", response(m.ID, answer))
	}
}

// pay charges once a key, and every time without one.
func pay(dir string, c *toolCall) any {
	ledger := filepath.Join(dir, "ledger")
	old, _ := os.ReadFile(ledger)
	if c.Key != "" && strings.Contains(string(old), c.Key) {
		return done(true)
	}
	if err := os.WriteFile(ledger, append(old, ("charge "+c.Key+"\n")...), 0o600); err != nil {
		panic(err)
	}
	if c.Key == "" {
		return done()
	}
	return done(false)
}

func charges(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "charge")
}

func TestAServerProcessThatFailsIsFollowedByAnother(t *testing.T) {
	for _, mode := range []string{"exit", "mute", "cut"} {
		for _, plain := range []bool{false, true} {
			name := map[bool]string{false: mode, true: mode + ",plain"}[plain]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				dial := func(context.Context) (mcp.Transport, error) {
					cmd := exec.Command(os.Args[0])
					cmd.Env = append(os.Environ(), serverEnv+"="+dir+"|"+name)
					return &mcp.CommandTransport{Command: cmd, TerminateDuration: 2 * time.Second}, nil
				}
				client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
				s, err := clientretry.New(client, &clientretry.Options{Dial: dial, BackoffBase: time.Millisecond}).Connect(t.Context(), nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				_, report, err := callCharge(t, s)
				if want := map[bool]string{false: "result", true: "unknown"}[plain]; told(err) != want {
					t.Fatalf("told %v, %+v", err, report)
				}
				if report.Replayed == plain || charges(t, dir) != 1 {
					t.Errorf("%d charges, %+v", charges(t, dir), report)
				}
				// The old process may take its time to end; nobody waits for it.
				if report.Elapsed > 1500*time.Millisecond {
					t.Errorf("settled after %v", report.Elapsed)
				}
				if _, _, err := callCharge(t, s); err != nil || charges(t, dir) != 2 {
					t.Errorf("the next call: %v, %d charges", err, charges(t, dir))
				}
			})
		}
	}
}
