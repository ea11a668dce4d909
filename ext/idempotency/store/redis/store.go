package redis

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// Store is a [store.Store] on a Redis or Valkey server. Make it with [Open].
type Store struct {
	client   goredis.UniversalClient
	opt      Options
	scripts  scripts
	keys     []string // the one that names the slot
	times    string   // of a new namespace, as the scripts read them
	listener *listener
	skew     func() time.Duration // added to the server's clock; for tests

	mu    sync.Mutex
	epoch string // of the records, as they were seen last
	seq   int64  // how far they were
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Operator = (*Store)(nil)
)

// ErrClosed is the error of every step of a closed store.
var ErrClosed = errors.New("redis: the store is closed")

// layout numbers how records are kept. It is part of every name, so that
// versions of this package which keep them in different ways do not meet: they
// are then like two stores, with a namespace each.
const layout = "1"

// Open returns the store with the records of opt.Prefix on the client's
// server, and makes their first namespace where there is none. opt may be nil.
//
// The client is a *Client or *ClusterClient of go-redis with
// ContextTimeoutEnabled, without which a step could not keep the time that it
// is given. It stays the caller's to close, after the store.
//
// Open fails on a replica, on a server that evicts keys to make room
// (maxmemory-policy allkeys-…), and, with KeepOverRestarts, on one that can
// lose what it acknowledged.
func Open(ctx context.Context, client goredis.UniversalClient, opt *Options) (*Store, error) {
	o, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		client: client, opt: o, scripts: newScripts(),
		keys: []string{stateKey(o.Prefix)}, listener: newListener(client, tagOf(o.Prefix)+"w:"),
		times: fmt.Sprint(millis(o.Retention), millis(o.RotateEvery), millis(o.ClosingFor)),
	}
	if err := s.checkClient(); err != nil {
		return nil, err
	}
	if err := s.checkServer(ctx); err != nil {
		return nil, err
	}
	if _, err := s.Current(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends the subscription and wakes those who wait in Await, with
// [ErrClosed]. Steps under way end by themselves. The records stay.
func (s *Store) Close() error {
	s.listener.close()
	return nil
}

// Current implements [store.Store].
func (s *Store) Current(ctx context.Context) (store.Namespace, error) {
	r, err := s.step(ctx, s.scripts.current)
	if err != nil {
		return store.Namespace{}, err
	}
	ns := store.Namespace{Name: r.text(0), Retention: time.Duration(r.number(1)) * time.Millisecond}
	if ns.Name == "" || ns.Retention <= 0 {
		return store.Namespace{}, errForm
	}
	return ns, nil
}

// Reserve implements [store.Store]. Attempts that say to be transactional are
// treated as all others: the end of a run cannot be recorded in a transaction
// of its effect here.
func (s *Store) Reserve(ctx context.Context, a store.Attempt) (store.Reservation, error) {
	id, principal := digests(a.ID)
	var nonce []byte
	if a.Nonce != (store.Nonce{}) {
		nonce = a.Nonce[:]
	}
	r, err := s.step(ctx, s.scripts.reserve,
		a.ID.Namespace(), id, principal, a.Fingerprint[:], a.Token[:], millis(a.Lease),
		nonce, a.Answers[:], flag(a.Peek), a.Principal, a.Key,
		s.opt.MaxRecords, s.opt.MaxRecordsPerPrincipal, s.opt.MaxOpenPerPrincipal, s.opt.MaxResultBytes)
	switch {
	case goredis.IsOOMError(err):
		return store.Reservation{Verdict: store.NoRoom, RetryAfter: time.Minute}, nil
	case err != nil:
		return store.Reservation{}, err
	}
	res := store.Reservation{Verdict: store.Verdict(r.number(0))}
	switch res.Verdict {
	case store.Run:
		res.Continued, res.Leased = r.number(1) == 1, true
	case store.Joinable, store.Known, store.Asked:
		res.Record, err = s.recordOf(id, r)
	case store.NamespaceNotHeld, store.NamespaceClosed:
		res.Current = r.text(1)
	case store.NoRoom:
		res.RetryAfter = time.Duration(r.number(1)) * time.Millisecond
	case store.Mismatch, store.Free:
	default:
		err = errForm
	}
	if err != nil {
		return store.Reservation{}, err
	}
	return res, nil
}

// recordOf reads the record that reserve.lua answered.
func (s *Store) recordOf(digest []byte, r reply) (store.Record, error) {
	rec := store.Record{State: store.State(r.number(1))}
	copy(rec.Token[:], r.text(2))
	copy(rec.Nonce[:], r.text(3))
	copy(rec.Answers[:], r.text(4))
	blob, ok := r.optional(5)
	if !ok {
		return rec, nil
	}
	var err error
	rec.Outcome, err = s.unseal(digest, blob)
	return rec, err
}

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, run store.RunRef, d time.Duration) error {
	id, _ := digests(run.ID)
	r, err := s.step(ctx, s.scripts.renew, run.ID.Namespace(), id, run.Token[:], millis(d))
	return fenced(r, err)
}

// Record implements [store.Store].
func (s *Store) Record(ctx context.Context, run store.RunRef, end store.End) error {
	switch end.Event {
	case store.Complete, store.DeclareNoEffect, store.Ask, store.Reject, store.Lose:
	default:
		return fmt.Errorf("redis: a run does not end with %v", end.Event)
	}
	id, principal := digests(run.ID)
	outcome, err := s.seal(id, end.Outcome)
	if err != nil && end.Event == store.Ask {
		return err // a call that waits for input has to have its question
	}
	r, err := s.step(ctx, s.scripts.end, run.ID.Namespace(), id, principal, run.Token[:],
		int(end.Event), end.Nonce[:], flag(outcome != nil), outcome, s.opt.MaxResultBytes)
	if err == nil && r.number(0) == 2 {
		return errNothingToReject
	}
	return fenced(r, err)
}

// errNothingToReject says that a run which answers no question cannot go back
// to one.
var errNothingToReject = errors.New("redis: the run answers no question that it could reject")

// fenced reads an answer of 1 or 0.
func fenced(r reply, err error) error {
	if err == nil && r.number(0) != 1 {
		return store.ErrFenced
	}
	return err
}

// digests are the names of an id and of its principal on the server: of fixed
// length whatever bytes they are made of.
func digests(id store.ID) (record, principal []byte) {
	const size = 20 // 160 bits: no two meet
	h := sha256.New()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(id.Principal))))
	_, _ = h.Write([]byte(id.Principal))
	p := h.Sum(nil)
	_, _ = h.Write([]byte(id.Key))
	return h.Sum(nil)[:size], p[:size]
}
