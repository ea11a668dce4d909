package check

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Status is how a check ended.
type Status string

const (
	Passed Status = "pass"
	// Failed: the peer breaks a MUST.
	Failed Status = "fail"
	// Warned: the peer breaks a SHOULD.
	Warned Status = "warn"
	// Skipped: the check does not apply to the peer, or needs something that
	// it was not given; its detail says which.
	Skipped Status = "skip"
	// Observed: the check has no rule and tells what the peer does.
	Observed Status = "info"
	// Broken: the check itself could not be made, for example because the
	// peer went away. It counts as a failure.
	Broken Status = "error"
)

// T is what a running check reports to. Its methods may be called from several
// goroutines, but Fatalf and Skipf only from the one that Run was called on.
type T struct {
	level Level

	mu     sync.Mutex
	status Status
	detail string
	notes  []string
	trace  []Frame
	room   int // bytes of trace left
}

// Frame is one message of the wire, or an event on it, as a check saw it.
type Frame struct {
	At time.Time `json:"at"`
	// Dir says whose message it is: "->" to the peer, "<-" from it, "--" for
	// an event such as a closed connection.
	Dir  string `json:"dir"`
	Text string `json:"text"`
}

// maxTrace bounds the text that is kept of one check's frames.
const maxTrace = 1 << 20

// maxFrame bounds the text that is kept of one frame.
const maxFrame = 64 << 10

func newT(l Level) *T { return &T{level: l, room: maxTrace} }

// Errorf reports that the peer breaks the rule. The check goes on; the first
// report is the result, later ones are notes to it.
func (t *T) Errorf(format string, args ...any) {
	t.report(t.breach(), fmt.Sprintf(format, args...))
}

// Fatalf is Errorf, and ends the check.
func (t *T) Fatalf(format string, args ...any) {
	t.report(t.breach(), fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// Brokenf reports that the check could not be made, and ends it.
func (t *T) Brokenf(format string, args ...any) {
	t.report(Broken, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// Skipf reports that the check does not apply, or what it would need, and ends
// it. A report of a breach stands.
func (t *T) Skipf(format string, args ...any) {
	t.report(Skipped, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// Observef says what the peer does: the result of an [Observe] check that
// reports nothing else, a note to any other.
func (t *T) Observef(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.level == Observe {
		t.report(Observed, text)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes = append(t.notes, text)
}

// Frame adds what was sent or seen to the check's trace. What is too long is cut.
func (t *T) Frame(dir, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(text) > maxFrame {
		text = text[:maxFrame] + fmt.Sprintf("… (%d bytes in all)", len(text))
	}
	if t.room -= len(text); t.room < 0 {
		return
	}
	t.trace = append(t.trace, Frame{At: time.Now(), Dir: dir, Text: text})
}

// breach is the status of a peer that breaks the rule.
func (t *T) breach() Status {
	switch t.level {
	case Must:
		return Failed
	case Should:
		return Warned
	}
	return Observed
}

func (t *T) report(s Status, detail string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status == "" || t.status == Observed && s != Observed {
		if t.status != "" {
			t.notes = append(t.notes, t.detail)
		}
		t.status, t.detail = s, detail
		return
	}
	t.notes = append(t.notes, detail)
}
