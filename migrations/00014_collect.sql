-- +goose Up
-- Collection in fewer steps over the rows: many small generations in one statement, their marks in one
-- update, and keys that enter the ledger already claimed by the collector that put them there, which
-- deletes them at once. What any of that leaves behind in a crash is what it left before: a claim that
-- runs out.

-- The newest displaced version that a pointer keeps no longer by number; it and every older one
-- are beyond keep_versions. (A function in SQL would be planned anew at every call.)
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.keep_boundary(p_pointer_id bigint, p_keep integer, OUT epoch bigint, OUT generation bigint)
LANGUAGE plpgsql STABLE SET search_path = artifactd, pg_temp AS $$
BEGIN
    SELECT g.epoch, g.generation INTO epoch, generation FROM generation g
     WHERE g.pointer_id = p_pointer_id AND g.displaced_at IS NOT NULL AND g.collected_at IS NULL
       AND g.collecting_at IS NULL
     ORDER BY g.epoch DESC, g.generation DESC OFFSET p_keep LIMIT 1;
END $$;
-- +goose StatementEnd

-- Looks at due generations of one pointer: records ends that nobody saw, and marks what is
-- garbage as collecting. Committed alone; from then on a marked generation is not read, pinned,
-- rolled back to or adopted from. A dead generation waits out the resume grace unless a newer
-- one has published; a displaced version waits out its retention unless it is pinned. A planned
-- look takes exactly the generations it names, due or not, and leaves when others are due alone.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.collect_mark(
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
            CONTINUE;  -- all of them in one update, below
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

DROP FUNCTION artifactd.collect_files, artifactd.collect_unnamed, artifactd.bury_artifacts;

-- Moves artifacts that no file names to the deletion ledger. Called with rows that the caller
-- saw lose a name; taking their locks first makes an adopter either come before, and be seen
-- here, or come after, and find the row gone. With p_claim_seconds they enter as claim_deletions
-- would leave them, and are told: claimed_at is before the commit, and so before any deletion.
-- +goose StatementBegin
CREATE FUNCTION artifactd.bury_artifacts(
    p_artifact_ids uuid[], p_reason text, p_landing_seconds double precision, p_plan_id uuid DEFAULT NULL,
    p_claim_seconds double precision DEFAULT NULL,
    OUT artifacts integer, OUT bytes bigint,
    OUT claimed_keys text[], OUT claimed_sizes bigint[], OUT claimed_uploads text[], OUT claimed_stored boolean[], OUT claimed_at timestamptz
) LANGUAGE plpgsql SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (p_artifact_ids) ORDER BY artifact_id FOR UPDATE;
    claimed_at := clock_timestamp();
    WITH gone AS (
        DELETE FROM artifact a WHERE a.artifact_id = ANY (p_artifact_ids)
           AND NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id)
        RETURNING a.*
    ), buried AS (
        INSERT INTO deletion (object_key, size, reason, upload_id, stored, plan_id, enqueued_at, final_after, not_before, attempts)
        SELECT i.key_prefix || 'artifacts/' || encode(gone.digest, 'hex') || '/' || gone.artifact_id,
               gone.size, p_reason, gone.upload_id, gone.stored_at IS NOT NULL, p_plan_id, claimed_at,
               gone.writable_until + make_interval(secs => p_landing_seconds),
               claimed_at + make_interval(secs => coalesce(p_claim_seconds, 0)), CASE WHEN p_claim_seconds IS NULL THEN 0 ELSE 1 END
          FROM gone, installation i
        RETURNING object_key, size, coalesce(upload_id, '') AS upload_id, stored
    )
    SELECT count(*), coalesce(sum(b.size), 0), array_agg(b.object_key), array_agg(b.size), array_agg(b.upload_id), array_agg(b.stored)
      INTO artifacts, bytes, claimed_keys, claimed_sizes, claimed_uploads, claimed_stored FROM buried b;
    IF p_claim_seconds IS NULL THEN
        claimed_keys := NULL; claimed_sizes := NULL; claimed_uploads := NULL; claimed_stored := NULL; claimed_at := NULL;
    END IF;
END $$;
-- +goose StatementEnd

