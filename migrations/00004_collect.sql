-- +goose Up
-- Collection. Garbage is decided by the fence and the pointer's own retention, under the same
-- locks as a publish; the order is mark, files, ledger, store, ledger row, and a crash between
-- any two of them only repeats work.

-- Generations to look at, soonest due first, by pointer. The clock is read once: a volatile function
-- in a comparison is no condition for an index, and every row that has a time would be read.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_due(p_limit integer) RETURNS TABLE (pointer_id bigint, generation_ids uuid[])
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    SELECT d.pointer_id, array_agg(d.generation_id) FROM (
        SELECT g.pointer_id, g.generation_id FROM generation g
         WHERE g.collect_at <= (SELECT clock_timestamp()) ORDER BY g.collect_at LIMIT p_limit) d
     GROUP BY d.pointer_id
$$;
-- +goose StatementEnd

-- The newest displaced version that a pointer keeps no longer by number; it and every older one
-- are beyond keep_versions.
-- +goose StatementBegin
CREATE FUNCTION artifactd.keep_boundary(p_pointer_id bigint, p_keep integer, OUT epoch bigint, OUT generation bigint)
LANGUAGE sql STABLE SET search_path = artifactd, pg_temp AS $$
    SELECT g.epoch, g.generation FROM generation g
     WHERE g.pointer_id = p_pointer_id AND g.displaced_at IS NOT NULL AND g.collected_at IS NULL
       AND g.collecting_at IS NULL
     ORDER BY g.epoch DESC, g.generation DESC OFFSET p_keep LIMIT 1
$$;
-- +goose StatementEnd

-- What collection makes of one generation, from the facts alone: whether it is garbage and why, or
-- what keeps it and, where time alone ends that, until when. A lease whose end nobody has recorded
-- yet counts as ended at this moment. The edge is the pointer's keep_boundary. Marking, plans and
-- explanations all ask here, so that none of them can tell another story than the others.
-- +goose StatementBegin
CREATE FUNCTION artifactd.judge_generation(
    p artifactd.pointer, g artifactd.generation, p_epoch bigint, p_at timestamptz, p_grace_seconds double precision,
    p_edge_epoch bigint, p_edge_generation bigint,
    OUT garbage boolean, OUT reason text, OUT keeps_until timestamptz
) LANGUAGE plpgsql IMMUTABLE SET search_path = artifactd, pg_temp AS $$
DECLARE v_ended timestamptz := g.ended_at;
BEGIN
    garbage := false;
    IF g.state = 'published' THEN
        -- One that is pinned, or still among the newest, stays until that changes.
        IF g.displaced_at IS NULL OR g.generation_id IS NOT DISTINCT FROM p.current_id THEN reason := 'current'; RETURN; END IF;
        IF g.pinned THEN reason := 'pinned'; RETURN; END IF;
        keeps_until := g.displaced_at + make_interval(secs => least(p.keep_seconds, 3155760000));
        IF keeps_until > p_at THEN reason := 'keep-seconds'; RETURN; END IF;
        keeps_until := NULL;
        IF (g.epoch, g.generation) <= (p_edge_epoch, p_edge_generation) THEN
            garbage := true; reason := 'displaced';
        ELSE
            reason := 'keep-versions';
        END IF;
        RETURN;
    END IF;
    reason := g.state;
    IF g.state = 'leased' THEN
        reason := lease_reason(p, g, g.epoch, g.generation, p_epoch, p_at);
        IF reason IS NULL THEN
            reason := 'leased'; keeps_until := effective_expiry(p.lease_expires_at, g.ttl_seconds, p_at); RETURN;
        END IF;
        reason := CASE WHEN reason = 'expired' THEN 'expired' ELSE 'superseded' END;
        v_ended := p_at;
    END IF;
    keeps_until := v_ended + make_interval(secs => coalesce(p_grace_seconds, 3600));
    IF keeps_until <= p_at OR (g.epoch, g.generation) < (p.current_epoch, p.current_generation) THEN
        garbage := true; keeps_until := NULL;
    ELSE
        reason := 'resume-grace';
    END IF;
