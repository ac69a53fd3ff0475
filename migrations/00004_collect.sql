-- +goose Up
-- Collection. Garbage is decided by the fence and the pointer's own retention, under the same
-- locks as a publish; the order is mark, files, ledger, store, ledger row, and a crash between
-- any two of them only repeats work.

-- Generations to look at, soonest due first, by pointer.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_due(p_limit integer) RETURNS TABLE (pointer_id bigint, generation_ids uuid[])
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    SELECT d.pointer_id, array_agg(d.generation_id) FROM (
        SELECT g.pointer_id, g.generation_id FROM generation g
         WHERE g.collect_at <= clock_timestamp() ORDER BY g.collect_at LIMIT p_limit) d
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

-- Looks at due generations of one pointer: records ends that nobody saw, and marks what is
-- garbage as collecting. Committed alone; from then on a marked generation is not read, pinned,
-- rolled back to or adopted from. A dead generation waits out the resume grace unless a newer
-- one has published; a displaced version waits out its retention unless it is pinned.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_mark(
    p_pointer_id bigint, p_due uuid[], p_grace_seconds double precision,
    OUT looked integer, OUT expired integer, OUT marked integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
-- A pointer that somebody else holds for long is the next run's; the others do not wait for it.
SET lock_timeout = '1s' AS $$
DECLARE
    p pointer; d generation; at timestamptz; v_epoch bigint; v_reason text; v_edge record; v_until timestamptz;
    v_next timestamptz; v_marks uuid[] := '{}';
BEGIN
    PERFORM begin_collection();
    looked := 0; expired := 0; marked := 0;
    PERFORM 1 FROM pointer WHERE pointer_id = p_pointer_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM 1 FROM generation WHERE generation_id = ANY (p_due) ORDER BY generation_id FOR NO KEY UPDATE;

    SELECT clock_timestamp(), epoch INTO at, v_epoch FROM installation;
    SELECT * INTO STRICT p FROM pointer WHERE pointer_id = p_pointer_id;
    SELECT * INTO v_edge FROM keep_boundary(p_pointer_id, p.keep_versions);
    FOR d IN SELECT * FROM generation WHERE generation_id = ANY (p_due)
             AND pointer_id = p_pointer_id AND collect_at <= at LOOP
        looked := looked + 1;
        v_next := NULL;
        IF d.collecting_at IS NOT NULL THEN
            NULL;  -- marked before: nothing to look at any more
        ELSIF d.state = 'leased' THEN
            v_reason := lease_reason(p, d, d.epoch, d.generation, v_epoch, at);
            IF v_reason IS NULL THEN
                v_next := effective_expiry(p.lease_expires_at, d.ttl_seconds, at);
            ELSE
                PERFORM end_lease(d.generation_id, CASE WHEN v_reason = 'expired' THEN 'expired' ELSE 'superseded' END, at);
                expired := expired + 1;
                CONTINUE;  -- its end has set when to look again
            END IF;
        ELSIF d.state = 'published' THEN
            -- One that is pinned, or still among the newest, is looked at again when that changes.
            IF d.displaced_at IS NOT NULL AND d.generation_id IS DISTINCT FROM p.current_id AND NOT d.pinned THEN
                v_until := d.displaced_at + make_interval(secs => least(p.keep_seconds, 3155760000));
                IF v_until > at THEN
                    v_next := v_until;
                ELSIF (d.epoch, d.generation) <= (v_edge.epoch, v_edge.generation) THEN
                    v_marks := v_marks || d.generation_id;
                END IF;
            END IF;
        ELSE
            v_until := d.ended_at + make_interval(secs => coalesce(p_grace_seconds, 3600));
            IF v_until <= at OR (d.epoch, d.generation) < (p.current_epoch, p.current_generation) THEN
                v_marks := v_marks || d.generation_id;
            ELSE
                v_next := v_until;
            END IF;
        END IF;
        UPDATE generation SET collect_at = v_next WHERE generation_id = d.generation_id;
    END LOOP;
    -- What newer displaced versions have pushed beyond keep_versions is due now.
    UPDATE generation SET collect_at = at
     WHERE pointer_id = p_pointer_id AND displaced_at IS NOT NULL AND collected_at IS NULL
       AND collecting_at IS NULL AND collect_at IS NULL AND NOT pinned
       AND generation_id <> ALL (v_marks)
       AND (epoch, generation) <= (v_edge.epoch, v_edge.generation);
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
    p_artifact_ids uuid[], p_reason text, p_landing_seconds double precision, OUT artifacts integer, OUT bytes bigint
) LANGUAGE plpgsql SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (p_artifact_ids) ORDER BY artifact_id FOR UPDATE;
    WITH gone AS (
        DELETE FROM artifact a WHERE a.artifact_id = ANY (p_artifact_ids)
           AND NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id)
        RETURNING a.*
    ), buried AS (
        INSERT INTO deletion (object_key, size, reason, upload_id, stored, enqueued_at, final_after, not_before)
        SELECT i.key_prefix || 'artifacts/' || encode(gone.digest, 'hex') || '/' || gone.artifact_id,
               gone.size, p_reason, gone.upload_id, gone.stored_at IS NOT NULL, clock_timestamp(),
               gone.writable_until + make_interval(secs => p_landing_seconds), clock_timestamp()
          FROM gone, installation i
        RETURNING size
    )
    SELECT count(*), coalesce(sum(size), 0) INTO artifacts, bytes FROM buried;
