package sqlite

import "strings"

// A query names one of the statements below. Those with {id} exist once for
// each namespace.
type query int

const (
	begin query = iota
	beginRead
	commit
	rollback
	dataVersion
	journalMode
	schemaVersion
	selectStore
	selectNamespaces
	selectDropped
	namespaceID
	setStore
	addNamespace
	setState
	setTouched
	setEvicted
	dropNamespace
	addDropped
	removeDropped

	selectTotal
	selectRunning
	selectTally
	putTally
	putTallies

	findOpen
	findEnded
	runState
	insertOpen
	takeOver
	setOpen
	renewLease
	endRunning
	endAny
	deleteOpen

	nextOutcome
	clearOutcome
	outcomesOf
	clearOutcomesOf
	lastEnded
	lastLease
	lastSince

	lapsedRuns
	listOpen
	listCompleted
	listNoEffect
	listEndedOf
	queryCount
)

// texts are the statements. Every one finds its rows by a key or an index,
// except those that want the whole of idempotency_namespaces or
// idempotency_dropped, which have a handful of rows; TestEveryQueryHasAnIndex
// asks SQLite.
var texts = [queryCount]string{
	begin:     "BEGIN IMMEDIATE",
	beginRead: "BEGIN",
	commit:    "COMMIT",
	rollback:  "ROLLBACK",
	// What others have changed; it starts by looking at the file.
	dataVersion: "PRAGMA data_version",
	journalMode: "PRAGMA journal_mode = WAL",

	schemaVersion: "SELECT max(version) FROM idempotency_schema",
	selectStore:   "SELECT incarnation FROM idempotency_store WHERE id = 1",
	selectNamespaces: `SELECT id, name, state, retention_ms, born_ms, retired_ms, closed_ms, touched_ms, evicted
		FROM idempotency_namespaces ORDER BY id DESC`,
	selectDropped: "SELECT id FROM idempotency_dropped ORDER BY id",
	namespaceID:   "SELECT id FROM idempotency_namespaces WHERE name = ?1",
	setStore: `INSERT INTO idempotency_store (id, incarnation) VALUES (1, ?1)
		ON CONFLICT (id) DO UPDATE SET incarnation = excluded.incarnation`,
	addNamespace:  "INSERT INTO idempotency_namespaces (name, state, retention_ms, born_ms) VALUES (?1, 1, ?2, ?3)",
	setState:      "UPDATE idempotency_namespaces SET state = ?2, retired_ms = ?3, closed_ms = ?4 WHERE id = ?1 AND state = ?2 - 1",
	setTouched:    "UPDATE idempotency_namespaces SET touched_ms = ?2 WHERE id = ?1",
	setEvicted:    "UPDATE idempotency_namespaces SET evicted = ?2 WHERE id = ?1",
	dropNamespace: "DELETE FROM idempotency_namespaces WHERE id = ?1",
	addDropped:    "INSERT INTO idempotency_dropped (id) VALUES (?1)",
	removeDropped: "DELETE FROM idempotency_dropped WHERE id = ?1",

	selectTotal: `SELECT records, open, bytes, questions, grants, clock_ms, wall_ms
		FROM idempotency_live_{id} WHERE kind = 0 AND name = x''`,
	selectRunning: "SELECT principal, length(question), since_ms, grants FROM idempotency_live_{id} WHERE kind = 1",
	selectTally:   "SELECT records, open, bytes, questions FROM idempotency_live_{id} WHERE kind = 0 AND name = ?1",
	putTally: `REPLACE INTO idempotency_live_{id} (kind, name, clock_ms, wall_ms, grants, records, open, bytes, questions)
		VALUES (0, ?4, ?1, ?2, ?3, ?5, ?6, ?7, ?8)`,
	putTallies: `REPLACE INTO idempotency_live_{id} (kind, name, clock_ms, wall_ms, grants, records, open, bytes, questions)
		VALUES (0, ?4, ?1, ?2, ?3, ?5, ?6, ?7, ?8), (0, ?9, ?1, ?2, ?3, ?10, ?11, ?12, ?13)`,

	findOpen: `SELECT principal, state, since_ms, lease_ms, flags, fingerprint, token, nonce, answers, question
		FROM idempotency_live_{id} WHERE kind = 1 AND name = ?1
		UNION ALL SELECT principal, state, since_ms, lease_ms, flags, fingerprint, token, nonce, answers, question
		FROM idempotency_live_{id} WHERE kind = 2 AND name = ?1`,
	findEnded: "SELECT state, fingerprint, token, outcome FROM idempotency_ended_{id} WHERE digest = ?1",
	runState:  "SELECT token, lease_ms FROM idempotency_live_{id} WHERE kind = 1 AND name = ?1",
	// One statement finds out whether the key is new and takes it.
	insertOpen: `INSERT INTO idempotency_live_{id}
		(kind, name, state, principal, key, since_ms, lease_ms, flags, fingerprint, token, nonce, answers, grants)
		SELECT 1, ?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11
		WHERE NOT EXISTS (SELECT 1 FROM idempotency_live_{id} WHERE kind = 2 AND name = ?1)
		AND NOT EXISTS (SELECT 1 FROM idempotency_ended_{id} WHERE digest = ?1)
		ON CONFLICT (kind, name) DO NOTHING`,
	takeOver: `UPDATE idempotency_live_{id} SET kind = 1, state = 1, since_ms = ?3, lease_ms = ?4, flags = ?5,
		token = ?6, nonce = ?7, answers = ?8, grants = ?9 WHERE kind = ?2 AND name = ?1`,
	setOpen: `UPDATE idempotency_live_{id} SET kind = 2, state = ?2, since_ms = ?3, nonce = ?4, question = ?5
		WHERE kind = 1 AND name = ?1`,
	renewLease: "UPDATE idempotency_live_{id} SET lease_ms = ?3 WHERE kind = 1 AND name = ?1 AND token = ?2",
	// The common end: a run that never asked. What it changes in the tally is
	// known without looking.
	endRunning: `INSERT INTO idempotency_ended_{id} (digest, principal, key, state, since_ms, fingerprint, token, outcome)
		SELECT name, principal, key, ?3, ?4, fingerprint, token, ?5 FROM idempotency_live_{id}
		WHERE kind = 1 AND name = ?1 AND token = ?2 AND question IS NULL`,
	endAny: `INSERT INTO idempotency_ended_{id} (digest, principal, key, state, since_ms, fingerprint, token, outcome)
		SELECT name, principal, key, ?4, ?5, fingerprint, ?3, ?6 FROM idempotency_live_{id} WHERE kind = ?2 AND name = ?1`,
	deleteOpen: "DELETE FROM idempotency_live_{id} WHERE kind = ?2 AND name = ?1",

	nextOutcome:  "SELECT seq, principal, length(outcome) FROM idempotency_ended_{id} WHERE seq > ?1 ORDER BY seq LIMIT 1",
	clearOutcome: "UPDATE idempotency_ended_{id} SET outcome = NULL WHERE seq = ?1",
	outcomesOf: `SELECT count(*), coalesce(sum(length(outcome)), 0) FROM idempotency_ended_{id}
		WHERE digest >= ?1 AND digest < ?2 AND principal = ?3 AND outcome IS NOT NULL`,
	clearOutcomesOf: `UPDATE idempotency_ended_{id} SET outcome = NULL
		WHERE digest >= ?1 AND digest < ?2 AND principal = ?3 AND outcome IS NOT NULL`,
	lastEnded: "SELECT since_ms FROM idempotency_ended_{id} WHERE seq > 0 ORDER BY seq DESC LIMIT 1",
	lastLease: "SELECT max(lease_ms) FROM idempotency_live_{id} WHERE kind = 1",
	lastSince: "SELECT max(since_ms) FROM idempotency_live_{id} WHERE kind = 2",

	lapsedRuns: "SELECT name FROM idempotency_live_{id} WHERE kind = 1 AND lease_ms <= ?1",
	listOpen: `SELECT principal, key, since_ms, lease_ms FROM idempotency_live_{id}
		WHERE kind = ?4 AND state = ?1 AND (?2 IS NULL OR principal = ?2) ORDER BY since_ms LIMIT ?3`,
	listCompleted: `SELECT principal, key, since_ms, 0 FROM idempotency_ended_{id} WHERE seq > 0 AND state = 3 ORDER BY seq LIMIT ?1`,
	listNoEffect: `SELECT principal, key, since_ms, 0 FROM idempotency_ended_{id}
		INDEXED BY idempotency_ended_{id}_noeffect WHERE seq > 0 AND state = 4 ORDER BY seq LIMIT ?1`,
	listEndedOf: `SELECT principal, key, since_ms, 0 FROM idempotency_ended_{id}
		WHERE digest >= ?1 AND digest < ?2 AND principal = ?3 AND state = ?4 ORDER BY seq LIMIT ?5`,
}

// text returns a statement as it is for a namespace.
func (q query) text(id string) string { return strings.ReplaceAll(texts[q], "{id}", id) }