END $$;
-- +goose StatementEnd

-- Graces are courtesies, and none of them lasts less than no time.
-- +goose StatementBegin
CREATE FUNCTION artifactd.check_grace(p_seconds double precision) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_seconds < 0 OR p_seconds > 315576000 THEN  -- NaN is above every number
        RAISE EXCEPTION 'a grace is 0 seconds to ten years, not %', p_seconds USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd

-- Looks at due generations of one pointer: records ends that nobody saw, and marks what is
-- garbage as collecting. Committed alone; from then on a marked generation is not read, pinned,
-- rolled back to or adopted from. A dead generation waits out the resume grace unless a newer
-- one has published; a displaced version waits out its retention unless it is pinned. A planned
-- look takes exactly the generations it names, due or not, and leaves when others are due alone.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_mark(
    p_pointer_id bigint, p_due uuid[], p_grace_seconds double precision, p_planned boolean DEFAULT false,
    OUT looked integer, OUT expired integer, OUT marked integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
-- A pointer that somebody else holds for long is the next run's; the others do not wait for it.
SET lock_timeout = '1s' AS $$
DECLARE p pointer; d generation; at timestamptz; v_epoch bigint; v_edge record; v_fate record; v_marks uuid[] := '{}';
BEGIN
    PERFORM begin_collection();
    PERFORM check_grace(p_grace_seconds);
    looked := 0; expired := 0; marked := 0;
    PERFORM 1 FROM pointer WHERE pointer_id = p_pointer_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM 1 FROM generation WHERE generation_id = ANY (p_due) ORDER BY generation_id FOR NO KEY UPDATE;

    SELECT clock_timestamp(), epoch INTO at, v_epoch FROM installation;
    SELECT * INTO STRICT p FROM pointer WHERE pointer_id = p_pointer_id;
    SELECT * INTO v_edge FROM keep_boundary(p_pointer_id, p.keep_versions);
    FOR d IN SELECT * FROM generation WHERE generation_id = ANY (p_due)
             AND pointer_id = p_pointer_id AND (collect_at <= at OR p_planned AND collected_at IS NULL) LOOP
        looked := looked + 1;
        SELECT * INTO v_fate FROM judge_generation(p, d, v_epoch, at, p_grace_seconds, v_edge.epoch, v_edge.generation);
        IF d.collecting_at IS NOT NULL THEN
            v_fate.keeps_until := NULL;  -- marked before: nothing to look at any more
        ELSIF d.state = 'leased' AND v_fate.reason <> 'leased' THEN
            PERFORM end_lease(d.generation_id, CASE WHEN lease_reason(p, d, d.epoch, d.generation, v_epoch, at) = 'expired'
                                                    THEN 'expired' ELSE 'superseded' END, at);
            expired := expired + 1;
            CONTINUE;  -- its end has set when to look again
        ELSIF v_fate.garbage THEN
            v_marks := v_marks || d.generation_id;
        END IF;
        IF NOT p_planned THEN
            UPDATE generation SET collect_at = v_fate.keeps_until WHERE generation_id = d.generation_id;
        END IF;
    END LOOP;
    -- What newer displaced versions have pushed beyond keep_versions is due now.
    IF NOT p_planned THEN
        UPDATE generation SET collect_at = at
         WHERE pointer_id = p_pointer_id AND displaced_at IS NOT NULL AND collected_at IS NULL
           AND collecting_at IS NULL AND collect_at IS NULL AND NOT pinned
           AND generation_id <> ALL (v_marks)
           AND (epoch, generation) <= (v_edge.epoch, v_edge.generation);
    END IF;
    UPDATE generation SET collecting_at = at, collect_at = NULL WHERE generation_id = ANY (v_marks);
    marked := coalesce(array_length(v_marks, 1), 0);
    IF marked > 0 THEN PERFORM count_decision(); END IF;
END $$;
-- +goose StatementEnd

-- Moves artifacts that no file names to the deletion ledger. Called with rows that the caller
-- saw lose a name; taking their locks first makes an adopter either come before, and be seen
-- here, or come after, and find the row gone.
-- +goose StatementBegin
CREATE FUNCTION artifactd.bury_artifacts(
    p_artifact_ids uuid[], p_reason text, p_landing_seconds double precision, p_plan_id uuid DEFAULT NULL,
    OUT artifacts integer, OUT bytes bigint
) LANGUAGE plpgsql SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (p_artifact_ids) ORDER BY artifact_id FOR UPDATE;
    WITH gone AS (
        DELETE FROM artifact a WHERE a.artifact_id = ANY (p_artifact_ids)
           AND NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id)
        RETURNING a.*
    ), buried AS (
        INSERT INTO deletion (object_key, size, reason, upload_id, stored, plan_id, enqueued_at, final_after, not_before)
        SELECT i.key_prefix || 'artifacts/' || encode(gone.digest, 'hex') || '/' || gone.artifact_id,
               gone.size, p_reason, gone.upload_id, gone.stored_at IS NOT NULL, p_plan_id, clock_timestamp(),
               gone.writable_until + make_interval(secs => p_landing_seconds), clock_timestamp()
          FROM gone, installation i
        RETURNING size
    )
    SELECT count(*), coalesce(sum(size), 0) INTO artifacts, bytes FROM buried;
