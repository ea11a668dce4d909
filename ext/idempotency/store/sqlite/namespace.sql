-- The tables of one namespace, {id}. They are removed as a whole with it.

-- What changes: the calls that have not ended, and the tallies. They share a
-- table because they change together, and then mostly on one page; a page is
-- what a commit costs. It stays small.
CREATE TABLE idempotency_live_{id} (
	kind        INTEGER NOT NULL, -- 0 tally, 1 running, 2 waiting for input or unknown
	name        BLOB    NOT NULL, -- of a call its digest

	-- of a call
	state       INTEGER, -- 1 running, 2 waiting, 5 unknown
	principal   BLOB,
	key         BLOB,
	since_ms    INTEGER,
	lease_ms    INTEGER, -- when it passes
	flags       INTEGER, -- 1 continued, 2 transactional
	fingerprint BLOB,
	token       BLOB,
	nonce       BLOB,
	answers     BLOB,

	-- of a tally: what there is apart from the running calls, which are few and
	-- are counted when they are read. One for each principal ('p' and its name),
	-- and one with the empty name for the namespace as a whole.
	records     INTEGER,
	open        INTEGER, -- waiting
	bytes       INTEGER, -- of kept outcomes
	questions   INTEGER, -- bytes of the questions of waiting calls
	clock_ms    INTEGER, -- the store's clock at the last change
	wall_ms     INTEGER, -- the machine's clock then

	-- of both: how many runs the store had granted by then. It counts over all
	-- namespaces; the highest in the held ones is valid.
	grants      INTEGER NOT NULL,

	question    BLOB,    -- of a call; last, since it may be long

	PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- Calls that have ended: completed (3), no effect (4). Rows are appended in
-- the order in which the calls ended, so that seq stands for the time.
CREATE TABLE idempotency_ended_{id} (
	seq         INTEGER PRIMARY KEY,
	digest      BLOB    NOT NULL,
	principal   BLOB    NOT NULL,
	key         BLOB    NOT NULL,
	state       INTEGER NOT NULL,
	since_ms    INTEGER NOT NULL,
	fingerprint BLOB    NOT NULL,
	token       BLOB,             -- of the run that ended it; null when resolved
	outcome     BLOB              -- null when it was not kept or is evicted
);
CREATE UNIQUE INDEX idempotency_ended_{id}_digest ON idempotency_ended_{id} (digest);
CREATE INDEX idempotency_ended_{id}_noeffect ON idempotency_ended_{id} (seq) WHERE state = 4;
