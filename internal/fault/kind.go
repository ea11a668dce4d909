package fault

import (
	"errors"
	"fmt"
	"strings"
)

// Kind is a way to lose the answer to a `tools/call`. The zero value loses
// nothing.
type Kind int

const (
	// None forwards the call and its answer untouched.
	None Kind = iota
	// EOF answers 200 with the headers of an event stream and ends it
	// properly without any event.
	EOF
	// Reset answers 200 with the headers of an event stream and then resets
	// the connection (RST).
	Reset
	// BrokenEvent sends one event whose data is the first half of the answer
	// and then ends the stream properly.
	BrokenEvent
	// BrokenLine sends the start of an event that stops inside a field name
	// and then ends the stream properly.
	BrokenLine
	// CutJSON answers with application/json and the first half of the answer.
	CutJSON
	// Status429 answers 429 although the work is done.
	Status429
	// Status502 answers 502 although the work is done.
	Status502
	// Status503 answers 503 although the work is done.
	Status503
	// Status504 answers 504 although the work is done.
	Status504
	// ResetBeforeHeaders resets the connection (RST) before any byte of an
	// answer was sent.
	ResetBeforeHeaders
	// Hang never answers. It ends when the client goes away.
	Hang
	// CutBefore resets the connection (RST) without forwarding the call: the
	// server never sees it. To the client it looks like ResetBeforeHeaders.
	CutBefore
	// Kill kills the server process when its answer has been read and before
	// any of it is delivered. It works on stdio alone.
	Kill
)

// KindInfo describes a Kind to a person who has to choose one.
type KindInfo struct {
	Kind Kind
	// Name is what String returns and ParseKind takes.
	Name string
	// Says what the client meets, in one sentence.
	Says string
	// HTTP and Stdio tell on which transports the fault exists.
	HTTP, Stdio bool
}

// Kinds returns all kinds in their order. The slice is the caller's.
func Kinds() []KindInfo {
	return []KindInfo{
		{None, "none", "The call and its answer pass untouched.", true, true},
		{EOF, "eof", "After the work: 200 and an event stream that ends without an event.", true, false},
		{Reset, "reset", "After the work: 200, the headers of an event stream, then a TCP reset.", true, false},
		{BrokenEvent, "broken-event", "After the work: an event with the first half of the answer, then the end of the stream.", true, false},
		{BrokenLine, "broken-line", "After the work: an event that stops inside a field name, then the end of the stream.", true, false},
		{CutJSON, "cut-json", "After the work: application/json with the first half of the answer.", true, false},
		{Status429, "429-after-work", "After the work: status 429.", true, false},
		{Status502, "502-after-work", "After the work: status 502.", true, false},
		{Status503, "503-after-work", "After the work: status 503.", true, false},
		{Status504, "504-after-work", "After the work: status 504.", true, false},
		{ResetBeforeHeaders, "reset-before-headers", "After the work: a TCP reset before any byte of an answer.", true, false},
		{Hang, "hang", "After the work: no answer, ever.", true, false},
		{CutBefore, "cut-before", "Before the work: a TCP reset; the server never sees the call.", true, false},
		{Kill, "kill", "After the work: the server process is killed and its answer is lost with it.", false, true},
	}
}

// ErrUnknownKind is matched by the errors of [ParseKind].
var ErrUnknownKind = errors.New("unknown fault")

// ParseKind is the inverse of [Kind.String].
func ParseKind(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds() {
		if k.Name == name {
			return k.Kind, nil
		}
		names = append(names, k.Name)
	}
	return None, fmt.Errorf("%w %q: it is one of %s", ErrUnknownKind, name, strings.Join(names, ", "))
}

// String returns the name of the kind, as in "502-after-work".
func (k Kind) String() string {
	for _, info := range Kinds() {
		if info.Kind == k {
			return info.Name
		}
	}
	return fmt.Sprintf("fault.Kind(%d)", int(k))
}

// status returns the HTTP status that the kind answers with, or 0.
func (k Kind) status() int {
	switch k {
	case Status429:
		return 429
	case Status502:
		return 502
	case Status503:
		return 503
	case Status504:
		return 504
	}
	return 0
}