END $$;
-- +goose StatementEnd

-- Takes up to p_limit files from the manifest of one collecting generation, and what no other
-- file names to the ledger, in one transaction. A manifest that an uncollected generation shares
-- stays. Status: worked, idle (no collecting generation is free).
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_files(
    p_limit integer, p_landing_seconds double precision,
    OUT status text, OUT reason text, OUT finished boolean, OUT artifacts integer, OUT bytes bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE g generation; v_ids uuid[]; v_taken integer;
BEGIN
    PERFORM begin_collection();
    artifacts := 0; bytes := 0;
    SELECT * INTO g FROM generation
     WHERE collecting_at IS NOT NULL AND collected_at IS NULL
     ORDER BY collecting_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN status := 'idle'; RETURN; END IF;
    status := 'worked';
    reason := CASE WHEN g.state = 'published' THEN 'displaced' ELSE g.state END;
    -- Two collectors at two shares of one manifest go one after the other: each would take the
    -- other's share for a reason to leave the files, and nobody would come again.
    IF EXISTS (SELECT 1 FROM generation WHERE manifest_id = g.manifest_id AND manifest_id <> generation_id)
       OR g.manifest_id <> g.generation_id THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('artifactd manifest ' || g.manifest_id, 0));
    END IF;
    IF NOT EXISTS (
        SELECT 1 FROM generation h
         WHERE (h.generation_id = g.manifest_id OR (h.manifest_id = g.manifest_id AND h.manifest_id <> h.generation_id))
           AND h.generation_id <> g.generation_id AND h.collected_at IS NULL) THEN
        WITH taken AS (
            DELETE FROM manifest_file m
             WHERE m.manifest_id = g.manifest_id AND m.path IN (
                SELECT m2.path FROM manifest_file m2 WHERE m2.manifest_id = g.manifest_id ORDER BY m2.path LIMIT p_limit)
            RETURNING m.artifact_id)
        SELECT array_agg(DISTINCT artifact_id), count(*) INTO v_ids, v_taken FROM taken;
        IF v_ids IS NOT NULL THEN
            SELECT b.artifacts, b.bytes INTO artifacts, bytes FROM bury_artifacts(v_ids, reason, p_landing_seconds) b;
        END IF;
        finished := v_taken < p_limit;
    ELSE
        finished := true;
    END IF;
    IF finished THEN
        IF g.state = 'published' THEN PERFORM bury_record(g.generation_id, p_landing_seconds); END IF;
        UPDATE generation SET collected_at = clock_timestamp() WHERE generation_id = g.generation_id;
    END IF;
    PERFORM count_decision();
END $$;
-- +goose StatementEnd

-- Artifacts whose path was staged again with other bytes. Status as collect_files.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_unnamed(
    p_limit integer, p_landing_seconds double precision, OUT looked integer, OUT artifacts integer, OUT bytes bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE v_ids uuid[];
BEGIN
    PERFORM begin_collection();
    SELECT array_agg(artifact_id) INTO v_ids FROM (
        SELECT artifact_id FROM artifact WHERE unnamed_at IS NOT NULL
         ORDER BY unnamed_at LIMIT p_limit FOR UPDATE SKIP LOCKED) u;
    looked := coalesce(array_length(v_ids, 1), 0); artifacts := 0; bytes := 0;
    IF v_ids IS NULL THEN RETURN; END IF;
    UPDATE artifact a SET unnamed_at = NULL WHERE a.artifact_id = ANY (v_ids)
       AND EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id);
    SELECT b.artifacts, b.bytes INTO artifacts, bytes FROM bury_artifacts(v_ids, 'replaced', p_landing_seconds) b;
    IF artifacts > 0 THEN PERFORM count_decision(); END IF;
END $$;
-- +goose StatementEnd

