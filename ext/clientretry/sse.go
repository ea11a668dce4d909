package clientretry

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// sseEvent is one server-sent event.
type sseEvent struct {
	raw     []byte // as it came, with the blank line
	data    []byte
	id      string
	retry   time.Duration // negative when it has none
	message bool          // has data and is of the type that MCP uses
}

// sseReader reads events as the SDK does, which takes less than a browser:
// lines end in a newline, and every line has a colon.
type sseReader struct {
	src *bufio.Reader
	max int // bytes of an event; not positive: no bound
}

func newSSEReader(r io.Reader, max int) *sseReader {
	return &sseReader{src: bufio.NewReader(r), max: max}
}

// Read implements io.Reader for what comes after the last event of interest.
func (r *sseReader) Read(p []byte) (int, error) { return r.src.Read(p) }

// next reads up to and with the next blank line. At the end of the stream it
// returns what there was, and the error.
func (r *sseReader) next() (sseEvent, error) {
	e, name := sseEvent{retry: -1}, ""
	for {
		line, err := r.line(len(e.raw))
		if errors.Is(err, errTooLarge) {
			return e, err
		}
		e.raw = append(e.raw, line...)
		text := bytes.TrimRight(line, "\r\n")
		if len(text) > 0 {
			field, value, ok := bytes.Cut(text, []byte(":"))
			if !ok {
				if err != nil {
					return e, err // the line was cut, not malformed
				}
				return e, fmt.Errorf("%w: a line of the event stream has no colon", errMalformed)
			}
			value = bytes.TrimSpace(value)
			if string(field) == "event" {
				name = string(value)
			}
			e.field(string(field), value)
		}
		if err != nil || len(text) == 0 {
			e.message = len(e.data) > 0 && (name == "message" || name == "")
			return e, err
		}
	}
}

func (e *sseEvent) field(name string, value []byte) {
	switch name {
	case "id":
		e.id = string(value)
	case "retry":
		if ms, err := strconv.ParseInt(string(value), 10, 64); err == nil && ms >= 0 {
			e.retry = milliseconds(ms)
		}
	case "data":
		if e.data != nil {
			e.data = append(e.data, '\n')
		}
		e.data = append(e.data, value...)
	}
}

// line reads a line of an event that already has n bytes.
func (r *sseReader) line(n int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.src.ReadSlice('\n')
		if r.max > 0 && n+len(line)+len(part) > r.max {
			return nil, fmt.Errorf("%w: an event of more than %d bytes", errTooLarge, r.max)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// sseMessage frames a message.
func sseMessage(data []byte) []byte {
	return append(append([]byte("event: message\ndata: "), data...), "\n\n"...)
}
