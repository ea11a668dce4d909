package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// The test binary is also the stdio server: with childEnv set it serves and
// exits. What it is to do comes in the variable, and its files are in childDir.
const (
	childEnv = "CLIENTRETRY_TEST_CHILD"
	childDir = "CLIENTRETRY_TEST_DIR"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(childEnv); how != "" {
		if err := serveChild(how, os.Getenv(childDir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveChild serves on stdio. how is a list of words:
//
//	sdk       the SDK's server; otherwise a scripted one that remembers keys in a file
//	extended  with the extension (of the SDK's server with its memory store)
//	http      the SDK's server over HTTP, stateless if modern; its address is in the file addr
//	once      declares the extension in its first process alone
//	modern    the scripted one speaks 2026-07-28, otherwise 2025-11-25
//	and one fault, which the first charge of all processes meets
func serveChild(how, dir string) error {
	c := &child{dir: dir, how: map[string]bool{}}
	for word := range strings.FieldsSeq(how) {
		c.how[word] = true
	}
	first := c.claim("started")
	c.extended = c.how["extended"] && (first || !c.how["once"])
	switch {
	case c.how["http"]:
		return c.serveHTTP()
	case c.how["sdk"]:
		return c.serveSDK()
	}
	return c.serveScripted()
}

type child struct {
	dir      string
	how      map[string]bool
	extended bool
}

// claim reports whether nobody has claimed the name before, in any process.
func (c *child) claim(name string) bool {
	f, err := os.OpenFile(filepath.Join(c.dir, name), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

func appendLine(dir, name, line string) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, line); err != nil {
		panic(err)
	}
}

// charge is the effect, with the fault around it.
func (c *child) charge(key string) {
	faulty := c.claim("faulted")
	if faulty && c.how["exit-before"] {
		os.Exit(3)
	}
	if faulty && c.how["wait-before"] {
		appendLine(c.dir, "waiting", fmt.Sprint(os.Getpid()))
		select {} // until it is killed
	}
	appendLine(c.dir, "ledger", key)
	if !faulty {
		return
	}
	switch {
	case c.how["exit-after"]:
		os.Exit(3)
	case c.how["wait-after"]:
		appendLine(c.dir, "waiting", fmt.Sprint(os.Getpid()))
		select {}
	case c.how["close-stdout"]:
		_ = os.Stdout.Close()
	case c.how["garbage"]:
		fmt.Fprintln(os.Stdout, "panic: something printed this")
	case c.how["garbage-json"]:
		fmt.Fprintln(os.Stdout, `{"level":"info","msg":"charged"}`)
	case c.how["half"]:
		fmt.Fprint(os.Stdout, `{"jsonrpc":"2.0","id":`)
		os.Exit(3)
	case c.how["silent"]:
		select {}
	}
}

func (c *child) server() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "child", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(context.Context, *mcp.CallToolRequest, chargeIn) (*mcp.CallToolResult, chargeOut, error) {
		c.charge("-")
		return nil, chargeOut{Receipt: 1}, nil
	})
	return server
}

// serveHTTP serves at the address where an earlier process did.
func (c *child) serveHTTP() error {
	server := c.server()
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: c.how["modern"]})
	if c.extended {
		idem := idempotency.New(nil)
		idem.Install(server)
		h = idem.Handler(h)
	}
	addr, err := os.ReadFile(filepath.Join(c.dir, "addr"))
	if err != nil {
		addr = []byte("127.0.0.1:0")
	}
	ln, err := net.Listen("tcp", string(addr))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "addr"), []byte(ln.Addr().String()), 0o600); err != nil {
		return err
	}
	fmt.Println("ready")
	return http.Serve(ln, h)
}