-- Takes due keys for one collector: for p_seconds nobody else gets them. claimed_at is the
-- database's time before any of the deletions that follow.
-- +goose StatementBegin
CREATE FUNCTION artifactd.claim_deletions(p_limit integer, p_seconds double precision)
RETURNS TABLE (object_key text, size bigint, reason text, first boolean, upload_id text, stored boolean, claimed_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE at timestamptz;
BEGIN
    PERFORM begin_collection();
    at := clock_timestamp();
    RETURN QUERY
    WITH due AS (
        SELECT d.object_key FROM deletion d WHERE d.not_before <= at
         ORDER BY d.not_before LIMIT p_limit FOR UPDATE SKIP LOCKED)
    UPDATE deletion d SET not_before = at + make_interval(secs => p_seconds), attempts = d.attempts + 1
      FROM due WHERE d.object_key = due.object_key
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

-- What a run would mark now, by reason, without marking it. Files that other generations share
-- are counted once and only when nothing else names them.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_plan(p_grace_seconds double precision)
RETURNS TABLE (reason text, generations bigint, objects bigint, bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    WITH due AS (
        SELECT g.generation_id, g.manifest_id,
               CASE WHEN g.state = 'published' THEN 'displaced'
                    WHEN g.state <> 'leased' THEN g.state
                    WHEN p.head_id = g.generation_id THEN 'expired' ELSE 'superseded' END AS reason
          FROM generation g JOIN pointer p USING (pointer_id)
         WHERE g.collecting_at IS NOT NULL AND g.collected_at IS NULL
            OR (g.collect_at IS NOT NULL AND g.collecting_at IS NULL AND CASE
                WHEN g.state = 'leased' THEN
                    lease_reason(p, g, g.epoch, g.generation, (SELECT epoch FROM installation), clock_timestamp()) IS NOT NULL
                    AND (p_grace_seconds <= 0 OR (g.epoch, g.generation) < (p.current_epoch, p.current_generation))
                WHEN g.state = 'published' THEN
                    NOT g.pinned AND g.displaced_at + make_interval(secs => least(p.keep_seconds, 3155760000)) <= clock_timestamp()
                    AND (g.epoch, g.generation) <= (SELECT b.epoch, b.generation FROM keep_boundary(p.pointer_id, p.keep_versions) b)
                ELSE g.ended_at + make_interval(secs => p_grace_seconds) <= clock_timestamp()
                    OR (g.epoch, g.generation) < (p.current_epoch, p.current_generation) END)
    ), files AS (
        SELECT DISTINCT ON (m.artifact_id) m.artifact_id, due.reason, a.size
          FROM due JOIN manifest_file m USING (manifest_id) JOIN artifact a USING (artifact_id)
         WHERE NOT EXISTS (
               SELECT 1 FROM manifest_file m2 JOIN generation h ON h.manifest_id = m2.manifest_id
                WHERE m2.artifact_id = m.artifact_id AND h.collected_at IS NULL
                  AND h.generation_id NOT IN (SELECT generation_id FROM due))
    )
    SELECT r.reason, (SELECT count(*) FROM due WHERE due.reason = r.reason),
           count(f.artifact_id), coalesce(sum(f.size), 0)::bigint
      FROM (SELECT DISTINCT reason FROM due) r LEFT JOIN files f USING (reason) GROUP BY r.reason
    UNION ALL
    SELECT 'replaced', 0, count(*), coalesce(sum(size), 0)::bigint FROM artifact WHERE unnamed_at IS NOT NULL HAVING count(*) > 0
$$;
-- +goose StatementEnd

-- Outcomes are kept 30 days past the end of what they name. A lease lives 7 days and a ttl at
-- most, so 40 days after an outcome was recorded all of that is over.
-- +goose StatementBegin
CREATE FUNCTION artifactd.forget_operations(p_limit integer, OUT forgotten integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM begin_collection();
    DELETE FROM operation WHERE operation_id IN (
        SELECT operation_id FROM operation WHERE recorded_at < clock_timestamp() - interval '40 days'
         ORDER BY recorded_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    DELETE FROM gc_run WHERE started_at < clock_timestamp() - interval '40 days';
    DELETE FROM waiter WHERE seen_at < clock_timestamp() - interval '1 hour';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION artifactd.record_gc_run(p_run_id uuid, p_started_at timestamptz, p_report jsonb) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    INSERT INTO gc_run (run_id, started_at, finished_at, report)
    VALUES (p_run_id, p_started_at, clock_timestamp(), p_report)
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.record_gc_run, artifactd.forget_operations, artifactd.collect_plan, artifactd.finish_deletions,
    artifactd.claim_deletions, artifactd.collect_unnamed, artifactd.collect_files, artifactd.bury_artifacts,
    artifactd.collect_mark, artifactd.keep_boundary, artifactd.collect_due;
