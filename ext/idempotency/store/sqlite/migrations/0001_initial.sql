-- One row: which incarnation of the store this is. The witness file names the
-- same one; see witness.go.
CREATE TABLE idempotency_store (
	id          INTEGER PRIMARY KEY CHECK (id = 1),
	incarnation BLOB    NOT NULL
);

-- The namespaces that are held, a handful of rows. Their records are in tables
-- of their own, idempotency_open_<id> and so on; see namespace.sql. An id is
-- never used twice.
CREATE TABLE idempotency_namespaces (
	id           INTEGER PRIMARY KEY AUTOINCREMENT,
	name         TEXT    NOT NULL UNIQUE,
	state        INTEGER NOT NULL, -- 1 current, 2 closing, 3 closed
	retention_ms INTEGER NOT NULL,
	born_ms      INTEGER NOT NULL,
	retired_ms   INTEGER NOT NULL DEFAULT 0, -- when it was no longer declared
	closed_ms    INTEGER NOT NULL DEFAULT 0,
	touched_ms   INTEGER NOT NULL DEFAULT 0, -- last attempt on an open record, within retention/64
	evicted      INTEGER NOT NULL DEFAULT 0  -- ended rows up to this seq have no outcome
);

-- Namespaces that are not held any more and whose tables are still to be
-- removed.
CREATE TABLE idempotency_dropped (
	id INTEGER PRIMARY KEY
);