END $$;
-- +goose StatementEnd

-- Takes up to p_limit files from the manifests of collecting generations, and what no other file
-- names to the ledger, in one transaction. A manifest that an uncollected generation shares stays.
-- Status: worked, idle (no collecting generation is free). A plan names the one generation.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_files(
    p_limit integer, p_landing_seconds double precision, p_plan_id uuid DEFAULT NULL, p_generation_id uuid DEFAULT NULL,
    OUT status text, OUT finished boolean, OUT artifacts integer, OUT bytes bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    g generation; v_shared boolean; v_ids uuid[]; v_taken integer; v_left integer := p_limit;
    v_all uuid[] := '{}'; v_reasons text[] := '{}'; v_reason text; b record;
BEGIN
    PERFORM begin_collection();
    PERFORM check_grace(p_landing_seconds);
    status := 'idle'; artifacts := 0; bytes := 0;
    LOOP
        IF p_generation_id IS NULL THEN
            SELECT * INTO g FROM generation
             WHERE collecting_at IS NOT NULL AND collected_at IS NULL
             ORDER BY collecting_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        ELSE
            SELECT * INTO g FROM generation
             WHERE generation_id = p_generation_id AND collecting_at IS NOT NULL AND collected_at IS NULL
               FOR NO KEY UPDATE SKIP LOCKED;
        END IF;
        EXIT WHEN NOT FOUND;
        -- Two collectors at two shares of one manifest go one after the other: each would take the
        -- other's share for a reason to leave the files, and nobody would come again. A transaction
        -- that waits for that holds nothing that anybody else may wait for.
        v_shared := g.manifest_id <> g.generation_id
                 OR EXISTS (SELECT 1 FROM generation WHERE manifest_id = g.manifest_id AND manifest_id <> generation_id);
        EXIT WHEN v_shared AND status = 'worked';
        status := 'worked';
        IF v_shared THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('artifactd manifest ' || g.manifest_id, 0));
        END IF;
        finished := true;
        IF NOT EXISTS (
            SELECT 1 FROM generation h
             WHERE (h.generation_id = g.manifest_id OR (h.manifest_id = g.manifest_id AND h.manifest_id <> h.generation_id))
               AND h.generation_id <> g.generation_id AND h.collected_at IS NULL) THEN
            WITH taken AS (
                DELETE FROM manifest_file m
                 WHERE m.manifest_id = g.manifest_id AND m.path IN (
                    SELECT m2.path FROM manifest_file m2 WHERE m2.manifest_id = g.manifest_id ORDER BY m2.path LIMIT v_left)
                RETURNING m.artifact_id)
            SELECT array_agg(DISTINCT artifact_id), count(*) INTO v_ids, v_taken FROM taken;
            finished := v_taken < v_left;
            v_left := v_left - v_taken;
            v_all := v_all || v_ids;
            v_reasons := v_reasons || array_fill(CASE WHEN g.state = 'published' THEN 'displaced' ELSE g.state END, ARRAY[coalesce(array_length(v_ids, 1), 0)]);
        END IF;
        IF finished THEN
            IF g.state = 'published' THEN PERFORM bury_record(g.generation_id, p_landing_seconds); END IF;
            UPDATE generation SET collected_at = clock_timestamp() WHERE generation_id = g.generation_id;
        END IF;
        EXIT WHEN NOT finished OR v_shared OR p_generation_id IS NOT NULL;
    END LOOP;
    -- All artifacts' locks in one order, whatever generations they come from.
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (v_all) ORDER BY artifact_id FOR UPDATE;
    FOR v_reason, v_ids IN SELECT r.reason, array_agg(r.id) FROM unnest(v_all, v_reasons) r (id, reason) GROUP BY r.reason LOOP
        SELECT * INTO b FROM bury_artifacts(v_ids, v_reason, p_landing_seconds, p_plan_id);
        artifacts := artifacts + b.artifacts; bytes := bytes + b.bytes;
    END LOOP;
    IF status = 'worked' THEN PERFORM count_decision(); END IF;
