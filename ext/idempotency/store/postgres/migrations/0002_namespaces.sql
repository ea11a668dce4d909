-- The life of namespaces, and what every step begins with.

-- incarnation names this life of the data by what no restore and no fail-over
-- of PostgreSQL brings back: the cluster's identifier, and the timeline, which
-- every promotion and every recovery from a backup advances. Neither changes
-- while a server process that is not in recovery lives, so each session keeps
-- what it has found: reading the identifier is a read of a file.
CREATE FUNCTION {schema}.incarnation() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	here text := current_setting('mcp_idempotency.incarnation', true);
BEGIN
	IF current_setting('fsync') <> 'on' THEN
		RAISE EXCEPTION 'fsync is off, so that a crash can lose records without a trace' USING ERRCODE = 'MI002';
	END IF;
	IF here <> '' THEN
		RETURN here;
	END IF;
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'the database is a standby, which cannot tell what the primary has promised' USING ERRCODE = 'MI002';
	END IF;
	SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) INTO here FROM pg_control_system();
	PERFORM set_config('mcp_idempotency.incarnation', here, false);
	RETURN here;
END
$$;

-- wall is the database's clock. Nothing else in the schema asks for the time.
CREATE FUNCTION {schema}.wall() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()';

-- A moment is where and when a step happens.
CREATE TYPE {schema}.moment AS (incarnation text, t timestamptz);

-- enter begins a step. Every step that may write holds this lock from before
-- it reads the state of a namespace until it has committed, and whoever changes
-- the state of a namespace takes one that excludes it (rotate). So what a step
-- reads of a namespace is true until it commits. It is a lock of the kind that
-- every INSERT takes, granted without touching memory that is contended.
--
-- The statements of a step must each see what was committed before them, so
-- READ COMMITTED is demanded. Only a step at the end of a transaction of the
-- caller's own (p_within) may be at another level; see record. A step that is
-- to survive a crash is flushed before it is acknowledged, whatever the role or
-- the session says.
--
-- The store's clock is the wall's, moved ahead by every step back that was
-- noticed, or a lease would last for as long as the clock was set back. To
-- notice, one step in a second notes what it saw.
CREATE FUNCTION {schema}.enter(p_durable boolean, p_within boolean DEFAULT false) RETURNS {schema}.moment LANGUAGE plpgsql AS $$
DECLARE
	c {schema}.clock;
	t timestamptz;
BEGIN
	LOCK TABLE ONLY {schema}.record IN ROW EXCLUSIVE MODE;
	IF NOT p_within AND current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'the connections of the store have to use the isolation level READ COMMITTED by default' USING ERRCODE = 'MI003';
	END IF;
	IF p_durable <> (current_setting('synchronous_commit') <> 'off') THEN
		PERFORM set_config('synchronous_commit', CASE WHEN p_durable THEN 'on' ELSE 'off' END, true);
	END IF;
	SELECT * INTO c FROM {schema}.clock WHERE one;
	t := {schema}.wall() + c.shift;
	IF (t < c.seen OR t > c.seen + interval '1 second') AND NOT p_within THEN
		PERFORM {schema}.note(t);
	END IF;
	RETURN ({schema}.incarnation(), greatest(t, c.seen));
END
$$;

