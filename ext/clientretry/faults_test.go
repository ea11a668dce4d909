package clientretry_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
)

// A httpFault is what a server, or something on the way, does with the response to a call.
type httpFault struct {
	kind  clientretry.LossKind
	serve func(c *toolCall, w http.ResponseWriter, r *http.Request)
}

func typed(w http.ResponseWriter, contentType string, status int) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
}

// resetConn ends the connection with a TCP reset.
func resetConn(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

func status(code int, body string) func(*toolCall, http.ResponseWriter, *http.Request) {
	return func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, "text/plain", code)
		_, _ = io.WriteString(w, body)
	}
}

func body(contentType, format string) func(*toolCall, http.ResponseWriter, *http.Request) {
	return func(c *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, contentType, http.StatusOK)
		_, _ = io.WriteString(w, strings.ReplaceAll(format, "$ID", string(c.ID)))
	}
}

const (
	sse       = "text/event-stream"
	jsonType  = "application/json"
	fullReply = `{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","content":[]}}`
)

// faultsOnTheWire are the ways to lose a response that internal/fault does not
// have. After each of them the plain SDK either ends its session or waits.
var faultsOnTheWire = map[string]httpFault{
	"408": {clientretry.LossStatus, status(408, "")}, "429": {clientretry.LossStatus, status(429, "")},
	"500": {clientretry.LossStatus, status(500, "oops")}, "502": {clientretry.LossStatus, status(502, "<html>")},
	"503": {clientretry.LossStatus, status(503, "")}, "504": {clientretry.LossStatus, status(504, "")},
	"502 with JSON-RPC body": {clientretry.LossStatus, status(502, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"x"}}`)},
	"202":                    {clientretry.LossMalformed, status(202, "")},
	"204":                    {clientretry.LossMalformed, status(204, "")},
	"304":                    {clientretry.LossMalformed, status(304, "")},
	"html":                   {clientretry.LossMalformed, body("text/html", "<html>log in</html>")},
	"no content type":        {clientretry.LossMalformed, body("", fullReply)},
	"empty json":             {clientretry.LossEOF, body(jsonType, "")},
	"json null":              {clientretry.LossMalformed, body(jsonType, "null")},
	"json array":             {clientretry.LossMalformed, body(jsonType, "["+fullReply+"]")},
	"json string id":         {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":"$ID","result":{}}`)},
	"json other id":          {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":99999,"result":{}}`)},
	"json no id":             {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","result":{}}`)},
	"json ID":                {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","ID":$ID,"Result":{}}`)},
	"json no version":        {clientretry.LossMalformed, body(jsonType, `{"id":$ID,"result":{}}`)},
	"json neither":           {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID}`)},
	"json null result":       {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"result":null}`)},
	"json both":              {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":""}}`)},
	"json request":           {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"method":"ping"}`)},
	"json cut":               {clientretry.LossMalformed, body(jsonType, fullReply[:40])},
	"json deep":              {clientretry.LossMalformed, body(jsonType, `{"jsonrpc":"2.0","id":$ID,"result":`+strings.Repeat("[", 2000)+strings.Repeat("]", 2000)+`}`)},
	"sse empty":              {clientretry.LossEOF, body(sse, "")},
	"sse comment only":       {clientretry.LossEOF, body(sse, ": ping\n\n")},
	"sse other event":        {clientretry.LossEOF, body(sse, "event: x\ndata: "+fullReply+"\n\n")},
	"sse other id":           {clientretry.LossEOF, body(sse, "data: "+strings.ReplaceAll(fullReply, "$ID", "99999")+"\n\n")},
	"sse string id":          {clientretry.LossEOF, body(sse, "data: "+strings.ReplaceAll(fullReply, "$ID", `"$ID"`)+"\n\n")},
	"sse line":               {clientretry.LossMalformed, body(sse, "data\n\n")},
	"sse json":               {clientretry.LossMalformed, body(sse, "data: {\n\n")},
	"sse cut":                {clientretry.LossEOF, body(sse, "data: "+fullReply[:40])},
	"sse cut line":           {clientretry.LossEOF, body(sse, "dat")},
	"sse neither":            {clientretry.LossMalformed, body(sse, "data: {\"jsonrpc\":\"2.0\",\"id\":$ID}\n\n")},
	"sse both":               {clientretry.LossMalformed, body(sse, "data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{},\"error\":{\"code\":1,\"message\":\"\"}}\n\n")},
	"json promised longer": {clientretry.LossEOF, func(c *toolCall, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "500")
		body(jsonType, fullReply)(c, w, nil)
	}},
	"reset before headers": {clientretry.LossReset, func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := http.NewResponseController(w).Hijack()
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}},
	"close before headers": {clientretry.LossReset, func(*toolCall, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	"reset after headers": {clientretry.LossReset, func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, sse, 200)
		resetConn(w)
	}},
	"reset in a json body": {clientretry.LossReset, func(_ *toolCall, w http.ResponseWriter, _ *http.Request) {
		typed(w, jsonType, 200)
		_, _ = io.WriteString(w, fullReply[:20])
		resetConn(w)
	}},
	"no headers in time": {clientretry.LossTimeout, func(_ *toolCall, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	"no event in time": {clientretry.LossTimeout, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		typed(w, sse, 200)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}},
	"no end of the body in time": {clientretry.LossTimeout, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		typed(w, jsonType, 200)
		_, _ = io.WriteString(w, fullReply[:20])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}},
	"a redirect to a page": {clientretry.LossMalformed, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/login", http.StatusFound)
	}},
	"a redirect for ever": {clientretry.LossOther, func(_ *toolCall, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
	}},
}

func newFaultyPeer(t *testing.T, modern bool, settings any, f httpFault) *httpPeer {
	p := newHTTPPeer(t, modern, settings)
	first := ""
	p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.pathCheck() || first != "" && first != string(c.ID) {
			return false
		}
		first = string(c.ID) // redirects bring the same one again
		p.mu.Unlock()
		defer p.mu.Lock()
		f.serve(c, w, r)
		return true
	}
	p.get = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/login" {
			typed(w, "text/html", 200)
			return
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
	return p
}

func quick() *clientretry.Options {
	return &clientretry.Options{AttemptTimeout: 300 * time.Millisecond, BackoffBase: time.Millisecond}
}

func TestEveryFaultIsALossOfTheCallAndNotOfTheSession(t *testing.T) {
	for name, f := range faultsOnTheWire {
		t.Run(name, func(t *testing.T) {
			generations(t, func(t *testing.T, modern bool) {
				for _, keyed := range []bool{true, false} {
					var settings any
					if keyed {
						settings = declared("keyParam", true)
					}
					p := newFaultyPeer(t, modern, settings, f)
					s := openHTTP(t, p, quick())
					_, report, err := callCharge(t, s)
					if want := map[bool]string{true: "result", false: "unknown"}[keyed]; told(err) != want {
						t.Fatalf("keyed %v: told %v, want %s", keyed, err, want)
					}
					if len(report.Losses) != 1 || report.Losses[0].Kind != f.kind {
						t.Errorf("keyed %v: losses %+v, want one of kind %s", keyed, report.Losses, f.kind)
					}
					attempts := map[bool]int{true: 2, false: 1}[keyed]
					if report.Attempts != attempts || !keyed && name != "a redirect for ever" && len(p.seen()) != 1 {
						t.Errorf("keyed %v: %d calls, report %+v", keyed, len(p.seen()), report)
					}
					if _, _, err := callCharge(t, s); err != nil {
						t.Errorf("keyed %v: the next call on the session: %v", keyed, err)
					}
					if p.dialled() != 1 {
						t.Errorf("keyed %v: %d handshakes, want the first to last", keyed, p.dialled())
					}
				}
			})
		})
	}
}

// What looks odd and is a response all the same.
func TestOddResponsesThatAreOnesAreTaken(t *testing.T) {
	for name, serve := range map[string]func(*toolCall, http.ResponseWriter, *http.Request){
		"error null":        body(jsonType, `{"jsonrpc":"2.0","id":$ID,"error":null,"result":{"resultType":"complete","content":[]}}`),
		"spaces":            body("Application/JSON; charset=utf-8", "\n "+fullReply+" \n"),
		"no blank line":     body(sse, "data: "+fullReply),
		"split data":        body(sse, "data: "+fullReply[:16]+"\ndata: "+fullReply[16:]+"\n\n"),
		"crlf":              body(sse, ": hi\r\nid: 7\r\nevent: message\r\ndata: "+fullReply+"\r\n\r\n"),
		"others before it":  body(sse, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\nevent: x\ndata: {\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":12345,\"result\":{}}\n\ndata: "+fullReply+"\n\n"),
		"rubbish behind it": body(sse, "data: "+fullReply+"\n\nrubbish\n\n"),
		"a temporary redirect": func(c *toolCall, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/moved" {
				body(jsonType, fullReply)(c, w, r)
				return
			}
			http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
		},
		"another session id": func(c *toolCall, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Mcp-Session-Id", "somebody-elses")
			body(jsonType, fullReply)(c, w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			generations(t, func(t *testing.T, modern bool) {
				p := newHTTPPeer(t, modern, declared("keyParam", true))
				p.serve = func(c *toolCall, w http.ResponseWriter, r *http.Request) bool { serve(c, w, r); return true }
				s := openHTTP(t, p, quick())
				for range 2 {
					if _, report, err := callCharge(t, s); err != nil || report.Attempts != 1 {
						t.Errorf("%v, %+v", err, report)
					}
				}
				for _, c := range p.seen() {
					if c.Key == "" {
						t.Error("a request went out without its key")
					}
				}
				if p.dialled() != 1 {
					t.Errorf("%d handshakes", p.dialled())
				}
			})
		})
	}
}