func (c *child) serveSDK() error {
	server := c.server()
	var t mcp.Transport = &mcp.StdioTransport{}
	if c.extended {
		idem := idempotency.New(nil)
		idem.Install(server)
		t = idem.Transport(t)
	}
	err := server.Run(context.Background(), t)
	if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// serveScripted answers lines. It runs a key once, over all processes.
func (c *child) serveScripted() error {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	var mu sync.Mutex
	reply := func(id json.RawMessage, what string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(os.Stdout, "{\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n", id, what)
	}
	capabilities := `{"tools":{}}`
	if c.extended {
		capabilities = fmt.Sprintf(`{"tools":{},"extensions":{%q:%s}}`, schema.ExtensionID, mustJSON(declared("ns")))
	}
	for in.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Name string `json:"name"`
				Key  string `json:"idempotencyKey"`
			} `json:"params"`
		}
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			return fmt.Errorf("the child read %q: %w", in.Text(), err)
		}
		appendLine(c.dir, "methods", strings.TrimSpace(m.Method+" "+m.Params.Name+" "+m.Params.Key))
		switch {
		case len(m.ID) == 0:
		case m.Method == "server/discover" && c.how["modern"]:
			reply(m.ID, `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":`+capabilities+`}`)
		case m.Method == "initialize":
			reply(m.ID, `"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"child","version":"1"},"capabilities":`+capabilities+`}`)
		case m.Method == "tools/list":
			reply(m.ID, `"result":{"resultType":"complete","tools":[]}`)
		case m.Method == "ping":
			reply(m.ID, `"result":{}`)
		case m.Method != schema.MethodCallTool:
			reply(m.ID, `"error":{"code":-32601,"message":"no such method"}`)
		case m.Params.Name == pathCheckTool && m.Params.Key != "" && c.extended:
			reply(m.ID, `"error":`+errorObject(schema.ErrorCode, "", `{"reason":"keyInvalid","outcome":"notRun"}`))
		case m.Params.Name == pathCheckTool:
			reply(m.ID, `"error":{"code":-32602,"message":"unknown tool"}`)
		default:
			go func() {
				if m.Params.Key == "" || !c.extended {
					c.charge("-")
					reply(m.ID, `"result":`+ok)
				} else if c.claim("key-" + m.Params.Key) {
					c.charge(m.Params.Key)
					reply(m.ID, `"result":`+okMarked)
				} else {
					reply(m.ID, `"result":`+okReplayed)
				}
			}()
		}
	}
	return in.Err()
}

// children starts servers, on request, and knows all that it has started.
type children struct {
	t   testing.TB
	how string
	dir string

	mu   sync.Mutex
	cmds []*exec.Cmd
}

func newChildren(t testing.TB, how string) *children {
	c := &children{t: t, how: how, dir: t.TempDir()}
	t.Cleanup(func() {
		for _, cmd := range c.all() {
			if cmd.ProcessState == nil && cmd.Process != nil {
				_ = cmd.Process.Kill()
			}
		}
	})
	return c
}

func (c *children) dial(context.Context) (mcp.Transport, error) {
	cmd := exec.Command(os.Args[0])
	// The race detector would sleep for a second before it exits.
	cmd.Env = append(os.Environ(), childEnv+"="+c.how+" stdio", childDir+"="+c.dir, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	c.mu.Lock()
	c.cmds = append(c.cmds, cmd)
	c.mu.Unlock()
	return &mcp.CommandTransport{Command: cmd, TerminateDuration: 2 * time.Second}, nil
}

func (c *children) all() []*exec.Cmd {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*exec.Cmd(nil), c.cmds...)
}

// listen starts a server over HTTP and returns when it listens.
func (c *children) listen() (*exec.Cmd, string) {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+c.how+" http", childDir+"="+c.dir, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.cmds = append(c.cmds, cmd)
	c.mu.Unlock()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		c.t.Fatalf("the server said %q: %v", line, err)
	}
	addr, err := os.ReadFile(filepath.Join(c.dir, "addr"))
	if err != nil {
		c.t.Fatal(err)
	}
	return cmd, "http://" + string(addr)
}

// connect connects to a first process. Without again there is no other.
func (c *children) connect(opt *clientretry.Options, again bool) *clientretry.Session {
	c.t.Helper()
	if again {
		opt.Dial = c.dial
	}
	tr, err := c.dial(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	s, err := clientretry.New(newClient(nil), opt).Connect(context.Background(), tr, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.Close() })
	return s
}

// lines of a file of the children's.
func (c *children) lines(name string) []string {
	b, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")[:strings.Count(string(b), "\n")]
}

// wantLedger compares the number of charges and of processes.
func (c *children) wantLedger(charges, processes int) {
	c.t.Helper()
	if got := len(c.lines("ledger")); got != charges {
		c.t.Errorf("%d charges, want %d", got, charges)
	}
	if got := len(c.all()); got != processes {
		c.t.Errorf("%d processes, want %d", got, processes)
	}
}

// wantGone checks that every process was waited for, so that none is left.
func (c *children) wantGone() {
	c.t.Helper()
	for i, cmd := range c.all() {
		if cmd.ProcessState == nil {
			c.t.Errorf("process %d was not waited for", i+1)
		}
		if err := syscall.Kill(cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			c.t.Errorf("process %d is still there: %v", i+1, err)
		}
	}
}