-- note keeps what a step saw of the time. Nobody waits for another to note it,
-- but to take a step back in.
CREATE FUNCTION {schema}.note(t timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM {schema}.clock WHERE one AND seen < t FOR UPDATE SKIP LOCKED;
	IF FOUND THEN
		UPDATE {schema}.clock SET seen = t WHERE one AND seen < t;
	END IF;
	UPDATE {schema}.clock SET shift = seen - {schema}.wall() WHERE one AND {schema}.wall() + shift < seen;
END
$$;

-- now tells the time by the store's clock to who does not note it.
CREATE FUNCTION {schema}.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT greatest({schema}.wall() + shift, seen) FROM {schema}.clock WHERE one';

-- holding returns the held namespace that a record is or may be in. A key
-- without a namespace (p_ns is empty) is looked for in all.
CREATE FUNCTION {schema}.holding(p_here text, p_ns text, p_phash bigint, p_digest uuid) RETURNS {schema}.namespace LANGUAGE plpgsql AS $$
DECLARE
	n {schema}.namespace;
BEGIN
	IF p_ns <> '' THEN
		SELECT * INTO n FROM {schema}.namespace WHERE name = p_ns AND incarnation = p_here AND state < 3;
	ELSE
		SELECT m.* INTO n FROM {schema}.namespace m JOIN {schema}.record r ON r.phash = p_phash AND r.digest = p_digest AND r.ns = m.id
		WHERE m.incarnation = p_here AND m.state < 3;
	END IF;
	RETURN n;
END
$$;

-- rotate moves every namespace on to where it belongs by now, and makes a new
-- current one when there is none, named p_name. It may be called by many at
-- once: who comes second finds nothing due. p_forget drops all that is held.
CREATE FUNCTION {schema}.rotate(p_name text, p_retention interval, p_rotate_every interval, p_closing_for interval, p_forget boolean)
RETURNS void LANGUAGE plpgsql SET lock_timeout = '1s' SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
	here text;
	t    timestamptz;
	made integer;
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'the connections of the store have to use the isolation level READ COMMITTED by default' USING ERRCODE = 'MI003';
	END IF;
	PERFORM pg_advisory_xact_lock(hashtextextended('{schema}', 0));
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	here := {schema}.incarnation();
	IF p_forget OR NOT EXISTS (SELECT FROM {schema}.namespace WHERE incarnation = here AND state = 0 AND due > {schema}.now()) THEN
		made := nextval('{schema}.namespace_id');
		PERFORM {schema}.make_partitions(made);
	END IF;
	-- Looking passes over the index entries of calls that are no longer open,
	-- and marks them. So the second look, while all others wait, is short.
	PERFORM {schema}.needed(n, {schema}.now()) FROM {schema}.namespace n WHERE state = 2 AND due <= {schema}.now();
	LOCK TABLE ONLY {schema}.record IN SHARE ROW EXCLUSIVE MODE;
	t := {schema}.now();
	-- What a restore or a fail-over has left is not complete. It is kept for
	-- whoever wants to look at it, until nobody can ask for it any more.
	UPDATE {schema}.namespace SET state = 3, due = t + retention WHERE state < 3 AND (p_forget OR incarnation <> here);
	UPDATE {schema}.namespace SET state = 1, due = t + closing_for WHERE state = 0 AND due <= t AND made IS NOT NULL;
	IF made IS NOT NULL THEN
		INSERT INTO {schema}.namespace (id, name, incarnation, state, retention, rotate_every, closing_for, born, due)
		VALUES (made, p_name, here, 0, p_retention, p_rotate_every, p_closing_for, t, t + p_rotate_every);
	END IF;
	-- It closes when it was to, however late that is noticed: calls that ended
	-- since then have been noted (see ended).
	UPDATE {schema}.namespace SET state = 2, due = due + retention WHERE state = 1 AND due <= t;
	UPDATE {schema}.namespace n SET
		state = CASE WHEN {schema}.needed(n, t) THEN 2 ELSE 3 END,
		due   = CASE WHEN {schema}.needed(n, t) THEN t + least(retention, rotate_every, closing_for, '1 minute') / 64 ELSE t END
	WHERE state = 2 AND due <= t;
END
$$;

-- needed reports whether a closed namespace has to be held past its time: a
-- call runs in it, or ended in it or was last asked about less than the
-- retention ago. A run whose lease has passed counts as ended then.
CREATE FUNCTION {schema}.needed(n {schema}.namespace, t timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN coalesce(n.last_end > t - n.retention, false) OR EXISTS (
		SELECT FROM {schema}.record r
		WHERE r.ns = n.id AND (1 << r.state) & 38 <> 0 AND greatest(r.touched, CASE r.state WHEN 1 THEN r.lease_until END) > t - n.retention);
END
$$;

-- make_partitions makes where the records and counts of a namespace are kept,
-- with all indexes, and attaches it, which blocks nobody.
CREATE FUNCTION {schema}.make_partitions(p_id integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	parent text;
BEGIN
	FOREACH parent IN ARRAY ARRAY['record', 'tally'] LOOP
		-- Every record is updated about once. While a table is small nothing
		-- is to tell the planner so: it would read it from one end to the
		-- other, and go on doing so when it is large, until it is told again.
		EXECUTE format('CREATE TABLE {schema}.%1$s_%2$s (LIKE {schema}.%1$s INCLUDING DEFAULTS INCLUDING INDEXES) WITH (fillfactor = 85,
			autovacuum_analyze_threshold = 10000, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_threshold = 10000)', parent, p_id);
		EXECUTE format('ALTER TABLE {schema}.%1$s ATTACH PARTITION {schema}.%1$s_%2$s FOR VALUES IN (%2$s)', parent, p_id);
	END LOOP;
END
$$;

-- sweep removes the rows of namespaces that were dropped before, whole. Until
-- it does the rows are there and nobody looks at them: every step reads the
-- namespace first.
CREATE FUNCTION {schema}.sweep() RETURNS void LANGUAGE plpgsql SET lock_timeout = '250ms' SET enable_seqscan = off SET jit = off AS $$
DECLARE
	gone integer;
BEGIN
	PERFORM pg_advisory_xact_lock(hashtextextended('{schema}', 0));
	FOR gone IN SELECT id FROM {schema}.namespace WHERE state = 3 AND due <= {schema}.now() LOOP
		EXECUTE format('DROP TABLE {schema}.record_%1$s, {schema}.tally_%1$s', gone);
		DELETE FROM {schema}.namespace WHERE id = gone;
	END LOOP;
END
$$;
