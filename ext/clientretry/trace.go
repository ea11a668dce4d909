package clientretry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
)

// errSilentResend stops a re-send that nobody asked for.
var errSilentResend = errors.New("clientretry: net/http was about to send the request again by itself")

// wireTrace is what the HTTP transport below tells of one request.
type wireTrace struct {
	asked, got atomic.Bool // a connection was asked for, and got
	replayable atomic.Bool // it has a header that net/http takes for leave to re-send
}

// watch adds the trace to whatever the caller traces.
func (t *wireTrace) watch(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { t.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { t.got.Store(true) },
		WroteHeaderField: func(name string, _ []string) {
			if replayHeader(name) {
				t.replayable.Store(true)
			}
		},
	})
}

// unsent reports whether a failed request cannot have been written. It is only
// true when the transport said that it looked for a connection and got none: a
// transport that tells nothing leaves it open.
func (t *wireTrace) unsent() bool { return t.asked.Load() && !t.got.Load() }

func replayHeader(name string) bool {
	return strings.EqualFold(name, "Idempotency-Key") || strings.EqualFold(name, "X-Idempotency-Key")
}

// once keeps net/http from sending the request again by itself after it was
// written, which it does for a POST with an Idempotency-Key header when a kept
// connection drops, whoever has put the header there. A re-send is this
// layer's to decide.
func (t *wireTrace) once(req *http.Request) {
	body := req.GetBody
	if body == nil {
		return
	}
	for name := range req.Header {
		if replayHeader(name) {
			t.replayable.Store(true)
		}
	}
	req.GetBody = func() (io.ReadCloser, error) {
		if t.replayable.Load() {
			return nil, errSilentResend
		}
		return body()
	}
}
