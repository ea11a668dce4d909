-- Looking a key up and taking it, in one step.
--
-- The verdicts are those of store.Verdict: run (1), joinable (2), known (3),
-- asked (4), mismatch (5), namespaceNotHeld (6), namespaceClosed (7), noRoom
-- (8), free (9); and 0: a namespace is due, so rotate and come again.

-- A reservation, as the caller gets it.
CREATE TYPE {schema}.reservation AS (
	verdict smallint, state smallint, token uuid, nonce uuid, answers bytea, outcome bytea, sealed boolean,
	continued boolean, current text, retry_after interval);

-- reserve decides on an attempt. What most attempts are, a new key in a namespace
-- where nothing is to be looked at, does not come here: see statements.go. p_count
-- and p_count_all are what to add to the principal's count of records and to that
-- of all, mostly 0; see admit.
CREATE FUNCTION {schema}.reserve(
	p_ns text, p_phash bigint, p_digest uuid, p_principal bytea, p_key bytea, p_fingerprint bytea, p_token uuid,
	p_lease_us bigint, p_nonce uuid, p_answers bytea, p_peek boolean, p_transactional boolean,
	p_records bigint, p_per_principal bigint, p_open bigint, p_count bigint, p_count_all bigint, p_settled boolean
) RETURNS {schema}.reservation LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
	-- A crash that loses the reservation of a transactional run has lost its
	-- effect as well, which comes later in the log.
	m      constant {schema}.moment := {schema}.enter(p_durable => NOT p_transactional);
	lease  constant interval := p_lease_us * interval '1 microsecond';
	n      {schema}.namespace; -- where the record is or would be
	r      {schema}.record;
	answer {schema}.reservation;
BEGIN
	IF p_ns <> '' THEN
		SELECT * INTO n FROM {schema}.namespace x WHERE x.name = p_ns AND x.incarnation = m.incarnation AND x.state < 3;
	END IF;
	IF p_ns = '' OR n.id IS NULL OR n.state = 2 THEN
		answer := {schema}.reserve_elsewhere(p_ns, n, m, p_settled);
		IF answer.verdict IS NOT NULL THEN
			RETURN answer;
		ELSIF p_ns = '' THEN
			SELECT * INTO n FROM {schema}.namespace x WHERE x.name = answer.current;
		END IF;
	ELSIF n.due <= m.t AND NOT p_settled THEN
		answer.verdict := 0;
		RETURN answer;
	END IF;
	-- A turn sees what another attempt did that came between the last turn's
	-- reading and writing. Each such attempt has moved the record on.
	FOR turn IN 1..100 LOOP
		IF p_ns <> '' THEN
			SELECT * INTO r FROM {schema}.record x
			WHERE x.phash = p_phash AND x.digest = p_digest AND x.ns = n.id AND x.principal = p_principal AND x.key = p_key;
		ELSE
			SELECT x.* INTO r FROM {schema}.namespace y JOIN {schema}.record x ON x.phash = p_phash AND x.digest = p_digest AND x.ns = y.id
			WHERE y.incarnation = m.incarnation AND y.state < 3 AND x.principal = p_principal AND x.key = p_key;
		END IF;
		IF FOUND THEN
			answer := {schema}.reserve_known(r, m.t, p_fingerprint, p_token, lease, p_nonce, p_answers, p_peek, p_transactional);
			CONTINUE WHEN answer.verdict IS NULL;
			RETURN answer;
		ELSIF n.state = 2 THEN
			answer.verdict := 7;
			RETURN answer;
		ELSIF NOT {schema}.admit(p_phash, n, m, p_records, p_per_principal, p_open, p_count, p_count_all) THEN
			answer.verdict := 8;
			answer.retry_after := {schema}.room_in(m);
			RETURN answer;
		ELSIF p_peek THEN
			answer.verdict := 9;
			RETURN answer;
		END IF;
		INSERT INTO {schema}.record (
			changed, touched, lease_until, phash, digest, token, nonce, ns, weight, state, transactional, continued, awaited,
			fingerprint, answers, principal, key)
		VALUES (
			m.t, m.t, m.t + lease, p_phash, p_digest, p_token, p_nonce, n.id, p_count, 1, p_transactional, false, false,
			p_fingerprint, p_answers, p_principal, p_key)
		ON CONFLICT DO NOTHING;
		IF FOUND THEN
			PERFORM {schema}.count(p_phash, n.id, p_count);
			PERFORM {schema}.count(0, n.id, p_count_all);
			answer.verdict := 1;
			RETURN answer;
		END IF;
	END LOOP;
	RAISE EXCEPTION 'the record does not hold still' USING ERRCODE = 'MI004';
END
$$;

-- reserve_elsewhere answers, where that is all, an attempt whose key names no
-- namespace that takes new keys: one that is not held, closed (n), or none. It
-- says which namespace is the current one.
CREATE FUNCTION {schema}.reserve_elsewhere(p_ns text, n {schema}.namespace, m {schema}.moment, p_settled boolean)
RETURNS {schema}.reservation LANGUAGE plpgsql AS $$
DECLARE
	c      {schema}.namespace;
	answer {schema}.reservation;
BEGIN
	SELECT * INTO c FROM {schema}.namespace x WHERE x.incarnation = m.incarnation AND x.state = 0;
	answer.current := c.name;
	IF c.id IS NULL OR NOT p_settled AND (c.due <= m.t OR n.due <= m.t) THEN
		answer.verdict := 0;
	ELSIF p_ns <> '' AND n.id IS NULL THEN
		answer.verdict := 6;
	END IF;
	RETURN answer;