-- Takes up to p_limit files from the manifests of collecting generations, and what no other file
-- names to the ledger, in one transaction; claimed for p_claim_seconds, if the caller deletes them.
-- A manifest that an uncollected generation shares stays. Status: worked, idle (no collecting
-- generation is free). A plan names the one generation.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_files(
    p_limit integer, p_landing_seconds double precision, p_plan_id uuid DEFAULT NULL, p_generation_id uuid DEFAULT NULL,
    p_claim_seconds double precision DEFAULT NULL,
    OUT status text, OUT finished boolean, OUT artifacts integer, OUT bytes bigint,
    OUT claimed_keys text[], OUT claimed_sizes bigint[], OUT claimed_uploads text[], OUT claimed_stored boolean[], OUT claimed_reasons text[], OUT claimed_at timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    g generation; v_shared boolean; v_some uuid[]; v_done uuid[]; v_id uuid; v_taken integer; v_left integer := p_limit;
    v_ids uuid[]; v_states text[]; v_all uuid[] := '{}'; v_reasons text[] := '{}'; v_reason text; b record;
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
        v_some := ARRAY[g.generation_id];
        IF v_shared THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('artifactd manifest ' || g.manifest_id, 0));
        ELSIF p_generation_id IS NULL THEN
            -- Most generations are small: up to a hundred of them go together. Nothing begins to share the
            -- manifest of one that is marked.
            v_some := ARRAY(
                SELECT h.generation_id FROM (
                    SELECT generation_id, manifest_id FROM generation
                     WHERE collecting_at IS NOT NULL AND collected_at IS NULL
                     ORDER BY collecting_at LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED) h
                 WHERE h.manifest_id = h.generation_id
                   AND NOT EXISTS (SELECT 1 FROM generation s WHERE s.manifest_id = h.generation_id AND s.manifest_id <> s.generation_id));
            -- Others may have been given back meanwhile, before it in the order; each round must do something.
            IF g.generation_id <> ALL (v_some) THEN v_some := v_some || g.generation_id; END IF;
        END IF;
        v_done := v_some;
        IF NOT v_shared OR NOT EXISTS (
            SELECT 1 FROM generation h
             WHERE (h.generation_id = g.manifest_id OR (h.manifest_id = g.manifest_id AND h.manifest_id <> h.generation_id))
               AND h.generation_id <> g.generation_id AND h.collected_at IS NULL) THEN
            WITH taken AS (
                DELETE FROM manifest_file m USING (
                    SELECT f.at, h.reason
                      FROM (SELECT i.manifest_id, CASE WHEN i.state = 'published' THEN 'displaced' ELSE i.state END AS reason
                              FROM generation i WHERE i.generation_id = ANY (v_some)) h
                     CROSS JOIN LATERAL (SELECT m2.ctid AS at FROM manifest_file m2 WHERE m2.manifest_id = h.manifest_id ORDER BY m2.path LIMIT v_left) f
                     LIMIT v_left) t
                 WHERE m.ctid = t.at
                RETURNING m.artifact_id, t.reason)
            SELECT array_agg(artifact_id), array_agg(reason), count(*) INTO v_ids, v_states, v_taken FROM taken;
            v_left := v_left - v_taken;
            v_all := v_all || v_ids;
            v_reasons := v_reasons || v_states;
            v_done := ARRAY(SELECT s.id FROM unnest(v_some) s (id) JOIN generation h ON h.generation_id = s.id
                             WHERE NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.manifest_id = h.manifest_id));
        END IF;
        finished := cardinality(v_done) = cardinality(v_some);
        FOR v_id IN UPDATE generation SET collected_at = clock_timestamp() WHERE generation_id = ANY (v_done)
                    RETURNING CASE WHEN state = 'published' THEN generation_id END LOOP
            IF v_id IS NOT NULL THEN PERFORM bury_record(v_id, p_landing_seconds); END IF;
        END LOOP;
        EXIT WHEN NOT finished OR v_left <= 0 OR v_shared OR p_generation_id IS NOT NULL;
    END LOOP;
    IF cardinality(v_all) > 0 THEN
        -- All artifacts' locks in one order, whatever generations they come from.
        IF v_reasons[1] <> ANY (v_reasons) THEN
            PERFORM 1 FROM artifact WHERE artifact_id = ANY (v_all) ORDER BY artifact_id FOR UPDATE;
        END IF;
        FOR v_reason, v_ids IN SELECT r.reason, array_agg(DISTINCT r.id) FROM unnest(v_all, v_reasons) r (id, reason) GROUP BY r.reason LOOP
            SELECT * INTO b FROM bury_artifacts(v_ids, v_reason, p_landing_seconds, p_plan_id, p_claim_seconds);
            artifacts := artifacts + b.artifacts; bytes := bytes + b.bytes;
            claimed_keys := claimed_keys || b.claimed_keys; claimed_sizes := claimed_sizes || b.claimed_sizes;
            claimed_uploads := claimed_uploads || b.claimed_uploads; claimed_stored := claimed_stored || b.claimed_stored;
            claimed_reasons := claimed_reasons || array_fill(v_reason, ARRAY[coalesce(cardinality(b.claimed_keys), 0)]);
            claimed_at := least(claimed_at, b.claimed_at);
        END LOOP;
    END IF;
    IF status = 'worked' THEN PERFORM count_decision(); END IF;
