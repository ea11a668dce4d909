-- What the store keeps. {schema} stands for the quoted name of the schema.

-- A namespace is current (0), closing (1), closed (2) or dropped (3). It is
-- held when it is not dropped and its incarnation is the database's own.
CREATE SEQUENCE {schema}.namespace_id AS integer;
CREATE TABLE {schema}.namespace (
	id           integer PRIMARY KEY,
	name         text COLLATE "C" NOT NULL UNIQUE,
	incarnation  text COLLATE "C" NOT NULL,
	state        smallint NOT NULL CHECK (state BETWEEN 0 AND 3),
	-- Fixed when the namespace is made, whatever a later deploy asks for.
	retention    interval NOT NULL,
	rotate_every interval NOT NULL,
	closing_for  interval NOT NULL,
	born         timestamptz NOT NULL,
	-- When the next change of state is to be looked at.
	due          timestamptz NOT NULL,
	-- When a call in it ended last, kept only once it is closed: before, the
	-- moment of closing is later.
	last_end     timestamptz,
	-- Some principal, or all, had no more room in it at some time.
	crowded      boolean NOT NULL DEFAULT false
);
CREATE INDEX namespace_held ON {schema}.namespace (incarnation, state);
CREATE UNIQUE INDEX namespace_current ON {schema}.namespace (incarnation) WHERE state = 0;

-- One row a key. The states are those of store.State: running (1), waiting
-- (2), completed (3), noEffect (4), unknown (5). Principals and keys may be of
-- any length and hold any bytes, so that the primary key is made of hashes;
-- look-ups compare the originals as well.
CREATE TABLE {schema}.record (
	changed       timestamptz NOT NULL, -- when it came into its state
	touched       timestamptz NOT NULL, -- of the last attempt, roughly, while it is open
	lease_until   timestamptz NOT NULL,
	phash         bigint NOT NULL,      -- of the principal
	digest        uuid NOT NULL,        -- of principal and key
	token         uuid NOT NULL,        -- of the run; zero once an operator has resolved it
	nonce         uuid NOT NULL,        -- of the round; zero for none
	ns            integer NOT NULL,
	weight        integer NOT NULL,     -- what it counts for among the open calls of its principal
	state         smallint NOT NULL,
	transactional boolean NOT NULL,     -- the run commits with its record or not at all
	continued     boolean NOT NULL,     -- the run answers a question
	awaited       boolean NOT NULL,     -- an instance wants to be notified when the run ends
	sealed        boolean NOT NULL DEFAULT false, -- the outcome is as Options.Seal made it
	fingerprint   bytea NOT NULL,
	answers       bytea NOT NULL,
	principal     bytea NOT NULL,
	key           bytea NOT NULL,
	outcome       bytea,                -- while it is open: the latest question
	PRIMARY KEY (phash, digest, ns)
) PARTITION BY LIST (ns);
-- Of open calls: running, waiting and unknown. The condition is spelt so that
-- only who spells it the same way uses the index: what looks for one record in
-- one of these states is to use the primary key.
CREATE INDEX record_open ON {schema}.record (phash, changed) WHERE (1 << state) & 38 <> 0;

-- Counts of records, by principal and, where phash is 0, of all; see admit for
-- how they are kept.
CREATE TABLE {schema}.tally (
	records    bigint NOT NULL,
	open       bigint NOT NULL, -- of those, calls that run or wait
	full_until timestamptz, -- a bound was reached when it was looked at last
	phash      bigint NOT NULL,
	ns         integer NOT NULL,
	PRIMARY KEY (phash, ns)
) PARTITION BY LIST (ns);

-- The store's clock is the database's, which never runs back: see enter.
CREATE TABLE {schema}.clock (
	one   boolean PRIMARY KEY DEFAULT true CHECK (one),
	shift interval NOT NULL,    -- what the steps back sum up to
	seen  timestamptz NOT NULL  -- by the store's clock, not long ago
) WITH (fillfactor = 10);
INSERT INTO {schema}.clock (shift, seen) VALUES ('0', clock_timestamp());
