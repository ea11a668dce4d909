package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
)

// toolName is the tool that every row calls.
const toolName = "charge"

// A serverConfig says how one payment server runs. It crosses the process
// boundary as arguments.
type serverConfig struct {
	dir       string        // of the ledger and the call log
	stdio     bool          // stdio instead of HTTP
	extended  bool          // with ext/idempotency
	slowFirst time.Duration // how long the process's first charge takes
}

func (c serverConfig) args() []string {
	return []string{
		"-dir=" + c.dir, "-stdio=" + strconv.FormatBool(c.stdio),
		"-extended=" + strconv.FormatBool(c.extended), "-slow-first=" + c.slowFirst.String(),
	}
}

func parseServerArgs(args []string) (c serverConfig, err error) {
	fs := flag.NewFlagSet("payment server", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.dir, "dir", "", "")
	fs.BoolVar(&c.stdio, "stdio", false, "")
	fs.BoolVar(&c.extended, "extended", false, "")
	fs.DurationVar(&c.slowFirst, "slow-first", 0, "")
	if err = fs.Parse(args); err == nil && c.dir == "" {
		err = errors.New("no -dir")
	}
	return c, err
}

// ServerMain is the payment server's process. It serves until its input ends,
// which is also how it learns that its parent is gone, then lets running
// charges finish. Over HTTP the first line of its output is its URL.
func ServerMain(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	cfg, err := parseServerArgs(args)
	if err != nil {
		return fmt.Errorf("payment server: %w", err)
	}
	s := &paymentServer{cfg: cfg}
	if s.ledger, err = openLines(cfg.dir, ledgerName, true); err != nil {
		return err
	}
	defer s.ledger.Close()
	if s.calls, err = openLines(cfg.dir, callsName, false); err != nil {
		return err
	}
	defer s.calls.Close()

	server := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: toolName, Description: "Charges a card."}, s.charge)
	var idem *idempotency.Idempotency
	if cfg.extended {
		idem = idempotency.New(nil)
		idem.Install(server)
	}
	if cfg.stdio {
		err = s.serveStdio(ctx, server, idem, stdin, stdout)
	} else {
		err = s.serveHTTP(ctx, server, idem, stdin, stdout)
	}
	s.running.Wait()
	return err
}

type paymentServer struct {
	cfg     serverConfig
	ledger  *lines
	calls   *lines
	charged atomic.Int64
	running sync.WaitGroup // charges under way, also those whose client left
}

type chargeArgs struct {
	Amount int64 `json:"amount" jsonschema:"what to charge, in cents"`
}

// charge moves the money, then takes the time it takes. It looks at no
// context: a payment under way can't be called back.
func (s *paymentServer) charge(_ context.Context, _ *mcp.CallToolRequest, args chargeArgs) (*mcp.CallToolResult, any, error) {
	s.running.Add(1)
	defer s.running.Done()
	if err := s.ledger.append(charge{At: time.Now(), Amount: args.Amount}); err != nil {
		return nil, nil, err
	}
	n := s.charged.Add(1)
	if n == 1 {
		time.Sleep(s.cfg.slowFirst) // this is the work, nobody waits for an event here
	}
	text := fmt.Sprintf("charged %d cents, receipt %d", args.Amount, n)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

func (s *paymentServer) serveStdio(ctx context.Context, server *mcp.Server, idem *idempotency.Idempotency, stdin io.Reader, stdout io.Writer) error {
	var t mcp.Transport = &mcp.IOTransport{
		Reader: io.NopCloser(&loggingReader{log: s.calls, src: bufio.NewReader(stdin)}),
		Writer: nopCloser{stdout},
	}
	if idem != nil {
		t = idem.Transport(t)
	}
	if err := server.Run(ctx, t); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("payment server: %w", err)
	}
	return nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// loggingReader notes each line before anyone else can read it.
type loggingReader struct {
	log  *lines
	src  *bufio.Reader
	rest []byte
}

func (r *loggingReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		line, err := r.src.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}
		if err := logCall(r.log, line); err != nil {
			return 0, err
		}
		r.rest = line
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (s *paymentServer) serveHTTP(ctx context.Context, server *mcp.Server, idem *idempotency.Idempotency, stdin io.Reader, stdout io.Writer) error {
	// Stateless is how a server speaks revision 2026-07-28.
	var h http.Handler = mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	if idem != nil {
		h = idem.Handler(h)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("payment server: %w", err)
	}
	unused := &unusedConns{conns: map[net.Conn]struct{}{}}
	hs := &http.Server{Handler: s.logged(h), ReadHeaderTimeout: 10 * time.Second, ConnState: unused.note}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	if _, err := fmt.Fprintf(stdout, "http://%s\n", ln.Addr()); err != nil {
		return errors.Join(err, hs.Close(), ignoreClosed(<-served))
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stdin) // any end of it is the end
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	hs.RegisterOnShutdown(unused.close)
	return errors.Join(hs.Shutdown(grace), ignoreClosed(<-served))
}

// unusedConns are connections on which nothing was ever sent. A client's pool
// may hold one that it dialled and did not need, and Shutdown would take it
// for busy for five seconds.
type unusedConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func (u *unusedConns) note(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if state == http.StateNew {
		u.conns[c] = struct{}{}
	} else {
		delete(u.conns, c)
	}
}

func (u *unusedConns) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.conns {
		_ = c.Close()
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// logged notes each `tools/call` before anything else happens with it.
func (s *paymentServer) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mcp.DefaultMaxRequestBodyBytes))
		if err != nil {
			http.Error(w, "the request could not be read", http.StatusBadRequest)
			return
		}
		if err := logCall(s.calls, body); err != nil {
			http.Error(w, "the call could not be logged", http.StatusInternalServerError)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}
