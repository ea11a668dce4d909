package memory

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Options bound a [Store]. The zero value of each field selects its default;
// a negative value is a mistake that [New] panics on.
type Options struct {
	// Retention is how long a record is kept at least after its call ended.
	// Default 24 h.
	Retention time.Duration
	// RotateEvery is how long a namespace is the declared one. Default 24 h.
	RotateEvery time.Duration
	// ClosingFor is how long a namespace that is no longer declared still
	// takes new keys: as long as clients may hold an old capability. A client
	// that is later yet is told to mint anew. Default 1 h.
	ClosingFor time.Duration
	// MaxRecords bounds the records of all namespaces. A new key beyond it is
	// refused. Default 1,048,576, which is up to 100 MiB of tombstones (60 to
	// 96 bytes each, by how full the maps are).
	MaxRecords int
	// MaxRecordsPerPrincipal bounds the records of one principal. Default
	// half of MaxRecords; at most MaxRecords.
	MaxRecordsPerPrincipal int
	// MaxOpenPerPrincipal bounds the calls of one principal that run or wait
	// for input. Default 65,536 or MaxRecordsPerPrincipal, what is less.
	MaxOpenPerPrincipal int
	// MaxResultBytes bounds the results that are kept, in bytes of encoded
	// outcome. The least recently used go first. Default 64 MiB.
	MaxResultBytes int64
	// Now is the clock. Default time.Now. Only differences matter.
	Now func() time.Time
}

// Store is a [store.Store] in memory. Make it with [New].
type Store struct {
	opt  Options
	seed [2]maphash.Seed

	mu        sync.Mutex
	held      []*namespace // the newest, which is the current one, first
	lookAt    time.Time    // when to look again which namespaces can go
	records   int          // in all held namespaces
	bytes     int64        // of kept outcomes
	questions int64        // bytes of the questions of open calls
}

var _ store.Local = (*Store)(nil)

// Local implements [store.Local].
func (s *Store) Local() {}

// New returns an empty store with a namespace that no other store has. opt may
// be nil. It panics when an option is negative: that is a mistake in the
// program and not something to serve with.
func New(opt *Options) *Store {
	s := &Store{seed: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	if opt != nil {
		s.opt = *opt
	}
	o := &s.opt
	for name, v := range map[string]int64{
		"Retention": int64(o.Retention), "RotateEvery": int64(o.RotateEvery), "ClosingFor": int64(o.ClosingFor),
		"MaxRecords": int64(o.MaxRecords), "MaxRecordsPerPrincipal": int64(o.MaxRecordsPerPrincipal),
		"MaxOpenPerPrincipal": int64(o.MaxOpenPerPrincipal), "MaxResultBytes": o.MaxResultBytes,
	} {
		if v < 0 {
			panic(fmt.Sprintf("memory.New: Options.%s is negative (%d)", name, v))
		}
	}
	o.Retention = cmp.Or(o.Retention, 24*time.Hour)
	o.RotateEvery = cmp.Or(o.RotateEvery, 24*time.Hour)
	o.ClosingFor = cmp.Or(o.ClosingFor, time.Hour)
	o.MaxRecords = cmp.Or(o.MaxRecords, 1<<20)
	o.MaxRecordsPerPrincipal = min(cmp.Or(o.MaxRecordsPerPrincipal, (o.MaxRecords+1)/2), o.MaxRecords)
	o.MaxOpenPerPrincipal = cmp.Or(o.MaxOpenPerPrincipal, min(65536, o.MaxRecordsPerPrincipal))
	o.MaxResultBytes = cmp.Or(o.MaxResultBytes, 64<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	s.held = []*namespace{newNamespace(o, o.Now())}
	return s
}

// Reincarnate forgets every record and starts a new namespace, so that no key
// from before runs. For a copy of a process image that was taken while this
// store lived.
func (s *Store) Reincarnate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.held {
		for _, o := range ns.open {
			o.moved()
		}
	}
	s.held = []*namespace{newNamespace(&s.opt, s.opt.Now())}
	s.records, s.bytes, s.questions = 0, 0, 0
}

// Stats is a snapshot of what a store holds.
type Stats struct {
	Namespaces  int   // held, the current one included
	Records     int   // of all states
	Open        int   // running, waiting for input, or of unknown outcome
	ResultBytes int64 // of kept outcomes
}

// Stats returns a snapshot.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Namespaces: len(s.held), Records: s.records, ResultBytes: s.bytes}
	for _, ns := range s.held {
		st.Open += len(ns.open)
	}
	return st
}

