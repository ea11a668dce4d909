package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/internal/fault"
)

// A path leads from a client through the fault layer to a payment server.
type path interface {
	// dial returns a transport for one connection.
	dial(context.Context) (mcp.Transport, error)
	// calls returns what the fault layer recorded.
	calls() []fault.Call
	// close ends the path and returns when the server has exited.
	close() error
}

// openPath starts the servers for one row. ctx bounds their lives.
func openPath(ctx context.Context, argv []string, f Fault, cfg serverConfig) (path, error) {
	opts := &fault.Options{Rules: rulesFor(f)}
	if cfg.stdio {
		layer, err := fault.NewStdio(opts)
		if err != nil {
			return nil, err
		}
		return &stdioPath{ctx: ctx, argv: argv, cfg: cfg, layer: layer}, nil
	}
	server, err := startHTTP(ctx, argv, cfg)
	if err != nil {
		return nil, err
	}
	layer, err := fault.Serve(server.url, opts)
	if err != nil {
		return nil, errors.Join(err, server.stop())
	}
	return &httpPath{server: server, layer: layer, client: &http.Client{Transport: &http.Transport{}}}, nil
}

// rulesFor makes the first charge of a row meet its fault. The timeout needs
// none: there the layer only records.
func rulesFor(f Fault) fault.Rules {
	kinds := map[Fault]fault.Kind{
		FaultEOF: fault.EOF, FaultReset: fault.Reset, FaultBrokenEvent: fault.BrokenEvent,
		FaultStatus502: fault.Status502, FaultStdioKill: fault.Kill,
	}
	kind, ok := kinds[f]
	if !ok {
		return nil
	}
	return fault.Rules{{Tool: toolName, Nth: 1, Action: fault.Action{Kind: kind}}}
}

type httpPath struct {
	server *httpServer
	layer  *fault.Server
	client *http.Client // of its own, so that no connection outlives the row
}

func (p *httpPath) dial(context.Context) (mcp.Transport, error) {
	return &mcp.StreamableClientTransport{Endpoint: p.layer.URL, HTTPClient: p.client}, nil
}

func (p *httpPath) calls() []fault.Call { return p.layer.Calls() }

func (p *httpPath) close() error {
	p.client.CloseIdleConnections()
	return errors.Join(p.layer.Close(), p.server.stop())
}

// stdioPath starts a process per connection, as a stdio client does.
type stdioPath struct {
	// ctx bounds the processes. The context of dial must not: it may be one
	// attempt's, and a process outlives the attempt that started it.
	ctx   context.Context
	argv  []string
	cfg   serverConfig
	layer *fault.Stdio

	mu        sync.Mutex
	processes []*fault.Process
	said      []*tail
}

func (p *stdioPath) dial(context.Context) (mcp.Transport, error) {
	cmd, said := serverCommand(p.ctx, p.argv, p.cfg)
	process, err := p.layer.Start(cmd)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.processes = append(p.processes, process)
	p.said = append(p.said, said)
	return &mcp.IOTransport{Reader: process, Writer: process}, nil
}

func (p *stdioPath) calls() []fault.Call { return p.layer.Calls() }

func (p *stdioPath) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for i, process := range p.processes {
		if err := process.Close(); err != nil {
			errs = append(errs, fmt.Errorf("%w: %s", err, p.said[i]))
		}
	}
	return errors.Join(errs...)
}
