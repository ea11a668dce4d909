package redis_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// childEnv makes the test binary an MCP server: a prefix, a name for its
// connections, and the file of effects.
const childEnv = "SEPCHECK_REDIS_CHILD"

// childLease is how long a run of a server that was killed counts as alive.
const childLease = 500 * time.Millisecond

func TestMain(m *testing.M) {
	if args := os.Getenv(childEnv); args != "" {
		if err := serve(strings.Split(args, "|")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serve is the process that the test kills. Its tool waits a moment before and
// after its effect, so that the kills fall everywhere.
func serve(args []string) error {
	opt, err := goredis.ParseURL(os.Getenv(serverEnv))
	if err != nil {
		return err
	}
	opt.ContextTimeoutEnabled, opt.ClientName = true, args[1]
	s, err := redis.Open(context.Background(), goredis.NewClient(opt), &redis.Options{Prefix: args[0]})
	if err != nil {
		return err
	}
	effects, err := os.OpenFile(args[2], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	moment := func() { time.Sleep(rand.N(2 * time.Millisecond)) }
	h := handler(s, childLease, func(id string) int64 {
		moment()
		if _, err := effects.WriteString(id + "\n"); err != nil {
			panic(err)
		}
		moment()
		return 1
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", l.Addr())
	return http.Serve(l, h)
}

// A child is one such process.
type child struct {
	name string
	cmd  *exec.Cmd
	url  string
	err  error
}

func startChild(prefix, name, effects string) *child {
	c := &child{name: name, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{prefix, name, effects}, "|"))
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err == nil {
		c.url, err = bufio.NewReader(out).ReadString('\n')
	}
	c.url, c.err = strings.TrimSpace(c.url), err
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait() // it was killed
}

// A fate is what became of a call whose server was killed.
type fate struct {
	key  string      // and the argument of the call
	live answer      // what came before the kill
	left store.State // what the kill left: Absent, Running or Completed
}

// TestKilledServers kills MCP servers with calls under way at random instants.
// Then no call has run twice, and its outcome is unknown exactly where the
// kill fell between reserve and record.
func TestKilledServers(t *testing.T) {
	kills := 100
	switch {
	case long():
		kills = 300
	case testing.Short():
		kills = 20
	}
	client := connect(t)
	p := prefix(t, client)
	effects := filepath.Join(t.TempDir(), "effects")
	if err := os.WriteFile(effects, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, client, redis.Options{Prefix: p})

	children := make(chan *child, 1)
	go func() { // the next one starts while the last one is killed
		defer close(children)
		for i := range kills + 1 {
			children <- startChild(p, fmt.Sprintf("%s-%d", p, i), effects)
		}
	}()
	var fates []fate
	for range kills {
		fates = append(fates, killOne(t, client, s, <-children)...)
	}
	last := <-children
	if last.err != nil {
		t.Fatal(last.err)
	}
	defer last.kill()
	judge(t, fates, settleAll(t, last, fates), effects)
}

// killOne gives a server some calls and kills it.
func killOne(t *testing.T, client *goredis.Client, s *redis.Store, c *child) []fate {
	t.Helper()
	if c.err != nil {
		t.Fatal(c.err)
	}
	session, err := dial(t.Context(), c.url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	fates := make([]fate, 6)
	var wg sync.WaitGroup
	for i := range fates {
		a := attempt(t, s)
		fates[i] = fate{key: a.Key}
		wg.Go(func() { fates[i].live = call(ctx, session, fates[i].key, fates[i].key) })
	}
	time.Sleep(rand.N(12 * time.Millisecond))
	c.kill()
	wg.Wait()
	_ = session.Close() // its server is gone
	// What the process had sent may still be under way.
	eventually(t, "the connections of the dead are gone", func() bool {
		return !strings.Contains(client.ClientList(t.Context()).Val(), "name="+c.name+" ")
	})
	left := states(t, s)
	for i, f := range fates {
		fates[i].left = left[f.key]
	}
	return fates
}

// states returns what the store knows, by key.
func states(t *testing.T, s *redis.Store) map[string]store.State {
	t.Helper()
	list, err := s.List(t.Context(), store.Query{States: store.States(), Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]store.State{}
	for _, e := range list {
		states[e.Key] = e.State
		if e.State == store.Unknown { // its lease has passed already
			states[e.Key] = store.Running
		}
	}
	return states
}

func settleAll(t *testing.T, c *child, fates []fate) []answer {
	session, err := dial(t.Context(), c.url)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	settled := make([]answer, len(fates))
	var wg sync.WaitGroup
	todo := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range todo {
				settled[i] = settle(t, session, fates[i].key, fates[i].key)
			}
		})
	}
	for i := range fates {
		todo <- i
	}
	close(todo)
	wg.Wait()
	return settled
}

func judge(t *testing.T, fates []fate, settled []answer, effects string) {
	file, err := os.ReadFile(effects)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for key := range bytes.Lines(file) {
		count[string(bytes.TrimSpace(key))]++
	}
	tally := map[string]int{}
	for i, f := range fates {
		n, end := count[f.key], settled[i]
		unknown := end.outcome == schema.OutcomeUnknown
		switch {
		case n > 1:
			t.Errorf("%s ran %d times", f.key, n)
		case unknown != (f.left == store.Running):
			t.Errorf("%s: the kill left it %v, and then %v", f.key, f.left, end)
		case !unknown && (end.err != nil || end.outcome != "" || n != 1):
			t.Errorf("%s: %d effects and %v", f.key, n, end)
		case f.live.err == nil && f.live.outcome == "" && !end.replayed:
			t.Errorf("%s: a result and then %v", f.key, end)
		}
		tally[fmt.Sprintf("%v with %d effects after the retry", f.left, n)]++
	}
	t.Logf("%d calls under way when their servers were killed; what the kill left: %v", len(fates), tally)
}