END $$;
-- +goose StatementEnd

-- Artifacts whose path was staged again with other bytes. A plan names the artifacts.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_unnamed(
    p_limit integer, p_landing_seconds double precision, p_plan_id uuid DEFAULT NULL, p_artifact_ids uuid[] DEFAULT NULL,
    OUT looked integer, OUT artifacts integer, OUT bytes bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE v_ids uuid[];
BEGIN
    PERFORM begin_collection();
    PERFORM check_grace(p_landing_seconds);
    IF p_artifact_ids IS NULL THEN
        SELECT array_agg(artifact_id) INTO v_ids FROM (
            SELECT artifact_id FROM artifact WHERE unnamed_at IS NOT NULL
             ORDER BY unnamed_at LIMIT p_limit FOR UPDATE SKIP LOCKED) u;
    ELSE
        SELECT array_agg(artifact_id) INTO v_ids FROM (
            SELECT artifact_id FROM artifact WHERE unnamed_at IS NOT NULL AND artifact_id = ANY (p_artifact_ids)
             ORDER BY artifact_id FOR UPDATE SKIP LOCKED) u;
    END IF;
    looked := coalesce(array_length(v_ids, 1), 0); artifacts := 0; bytes := 0;
    IF v_ids IS NULL THEN RETURN; END IF;
    UPDATE artifact a SET unnamed_at = NULL WHERE a.artifact_id = ANY (v_ids)
       AND EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id);
    SELECT b.artifacts, b.bytes INTO artifacts, bytes FROM bury_artifacts(v_ids, 'replaced', p_landing_seconds, p_plan_id) b;
    IF artifacts > 0 THEN PERFORM count_decision(); END IF;
END $$;
-- +goose StatementEnd