// Current implements [store.Store].
func (s *Store) Current(context.Context) (store.Namespace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotate(s.opt.Now())
	return store.Namespace{Name: s.held[0].name, Retention: s.opt.Retention}, nil
}

// Renew implements [store.Store]. There are no leases here: a run dies with
// its process, and so does this store.
func (s *Store) Renew(context.Context, store.RunRef, time.Duration) error { return nil }

// Reserve implements [store.Store].
func (s *Store) Reserve(_ context.Context, a store.Attempt) (store.Reservation, error) {
	d := s.digest(a.ID)
	now := s.opt.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotate(now)

	ns := s.find(d, a.ID.Namespace())
	if ns == nil {
		return store.Reservation{Verdict: store.NamespaceNotHeld, Current: s.held[0].name}, nil
	}
	if t, ok := ns.ended[d]; ok {
		if t.fingerprint != short(a.Fingerprint) {
			return store.Reservation{Verdict: store.Mismatch}, nil
		}
		return store.Reservation{Verdict: store.Known, Record: store.Record{State: t.state, Outcome: ns.outcome(d)}}, nil
	}
	if o, ok := ns.open[d]; ok {
		return s.reserveOpen(ns, o, a, now), nil
	}
	return s.reserveNew(ns, d, a, now), nil
}

// reserveOpen answers an attempt whose key is known and not ended.
func (s *Store) reserveOpen(ns *namespace, o *open, a store.Attempt, now time.Time) store.Reservation {
	if o.fingerprint != a.Fingerprint {
		return store.Reservation{Verdict: store.Mismatch}
	}
	o.touched = now
	switch {
	case o.state == store.Running && o.token == a.Token:
		return store.Reservation{Verdict: store.Run, Continued: o.continued}
	case o.state == store.Running:
		return store.Reservation{Verdict: store.Joinable, Record: o.record()}
	case o.state == store.Unknown:
		return store.Reservation{Verdict: store.Known, Record: o.record()}
	case a.Nonce == store.Nonce{} || a.Nonce != o.nonce:
		return store.Reservation{Verdict: store.Asked, Record: o.record()}
	case a.Peek:
		return store.Reservation{Verdict: store.Free}
	}
	o.state, _ = store.Next(o.state, store.Continue)
	o.token, o.answers = a.Token, a.Answers
	o.done = make(chan struct{})
	o.continued = true
	return store.Reservation{Verdict: store.Run, Continued: true}
}

// reserveNew takes a key that no held namespace knows.
func (s *Store) reserveNew(ns *namespace, d digest, a store.Attempt, now time.Time) store.Reservation {
	if ns.closed {
		return store.Reservation{Verdict: store.NamespaceClosed, Current: s.held[0].name}
	}
	p := s.digest(store.ID{Principal: a.Principal})
	if !s.room(p) {
		return store.Reservation{Verdict: store.NoRoom, RetryAfter: s.roomIn(now)}
	}
	if a.Peek {
		return store.Reservation{Verdict: store.Free}
	}
	o := &open{
		fingerprint: a.Fingerprint, answers: a.Answers, nonce: a.Nonce, token: a.Token,
		principal: p, touched: now, done: make(chan struct{}),
	}
	o.state, _ = store.Next(store.Absent, store.Reserve)
	ns.open[d] = o
	count := ns.principals[p]
	count.records++
	count.open++
	ns.principals[p] = count
	s.records++
	return store.Reservation{Verdict: store.Run}
}