END $$;
-- +goose StatementEnd

-- Artifacts whose path was staged again with other bytes; claimed as by collect_files. A plan names
-- the artifacts.
-- +goose StatementBegin
CREATE FUNCTION artifactd.collect_unnamed(
    p_limit integer, p_landing_seconds double precision, p_plan_id uuid DEFAULT NULL, p_artifact_ids uuid[] DEFAULT NULL,
    p_claim_seconds double precision DEFAULT NULL,
    OUT looked integer, OUT artifacts integer, OUT bytes bigint,
    OUT claimed_keys text[], OUT claimed_sizes bigint[], OUT claimed_uploads text[], OUT claimed_stored boolean[], OUT claimed_reasons text[], OUT claimed_at timestamptz
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
    SELECT b.artifacts, b.bytes, b.claimed_keys, b.claimed_sizes, b.claimed_uploads, b.claimed_stored,
           array_fill('replaced'::text, ARRAY[coalesce(cardinality(b.claimed_keys), 0)]), b.claimed_at
      INTO artifacts, bytes, claimed_keys, claimed_sizes, claimed_uploads, claimed_stored, claimed_reasons, claimed_at
      FROM bury_artifacts(v_ids, 'replaced', p_landing_seconds, p_plan_id, p_claim_seconds) b;
    IF artifacts > 0 THEN PERFORM count_decision(); END IF;
END $$;
-- +goose StatementEnd

-- Writes down what the store said of claimed keys: an empty error is a confirmed deletion. A key
-- leaves the ledger only when that deletion was made after the last upload to it could have
-- landed; until then it is deleted once more later. A failed one is tried again, ever later, up
-- to once an hour.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.finish_deletions(p_keys text[], p_errors text[], p_claimed_at timestamptz, OUT left_ledger integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM begin_decision();
    DELETE FROM deletion d USING unnest(p_keys, p_errors) f (key, error)
     WHERE d.object_key = f.key AND f.error = '' AND d.final_after < p_claimed_at;
    GET DIAGNOSTICS left_ledger = ROW_COUNT;
    IF left_ledger = cardinality(p_keys) THEN RETURN; END IF;
    UPDATE deletion d SET
        deleted_at = CASE WHEN f.error = '' THEN coalesce(d.deleted_at, clock_timestamp()) ELSE d.deleted_at END,
        not_before = CASE WHEN f.error = '' THEN d.final_after + interval '1 second'
                          ELSE clock_timestamp() + make_interval(secs => least(3600, 2.0 ^ least(d.attempts, 12))) END,
        last_error = nullif(f.error, '')
      FROM unnest(p_keys, p_errors) f (key, error)
     WHERE d.object_key = f.key;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.collect_files, artifactd.collect_unnamed, artifactd.bury_artifacts;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.keep_boundary(p_pointer_id bigint, p_keep integer, OUT epoch bigint, OUT generation bigint)
LANGUAGE sql STABLE SET search_path = artifactd, pg_temp AS $$
    SELECT g.epoch, g.generation FROM generation g
     WHERE g.pointer_id = p_pointer_id AND g.displaced_at IS NOT NULL AND g.collected_at IS NULL
       AND g.collecting_at IS NULL
     ORDER BY g.epoch DESC, g.generation DESC OFFSET p_keep LIMIT 1
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.collect_mark(
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
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.finish_deletions(p_keys text[], p_errors text[], p_claimed_at timestamptz, OUT left_ledger integer)
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
