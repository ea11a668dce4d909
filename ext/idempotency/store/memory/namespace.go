package memory

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// digest stands for a key in the maps: 128 bits of two hashes with random
// seeds that never leave the process, which keeps a tombstone small whatever
// the length of the key.
type digest [2]uint64

// namespace is one set of keys. It is first current, then closing, then
// closed, and at last dropped whole.
type namespace struct {
	name    string
	born    time.Time
	retired time.Time // when it was no longer declared; zero for the current
	closed  bool
	lastEnd time.Time // of a call in it

	open       map[digest]*open
	ended      map[digest]tombstone
	outcomes   *simplelru.LRU[digest, []byte]
	principals map[digest]counts
}

// open is a record that is not ended: running, waiting, or unknown.
type open struct {
	state       store.State
	fingerprint store.Fingerprint
	answers     store.Fingerprint
	nonce       store.Nonce
	token       store.Token
	principal   digest
	question    []byte
	continued   bool // the run answers a question
	touched     time.Time
	done        chan struct{} // closed when the run that it was made for ended
}

// tombstone is all that a call which has ended needs to not run again.
type tombstone struct {
	fingerprint [16]byte
	token       [7]byte // enough to know the same end told twice
	state       store.State
}

type counts struct{ records, open int32 }

func newNamespace(opt *Options, now time.Time) *namespace {
	// The size bound is a count of bytes, kept by the store: the LRU's own
	// bound is a count of entries and never reached. NewLRU fails on 0 alone.
	outcomes, _ := simplelru.NewLRU[digest, []byte](opt.MaxRecords, nil)
	return &namespace{
		name: newName(), born: now,
		open: map[digest]*open{}, ended: map[digest]tombstone{},
		outcomes: outcomes, principals: map[digest]counts{},
	}
}

func (ns *namespace) knows(d digest) bool {
	if _, ok := ns.ended[d]; ok {
		return true
	}
	_, ok := ns.open[d]
	return ok
}

func (ns *namespace) outcome(d digest) []byte {
	v, _ := ns.outcomes.Get(d)
	return v
}

func (o *open) record() store.Record {
	r := store.Record{State: o.state, Token: o.token, Nonce: o.nonce, Answers: o.answers}
	if o.state == store.Waiting {
		r.Outcome = o.question
	}
	return r
}

// moved wakes those who wait for the run.
func (o *open) moved() {
	if o.done != nil {
		close(o.done)
		o.done = nil
	}
}

// rotate moves the namespaces on to where they belong at now.
func (s *Store) rotate(now time.Time) {
	if now.Before(s.lookAt) {
		return
	}
	if now.Sub(s.held[0].born) >= s.opt.RotateEvery {
		s.held[0].retired = now
		s.held = append([]*namespace{newNamespace(&s.opt, now)}, s.held...)
	}
	kept := s.held[:1]
	for _, ns := range s.held[1:] {
		ns.closed = ns.closed || now.Sub(ns.retired) >= s.opt.ClosingFor
		if ns.closed && !s.needed(ns, now) {
			s.drop(ns)
			continue
		}
		kept = append(kept, ns)
	}
	clear(s.held[len(kept):])
	s.held = kept
	// Looking later than the instant keeps records longer, never shorter, and
	// spares every other call a walk over the open ones.
	s.lookAt = now.Add(min(s.opt.Retention, s.opt.RotateEvery, s.opt.ClosingFor, time.Minute) / 64)
}

// needed reports whether a closed namespace has to be held: retention has not
// passed since it closed (so that late keys learn that they never ran), since
// a call in it ended, or since the last attempt of an open question; or a call
// runs in it.
func (s *Store) needed(ns *namespace, now time.Time) bool {
	if now.Sub(ns.retired) < s.opt.ClosingFor+s.opt.Retention {
		return true
	}
	if !ns.lastEnd.IsZero() && now.Sub(ns.lastEnd) < s.opt.Retention {
		return true
	}
	for _, o := range ns.open {
		if o.state == store.Running || now.Sub(o.touched) < s.opt.Retention {
			return true
		}
	}
	return false
}

// drop forgets a namespace. From then on its keys are not held.
func (s *Store) drop(ns *namespace) {
	s.records -= len(ns.open) + len(ns.ended)
	for _, o := range ns.open {
		s.questions -= int64(len(o.question))
	}
	for _, v := range ns.outcomes.Values() {
		s.bytes -= int64(len(v))
	}
}

// room reports whether a principal may have one more record.
func (s *Store) room(p digest) bool {
	if s.records >= s.opt.MaxRecords || s.questions >= s.opt.MaxResultBytes {
		return false
	}
	var sum counts
	for _, ns := range s.held {
		c := ns.principals[p]
		sum.records += c.records
		sum.open += c.open
	}
	return int(sum.records) < s.opt.MaxRecordsPerPrincipal && int(sum.open) < s.opt.MaxOpenPerPrincipal
}

// roomIn guesses when there will be room: when the oldest namespace may go,
// and not so far ahead that a caller who could be served sooner stays away.
func (s *Store) roomIn(now time.Time) time.Duration {
	const least, most = time.Second, time.Minute
	ns := s.held[len(s.held)-1]
	in := ns.born.Add(s.opt.RotateEvery + s.opt.ClosingFor + s.opt.Retention).Sub(now)
	if end := ns.lastEnd.Add(s.opt.Retention).Sub(now); end > in {
		in = end
	}
	return min(max(in, least), most)
}

func short(f store.Fingerprint) (s [16]byte) {
	copy(s[:], f[:])
	return s
}

func shortToken(t store.Token) (s [7]byte) {
	copy(s[:], t[len(t)-len(s):])
	return s
}
