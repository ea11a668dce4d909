package idempotency

import "github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"

// Attached is how many attempts run or wait for runs of this process; those
// that are only about to reserve do not count.
func (m *Idempotency) Attached() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, r := range m.runs {
		r.mu.Lock()
		if r.cancel != nil {
			n += r.attached
		}
		r.mu.Unlock()
	}
	return n
}

// Runs is how many runs this process knows, those being reserved included.
func (m *Idempotency) Runs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.runs)
}

// Orphans is how many reservations are remembered whose answer was lost.
func (m *Idempotency) Orphans() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.orphans)
}

// FillOrphans remembers as many lost reservations as there may be.
func (m *Idempotency) FillOrphans() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.orphans) < maxOrphans {
		m.orphans[m.newToken()] = struct{}{}
	}
}

// Private is the `_meta` member into which the adapter lifts keys.
func (m *Idempotency) Private() string { return m.lifter.Name() }

// MinAnonymousKey is the bound of the options.
func (m *Idempotency) MinAnonymousKey() int { return m.opt.MinAnonymousKey }

// Store is the store of the options.
func (m *Idempotency) Store() store.Store { return m.opt.Store }

// Fingerprint is how a request is compared.
func Fingerprint(tool string, arguments []byte) store.Fingerprint {
	fp, err := fingerprint(tool, arguments)
	if err != nil {
		panic(err)
	}
	return fp
}

// Waiters is how many duplicates wait.
func (m *Idempotency) Waiters() int64 { return m.waiters.Load() }

// WrapState makes the requestState of a round, to forge one.
func WrapState(nonce [16]byte, key, state string) string { return wrapState(nonce, key, state) }

// UnwrapState undoes it.
func UnwrapState(wrapped string) (nonce [16]byte, key, state string, ok bool) {
	r, ok := unwrapState(wrapped)
	return r.nonce, r.key, r.state, ok
}
