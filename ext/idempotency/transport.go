package idempotency

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/internal/wire"
	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// Transport wraps a server's stdio, IO or in-memory transport so that a key in
// params.idempotencyKey is seen. Messages without such a key pass with the
// bytes they came with. For streamable HTTP use [Idempotency.Handler]; the
// result's Connect then fails and says so.
func (m *Idempotency) Transport(t mcp.Transport) mcp.Transport {
	m.piped.Store(true)
	switch t := t.(type) {
	case *mcp.StdioTransport:
		return &mcp.IOTransport{
			Reader: m.liftLines(os.Stdin, t.MaxLineLength), Writer: keepOpen{os.Stdout}, MaxLineLength: t.MaxLineLength,
		}
	case *mcp.IOTransport:
		return &mcp.IOTransport{Reader: m.liftLines(t.Reader, t.MaxLineLength), Writer: t.Writer, MaxLineLength: t.MaxLineLength}
	}
	return &liftingTransport{m: m, inner: t}
}

// keepOpen keeps the server from closing the process's standard output.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

func (m *Idempotency) liftLines(r io.ReadCloser, limit int) io.ReadCloser {
	return &lineLifter{
		lift: m.lifter, src: bufio.NewReaderSize(r, 64<<10), closer: r, limit: cmp.Or(limit, mcp.DefaultMaxLineLength),
	}
}

// lineLifter lifts keys in a stream of JSON messages, one a line.
type lineLifter struct {
	lift   *wire.Lifter
	src    *bufio.Reader
	closer io.Closer
	limit  int    // of a message, in bytes; negative for none
	out    []byte // what Read has yet to return
	err    error

	split   []byte // the lines so far of a message that spans lines
	nesting nesting
}

// errSplitMessage is returned for a message with a key that spans lines, which
// MCP's stdio transport forbids: passing on the rest would hide the key.
var errSplitMessage = errors.New("a JSON-RPC message with an idempotency key spans lines; MCP stdio messages must not contain newlines")

// Read implements io.Reader.
func (l *lineLifter) Read(p []byte) (int, error) {
	for len(l.out) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		l.out, l.err = l.next()
	}
	n := copy(p, l.out)
	l.out = l.out[n:]
	return n, nil
}

// next returns the next line, lifted.
func (l *lineLifter) next() ([]byte, error) {
	var line []byte
	for {
		part, err := l.src.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return l.lifted(line)
		case !errors.Is(err, bufio.ErrBufferFull):
			out, liftErr := l.lifted(line)
			if liftErr != nil {
				return nil, liftErr
			}
			return out, err
		case l.limit > 0 && len(line) > l.limit:
			return nil, l.tooLong()
		}
	}
}

func (l *lineLifter) tooLong() error {
	return fmt.Errorf("a message exceeds %d bytes (MaxLineLength)", l.limit)
}

// lifted returns a line with its key lifted. The SDK puts together a message
// that spans lines, so those are looked at together; their first ones are
// passed on before the last has come.
func (l *lineLifter) lifted(line []byte) ([]byte, error) {
	if l.nesting.read(line); l.nesting.depth > 0 || l.nesting.inString {
		l.split = append(l.split, line...)
		if l.limit > 0 && len(l.split) > l.limit {
			return nil, l.tooLong()
		}
		return line, nil
	}
	split := l.split
	l.split, l.nesting = nil, nesting{}
	if len(split) > 0 {
		msg := append(split, line...)
		if out, err := l.lift.Message(msg); err == nil && len(out) != len(msg) {
			return nil, errSplitMessage
		}
		return line, nil
	}
	// The end of the line is not the message's, and stays.
	msg := bytes.TrimRight(line, " \t\r\n")
	out, err := l.lift.Message(msg)
	if errors.Is(err, wire.ErrTrailing) {
		// The SDK also takes messages apart at a carriage return.
		return nil, errSplitMessage
	}
	if err != nil || len(out) == len(msg) {
		return line, nil // without a key, or nothing that the SDK takes for a message
	}
	return append(out, line[len(msg):]...), nil
}

// nesting follows how deep in arrays and objects a JSON text is.
type nesting struct {
	depth             int
	inString, escaped bool
}

func (n *nesting) read(text []byte) {
	for _, c := range text {
		switch {
		case n.escaped:
			n.escaped = false
		case n.inString:
			n.escaped = c == '\\'
			n.inString = c != '"'
		case c == '"':
			n.inString = true
		case c == '{' || c == '[':
			n.depth++
		case c == '}' || c == ']':
			n.depth--
		}
	}
}

// Close implements io.Closer.
func (l *lineLifter) Close() error { return l.closer.Close() }

// liftingTransport lifts in decoded messages, for transports whose bytes are
// out of reach.
type liftingTransport struct {
	m     *Idempotency
	inner mcp.Transport
}

// Connect implements mcp.Transport.
func (t *liftingTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	switch t.inner.(type) {
	case *mcp.StreamableServerTransport, *mcp.StreamableClientTransport, *mcp.SSEServerTransport:
		return nil, fmt.Errorf("idempotency.Transport: %T is an HTTP transport; wrap its http.Handler with Idempotency.Handler instead", t.inner)
	}
	conn, err := t.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &liftingConn{Connection: conn, lift: t.m.lifter}, nil
}

type liftingConn struct {
	mcp.Connection
	lift *wire.Lifter
}

// Read implements mcp.Connection.
func (c *liftingConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	req, ok := msg.(*jsonrpc.Request)
	if err != nil || !ok || req.Method != schema.MethodCallTool {
		return msg, err
	}
	lifted, err := c.lift.Params(req.Params)
	if err != nil {
		return msg, nil // the SDK refuses params that are not JSON
	}
	if len(lifted) != len(req.Params) {
		r := *req
		r.Params = json.RawMessage(lifted)
		return &r, nil
	}
	return msg, nil
}
