package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// patience bounds what should happen soon, so that a test that fails ends.
const patience = 20 * time.Second

// lease is what attempts ask for unless a test says otherwise.
const lease = 30 * time.Second

// A world is what one test works on: two instances over the same records.
type world struct {
	testing.TB
	Backend
	factory Factory
	config  Config
	a, b    store.Store
	// ctx ends when the test has run for much too long.
	ctx context.Context
}

func newWorld(t testing.TB, f Factory, c Config) *world {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	w := &world{TB: t, Backend: f(t, c), factory: f, config: c, ctx: ctx}
	if w.WakeWithin == 0 {
		w.WakeWithin = 5 * time.Second
	}
	w.a, w.b = w.open(), w.open()
	return w
}

// open returns another instance, which is closed when the test ends.
func (w *world) open() store.Store {
	w.Helper()
	s := w.Open(w.TB)
	if c, ok := s.(io.Closer); ok {
		w.Cleanup(func() { _ = c.Close() }) // some tests close it themselves
	}
	return s
}

// closing closes an instance, and skips the test when it cannot be closed.
func (w *world) closing(s store.Store) {
	w.Helper()
	c, ok := s.(io.Closer)
	if !ok {
		w.Skip("the store is not an io.Closer")
	}
	if err := c.Close(); err != nil {
		w.Fatalf("Close: %v", err)
	}
}

// advance moves the clock, and skips the test when the backend has none.
func (w *world) advance(d time.Duration) {
	w.Helper()
	if w.Advance == nil {
		w.Skip("the backend has no clock that can be moved")
	}
	w.Advance(d)
}

func (w *world) namespace(s store.Store) store.Namespace {
	w.Helper()
	ns, err := s.Current(w.ctx)
	if err != nil {
		w.Fatalf("Current: %v", err)
	}
	return ns
}

// id returns a new key of the current namespace, of the principal "p".
func (w *world) id() store.ID {
	w.Helper()
	return idIn(w.namespace(w.a).Name)
}

func idIn(namespace string) store.ID {
	return store.ID{Principal: "p", Key: namespace + "." + rand.Text()}
}

func (w *world) reserve(s store.Store, a store.Attempt) store.Reservation {
	w.Helper()
	res, err := s.Reserve(w.ctx, a)
	if err != nil {
		w.Fatalf("Reserve: %v", err)
	}
	return res
}

// expect reserves and demands a verdict.
func (w *world) expect(s store.Store, a store.Attempt, want store.Verdict) store.Reservation {
	w.Helper()
	res := w.reserve(s, a)
	if res.Verdict != want {
		w.Fatalf("Reserve: got %s (%+v), want %s", verdict(res.Verdict), res.Record, verdict(want))
	}
	return res
}

// expectKnown reserves and demands a record that has ended so.
func (w *world) expectKnown(s store.Store, a store.Attempt, state store.State, outcome []byte) {
	w.Helper()
	res := w.expect(s, a, store.Known)
	if res.Record.State != state {
		w.Fatalf("the record is %v, want %v", res.Record.State, state)
	}
	if (res.Record.Outcome == nil) != (outcome == nil) || !bytes.Equal(res.Record.Outcome, outcome) {
		w.Fatalf("the outcome is %d bytes (%.40q, nil: %t), want %d bytes (%.40q, nil: %t)",
			len(res.Record.Outcome), res.Record.Outcome, res.Record.Outcome == nil, len(outcome), outcome, outcome == nil)
	}
}

// run reserves a new key and returns the run.
func (w *world) run(s store.Store, a store.Attempt) store.RunRef {
	w.Helper()
	w.expect(s, a, store.Run)
	return ref(a)
}

func (w *world) record(s store.Store, r store.RunRef, e store.End) {
	w.Helper()
	if err := s.Record(w.ctx, r, e); err != nil {
		w.Fatalf("Record %v: %v", e.Event, err)
	}
}

// fenced demands that an error is ErrFenced.
func (w *world) fenced(what string, err error) {
	w.Helper()
	if !errors.Is(err, store.ErrFenced) {
		w.Fatalf("%s: got error %v, want ErrFenced", what, err)
	}
}

// ignored demands what a run that has ended by its own word is told when it
// says something else: nothing, or that it is fenced.
func (w *world) ignored(what string, err error) {
	w.Helper()
	if err != nil && !errors.Is(err, store.ErrFenced) {
		w.Fatalf("%s: got error %v, want none or ErrFenced", what, err)
	}
}

// leased reserves and skips the test when the store watches no leases.
func (w *world) leased(s store.Store, a store.Attempt) store.RunRef {
	w.Helper()
	if res := w.expect(s, a, store.Run); !res.Leased {
		w.Skip("the store has no leases")
	}
	return ref(a)
}

// lapse returns when the lease d of a run has passed.
func (w *world) lapse(s store.Store, r store.RunRef, d time.Duration) {
	w.Helper()
	if w.Advance != nil {
		w.Advance(d + time.Millisecond)
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, d+w.WakeWithin)
	defer cancel()
	if err := s.Await(ctx, r.ID, r.Token); err != nil {
		w.Fatalf("Await until the lease has passed: %v", err)
	}
}

// shortLease is a lease that tests can wait for when there is no clock, and
// that does not pass by itself when there is one.
func (w *world) shortLease() time.Duration {
	if w.Advance != nil {
		return lease
	}
	return 300 * time.Millisecond
}

// attempt is a first attempt with a token of its own.
func attempt(id store.ID) store.Attempt {
	return store.Attempt{ID: id, Fingerprint: fingerprint("arguments"), Token: token(), Lease: lease}
}

// again is another attempt of the same request.
func again(a store.Attempt) store.Attempt {
	a.Token = token()
	return a
}

// other is an attempt with the same key and other arguments.
func other(a store.Attempt) store.Attempt {
	a = again(a)
	a.Fingerprint = fingerprint("other arguments")
	return a
}

func peek(a store.Attempt) store.Attempt {
	a = again(a)
	a.Peek = true
	return a
}

// continuing is an attempt that answers a question.
func continuing(a store.Attempt, n store.Nonce, answers string) store.Attempt {
	a = again(a)
	a.Nonce, a.Answers = n, fingerprint(answers)
	return a
}

func ref(a store.Attempt) store.RunRef { return store.RunRef{ID: a.ID, Token: a.Token} }

func complete(outcome string) store.End {
	return store.End{Event: store.Complete, Outcome: []byte(outcome)}
}

func noEffect(message string) store.End {
	return store.End{Event: store.DeclareNoEffect, Outcome: []byte(message)}
}

func ask(n store.Nonce, question string) store.End {
	return store.End{Event: store.Ask, Outcome: []byte(question), Nonce: n}
}

func fingerprint(s string) store.Fingerprint { return sha256.Sum256([]byte(s)) }

func token() (t store.Token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

func nonce() (n store.Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

func verdict(v store.Verdict) string {
	names := [...]string{"no verdict", "Run", "Joinable", "Known", "Asked", "Mismatch", "NamespaceNotHeld", "NamespaceClosed", "NoRoom", "Free"}
	if int(v) < len(names) {
		return names[v]
	}
	return "an unknown verdict"
}