-- Takes due keys for one collector: for p_seconds nobody else gets them. claimed_at is the
-- database's time before any of the deletions that follow. With a plan, only the keys that it
-- brought into the ledger.
-- +goose StatementBegin
CREATE FUNCTION artifactd.claim_deletions(p_limit integer, p_seconds double precision, p_plan_id uuid DEFAULT NULL)
RETURNS TABLE (object_key text, size bigint, reason text, first boolean, upload_id text, stored boolean, claimed_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE at timestamptz; v_keys text[];
BEGIN
    PERFORM begin_collection();
    at := clock_timestamp();
    IF p_plan_id IS NULL THEN
        v_keys := ARRAY(SELECT d.object_key FROM deletion d WHERE d.not_before <= at
                         ORDER BY d.not_before LIMIT p_limit FOR UPDATE SKIP LOCKED);
    ELSE
        v_keys := ARRAY(SELECT d.object_key FROM deletion d WHERE d.plan_id = p_plan_id AND d.not_before <= at
                         ORDER BY d.plan_id, d.not_before LIMIT p_limit FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY
    UPDATE deletion d SET not_before = at + make_interval(secs => p_seconds), attempts = d.attempts + 1
     WHERE d.object_key = ANY (v_keys)
    -- The record of a version is no artifact, and counts as none.
    RETURNING d.object_key, d.size, d.reason, d.deleted_at IS NULL AND d.reason <> 'record', d.upload_id, d.stored, at;
END $$;
-- +goose StatementEnd

-- Writes down what the store said of claimed keys: an empty error is a confirmed deletion. A key
-- leaves the ledger only when that deletion was made after the last upload to it could have
-- landed; until then it is deleted once more later. A failed one is tried again, ever later, up
-- to once an hour.
-- +goose StatementBegin
CREATE FUNCTION artifactd.finish_deletions(p_keys text[], p_errors text[], p_claimed_at timestamptz, OUT left_ledger integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM begin_decision();
    DELETE FROM deletion d USING unnest(p_keys, p_errors) f (key, error)
     WHERE d.object_key = f.key AND f.error = '' AND d.final_after < p_claimed_at;
    GET DIAGNOSTICS left_ledger = ROW_COUNT;
    UPDATE deletion d SET
        deleted_at = CASE WHEN f.error = '' THEN coalesce(d.deleted_at, clock_timestamp()) ELSE d.deleted_at END,
        not_before = CASE WHEN f.error = '' THEN d.final_after + interval '1 second'
                          ELSE clock_timestamp() + make_interval(secs => least(3600, 2.0 ^ least(d.attempts, 12))) END,
        last_error = nullif(f.error, '')
      FROM unnest(p_keys, p_errors) f (key, error)
     WHERE d.object_key = f.key;
END $$;
-- +goose StatementEnd

-- Outcomes are kept 30 days past the end of what they name. A lease lives 7 days and a ttl at
-- most, so 40 days after an outcome was recorded all of that is over.
-- +goose StatementBegin
CREATE FUNCTION artifactd.forget_operations(p_limit integer, OUT forgotten integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE at timestamptz;
BEGIN
    PERFORM begin_collection();
    at := clock_timestamp();
    DELETE FROM operation WHERE operation_id IN (
        SELECT operation_id FROM operation WHERE recorded_at < at - interval '40 days'
         ORDER BY recorded_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    DELETE FROM gc_run WHERE started_at < at - interval '40 days';
    DELETE FROM waiter WHERE seen_at < at - interval '1 hour';
END $$;
-- +goose StatementEnd

-- Writes down how far a run has come, and in the end what it did.
-- +goose StatementBegin
CREATE FUNCTION artifactd.record_gc_run(p_run_id uuid, p_started_at timestamptz, p_report jsonb, p_finished boolean) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    INSERT INTO gc_run (run_id, started_at, updated_at, finished_at, report)
    VALUES (p_run_id, p_started_at, clock_timestamp(), CASE WHEN p_finished THEN clock_timestamp() END, p_report)
    ON CONFLICT (run_id) DO UPDATE SET updated_at = excluded.updated_at, finished_at = excluded.finished_at, report = excluded.report
     WHERE gc_run.finished_at IS NULL
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.record_gc_run, artifactd.forget_operations, artifactd.finish_deletions,
    artifactd.claim_deletions, artifactd.collect_unnamed, artifactd.collect_files, artifactd.bury_artifacts,
    artifactd.collect_mark,
    artifactd.check_grace, artifactd.judge_generation, artifactd.keep_boundary, artifactd.collect_due;