END
$$;

-- reserve_known answers an attempt whose key is known: r is its record as it
-- was read. Every write is a compare-and-set on that; the verdict is null when
-- one failed, or when the record was moved on and has to be read again.
CREATE FUNCTION {schema}.reserve_known(
	r {schema}.record, t timestamptz, p_fingerprint bytea, p_token uuid, p_lease interval, p_nonce uuid, p_answers bytea,
	p_peek boolean, p_transactional boolean
) RETURNS {schema}.reservation LANGUAGE plpgsql AS $$
DECLARE
	zero   constant uuid := '00000000-0000-0000-0000-000000000000';
	answer {schema}.reservation := (NULL, r.state, r.token, r.nonce, r.answers, NULL, r.sealed, r.continued, NULL, NULL);
BEGIN
	IF r.fingerprint <> p_fingerprint THEN
		answer.verdict := 5;
	ELSIF r.state IN (3, 4) THEN
		answer.verdict := 3;
		answer.outcome := r.outcome;
	ELSIF r.state = 5 THEN
		PERFORM {schema}.touch(r, t);
		answer.verdict := 3;
	ELSIF r.state = 1 AND r.token = p_token THEN
		-- The answer to this attempt's first reserve was lost. It has not run.
		UPDATE {schema}.record SET lease_until = t + p_lease
		WHERE phash = r.phash AND digest = r.digest AND ns = r.ns AND state = 1 AND token = p_token;
		answer.verdict := CASE WHEN FOUND THEN 1 END;
	ELSIF r.state = 1 AND r.lease_until > t THEN
		answer.verdict := 2;
	ELSIF r.state = 1 THEN
		answer.verdict := {schema}.reserve_expired(r, t, p_token, p_lease, p_nonce, p_answers, p_peek, p_transactional);
	ELSIF p_nonce = zero OR p_nonce <> r.nonce THEN
		PERFORM {schema}.touch(r, t);
		answer.verdict := 4;
		answer.outcome := r.outcome;
	ELSIF p_peek THEN
		answer.verdict := 9;
	ELSE
		-- The question stays with the record, for a run that rejects the answers.
		UPDATE {schema}.record SET
			state = 1, changed = t, touched = t, lease_until = t + p_lease, token = p_token, answers = p_answers,
			transactional = p_transactional, continued = true, awaited = false
		WHERE phash = r.phash AND digest = r.digest AND ns = r.ns AND state = 2 AND nonce = p_nonce;
		answer.verdict := CASE WHEN FOUND THEN 1 END;
		answer.continued := true;
	END IF;
	RETURN answer;
END
$$;

-- reserve_expired decides on a run whose lease has passed.
--
-- What such a run did is not known, so the record says so from now on. But a
-- transactional run cannot have had an effect and cannot have one any more once
-- its token is gone: another attempt of the same round takes over, and one of
-- another round makes the question stand again.
CREATE FUNCTION {schema}.reserve_expired(
	r {schema}.record, t timestamptz, p_token uuid, p_lease interval, p_nonce uuid, p_answers bytea, p_peek boolean, p_transactional boolean
) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
	zero   constant uuid := '00000000-0000-0000-0000-000000000000';
	undone constant boolean := r.transactional AND p_transactional;
	again  constant boolean := undone AND (r.nonce = p_nonce OR r.outcome IS NULL);
BEGIN
	IF again AND p_peek THEN
		RETURN 9;
	END IF;
	UPDATE {schema}.record SET
		state       = CASE WHEN again THEN 1 WHEN undone THEN 2 ELSE 5 END,
		token       = CASE WHEN again THEN p_token ELSE token END,
		answers     = CASE WHEN again THEN p_answers ELSE answers END,
		lease_until = CASE WHEN again THEN t + p_lease ELSE lease_until END,
		changed     = CASE WHEN undone THEN t ELSE lease_until END,
		nonce       = CASE WHEN undone THEN nonce ELSE zero END,
		outcome     = CASE WHEN undone THEN outcome END,
		weight      = CASE WHEN undone THEN weight ELSE 0 END,
		touched     = t,
		awaited     = false
	WHERE phash = r.phash AND digest = r.digest AND ns = r.ns AND state = 1 AND token = r.token AND lease_until <= t;
	IF NOT FOUND THEN
		RETURN NULL;
	END IF;
	IF NOT undone THEN
		PERFORM {schema}.discount(r);
	END IF;
	IF r.awaited THEN
		PERFORM {schema}.wake(r.token);
	END IF;
	RETURN CASE WHEN again THEN 1 END;
END
$$;

-- touch keeps an open call, and with it its namespace, for the retention from
-- now; most of the time it already is.
CREATE FUNCTION {schema}.touch(r {schema}.record, t timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF r.touched < t - (SELECT retention / 64 FROM {schema}.namespace WHERE id = r.ns) THEN
		UPDATE {schema}.record SET touched = t WHERE phash = r.phash AND digest = r.digest AND ns = r.ns AND touched < t;
	END IF;
END
$$;

-- wake tells the instances that wait for a run to look at its record. It is
-- called only when one does: notifying commits queue for one lock.
CREATE FUNCTION {schema}.wake(p_token uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('{channel}', p_token::text);
END
$$;
