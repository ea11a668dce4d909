package postgres

import (
	"bufio"
	"context"
	"crypto/rand"
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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

// childSchema is the environment variable by which the test binary is told to
// be a server on a schema.
const childSchema = "SEPCHECK_POSTGRES_CHILD"

func TestMain(m *testing.M) {
	if schema := os.Getenv(childSchema); schema != "" {
		if err := child(schema); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// leaseOfChild is short, since those who come after a killed server wait for it.
const leaseOfChild = 300 * time.Millisecond

// child serves the tools of a test until it is killed or its standard input
// ends.
func child(schema string) error {
	ctx := context.Background()
	c, err := pgxpool.ParseConfig(os.Getenv("SEPCHECK_POSTGRES"))
	if err != nil {
		return err
	}
	c.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return err
	}
	s, err := Open(ctx, pool, &Options{Schema: schema})
	if err != nil {
		return err
	}
	idem := idempotency.New(&idempotency.Options{Store: s, Lease: leaseOfChild, StoreTimeout: 20 * time.Second})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler(idem, effectServer(idem, s)), ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		_ = srv.Close()
	}()
	fmt.Printf("http://%s\n", l.Addr())
	_ = srv.Serve(l)
	return nil
}

type effectIn struct {
	Call string `json:"call"`
}

type effectOut struct {
	Number int64 `json:"number"`
}

const insertEffect = `.effect (call) VALUES ($1) RETURNING number`

// effectServer has two tools with the same effect, a row that is named by the
// call: exact, in the record's transaction, and plain, in one of its own.
func effectServer(idem *idempotency.Idempotency, s *Store) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "effects", Version: "1"}, nil)
	AddTool(idem, server, s, &mcp.Tool{Name: "exact"}, func(ctx context.Context, _ *mcp.CallToolRequest, tx pgx.Tx, in effectIn) (*mcp.CallToolResult, effectOut, error) {
		var out effectOut
		err := tx.QueryRow(ctx, `INSERT INTO `+s.opt.Schema+insertEffect, in.Call).Scan(&out.Number)
		return nil, out, err
	})
	mcp.AddTool(server, &mcp.Tool{Name: "plain"}, func(ctx context.Context, _ *mcp.CallToolRequest, in effectIn) (*mcp.CallToolResult, effectOut, error) {
		var out effectOut
		err := s.pool.QueryRow(ctx, `INSERT INTO `+s.opt.Schema+insertEffect, in.Call).Scan(&out.Number)
		return nil, out, err
	})
	idem.Install(server)
	return server
}

func effectTable(t testing.TB, s *Store) {
	run(t, s, `CREATE TABLE {schema}.effect (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, call text NOT NULL)`)
	run(t, s, `CREATE INDEX ON {schema}.effect (call)`)
}

// A process is a server of the test in a process of its own.
type process struct {
	*client
	cmd *exec.Cmd
}

func startProcess(t testing.TB, schema string) *process {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(exe)}
	p.cmd.Env = append(os.Environ(), childSchema+"="+schema)
	p.cmd.Stderr = os.Stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // ends with this process
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
	p.client = newClient(t, strings.TrimSpace(line))
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// A sent call is one that has been tried at least once.
type sent struct {
	tool, key, call string
	lost            int // attempts whose response was lost
	answer          reply
}

func (c *sent) try(ctx context.Context, p *process) error {
	r, err := p.try(ctx, c.tool, c.key, fmt.Sprintf(`{"call":%q}`, c.call))
	if err != nil {
		c.lost++
		return err
	}
	c.answer = r
	return nil
}

// settle sends the call again until it is answered with more than "later".
func (c *sent) settle(t testing.TB, p *process) {
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		if err := c.try(context.Background(), p); err != nil {
			t.Errorf("a server that was not killed: %v", err)
			return
		}
		if c.answer.reason != "stillRunning" && c.answer.reason != "storeUnavailable" {
			return
		}
	}
	t.Errorf("%s %s is not answered: %s", c.tool, c.call, c.answer)
}

// kill -9 of the server at random instants, while calls are under way. With
// the transactional tool every call ends with a result and has its effect
// once; with the plain one it has its effect at most once, and an unknown
// outcome only when a response of it was lost.
func TestKilledServersLoseNothing(t *testing.T) {
	t.Parallel()
	kills, lanes := 100, 4
	if long() {
		kills = 300
	}
	d := newDatabase(t)
	s := d.open(t, nil)
	effectTable(t, s)
	all := make(chan *sent, 1_000_000)
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			p := startProcess(t, d.schema)
			for range kills / lanes {
				lost := p.callsUntilKilled(t, all)
				p = startProcess(t, d.schema)
				var again sync.WaitGroup
				for _, c := range lost {
					again.Go(func() { c.settle(t, p) })
				}
				again.Wait()
			}
			p.kill()
		})
	}
	wg.Wait()
	close(all)
	judge(t, s, all)
}

