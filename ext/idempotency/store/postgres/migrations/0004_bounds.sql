-- How much may be remembered. A bound only ever refuses new keys.
--
-- Counting every record would make all writers queue for one row. A count with
-- a large bound is kept by sampling instead: one attempt in n, as the caller
-- draws it, adds n. It is right on average, lives and dies with the inserts' own
-- transactions, and at its bound is off by about 1.5 percent (one standard
-- deviation). The bounds are looked at where a count is changed; one that was
-- reached is remembered for a second and then looked at again.
--
-- With a small bound n is 1: everything is counted and looked at, and inserts
-- that share the bound queue.

-- A call that was counted when it was taken is counted out when it ends, by the
-- same number, so that the counts of open calls do not drift.

-- admit reports whether a principal may have one more record in a namespace.
CREATE FUNCTION {schema}.admit(
	p_phash bigint, n {schema}.namespace, m {schema}.moment,
	p_records bigint, p_per_principal bigint, p_open bigint, p_count bigint, p_count_all bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	full_till timestamptz;
BEGIN
	IF n.crowded THEN
		SELECT max(full_until) INTO full_till FROM {schema}.tally WHERE phash IN (0, p_phash) AND ns = n.id;
	END IF;
	IF full_till > m.t THEN
		RETURN false;
	ELSIF p_count = 0 AND p_count_all = 0 AND full_till IS NULL THEN
		RETURN true;
	END IF;
	IF p_count = 1 THEN
		PERFORM pg_advisory_xact_lock(hashtextextended('{schema}', p_phash));
	END IF;
	IF p_count_all = 1 THEN
		PERFORM pg_advisory_xact_lock(hashtextextended('{schema} in all', 0));
	END IF;
	RETURN {schema}.room(p_phash, n.id, m, p_records, p_per_principal, p_open, p_count, p_count_all);
END
$$;

-- count adds to the counts of records and of open calls. It is done when the
-- record is written, a principal's before that of all, so that no two steps
-- wait for each other.
CREATE FUNCTION {schema}.count(p_phash bigint, p_ns integer, p_by bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF p_by > 0 THEN
		INSERT INTO {schema}.tally AS c (records, open, phash, ns) VALUES (p_by, p_by, p_phash, p_ns)
		ON CONFLICT (phash, ns) DO UPDATE SET records = c.records + p_by, open = c.open + p_by, full_until = NULL;
	END IF;
END
$$;

-- discount counts a call out that is no longer open; r is its record as it was.
CREATE FUNCTION {schema}.discount(r {schema}.record) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF r.weight > 0 THEN
		UPDATE {schema}.tally SET open = open - r.weight WHERE phash = r.phash AND ns = r.ns;
	END IF;
END
$$;

-- room compares the counts with their bounds. Runs that died and that nobody
-- asked for are among the open calls until their number is looked at, which is
-- done by their index, and costs as much as there are.
CREATE FUNCTION {schema}.room(
	p_phash bigint, p_ns integer, m {schema}.moment, p_records bigint, p_per_principal bigint, p_open bigint, p_count bigint, p_count_all bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	in_all bigint;
	mine   bigint;
	opened bigint;
BEGIN
	SELECT sum(c.records) FILTER (WHERE c.phash = 0), sum(c.records) FILTER (WHERE c.phash = p_phash), sum(c.open) FILTER (WHERE c.phash = p_phash)
	INTO in_all, mine, opened
	FROM {schema}.namespace x JOIN {schema}.tally c ON c.ns = x.id AND c.phash IN (0, p_phash)
	WHERE x.incarnation = m.incarnation AND x.state < 3;
	IF in_all >= p_records THEN
		PERFORM {schema}.full_up(0, p_ns, m.t, p_count_all);
		RETURN false;
	END IF;
	IF opened >= p_open THEN
		SELECT count(*) INTO opened FROM (
			SELECT FROM {schema}.namespace x JOIN {schema}.record r ON r.ns = x.id
			WHERE x.incarnation = m.incarnation AND x.state < 3
				AND r.phash = p_phash AND (1 << r.state) & 38 <> 0 AND (r.state = 2 OR r.state = 1 AND r.lease_until > m.t)
			LIMIT p_open) y;
	END IF;
	IF mine >= p_per_principal OR opened >= p_open THEN
		PERFORM {schema}.full_up(p_phash, p_ns, m.t, p_count);
		RETURN false;
	END IF;
	RETURN true;
END
$$;

-- full_up remembers that a bound was reached, where not every insert looks.
CREATE FUNCTION {schema}.full_up(p_phash bigint, p_ns integer, t timestamptz, p_count bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF p_count <> 1 THEN
		INSERT INTO {schema}.tally AS c (records, open, full_until, phash, ns) VALUES (0, 0, t + interval '1 second', p_phash, p_ns)
		ON CONFLICT (phash, ns) DO UPDATE SET full_until = excluded.full_until;
		UPDATE {schema}.namespace SET crowded = true WHERE id = p_ns AND NOT crowded;
	END IF;
END
$$;

-- room_in guesses when there will be room: when the oldest namespace may go,
-- and not so far ahead that a caller who could be served sooner stays away.
CREATE FUNCTION {schema}.room_in(m {schema}.moment) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
	RETURN (
		SELECT least(greatest(min(born + rotate_every + closing_for + retention) - m.t, interval '1 second'), interval '1 minute')
		FROM {schema}.namespace WHERE incarnation = m.incarnation AND state < 3);
END
$$;
