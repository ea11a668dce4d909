package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// statements are what the store sends: each calls one function of the schema
// and is one round trip.
type statements struct {
	current, reserve, renew, record, await string
	rotate, sweep                          string
	entries, resolve, deleteOutcomes       string
}

// The statement that most calls begin with takes a new key in a namespace where
// nothing is to be looked at. Its conditions are those of the functions enter,
// admit and reserve; whatever is otherwise makes it insert nothing, and then
// reserve decides. The statement takes its locks before its snapshot, so that
// it need not take the lock that enter does by itself.
//
// It returns nulls for "run". Calling the function in FROM, or for every call,
// costs more than the rest.
const reserveStatement = `
WITH run AS (
	INSERT INTO {schema}.record (
		changed, touched, lease_until, phash, digest, token, nonce, ns, weight, state, transactional, continued, awaited,
		fingerprint, answers, principal, key)
	SELECT m.t, m.t, m.t + $8::bigint * {µs}, $2, $3, $7, $9, n.id, 0, 1, $12, false, false, $6, $10, $4, $5
	FROM {schema}.namespace n, {schema}.clock c, LATERAL (SELECT {schema}.wall() + c.shift AS t) m
	WHERE n.name = $1 AND n.incarnation = current_setting('mcp_idempotency.incarnation', true)
		AND n.state < 2 AND n.due > m.t AND NOT n.crowded AND $16::bigint = 0 AND $17::bigint = 0 AND NOT $11
		AND m.t BETWEEN c.seen AND c.seen + interval '1 second'
		AND current_setting('transaction_isolation') = 'read committed' AND current_setting('fsync') = 'on'
		AND CASE WHEN $12 THEN set_config('synchronous_commit', 'off', true) = 'off' ELSE current_setting('synchronous_commit') <> 'off' END
	ON CONFLICT DO NOTHING
	RETURNING 1)
SELECT (x.r).* FROM (
	SELECT CASE WHEN NOT EXISTS (SELECT FROM run) THEN
		{schema}.reserve($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
	END AS r OFFSET 0) x`

// The statement that most runs end with: in the current namespace, when nobody
// waits and the run was not counted. Otherwise the function record decides.
const recordStatement = `
WITH ended AS (
	UPDATE {schema}.record r SET
		state = $7, changed = m.t, touched = m.t, nonce = $10, outcome = $8, sealed = $9
	FROM {schema}.namespace n, {schema}.clock c, LATERAL (SELECT {schema}.wall() + c.shift AS t) m
	WHERE n.name = $1 AND n.incarnation = current_setting('mcp_idempotency.incarnation', true) AND n.state = 0 AND m.t >= c.seen
		AND current_setting('transaction_isolation') = 'read committed' AND current_setting('fsync') = 'on'
		AND current_setting('synchronous_commit') <> 'off'
		AND r.phash = $2 AND r.digest = $3 AND r.ns = n.id AND r.token = $4 AND r.state = ANY ($6)
		AND NOT r.awaited AND r.weight = 0 AND $5::smallint <> 6
	RETURNING 1)
SELECT CASE WHEN EXISTS (SELECT FROM ended) THEN true ELSE
	{schema}.record($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
END`

func statementsFor(schema string) statements {
	fill := strings.NewReplacer("{schema}", pgx.Identifier{schema}.Sanitize(), "{µs}", "interval '1 microsecond'").Replace
	return statements{
		current: fill(`SELECT name, retention FROM {schema}.namespace
			WHERE incarnation = {schema}.incarnation() AND state = 0 AND ($1 OR due > {schema}.now())`),
		reserve: fill(reserveStatement),
		record:  fill(recordStatement),
		renew:   fill(`SELECT {schema}.renew($1, $2, $3, $4, $5)`),
		await:   fill(`SELECT {schema}.await($1, $2, $3, $4)`),
		rotate:  fill(`SELECT {schema}.rotate($1, $2::bigint * {µs}, $3::bigint * {µs}, $4::bigint * {µs}, $5)`),
		sweep:   fill(`SELECT {schema}.sweep()`),

		entries:        fill(`SELECT * FROM {schema}.entries($1, $2, $3, $4, $5, $6)`),
		resolve:        fill(`SELECT {schema}.resolve($1, $2, $3, $4, $5, $6)`),
		deleteOutcomes: fill(`SELECT {schema}.delete_outcomes($1, $2)`),
	}
}

// ident is a record's identity as the database has it.
type ident struct {
	ns             string // empty for a key without a namespace
	phash          int64  // never 0, which stands for all principals
	digest         [16]byte
	principal, key []byte
}

func identify(id store.ID) ident {
	i := ident{ns: namespaceOf(id), phash: principalHash(id.Principal), principal: []byte(id.Principal), key: []byte(id.Key)}
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(id.Principal))) // so that no two pairs are the same bytes
	h.Write(n[:])
	h.Write(i.principal)
	h.Write(i.key)
	copy(i.digest[:], h.Sum(nil))
	return i
}

func principalHash(principal string) int64 {
	sum := sha256.Sum256([]byte(principal))
	return max(int64(binary.BigEndian.Uint64(sum[:])>>1), 1)
}

// namespaceOf returns the namespace that a key names. What cannot be the name
// of one may not even be text to the database; it becomes a name that no
// namespace has.
func namespaceOf(id store.ID) string {
	ns := id.Namespace()
	if len(ns) > 64 {
		return "?"
	}
	for _, c := range []byte(ns) {
		if c <= ' ' || c > '~' {
			return "?"
		}
	}
	return ns
}

// answersBytes is an empty slice, which is stored in a byte, for no answers.
func answersBytes(f store.Fingerprint) []byte {
	if f == (store.Fingerprint{}) {
		return []byte{}
	}
	return f[:]
}

// transition returns the states that an event leads out of, and where to. The
// life cycle is one table, and it is not in the database.
func transition(e store.Event) (from []int16, to store.State) {
	for _, s := range store.States() {
		if next, ok := store.Next(s, e); ok {
			from, to = append(from, int16(s)), next
		}
	}
	return from, to
}
