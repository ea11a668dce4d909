-- What becomes of a run.

-- record applies the end of a run, as store.Next has it: from the states
-- p_from to p_to. It returns false, or with p_fence raises MI001, when the
-- record does not belong to the run any more. The events are those of
-- store.Event: ask (5) brings a question and a nonce, which is zero otherwise;
-- after reject (6) the question before stands.
--
-- Most runs end in the current namespace, unwaited for and uncounted. That does
-- not come here: see statements.go.
CREATE FUNCTION {schema}.record(
	p_ns text, p_phash bigint, p_digest uuid, p_token uuid, p_event smallint, p_from smallint[], p_to smallint,
	p_outcome bytea, p_sealed boolean, p_nonce uuid, p_fence boolean
) RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
	m constant {schema}.moment := {schema}.enter(p_durable => true, p_within => p_fence);
	n {schema}.namespace := {schema}.holding(m.incarnation, p_ns, p_phash, p_digest);
	r {schema}.record;
BEGIN
	SELECT * INTO r FROM {schema}.record
	WHERE phash = p_phash AND digest = p_digest AND ns = n.id AND token = p_token
	FOR UPDATE;
	IF FOUND AND r.state = ANY (p_from) THEN
		IF p_event = 6 AND NOT r.continued THEN
			RAISE EXCEPTION 'the run answers no question that it could reject' USING ERRCODE = 'MI005';
		END IF;
		UPDATE {schema}.record SET
			state = p_to, changed = m.t, touched = m.t,
			weight  = CASE WHEN p_to = 2 THEN weight ELSE 0 END,
			nonce   = CASE p_event WHEN 6 THEN nonce ELSE p_nonce END,
			outcome = CASE p_event WHEN 6 THEN outcome ELSE p_outcome END,
			sealed  = CASE p_event WHEN 6 THEN sealed ELSE p_sealed END
		WHERE phash = r.phash AND digest = r.digest AND ns = r.ns;
		IF p_to <> 2 THEN
			PERFORM {schema}.discount(r);
		END IF;
		PERFORM {schema}.ended(n, m.t);
		IF r.awaited THEN
			PERFORM {schema}.wake(p_token);
		END IF;
		RETURN true;
	ELSIF FOUND AND r.state = p_to AND (p_event <> 5 OR r.nonce = p_nonce) THEN
		RETURN true; -- the same end, told twice
	ELSIF p_fence THEN
		RAISE EXCEPTION 'the record belongs to another run or is resolved' USING ERRCODE = 'MI001';
	END IF;
	RETURN false;
END
$$;

-- ended notes that a call in a namespace that is closed, or should be, has
-- ended, so that it is held for the retention from now. A transaction whose
-- snapshot is old may see the namespace as it was before; then it fails, and can
-- be tried again.
CREATE FUNCTION {schema}.ended(n {schema}.namespace, t timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		PERFORM FROM {schema}.namespace WHERE id = n.id FOR SHARE;
	END IF;
	IF n.state = 2 OR n.state = 1 AND n.due <= t THEN
		UPDATE {schema}.namespace SET last_end = t WHERE id = n.id;
	END IF;
END
$$;

-- renew extends the lease of a run. It need not survive a crash: a lease that
-- ends early is no more than that.
CREATE FUNCTION {schema}.renew(p_ns text, p_phash bigint, p_digest uuid, p_token uuid, p_lease_us bigint)
RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
	m constant {schema}.moment := {schema}.enter(p_durable => false);
	n {schema}.namespace := {schema}.holding(m.incarnation, p_ns, p_phash, p_digest);
BEGIN
	UPDATE {schema}.record SET lease_until = m.t + p_lease_us * interval '1 microsecond'
	WHERE phash = p_phash AND digest = p_digest AND ns = n.id AND token = p_token AND state = 1;
	RETURN FOUND;
END
$$;

-- await returns in how many microseconds the lease of a run passes, and sees to
-- it that the end of the run is notified; null when nothing runs under the
-- token, or its lease has passed.
CREATE FUNCTION {schema}.await(p_ns text, p_phash bigint, p_digest uuid, p_token uuid)
RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
	m     constant {schema}.moment := {schema}.enter(p_durable => false);
	n     {schema}.namespace := {schema}.holding(m.incarnation, p_ns, p_phash, p_digest);
	left_ interval;
	known boolean;
BEGIN
	SELECT lease_until - m.t, awaited INTO left_, known FROM {schema}.record
	WHERE phash = p_phash AND digest = p_digest AND ns = n.id AND token = p_token AND state = 1;
	IF NOT known THEN
		-- It waits here for a run that ends at this moment.
		UPDATE {schema}.record SET awaited = true
		WHERE phash = p_phash AND digest = p_digest AND ns = n.id AND token = p_token AND state = 1;
		known := CASE WHEN FOUND THEN true END;
	END IF;
	RETURN CASE WHEN known AND left_ > interval '0' THEN ceil(extract(epoch FROM left_) * 1000000) END;
END
$$;
