-- +goose Up
-- What decides anything is in these functions. Each takes its row locks first, in one order
-- everywhere (pointers by name, operation, generations by id, artifacts by id), and only then, in
-- later statements, reads the clock, the epoch and the facts, and decides. They answer with a
-- status; they raise only for faults.
--
-- The hot ones plan each statement once: with array arguments Postgres would otherwise plan anew
-- at every call, which cost more than carrying out the plan.

-- Begins every decision. Decisions read facts in statements that follow the locks; under any
-- other isolation level those statements would see a snapshot from before the locks. Reading the
-- installation keeps its table's weakest lock until the decision is committed: raising the epoch
-- takes the strongest one, so it waits for the decisions under way, and later ones see the new one.
--
-- Once armed, it also refuses to decide on any history but the one that was compared with the
-- bucket: another server start, timeline, database or restored table has to be looked at first (see
-- release_server and take_epoch). A server keeps its system identifier for as long as it runs, so
-- that is compared where a new start is released.
-- +goose StatementBegin
CREATE FUNCTION artifactd.begin_decision() RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'artifactd functions decide under READ COMMITTED only, not %',
            current_setting('transaction_isolation')
            USING HINT = 'Call them outside of a repeatable read or serializable transaction.';
    END IF;
    PERFORM 1 FROM installation i
     WHERE i.changed_at IS NULL AND (i.armed_at IS NULL
        OR (i.server_started_at = pg_postmaster_start_time()
            AND i.table_path = pg_relation_filepath('artifactd.installation')
            AND i.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)));
    IF NOT FOUND THEN PERFORM refuse_history(); END IF;
END $$;
-- +goose StatementEnd

-- Says why nothing can be decided: SQLSTATE AD001, unless this is no primary at all.
-- +goose StatementBegin
CREATE FUNCTION artifactd.refuse_history() RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
DECLARE i installation;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby in recovery' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    SELECT * INTO STRICT i FROM installation;
    RAISE EXCEPTION '%', CASE
            WHEN i.changed_at IS NOT NULL THEN i.changed_why
            WHEN i.timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8) THEN
                format('the database went from timeline %s to %s: it was promoted or restored', i.timeline, left(pg_walfile_name(pg_current_wal_lsn()), 8))
            ELSE format('the database server was started at %s and has not been compared with the bucket since', pg_postmaster_start_time()) END
        USING ERRCODE = 'AD001';
END $$;
-- +goose StatementEnd

-- Begins what deletes: as a decision, and refused (SQLSTATE AD002) from the raise of an epoch until
-- an operator acknowledges it.
-- +goose StatementBegin
CREATE FUNCTION artifactd.begin_collection() RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    IF EXISTS (SELECT 1 FROM installation WHERE collection_held_at IS NOT NULL) THEN
        RAISE EXCEPTION 'collection is off since the database''s history changed, until an operator acknowledges that: run `artifactd recover`'
            USING ERRCODE = 'AD002';
    END IF;
END $$;
-- +goose StatementEnd

