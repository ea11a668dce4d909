package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

var errNotAnObject = errors.New("arguments are not a JSON object")

// fingerprint digests a tool name and arguments so that two requests get the
// same digest exactly when the names are equal and the arguments are equal as
// JSON values: whatever the order of members, the spelling of strings, or the
// spelling of numbers, whose exact value counts (SEP, "Equality"). Absent
// arguments equal {}. Repeated members, invalid UTF-8 and lone surrogates are
// errors: two readers may take them for different values.
func fingerprint(name string, arguments json.RawMessage) (store.Fingerprint, error) {
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	// One buffer for all: the canonical arguments, the name, its length.
	buf := make(jsontext.Value, len(arguments), len(arguments)+len(name)+8)
	copy(buf, arguments)
	if buf.Kind() != '{' {
		return store.Fingerprint{}, errNotAnObject
	}
	if err := canonicalize(&buf); err != nil {
		return store.Fingerprint{}, err
	}
	buf = append(buf, name...)
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(name)))
	return sha256.Sum256(buf), nil
}

// canonicalize gives equal JSON values equal bytes. RFC 8785 would round
// integers above 2⁵³, so numbers are left to [exactNumbers].
func canonicalize(v *jsontext.Value) error {
	if err := v.Format(jsontext.ReorderRawObjects(true)); err != nil {
		return fmt.Errorf("arguments are not valid JSON: %w", err)
	}
	out, err := exactNumbers(*v)
	*v = out
	return err
}

// exactNumbers rewrites the numbers of compact JSON to one spelling per value.
// It returns v itself when every number has it already.
func exactNumbers(v []byte) ([]byte, error) {
	var out []byte // nil until something differs
	copied := 0
	for i := 0; i < len(v); {
		switch c := v[i]; {
		case c == '"':
			i = afterString(v, i)
		case c == '-' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(v) && isNumberByte(v[end]) {
				end++
			}
			if !plainInteger(v[i:end]) {
				n, err := exactNumber(v[i:end])
				if err != nil {
					return nil, err
				}
				out = append(append(out, v[copied:i]...), n...)
				copied = end
			}
			i = end
		default:
			i++
		}
	}
	if out == nil {
		return v, nil
	}
	return append(out, v[copied:]...), nil
}

func afterString(v []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexByte(v[i:], '"')
		i += n
		backslashes := 0
		for v[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return i + 1
		}
	}
}

func isNumberByte(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

// maxZeros is how many zeros an integer may end in before its exact spelling
// uses an exponent. It is larger than any 64-bit integer has.
const maxZeros = 20

// plainInteger reports whether n is an integer in its exact spelling.
func plainInteger(n []byte) bool {
	zeros := 0
	for _, c := range n {
		switch {
		case c == '0':
			zeros++
		case c == '.' || c == 'e' || c == 'E':
			return false
		default:
			zeros = 0
		}
	}
	return zeros <= maxZeros && !(len(n) == 2 && n[0] == '-' && n[1] == '0')
}

// exactNumber spells a JSON number as digits that neither start nor end in
// zero, and a power of ten; a power of 0 to maxZeros is written as zeros.
func exactNumber(n []byte) ([]byte, error) {
	mantissa, exponent := n, int64(0)
	if i := bytes.IndexAny(n, "eE"); i >= 0 {
		e, err := strconv.ParseInt(string(n[i+1:]), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("arguments have a number with an exponent beyond %d", math.MaxInt32)
		}
		mantissa, exponent = n[:i], e
	}
	negative := mantissa[0] == '-'
	mantissa = bytes.TrimPrefix(mantissa, []byte("-"))
	digits := make([]byte, 0, len(mantissa)+maxZeros+16)
	if negative {
		digits = append(digits, '-')
	}
	sign := len(digits)
	if whole, fraction, ok := bytes.Cut(mantissa, []byte(".")); ok {
		digits = append(append(digits, whole...), fraction...)
		exponent -= int64(len(fraction))
	} else {
		digits = append(digits, mantissa...)
	}
	trimmed := bytes.TrimLeft(digits[sign:], "0")
	digits = append(digits[:sign], trimmed...)
	for len(digits) > sign && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
		exponent++
	}
	switch {
	case len(digits) == sign:
		return []byte("0"), nil
	case exponent >= 0 && exponent <= maxZeros:
		return append(digits, bytes.Repeat([]byte("0"), int(exponent))...), nil
	}
	return strconv.AppendInt(append(digits, 'e'), exponent, 10), nil
}
