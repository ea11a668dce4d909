package idempotency_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/memory"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// direct calls the middleware without a connection: a handler stands for the
// server inside it.
type direct struct {
	idem   *idempotency.Idempotency
	handle mcp.MethodHandler
	ns     string
}

func newDirect(t testing.TB, opt *idempotency.Options, tool mcp.MethodHandler) direct {
	t.Helper()
	o := idempotency.Options{}
	if opt != nil {
		o = *opt
	}
	if o.Store == nil {
		o.Store = memory.New(nil)
	}
	ns, err := o.Store.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "tools/list" {
			return &mcp.ListToolsResult{Tools: []*mcp.Tool{{Name: "t", InputSchema: map[string]any{"type": "object"}}}}, nil
		}
		return tool(ctx, method, req)
	}
	o.MinAnonymousKey = -1 // keys of tests are to be read
	idem := idempotency.New(&o)
	return direct{idem, idem.Middleware()(next), ns.Name}
}

// call makes a keyed call of the tool t; the key is completed by the namespace.
func (d direct) call(ctx context.Context, key string) (mcp.Result, error) {
	return d.handle(ctx, "tools/call", &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{
		Meta: mcp.Meta{schema.MetaKey: d.ns + "." + key}, Name: "t", Arguments: json.RawMessage(`{}`),
	}})
}

func reasonOf(err error) schema.Reason {
	var w *jsonrpc.Error
	if !errors.As(err, &w) || w.Code != schema.ErrorCode {
		return ""
	}
	var d schema.ErrorData
	_ = json.Unmarshal(w.Data, &d)
	return d.Reason
}

// L10: nothing stays "running" after a handler that never returned.
func TestAPanicIsNotSwallowedAndThoseWhoJoinedAreReleased(t *testing.T) {
	for how, leave := range map[string]func(){
		"panic":  func() { panic("boom") },
		"goexit": runtime.Goexit,
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs, gate := 0, make(chan struct{})
				d := newDirect(t, nil, func(context.Context, string, mcp.Request) (mcp.Result, error) {
					runs++
					<-gate
					leave()
					return nil, nil
				})
				recovered := make(chan any, 1)
				go func() {
					defer func() { recovered <- recover() }()
					_, _ = d.call(t.Context(), "k")
				}()
				synctest.Wait()
				const joiners = 20
				answers := make(chan error, joiners)
				for range joiners {
					go func() {
						_, err := d.call(t.Context(), "k")
						answers <- err
					}()
				}
				synctest.Wait() // all have joined
				close(gate)
				if r := <-recovered; how == "panic" && r != "boom" {
					t.Errorf("recovered %v, want the tool's own panic", r)
				}
				for range joiners {
					if err := <-answers; reasonOf(err) != schema.ReasonOutcomeUnknown {
						t.Errorf("a joiner got %v", err)
					}
				}
				if _, err := d.call(t.Context(), "k"); reasonOf(err) != schema.ReasonOutcomeUnknown {
					t.Errorf("a later attempt got %v", err)
				}
				if runs != 1 {
					t.Errorf("%d runs, want 1", runs)
				}
			})
		})
	}
}

// The environment variable makes TestPanicChild a server whose tool panics.
const panicChild = "IDEMPOTENCY_TEST_PANIC_CHILD"

func TestPanicChild(t *testing.T) {
	how := os.Getenv(panicChild)
	if how == "" {
		t.Skip("run by TestAPanicEndsTheProcessAsWithoutTheExtension")
	}
	f := newServer(t, nil, nil)
	mcp.AddTool(f.server, &mcp.Tool{Name: "panics"}, func(context.Context, *mcp.CallToolRequest, chargeArgs) (*mcp.CallToolResult, any, error) {
		panic("the tool's own panic")
	})
	if how == "stdio" {
		fmt.Println(f.namespaceOf(t))
		_ = f.server.Run(t.Context(), f.idem.Transport(&mcp.StdioTransport{}))
		return
	}
	ts := httptest.NewServer(f.idem.Handler(sdkHandler(f.server, mcp.StreamableHTTPOptions{Stateless: true})))
	fmt.Println(f.namespaceOf(t), ts.URL)
	<-t.Context().Done()
}

func TestAPanicEndsTheProcessAsWithoutTheExtension(t *testing.T) {
	for _, how := range []string{"stdio", "http"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPanicChild$")
			cmd.Env = append(os.Environ(), panicChild+"="+how)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			if !lines.Scan() {
				t.Fatal("the child said nothing: ", stderr.String())
			}
			hello := strings.Fields(lines.Text())
			params := withMeta(modernRevision, toolParams("panics", hello[0]+".k", `{"amount":1}`))
			if how == "stdio" {
				fmt.Fprintf(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}`+"\n", params)
			} else {
				c := &httpClient{url: hello[1], rev: modernRevision, client: &http.Client{}}
				if r, err := c.call(t.Context(), "tools/call", toolParams("panics", hello[0]+".k", `{"amount":1}`)); err == nil {
					t.Errorf("the call was answered: %v", r)
				}
			}
			for lines.Scan() {
				if strings.Contains(lines.Text(), `"jsonrpc"`) {
					t.Errorf("the call was answered: %s", lines.Text())
				}
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Errorf("the child ended with %v, want exit code 2", err)
			}
			if !strings.Contains(stderr.String(), "panic: the tool's own panic") {
				t.Errorf("the child's last words: %.2000s", stderr.String())
			}
		})
	}
}