// callsUntilKilled makes calls from several goroutines and kills the process
// at a random instant. It returns those calls whose response was lost.
func (p *process) callsUntilKilled(t testing.TB, all chan<- *sent) []*sent {
	ns, err := p.namespace(context.Background())
	if err != nil {
		t.Errorf("namespace: %v", err)
		return nil
	}
	var mu sync.Mutex
	var lost []*sent
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := i; ; n++ {
				c := &sent{tool: []string{"exact", "plain"}[n%2], key: ns + "." + rand.Text(), call: rand.Text()}
				all <- c
				if err := c.try(context.Background(), p); err != nil {
					mu.Lock()
					lost = append(lost, c)
					mu.Unlock()
					return
				}
			}
		})
	}
	instant, err := rand.Int(rand.Reader, big.NewInt(int64(60*time.Millisecond)))
	if err != nil {
		t.Error(err)
	}
	// A timer is what this test is about: the instant is not to depend on
	// what the server does.
	<-time.After(time.Duration(instant.Int64()))
	p.kill()
	wg.Wait()
	return lost
}

// judge compares what callers were told with what happened.
func judge(t *testing.T, s *Store, all <-chan *sent) {
	t.Helper()
	var exact, plain, lost, replayed, unknown int
	for c := range all {
		effects := scan[int](t, s, `SELECT count(*) FROM {schema}.effect WHERE call = $1`, c.call)
		number := scan[int64](t, s, `SELECT coalesce(min(number), 0) FROM {schema}.effect WHERE call = $1`, c.call)
		result := string(c.answer.StructuredContent) == fmt.Sprintf(`{"number":%d}`, number) && c.answer.replayed != nil
		if c.lost > 0 {
			lost++
			if result && *c.answer.replayed {
				replayed++
			}
		}
		switch {
		case c.tool == "exact":
			exact++
			if effects != 1 || !result {
				t.Errorf("exact: %d effects (number %d), told %s", effects, number, c.answer)
			}
		case effects > 1:
			t.Errorf("plain: %d effects, told %s", effects, c.answer)
		case c.answer.reason == "outcomeUnknown" && c.lost > 0:
			unknown++
		case effects != 1 || !result:
			t.Errorf("plain: %d effects (number %d), %d responses lost, told %s", effects, number, c.lost, c.answer)
		default:
			plain++
		}
	}
	t.Logf("%d exact calls and %d plain ones with a result; of %d calls with a lost response %d had run and were replayed, and %d plain ones are of unknown outcome",
		exact, plain, lost, replayed, unknown)
	if lost == 0 || replayed == 0 {
		t.Error("the kills hit nothing")
	}
}

// Two instances behind what might be a load balancer: every call is sent twice
// at once, to either instance. There is one effect for each, and both answers
// are the same.
func TestTwoInstancesHaveOneEffectForEachCall(t *testing.T) {
	t.Parallel()
	n := 1000
	if long() {
		n = 10_000
	}
	d := newDatabase(t)
	var clients []*client
	for range 2 {
		s := d.open(t, &Options{PollInterval: time.Hour})
		idem := idempotency.New(&idempotency.Options{Store: s, StoreTimeout: 20 * time.Second})
		clients = append(clients, serve(t, idem, effectServer(idem, s)))
	}
	s := d.open(t, nil)
	effectTable(t, s)
	ns, err := clients[0].namespace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	work := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range work {
				tool := []string{"exact", "plain"}[i%2]
				key, args := ns+"."+rand.Text(), fmt.Sprintf(`{"call":"%d"}`, i)
				var a, b reply
				var pair sync.WaitGroup
				pair.Go(func() { a = clients[0].call(t, tool, key, args) })
				pair.Go(func() { b = clients[1].call(t, tool, key, args) })
				pair.Wait()
				if a.replayed == nil || b.replayed == nil || *a.replayed == *b.replayed || string(a.StructuredContent) != string(b.StructuredContent) {
					t.Errorf("call %d: %s and %s", i, a, b)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	if effects, calls := scan[int](t, s, `SELECT count(*) FROM {schema}.effect`), scan[int](t, s, `SELECT count(DISTINCT call) FROM {schema}.effect`); effects != n || calls != n {
		t.Errorf("%d effects of %d calls, want %d of each", effects, calls, n)
	}
}