-- Counts a decision whose loss must be noticed. Awaits no lock, so it may come after the clock was
-- read: a slot that somebody else counts in is left alone.
-- +goose StatementBegin
CREATE FUNCTION artifactd.count_decision() RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    UPDATE counter SET n = n + 1
     WHERE slot = (SELECT c.slot FROM counter c WHERE c.slot = pg_backend_pid() % 128 FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN RETURN; END IF;
    UPDATE counter SET n = n + 1
     WHERE slot = (SELECT c.slot FROM counter c ORDER BY c.slot LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN RETURN; END IF;
    INSERT INTO counter (n) VALUES (1);
END $$;
-- +goose StatementEnd

-- A lease lives for some time and at most 24 hours between renewals, whoever asks.
-- +goose StatementBegin
CREATE FUNCTION artifactd.check_ttl(p_ttl double precision) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_ttl IS NULL OR p_ttl <= 0 OR p_ttl > 86400 THEN  -- NaN is above every number
        RAISE EXCEPTION 'a lease lives up to 86400 seconds, not %', p_ttl USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd

-- Why this lease cannot act at this time, or null when it can. The order of the tests is part of
-- the contract.
-- +goose StatementBegin
CREATE FUNCTION artifactd.lease_reason(
    p artifactd.pointer, g artifactd.generation,
    token_epoch bigint, token_generation bigint, current_epoch bigint, at timestamptz
) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN g.epoch IS DISTINCT FROM token_epoch
          OR g.generation IS DISTINCT FROM token_generation THEN 'token-mismatch'
        WHEN g.epoch <> current_epoch          THEN 'epoch-superseded'
        WHEN g.state = 'published'             THEN 'already-published'
        WHEN p.retired_at IS NOT NULL          THEN 'pointer-retired'
        WHEN p.head_id IS DISTINCT FROM g.generation_id
          OR p.epoch <> g.epoch OR p.generation <> g.generation
          OR g.state = 'superseded'            THEN 'superseded'
        WHEN g.state = 'broken'                THEN 'broken'
        WHEN g.state = 'released'              THEN 'released'
        WHEN g.state = 'expired'
          OR p.lease_expires_at IS NULL
          OR p.lease_expires_at <= at          THEN 'expired'
    END
$$;
-- +goose StatementEnd

-- Ends a lease that was not published. Called under the generation's lock; what is recorded here
-- nothing revives, whatever the clock does later.
-- +goose StatementBegin
CREATE FUNCTION artifactd.end_lease(p_generation_id uuid, p_state text, p_at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    UPDATE generation SET state = p_state, ended_at = p_at, collect_at = p_at
     WHERE generation_id = p_generation_id AND state = 'leased';
    IF FOUND THEN PERFORM count_decision(); END IF;
END $$;
-- +goose StatementEnd

-- When this lease ends. A lease never has more time left than its ttl, so a clock that was
-- stepped back does not prolong it.
-- +goose StatementBegin
CREATE FUNCTION artifactd.effective_expiry(expires timestamptz, ttl_seconds double precision, at timestamptz)
RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT least(expires, at + make_interval(secs => ttl_seconds))
$$;
-- +goose StatementEnd

-- Makes or changes a pointer; null arguments leave a setting as it is. Making a retired name
-- again continues its numbers.
-- +goose StatementBegin
CREATE FUNCTION artifactd.put_pointer(
    p_name text, p_keep_versions integer, p_keep_seconds bigint, p_public boolean, p_labels jsonb,
    p_site boolean DEFAULT NULL, OUT created boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE p pointer;
BEGIN
    PERFORM begin_decision();
    INSERT INTO pointer (name, keep_versions, keep_seconds, public, labels, site)
    VALUES (p_name, coalesce(p_keep_versions, 5), coalesce(p_keep_seconds, 86400),
            coalesce(p_public, false), coalesce(p_labels, '{}'), coalesce(p_site, false))
    ON CONFLICT (name) DO NOTHING;
    created := FOUND;
    IF created THEN
        PERFORM note_pointer(pointer_id, false) FROM pointer WHERE name = p_name;
        PERFORM count_decision();
        RETURN;
    END IF;

    SELECT * INTO STRICT p FROM pointer WHERE name = p_name FOR NO KEY UPDATE;
    created := p.retired_at IS NOT NULL;
    UPDATE pointer SET
        keep_versions = coalesce(p_keep_versions, keep_versions),
        keep_seconds  = coalesce(p_keep_seconds, keep_seconds),
        public        = coalesce(p_public, public),
        labels        = coalesce(p_labels, labels),
        site          = coalesce(p_site, site),
        retired_at    = NULL,
        updated_at    = clock_timestamp()
     WHERE pointer_id = p.pointer_id;
    IF created OR EXISTS (
        SELECT 1 FROM pointer q WHERE q.pointer_id = p.pointer_id
           AND (q.keep_versions, q.keep_seconds, q.public, q.labels)
               IS DISTINCT FROM (p.keep_versions, p.keep_seconds, p.public, p.labels)) THEN
        PERFORM note_pointer(p.pointer_id, false);
    END IF;
    IF p_keep_versions IS NOT NULL OR p_keep_seconds IS NOT NULL THEN
        -- Versions kept under the old settings are judged again.
        UPDATE generation SET collect_at = clock_timestamp()
         WHERE pointer_id = p.pointer_id AND displaced_at IS NOT NULL
           AND collected_at IS NULL AND collecting_at IS NULL;
    END IF;
    PERFORM count_decision();
END $$;
-- +goose StatementEnd

-- Notes that a waiter is still there, and reports whether nobody who came before it is. Called
-- under the pointer's lock.
-- +goose StatementBegin
CREATE FUNCTION artifactd.stand_in_line(p_pointer_id bigint, p_waiter uuid, OUT is_first boolean)
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
DECLARE at timestamptz := clock_timestamp(); v_arrived timestamptz;
BEGIN
    INSERT INTO waiter AS w (pointer_id, waiter_id, arrived_at, seen_at) VALUES (p_pointer_id, p_waiter, at, at)
    ON CONFLICT (pointer_id, waiter_id) DO UPDATE SET seen_at = at RETURNING w.arrived_at INTO v_arrived;
    is_first := NOT EXISTS (SELECT 1 FROM waiter w WHERE w.pointer_id = p_pointer_id
        AND w.seen_at > at - interval '1 second' AND (w.arrived_at, w.waiter_id) < (v_arrived, p_waiter));
END $$;
-- +goose StatementEnd

-- Takes a waiter out of the line.
-- +goose StatementBegin
CREATE FUNCTION artifactd.leave_line(p_name text, p_waiter uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    DELETE FROM waiter WHERE waiter_id = p_waiter AND pointer_id = (SELECT pointer_id FROM pointer WHERE name = p_name)
$$;
-- +goose StatementEnd

-- Installs the next generation at once, which fences every earlier one. Status: acquired,
-- pointer-not-found, pointer-retired, lease-held, operation-mismatch, or (an operation id whose
-- lease is dead) lease-lost with a reason. A held lease leaves no outcome behind. With a waiter it
-- keeps that one's place in line, and answers in-line while somebody who came before waits too.
-- +goose StatementBegin
CREATE FUNCTION artifactd.acquire(
    p_name text, p_holder text, p_ttl double precision, p_lease_id uuid,
    p_operation_id uuid, p_request_digest bytea, p_waiter uuid DEFAULT NULL,
    OUT status text, OUT reason text, OUT lease_id uuid, OUT epoch bigint, OUT generation bigint,
    OUT holder text, OUT acquired_at timestamptz, OUT expires_at timestamptz,
    OUT expires_in double precision, OUT ttl double precision
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    p pointer; g generation; o operation; at timestamptz; v_epoch bigint; expiry timestamptz;
    recorded boolean := false; v_first boolean := true;
BEGIN
    PERFORM begin_decision();
    PERFORM check_ttl(p_ttl);
    SELECT * INTO p FROM pointer WHERE name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'pointer-not-found'; RETURN; END IF;

    IF p_operation_id IS NOT NULL THEN
        -- A lease that is plainly held is answered before anything is written.
        SELECT o2.* INTO o FROM operation o2 WHERE o2.operation_id = p_operation_id;
        IF o.operation_id IS NULL THEN
            SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p.head_id;
            IF p.retired_at IS NULL AND g.state = 'leased' AND p.lease_expires_at > clock_timestamp()
               AND g.epoch = (SELECT i.epoch FROM installation i) THEN
                SELECT a.* INTO status, holder, epoch, generation, expires_in
                  FROM held_lease(p.pointer_id) a;
                IF p_waiter IS NOT NULL THEN PERFORM stand_in_line(p.pointer_id, p_waiter); END IF;
                RETURN;
            END IF;
            INSERT INTO operation (operation_id, kind, request_digest, outcome, pointers, generation_ids)
            VALUES (p_operation_id, 'acquire', p_request_digest, 'acquired', ARRAY[p.name], ARRAY[p_lease_id])
            ON CONFLICT (operation_id) DO NOTHING;
            recorded := FOUND;
        END IF;
        IF NOT recorded THEN
            UPDATE operation o2 SET told_at = clock_timestamp()
             WHERE o2.operation_id = p_operation_id RETURNING o2.* INTO o;
            IF o.outcome = 'aborted' THEN status := 'lease-lost'; reason := 'aborted'; RETURN; END IF;
            IF o.kind <> 'acquire' OR o.request_digest IS DISTINCT FROM p_request_digest THEN
                status := 'operation-mismatch'; RETURN;
            END IF;
            PERFORM 1 FROM generation g2 WHERE g2.generation_id = o.generation_ids[1] FOR NO KEY UPDATE;
            SELECT a.status, a.reason, a.lease_id, a.epoch, a.generation, a.holder, a.acquired_at,
                   a.expires_at, a.expires_in, a.ttl
              INTO status, reason, lease_id, epoch, generation, holder, acquired_at, expires_at, expires_in, ttl
              FROM lease_now(o.generation_ids[1]) a;
            IF reason = 'expired' THEN
                PERFORM end_lease(o.generation_ids[1], 'expired', clock_timestamp());
            END IF;
            RETURN;
        END IF;
        IF EXISTS (SELECT 1 FROM generation g2 WHERE g2.publish_operation_id = p_operation_id) THEN
            DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id;
            status := 'operation-mismatch'; RETURN;
        END IF;
    END IF;

    PERFORM 1 FROM generation g2 WHERE g2.generation_id = p.head_id FOR NO KEY UPDATE;
    IF p_waiter IS NOT NULL THEN v_first := (SELECT l.is_first FROM stand_in_line(p.pointer_id, p_waiter) l); END IF;

    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = p.pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p.head_id;
    IF p.retired_at IS NOT NULL THEN
        status := 'pointer-retired';
    ELSIF g.state = 'leased' AND g.epoch = v_epoch AND p.lease_expires_at > at THEN
        SELECT a.* INTO status, holder, epoch, generation, expires_in FROM held_lease(p.pointer_id) a;
    ELSIF NOT v_first THEN
        status := 'in-line'; holder := coalesce(g.holder, ''); expires_in := 0;
        epoch := coalesce(g.epoch, 1); generation := coalesce(g.generation, 1);
    END IF;
    IF status IS NOT NULL THEN
        IF recorded THEN DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id; END IF;
        RETURN;
    END IF;

    IF p_waiter IS NOT NULL THEN DELETE FROM waiter w WHERE w.pointer_id = p.pointer_id AND w.waiter_id = p_waiter; END IF;
    PERFORM end_lease(p.head_id, 'superseded', at);
    expiry := at + make_interval(secs => p_ttl);
    INSERT INTO generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds,
                            acquired_at, manifest_id, collect_at)
    VALUES (p_lease_id, p.pointer_id, v_epoch, p.generation + 1, 'leased', p_holder, p_ttl,
            at, p_lease_id, expiry);
    UPDATE pointer p2 SET epoch = v_epoch, generation = p.generation + 1, head_id = p_lease_id,
           lease_expires_at = expiry
     WHERE p2.pointer_id = p.pointer_id;
    PERFORM count_decision();
    status := 'acquired'; lease_id := p_lease_id; epoch := v_epoch; generation := p.generation + 1;
    holder := p_holder; acquired_at := at; expires_at := expiry; expires_in := p_ttl; ttl := p_ttl;
END $$;
-- +goose StatementEnd

-- The live lease that stands in somebody's way, as the refusal tells of it. Called under the
-- pointer's lock; writes down the end that a stepped-back clock would otherwise move away.
-- +goose StatementBegin
CREATE FUNCTION artifactd.held_lease(
    p_pointer_id bigint, OUT status text, OUT holder text, OUT epoch bigint, OUT generation bigint,
    OUT expires_in double precision
) LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE p pointer; g generation; at timestamptz := clock_timestamp(); expiry timestamptz;
BEGIN
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = p_pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p.head_id;
    expiry := effective_expiry(p.lease_expires_at, g.ttl_seconds, at);
    IF expiry < p.lease_expires_at THEN
        UPDATE pointer p2 SET lease_expires_at = expiry WHERE p2.pointer_id = p_pointer_id;
    END IF;
    status := 'lease-held'; holder := g.holder; epoch := g.epoch; generation := g.generation;
    expires_in := greatest(extract(epoch FROM expiry - at), 0);
END $$;
-- +goose StatementEnd

-- A lease as it stands: status acquired (live) or lease-lost with the reason.
-- +goose StatementBegin
CREATE FUNCTION artifactd.lease_now(
    p_lease_id uuid,
    OUT status text, OUT reason text, OUT lease_id uuid, OUT pointer text, OUT epoch bigint, OUT generation bigint,
    OUT holder text, OUT state text, OUT acquired_at timestamptz, OUT expires_at timestamptz,
    OUT expires_in double precision, OUT ttl double precision
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE p pointer; g generation; at timestamptz := clock_timestamp(); v_epoch bigint;
BEGIN
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p_lease_id AND g2.rollback_of IS NULL;
    IF NOT FOUND THEN status := 'lease-not-found'; RETURN; END IF;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = g.pointer_id;
    SELECT i.epoch INTO v_epoch FROM installation i;
    reason := lease_reason(p, g, g.epoch, g.generation, v_epoch, at);
    status := CASE WHEN reason IS NULL THEN 'acquired' ELSE 'lease-lost' END;
    -- An end that nobody has recorded yet is told as what it will be recorded as.
    state := CASE WHEN g.state <> 'leased' OR reason IS NULL THEN g.state
                  WHEN reason = 'expired' THEN 'expired'
                  WHEN reason = 'pointer-retired' THEN 'broken'
                  ELSE 'superseded' END;
    lease_id := g.generation_id; pointer := p.name; epoch := g.epoch; generation := g.generation;
    holder := g.holder; acquired_at := g.acquired_at; ttl := g.ttl_seconds;
    IF reason IS NULL THEN
        expires_at := effective_expiry(p.lease_expires_at, g.ttl_seconds, at);
        expires_in := extract(epoch FROM expires_at - at);
    ELSE
        expires_at := coalesce(g.ended_at, CASE WHEN p.head_id = g.generation_id THEN p.lease_expires_at END, at);
        expires_in := 0;
    END IF;
END $$;
-- +goose StatementEnd

-- Prolongs a live lease, never shortens one, and never beyond p_max_life seconds after it was
-- acquired. A null ttl keeps the lease's own. Status: acquired, lease-not-found, lease-lost.
-- +goose StatementBegin
CREATE FUNCTION artifactd.renew(
    p_lease_id uuid, p_epoch bigint, p_generation bigint, p_ttl double precision, p_max_life double precision,
    OUT status text, OUT reason text, OUT lease_id uuid, OUT pointer text, OUT epoch bigint, OUT generation bigint,
    OUT holder text, OUT state text, OUT acquired_at timestamptz, OUT expires_at timestamptz,
    OUT expires_in double precision, OUT ttl double precision
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    p pointer; g generation; at timestamptz; v_epoch bigint; standing timestamptz; wanted timestamptz;
BEGIN
    PERFORM begin_decision();
    PERFORM check_ttl(coalesce(p_ttl, 1));
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p_lease_id AND g2.rollback_of IS NULL;
    IF NOT FOUND THEN
        SELECT CASE WHEN p_epoch < i.epoch THEN 'lease-lost' ELSE 'lease-not-found' END, 'epoch-superseded'
          INTO status, reason FROM installation i;
        RETURN;
    END IF;
    PERFORM 1 FROM pointer p2 WHERE p2.pointer_id = g.pointer_id FOR NO KEY UPDATE;
    PERFORM 1 FROM generation g2 WHERE g2.generation_id = p_lease_id FOR NO KEY UPDATE;

    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = g.pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p_lease_id;
    reason := lease_reason(p, g, p_epoch, p_generation, v_epoch, at);
    IF reason IS NOT NULL THEN
        status := 'lease-lost';
        IF reason = 'expired' THEN PERFORM end_lease(p_lease_id, 'expired', at); END IF;
        RETURN;
    END IF;
    standing := effective_expiry(p.lease_expires_at, g.ttl_seconds, at);
    wanted := least(at + make_interval(secs => coalesce(p_ttl, g.ttl_seconds)),
                    g.acquired_at + make_interval(secs => p_max_life));
    IF wanted > standing THEN
        ttl := coalesce(p_ttl, g.ttl_seconds);
    ELSE
        wanted := standing;
        ttl := g.ttl_seconds;
    END IF;
    UPDATE pointer p2 SET lease_expires_at = wanted WHERE p2.pointer_id = p.pointer_id;
    IF ttl <> g.ttl_seconds THEN
        UPDATE generation g2 SET ttl_seconds = ttl WHERE g2.generation_id = p_lease_id;
    END IF;
    status := 'acquired'; lease_id := p_lease_id; pointer := p.name; epoch := g.epoch; generation := g.generation;
    holder := g.holder; state := g.state; acquired_at := g.acquired_at; expires_at := wanted;
    expires_in := extract(epoch FROM wanted - at);
END $$;
-- +goose StatementEnd

-- Ends one's own lease, whether it was live or not. Status: released or lease-not-found.
-- +goose StatementBegin
CREATE FUNCTION artifactd.release(p_lease_id uuid, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE p pointer; g generation; at timestamptz; v_epoch bigint; v_reason text;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO g FROM generation WHERE generation_id = p_lease_id AND rollback_of IS NULL;
    IF NOT FOUND THEN status := 'lease-not-found'; RETURN; END IF;
    PERFORM 1 FROM pointer WHERE pointer_id = g.pointer_id FOR NO KEY UPDATE;
    PERFORM 1 FROM generation WHERE generation_id = p_lease_id FOR NO KEY UPDATE;

    SELECT clock_timestamp(), epoch INTO at, v_epoch FROM installation;
    SELECT * INTO p FROM pointer WHERE pointer_id = g.pointer_id;
    SELECT * INTO g FROM generation WHERE generation_id = p_lease_id;
    status := 'released';
    IF g.state = 'leased' THEN
        v_reason := lease_reason(p, g, g.epoch, g.generation, v_epoch, at);
        PERFORM end_lease(p_lease_id,
            CASE WHEN v_reason IS NULL THEN 'released'
                 WHEN v_reason = 'expired' THEN 'expired'
                 ELSE 'superseded' END, at);
    END IF;
END $$;
-- +goose StatementEnd

-- Ends somebody else's lease: the newest generation's, named by its token. Status: broken (also
-- when it had ended already), pointer-not-found, token-mismatch.
-- +goose StatementBegin
CREATE FUNCTION artifactd.break_lease(p_name text, p_epoch bigint, p_generation bigint, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE p pointer; g generation; at timestamptz;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO p FROM pointer WHERE name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'pointer-not-found'; RETURN; END IF;
    PERFORM 1 FROM generation WHERE generation_id = p.head_id FOR NO KEY UPDATE;

    at := clock_timestamp();
    SELECT * INTO p FROM pointer WHERE pointer_id = p.pointer_id;
    SELECT * INTO g FROM generation WHERE generation_id = p.head_id;
    IF g.generation_id IS NULL OR g.epoch IS DISTINCT FROM p_epoch OR g.generation IS DISTINCT FROM p_generation THEN
        status := 'token-mismatch'; RETURN;
    END IF;
    status := 'broken';
    IF g.state = 'leased' THEN
        PERFORM end_lease(g.generation_id,
            CASE WHEN p.lease_expires_at <= at THEN 'expired' ELSE 'broken' END, at);
    END IF;
END $$;
-- +goose StatementEnd

-- Retires a pointer: ends its lease and clears what it shows. The token names what is shown, and
-- may be left out while nothing is. Status: retired (also when it was), pointer-not-found,
-- superseded, token-required; current_* tell what is shown.
-- +goose StatementBegin
CREATE FUNCTION artifactd.retire(
    p_name text, p_epoch bigint, p_generation bigint,
    OUT status text, OUT current_epoch bigint, OUT current_generation bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE p pointer; g generation; at timestamptz;
BEGIN
    PERFORM begin_decision();
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'pointer-not-found'; RETURN; END IF;
    PERFORM 1 FROM generation WHERE generation_id IN (p.head_id, p.current_id)
      ORDER BY generation_id FOR NO KEY UPDATE;

    at := clock_timestamp();
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = p.pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p.head_id;
    current_epoch := p.current_epoch; current_generation := p.current_generation;
    IF p.retired_at IS NOT NULL THEN status := 'retired'; RETURN; END IF;
    IF p.current_id IS NOT NULL AND p_epoch IS NULL AND p_generation IS NULL THEN
        status := 'token-required'; RETURN;
    END IF;
    IF p.current_epoch IS DISTINCT FROM p_epoch OR p.current_generation IS DISTINCT FROM p_generation THEN
        status := 'superseded'; RETURN;
    END IF;
    IF g.state = 'leased' THEN
        PERFORM end_lease(g.generation_id,
            CASE WHEN p.lease_expires_at <= at THEN 'expired' ELSE 'broken' END, at);
    END IF;
    UPDATE generation SET displaced_at = at, collect_at = at WHERE generation_id = p.current_id;
    UPDATE pointer p2 SET current_id = NULL, current_epoch = NULL, current_generation = NULL,
           retired_at = at, updated_at = at
     WHERE p2.pointer_id = p.pointer_id;
    PERFORM note_pointer(p.pointer_id, true);
    PERFORM count_decision();
    status := 'retired';
END $$;
-- +goose StatementEnd

-- Holds a version against retention, or lets it go. Status: ok, pointer-not-found,
-- version-not-found (also when its collection has begun).
-- +goose StatementBegin
CREATE FUNCTION artifactd.pin(p_name text, p_epoch bigint, p_generation bigint, p_pinned boolean, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE p pointer; g generation;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO p FROM pointer WHERE name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'pointer-not-found'; RETURN; END IF;
    SELECT * INTO g FROM generation
     WHERE pointer_id = p.pointer_id AND epoch = p_epoch AND generation = p_generation FOR NO KEY UPDATE;
    IF g.state IS DISTINCT FROM 'published' OR g.collecting_at IS NOT NULL THEN
        status := 'version-not-found'; RETURN;
    END IF;
    UPDATE generation SET pinned = p_pinned,
           collect_at = CASE WHEN NOT p_pinned AND displaced_at IS NOT NULL THEN clock_timestamp() END
     WHERE generation_id = g.generation_id;
    IF p_pinned <> g.pinned THEN PERFORM note_pointer(p.pointer_id, false); END IF;
    PERFORM count_decision();
    status := 'ok';
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.pin, artifactd.retire, artifactd.break_lease, artifactd.release, artifactd.renew,
    artifactd.lease_now, artifactd.acquire, artifactd.leave_line,
    artifactd.stand_in_line, artifactd.held_lease,
    artifactd.put_pointer, artifactd.effective_expiry, artifactd.end_lease, artifactd.lease_reason,
    artifactd.check_ttl, artifactd.count_decision, artifactd.begin_collection, artifactd.refuse_history,
    artifactd.begin_decision;
