-- What an operator does.

-- entries lists the records of the held namespaces in some states, and of one
-- principal unless p_principal is null. A run whose lease has passed counts as
-- of unknown outcome since then, though nobody has asked for it yet, unless it
-- is transactional. p_stored is p_states with running added to unknown, and
-- p_open says that they are open. The plan is made for each call, so that open
-- calls are found by their own index.
CREATE FUNCTION {schema}.entries(p_states smallint[], p_stored smallint[], p_open boolean, p_principal bytea, p_phash bigint, p_limit bigint)
RETURNS TABLE (principal bytea, key bytea, namespace text, state smallint, since timestamptz, lease_until timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
	here constant text := {schema}.incarnation();
	t    constant timestamptz := {schema}.now();
BEGIN
	RETURN QUERY
	SELECT x.principal, x.key, x.name, x.shown, x.since, CASE x.shown WHEN 1 THEN x.lease_until END FROM (
		SELECT r.principal, r.key, m.name, r.lease_until,
			CASE WHEN lost THEN 5::smallint ELSE r.state END AS shown,
			CASE WHEN lost THEN r.lease_until ELSE r.changed END AS since
		FROM {schema}.namespace m JOIN {schema}.record r ON r.ns = m.id,
			LATERAL (SELECT r.state = 1 AND r.lease_until <= t AND NOT r.transactional AS lost) l
		WHERE m.incarnation = here AND m.state < 3 AND r.state = ANY (p_stored)
			AND (NOT p_open OR (1 << r.state) & 38 <> 0)
			AND (p_principal IS NULL OR r.phash = p_phash AND r.principal = p_principal)) x
	WHERE x.shown = ANY (p_states)
	ORDER BY x.since
	LIMIT p_limit;
END
$$;

-- resolve makes an unknown outcome final. The token goes, so that the end of
-- the run, should it come yet, meets a record that is not its own. It returns
-- 1 when it did, 0 when the outcome is not unknown, null when there is no
-- record.
CREATE FUNCTION {schema}.resolve(p_ns text, p_phash bigint, p_digest uuid, p_to smallint, p_outcome bytea, p_sealed boolean)
RETURNS integer LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
	zero constant uuid := '00000000-0000-0000-0000-000000000000';
	m    constant {schema}.moment := {schema}.enter(p_durable => true);
	n    {schema}.namespace := {schema}.holding(m.incarnation, p_ns, p_phash, p_digest);
	r    {schema}.record;
BEGIN
	SELECT * INTO r FROM {schema}.record WHERE phash = p_phash AND digest = p_digest AND ns = n.id FOR UPDATE;
	IF NOT FOUND THEN
		RETURN NULL;
	ELSIF NOT (r.state = 5 OR r.state = 1 AND r.lease_until <= m.t AND NOT r.transactional) THEN
		RETURN 0;
	END IF;
	UPDATE {schema}.record SET
		state = p_to, changed = m.t, touched = m.t, weight = 0, token = zero, nonce = zero, outcome = p_outcome, sealed = p_sealed
	WHERE phash = r.phash AND digest = r.digest AND ns = r.ns;
	PERFORM {schema}.discount(r);
	PERFORM {schema}.ended(n, m.t);
	RETURN 1;
END
$$;

-- delete_outcomes forgets the outcomes of a principal, in every namespace, and
-- returns how many. The rows stay, so that no key of the principal runs again.
CREATE FUNCTION {schema}.delete_outcomes(p_principal bytea, p_phash bigint)
RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
	gone bigint;
BEGIN
	PERFORM {schema}.enter(p_durable => true);
	UPDATE {schema}.record SET outcome = NULL
	WHERE phash = p_phash AND principal = p_principal AND state IN (3, 4) AND outcome IS NOT NULL;
	GET DIAGNOSTICS gone = ROW_COUNT;
	RETURN gone;
END
$$;
