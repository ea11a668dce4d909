package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

const (
	ok         = `{"resultType":"complete","content":[{"type":"text","text":"ok"}]}`
	okMarked   = `{"resultType":"complete","content":[{"type":"text","text":"ok"}],"_meta":{"` + schema.ExtensionID + `":{"replayed":false}}}`
	okReplayed = `{"resultType":"complete","content":[{"type":"text","text":"ok"}],"_meta":{"` + schema.ExtensionID + `":{"replayed":true}}}`
)

// answer gives a result.
func answer(result string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		writeJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":%s}`, c.ID, result)
	}
}

// rpcError gives a JSON-RPC error; data may be empty.
func rpcError(code int, message, data string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		writeJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"error":%s}`, c.ID, errorObject(code, message, data))
	}
}

func errorObject(code int, message, data string) string {
	if data != "" {
		data = `,"data":` + data
	}
	return fmt.Sprintf(`{"code":%d,"message":%q%s}`, code, message, data)
}

// extension gives an error of the extension. more are further members of its
// data, as name and JSON value.
func extension(reason, outcome string, more ...string) step {
	data := fmt.Sprintf(`{"reason":%q,"outcome":%q`, reason, outcome)
	for i := 0; i+1 < len(more); i += 2 {
		data += fmt.Sprintf(`,%q:%s`, more[i], more[i+1])
	}
	return rpcError(schema.ErrorCode, reason, data+`}`)
}

// status answers with a plain body.
func status(code int, headers ...string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		http.Error(w, "no: "+http.StatusText(code), code)
	}
}

// jsonStatus answers with a status and a JSON-RPC error for the call.
func jsonStatus(code int, object string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		writeJSON(w, code, `{"jsonrpc":"2.0","id":%s,"error":%s}`, c.ID, object)
	}
}

// typed answers 200 with a content type and a body, in which ID stands for the
// call's id.
func typed(contentType, body string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(strings.ReplaceAll(body, "ID", string(c.ID))))
	}
}

// events answers with an event stream of these texts, each flushed.
func events(texts ...string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, text := range texts {
			_, _ = w.Write([]byte(strings.ReplaceAll(text, "ID", string(c.ID))))
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// thenReset does what s does and resets the connection.
func thenReset(s step) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		s(p, w, r, c)
		abort(w)
	}
}

// thenHang does what s does and keeps the connection open until the client
// leaves.
func thenHang(s step) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		s(p, w, r, c)
		hang(p, w, r, c)
	}
}

// hang answers nothing until the client leaves.
func hang(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
	select {
	case <-r.Context().Done():
	case <-p.released:
	}
}

func reset(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) { abort(w) }

// run runs the tool as a server with the extension does: once per key. It
// answers with a marked result, and with an unmarked one without a key.
func run(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
	p.mu.Lock()
	replayed := c.Key != "" && p.ran[c.Key] > 0
	if !replayed {
		p.ran[c.Key]++
	}
	p.mu.Unlock()
	switch {
	case c.Key == "":
		answer(ok)(p, w, r, c)
	case replayed:
		answer(okReplayed)(p, w, r, c)
	default:
		answer(okMarked)(p, w, r, c)
	}
}

// after runs the tool and then answers as lost does.
func after(lost step) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		p.mu.Lock()
		p.ran[c.Key]++
		p.mu.Unlock()
		lost(p, w, r, c)
	}
}

// runs is how often the tool ran, over all keys.
func (p *peer) runs() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, times := range p.ran {
		n += times
	}
	return n
}

// message is an event with this data.
func message(data string) string { return "event: message\ndata: " + data + "\n\n" }

// response is the data of a response to the call.
func response(result string) string { return `{"jsonrpc":"2.0","id":ID,"result":` + result + `}` }

const progressData = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the test
	}
	return string(b)
}

type (
	httpWriter  = http.ResponseWriter
	httpRequest = http.Request
)

// eventsTyped is events with a content type.
func eventsTyped(contentType, text string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(strings.ReplaceAll(text, "ID", string(c.ID))))
	}
}

// flushed begins a body of a type and sends what there is of it.
func flushed(contentType, text string) step {
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(text))
		_ = http.NewResponseController(w).Flush()
	}
}

// scripted meets the n-th request with the n-th step, later ones with the last.
func scripted(steps ...step) step {
	var n atomic.Int64
	return func(p *peer, w http.ResponseWriter, r *http.Request, c wireCall) {
		steps[min(int(n.Add(1)), len(steps))-1](p, w, r, c)
	}
}