// errNothingToReject says that a run which answers no question cannot go back
// to one.
var errNothingToReject = errors.New("memory: the run answers no question that it could reject")

// Record implements [store.Store].
func (s *Store) Record(_ context.Context, run store.RunRef, end store.End) error {
	switch end.Event {
	case store.Complete, store.DeclareNoEffect, store.Ask, store.Reject, store.Lose:
	default:
		return fmt.Errorf("memory: a run does not end with %v", end.Event)
	}
	d := s.digest(run.ID)
	now := s.opt.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.find(d, run.ID.Namespace())
	if ns == nil {
		return store.ErrFenced
	}
	o, ok := ns.open[d]
	if !ok {
		state, _ := store.Next(store.Running, end.Event)
		if t, ended := ns.ended[d]; ended && t.state == state && t.token == shortToken(run.Token) {
			return nil // the same end, told twice
		}
		return store.ErrFenced
	}
	if o.token != run.Token {
		return store.ErrFenced
	}
	next, ok := store.Next(o.state, end.Event)
	if !ok {
		if o.state == store.Waiting && (end.Event == store.Ask && o.nonce == end.Nonce || end.Event == store.Reject) ||
			o.state == store.Unknown && end.Event == store.Lose {
			return nil // the same end, told twice
		}
		return store.ErrFenced
	}
	if end.Event == store.Reject && !o.continued {
		return errNothingToReject
	}
	o.touched = now
	if end.Event == store.Ask {
		s.ask(o, end.Nonce, end.Outcome)
	}
	if next.Final() {
		s.ask(o, store.Nonce{}, nil)
		if !o.state.Final() {
			count := ns.principals[o.principal]
			count.open--
			ns.principals[o.principal] = count
		}
		ns.lastEnd = now
	}
	if o.state = next; next == store.Completed || next == store.NoEffect {
		s.end(ns, d, o, end.Outcome)
	}
	o.moved()
	s.evict()
	return nil
}

// ask replaces the question of a call.
func (s *Store) ask(o *open, nonce store.Nonce, question []byte) {
	s.questions += int64(len(question) - len(o.question))
	o.nonce, o.question = nonce, question
}

// end turns an open record into a tombstone with, perhaps, an outcome.
func (s *Store) end(ns *namespace, d digest, o *open, outcome []byte) {
	delete(ns.open, d)
	ns.ended[d] = tombstone{fingerprint: short(o.fingerprint), token: shortToken(o.token), state: o.state}
	if outcome != nil && int64(len(outcome)) <= s.opt.MaxResultBytes {
		ns.outcomes.Add(d, outcome)
		s.bytes += int64(len(outcome))
	}
}

// evict drops results, the oldest namespace's first, until they fit.
func (s *Store) evict() {
	for i := len(s.held) - 1; i >= 0 && s.bytes > s.opt.MaxResultBytes; i-- {
		for s.bytes > s.opt.MaxResultBytes {
			_, v, ok := s.held[i].outcomes.RemoveOldest()
			if !ok {
				break
			}
			s.bytes -= int64(len(v))
		}
	}
}

// Await implements [store.Store].
func (s *Store) Await(ctx context.Context, id store.ID, token store.Token) error {
	d := s.digest(id)
	s.mu.Lock()
	var done chan struct{}
	if held := s.find(d, id.Namespace()); held != nil {
		if o, ok := held.open[d]; ok && o.state == store.Running && o.token == token {
			done = o.done
		}
	}
	s.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// find returns the held namespace of a key: by name, or, for a key without
// one, that which knows it, else the current.
func (s *Store) find(d digest, name string) *namespace {
	for _, ns := range s.held {
		if name == "" && ns.knows(d) || ns.name == name {
			return ns
		}
	}
	if name == "" {
		return s.held[0]
	}
	return nil
}

func (s *Store) digest(id store.ID) digest {
	return digest{maphash.Comparable(s.seed[0], id), maphash.Comparable(s.seed[1], id)}
}

func newName() string { return "m" + strings.ToLower(rand.Text()) }
