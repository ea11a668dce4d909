package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// adapterHeader tells the middleware that a request came through the adapter.
// Its value is a secret of its own: handlers see it, and one that shows it to
// its peer must not give away the name under which keys are lifted.
const adapterHeader = "Mcp-Idempotency-Adapter"

// Handler wraps the SDK's streamable HTTP handler so that a key in
// params.idempotencyKey is seen. A request without such a key reaches next
// with the bytes it came with. Without Handler keys are still accepted in
// `_meta`, and the capability says so.
func (m *Idempotency) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r2 := r.WithContext(r.Context())
		r2.Header = r.Header.Clone()
		r2.Header.Set(adapterHeader, m.adapter)
		if r.Method == http.MethodPost && r.Body != nil {
			body, err := m.readBody(r)
			var tooLarge *http.MaxBytesError
			switch {
			case errors.As(err, &tooLarge):
				http.Error(w, fmt.Sprintf("request body exceeds %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
				return
			case err != nil:
				http.Error(w, "failed to read body", http.StatusBadRequest)
				return
			}
			lifted, err := m.lifter.Message(body)
			switch {
			case err != nil && namesKey(body):
				// The SDK might read more than JSON, and then would not see the key.
				http.Error(w, "malformed payload: "+err.Error(), http.StatusBadRequest)
				return
			case err == nil && len(lifted) != len(body):
				body = lifted
				r2.ContentLength = int64(len(body))
			}
			r2.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(w, r2)
	})
}

var escapedASCII = regexp.MustCompile(`\\u00[0-7][0-9A-Fa-f]`)

// namesKey reports whether the member's name is anywhere in the text, in any
// spelling.
func namesKey(text []byte) bool {
	plain := escapedASCII.ReplaceAllFunc(text, func(escape []byte) []byte {
		c, _ := strconv.ParseUint(string(escape[2:]), 16, 8) // four digits
		return []byte{byte(c)}
	})
	return bytes.Contains(plain, []byte(schema.ParamKey))
}

func (m *Idempotency) readBody(r *http.Request) ([]byte, error) {
	defer r.Body.Close()
	limit := m.opt.MaxRequestBytes
	if limit < 0 {
		return io.ReadAll(r.Body)
	}
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	return io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
}
