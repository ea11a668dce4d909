package fault

import (
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"time"
)

// perform does to the client what the action says, the work being done. It
// may panic with [http.ErrAbortHandler], which ends the connection.
func perform(w http.ResponseWriter, r *http.Request, a Action, done *finished) {
	switch a.Kind {
	case EOF:
		stream(w, done, "")
	case Reset:
		stream(w, done, "")
		reset(w)
	case BrokenEvent:
		stream(w, done, "event: message\ndata: "+string(firstHalf(done.answer))+"\n\n")
	case BrokenLine:
		stream(w, done, "event: message\ndat\n\n")
	case CutJSON:
		body := firstHalf(done.answer)
		copyHeader(w, done.header, "application/json")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(body) // a client that is gone has lost the answer too
	case ResetBeforeHeaders:
		reset(w)
	case Hang:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	default:
		status(w, a)
	}
}

// stream starts an event stream and sends text at once.
func stream(w http.ResponseWriter, done *finished, text string) {
	copyHeader(w, done.header, "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte(text))
	_ = http.NewResponseController(w).Flush() // as above
}

func status(w http.ResponseWriter, a Action) {
	if a.RetryAfter > 0 {
		seconds := (a.RetryAfter + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	code := a.Kind.status()
	http.Error(w, http.StatusText(code), code)
}

// copyHeader keeps the upstream's headers, a session id for instance, except
// those that describe the body that is not sent.
func copyHeader(w http.ResponseWriter, from http.Header, contentType string) {
	to := w.Header()
	for name, values := range from {
		switch name {
		case "Content-Length", "Content-Encoding", "Transfer-Encoding", "Trailer":
		default:
			to[name] = values
		}
	}
	to.Set("Content-Type", contentType)
}

// reset ends the client's connection with a RST: without time to linger the
// kernel drops the connection instead of closing it in order.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: the stream is reset instead
	}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn() // closing the TLS layer would say good-bye first
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails on a connection that is gone already
	}
	_ = conn.Close()
}
