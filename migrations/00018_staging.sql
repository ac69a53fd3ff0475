-- +goose Up
-- Staging costs what the files do, however many versions name them and however many files the lease has
-- already. What may be adopted is looked for where it nearly always is, in the current version; before, all
-- the names of its artifact were gone through, one for each version that is kept. Paths that are staged
-- already are found one by one; before, all files of the lease could be compared with all paths. Where
-- neither is found everything is new, and nothing is looked up again to write it down.

-- See 00017. What a file is adopted from first, nearly always, comes first.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.adoption_sources(p_lease_id uuid, p_pointer_id bigint, p_at timestamptz, p_grace_seconds double precision)
RETURNS uuid[] LANGUAGE plpgsql VOLATILE SET search_path = artifactd, pg_temp AS $$
BEGIN
    RETURN (
    SELECT ARRAY(SELECT g.manifest_id FROM installation i, pointer p JOIN generation g ON g.generation_id = p.current_id
                  WHERE i.singleton  -- found by its index: stage allows no other way, and dear plans are compiled
                    AND p.pointer_id = p_pointer_id
                    -- A rollback shares the manifest of an older generation, and says nothing of its objects.
                    AND (i.collection_held_at IS NULL
                         OR (SELECT true FROM generation m WHERE m.generation_id = g.manifest_id AND m.epoch = i.epoch LIMIT 1)))
        || p_lease_id
        || ARRAY(
        SELECT h.generation_id FROM generation h, installation i
         WHERE i.singleton
           AND h.pointer_id = p_pointer_id AND h.collected_at IS NULL
           AND h.state IN ('released', 'broken', 'expired', 'superseded')
           AND h.collecting_at IS NULL AND h.file_count > 0
           AND h.ended_at > p_at - make_interval(secs => p_grace_seconds)
           AND (i.collection_held_at IS NULL OR h.epoch = i.epoch)
         ORDER BY h.ended_at DESC LIMIT 1000));
END $$;
-- +goose StatementEnd

-- See 00015 and 00003.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.stage(
    p_lease_id uuid, p_epoch bigint, p_generation bigint,
    p_paths text[], p_digests bytea[], p_sizes bigint[], p_media_types text[], p_artifact_ids uuid[],
    p_url_seconds double precision, p_grace_seconds double precision, p_max_files integer
) RETURNS TABLE (
    status text, reason text, pointer text, epoch bigint, generation bigint,
    path text, artifact_id uuid, digest bytea, size bigint, media_type text,
    stored boolean, verified text, writable_until timestamptz, owner_id uuid, upload_id text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    p pointer; g generation; at timestamptz; v_epoch bigint; v_reason text; v_until timestamptz;
    v_new integer; v_bytes bigint; v_sources uuid[]; v_named uuid[]; v_replaced uuid[]; v_candidates uuid[]; v_conflict record;
BEGIN
    PERFORM begin_decision();
    SELECT g2.* INTO g FROM generation g2
     WHERE g2.generation_id = p_lease_id AND g2.rollback_of IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT CASE WHEN p_epoch < i.epoch THEN 'lease-lost' ELSE 'lease-not-found' END,
            'epoch-superseded', null::text, null::bigint, null::bigint, null::text, null::uuid, null::bytea,
            null::bigint, null::text, null::boolean, null::text, null::timestamptz, null::uuid, null::text
            FROM installation i WHERE i.singleton;
        RETURN;
    END IF;
    -- What might be adopted: one artifact for each distinct content, however many paths share it,
    -- a stored one rather than one in parts. The first that will do ends the search.
    v_sources := adoption_sources(p_lease_id, g.pointer_id, clock_timestamp(), p_grace_seconds);
    SELECT array_agg(c.artifact_id) INTO v_candidates
      FROM (SELECT DISTINCT f.digest, f.size FROM unnest(p_digests, p_sizes) f (digest, size)) f
     CROSS JOIN LATERAL (
        (SELECT a.artifact_id FROM artifact a
          WHERE a.pointer_id = g.pointer_id AND a.digest = f.digest AND a.size = f.size
            AND a.stored_at IS NOT NULL AND a.missing_at IS NULL
            AND ((SELECT true FROM unnest(v_sources[1:2]) s (id) CROSS JOIN LATERAL (SELECT true FROM manifest_file m
                   WHERE m.artifact_id = a.artifact_id AND m.manifest_id = s.id LIMIT 1) m LIMIT 1)
              OR (SELECT true FROM manifest_file m
                   WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources[3:]) LIMIT 1)) LIMIT 1)
        UNION ALL
        (SELECT a.artifact_id FROM artifact a
          WHERE a.pointer_id = g.pointer_id AND a.digest = f.digest AND a.size = f.size
            AND a.stored_at IS NULL AND a.upload_id IS NOT NULL AND a.missing_at IS NULL
            AND ((SELECT true FROM unnest(v_sources[1:2]) s (id) CROSS JOIN LATERAL (SELECT true FROM manifest_file m
                   WHERE m.artifact_id = a.artifact_id AND m.manifest_id = s.id LIMIT 1) m LIMIT 1)
              OR (SELECT true FROM manifest_file m
                   WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources[3:]) LIMIT 1)) LIMIT 1)
        LIMIT 1) c;
    -- It must not be collected meanwhile; who loses that race finds the row gone below, and uploads.
    -- What may lose its name here is locked too: the collector, taking its last other name at the
    -- same time, then comes before or after, and one of the two sees it.
    v_named := ARRAY(SELECT m.artifact_id FROM unnest(p_paths) f (path) CROSS JOIN LATERAL (
        SELECT s.artifact_id FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m);
    IF v_candidates IS NOT NULL OR v_named <> '{}' THEN
        PERFORM 1 FROM artifact a WHERE a.artifact_id = ANY (v_candidates || v_named)
          ORDER BY a.artifact_id FOR NO KEY UPDATE;
    END IF;

    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i WHERE i.singleton;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = g.pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p_lease_id;
    v_reason := lease_reason(p, g, p_epoch, p_generation, v_epoch, at);
    IF v_reason IS NULL AND v_named = '{}' THEN
        v_new := cardinality(p_paths);
        v_bytes := (SELECT coalesce(sum(f.size), 0) FROM unnest(p_sizes) f (size));
    ELSIF v_reason IS NULL THEN
        SELECT count(*) FILTER (WHERE m.artifact_id IS NULL), coalesce(sum(f.size - coalesce(a.size, 0)), 0) INTO v_new, v_bytes
          FROM unnest(p_paths, p_sizes) f (path, size)
          LEFT JOIN LATERAL (
              SELECT s.artifact_id FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m ON true
          LEFT JOIN LATERAL (SELECT s.size FROM artifact s WHERE s.artifact_id = m.artifact_id LIMIT 1) a ON true;
    END IF;
    IF v_reason IS NOT NULL OR v_new + g.file_count > p_max_files THEN
        IF v_reason = 'expired' THEN PERFORM end_lease(p_lease_id, 'expired', at); END IF;
        RETURN QUERY SELECT CASE WHEN v_reason IS NULL THEN 'too-many-files' ELSE 'lease-lost' END,
            v_reason, p.name, g.epoch, g.generation, null::text, null::uuid, null::bytea,
            null::bigint, null::text, null::boolean, null::text, null::timestamptz, null::uuid, null::text;
        RETURN;
    END IF;
    SELECT * INTO v_conflict FROM path_conflict(p_lease_id, p_paths);
    IF FOUND THEN
        RETURN QUERY SELECT 'path-conflict', v_conflict.other, p.name, g.epoch, g.generation, v_conflict.path, null::uuid,
            null::bytea, null::bigint, null::text, null::boolean, null::text, null::timestamptz, null::uuid, null::text;
        RETURN;
    END IF;

    v_until := at + make_interval(secs => p_url_seconds);
    IF v_candidates IS NULL AND v_named = '{}' THEN
        -- All of it is new: there is nothing to be looked up.
        INSERT INTO artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, writable_until)
        SELECT f.artifact_id, g.pointer_id, p_lease_id, f.digest, f.size, f.media_type, v_until
          FROM unnest(p_artifact_ids, p_digests, p_sizes, p_media_types) f (artifact_id, digest, size, media_type);
        INSERT INTO manifest_file (manifest_id, path, artifact_id, media_type)
        SELECT p_lease_id, f.path, f.artifact_id, f.media_type
          FROM unnest(p_paths, p_artifact_ids, p_media_types) f (path, artifact_id, media_type);
        UPDATE generation g2 SET file_count = g.file_count + v_new, total_bytes = g.total_bytes + v_bytes,
               sealed_at = NULL, manifest_digest = NULL
         WHERE g2.generation_id = p_lease_id;
        PERFORM count_decision();
        RETURN QUERY
        SELECT 'ok', null::text, p.name, g.epoch, g.generation, f.path, f.artifact_id, f.digest, f.size, f.media_type,
               false, null::text, v_until, p_lease_id, null::text
          FROM unnest(p_paths, p_artifact_ids, p_digests, p_sizes, p_media_types)
               WITH ORDINALITY f (path, artifact_id, digest, size, media_type, n)
         ORDER BY f.n;
        RETURN;
    END IF;
    IF v_candidates IS NOT NULL THEN v_sources := adoption_sources(p_lease_id, p.pointer_id, at, p_grace_seconds); END IF;
    IF v_named <> '{}' THEN
        SELECT array_agg(m.artifact_id) INTO v_replaced
          FROM unnest(p_paths, p_digests, p_sizes) f (path, digest, size)
         CROSS JOIN LATERAL (
              SELECT s.artifact_id FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m
         CROSS JOIN LATERAL (SELECT s.digest, s.size, s.missing_at FROM artifact s WHERE s.artifact_id = m.artifact_id LIMIT 1) a
         WHERE a.digest <> f.digest OR a.size <> f.size OR a.missing_at IS NOT NULL;
    END IF;

    -- A missing object's artifact is replaced even by the same digest: that is how it is healed.
    WITH f AS (
        SELECT * FROM unnest(p_paths, p_digests, p_sizes, p_media_types, p_artifact_ids)
                      f (path, digest, size, media_type, fresh_id)
    ), candidate AS MATERIALIZED (
        SELECT DISTINCT ON (a.digest, a.size) a.artifact_id, a.digest, a.size FROM artifact a
         WHERE a.artifact_id = ANY (v_candidates) AND a.missing_at IS NULL AND (a.stored_at IS NOT NULL OR a.upload_id IS NOT NULL)
           AND ((SELECT true FROM unnest(v_sources[1:2]) s (id) CROSS JOIN LATERAL (SELECT true FROM manifest_file m
                  WHERE m.artifact_id = a.artifact_id AND m.manifest_id = s.id LIMIT 1) m LIMIT 1)
             OR (SELECT true FROM manifest_file m
                  WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources[3:]) LIMIT 1))
    ), paired AS (  -- by sorting: a join, planned for a handful, would compare every path with every candidate
        SELECT b.*, (array_agg(b.candidate_id) FILTER (WHERE b.candidate_id IS NOT NULL) OVER (PARTITION BY b.digest, b.size))[1] AS adopted_id
          FROM (SELECT f.*, null::uuid AS candidate_id FROM f
                UNION ALL
                SELECT null, c.digest, c.size, null, null, c.artifact_id FROM candidate c) b
    ), chosen AS (
        SELECT f.*, coalesce(mine.artifact_id, f.adopted_id, f.fresh_id) AS chosen_id,
               mine.artifact_id IS NULL AND f.adopted_id IS NULL AS fresh
          FROM paired f
          LEFT JOIN LATERAL (
              SELECT m.artifact_id FROM manifest_file m
               WHERE m.manifest_id = p_lease_id AND m.path = f.path LIMIT 1
          ) named ON true
          LEFT JOIN LATERAL (
              SELECT a.artifact_id FROM artifact a
               WHERE a.artifact_id = named.artifact_id
                 AND a.digest = f.digest AND a.size = f.size AND a.missing_at IS NULL LIMIT 1
          ) mine ON true
         WHERE f.candidate_id IS NULL
    ), made AS (
        INSERT INTO artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, writable_until)
        SELECT c.chosen_id, g.pointer_id, p_lease_id, c.digest, c.size, c.media_type, v_until
          FROM chosen c WHERE c.fresh
    )
    INSERT INTO manifest_file (manifest_id, path, artifact_id, media_type)
    SELECT p_lease_id, c.path, c.chosen_id, c.media_type FROM chosen c
    ON CONFLICT (manifest_id, path) DO UPDATE
        SET artifact_id = excluded.artifact_id, media_type = excluded.media_type;

    IF v_replaced IS NOT NULL THEN
        UPDATE artifact a SET unnamed_at = at
         WHERE a.artifact_id = ANY (v_replaced)
           AND NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id);
    END IF;
    -- URLs handed out again are written down before they leave.
    UPDATE artifact a SET writable_until = v_until
     WHERE a.artifact_id = ANY (ARRAY(
            SELECT m.artifact_id FROM unnest(p_paths) f (path) CROSS JOIN LATERAL (
                SELECT s.artifact_id FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m))
       AND a.stored_at IS NULL AND a.writable_until < v_until;
    UPDATE generation g2 SET file_count = g.file_count + v_new, total_bytes = g.total_bytes + v_bytes,
           sealed_at = NULL, manifest_digest = NULL
     WHERE g2.generation_id = p_lease_id;
    PERFORM count_decision();

    RETURN QUERY
    SELECT 'ok', null::text, p.name, h.epoch, h.generation, m.path, a.artifact_id, a.digest, a.size, m.media_type,
           a.stored_at IS NOT NULL, a.verified, a.writable_until, a.generation_id, a.upload_id
      FROM unnest(p_paths) WITH ORDINALITY f (path, n)
     CROSS JOIN LATERAL (
          SELECT s.path, s.artifact_id, s.media_type FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m
     CROSS JOIN LATERAL (SELECT s.* FROM artifact s WHERE s.artifact_id = m.artifact_id LIMIT 1) a
     CROSS JOIN LATERAL (SELECT s.epoch, s.generation FROM generation s WHERE s.generation_id = a.generation_id LIMIT 1) h
     ORDER BY f.n;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.stage(
    p_lease_id uuid, p_epoch bigint, p_generation bigint,
    p_paths text[], p_digests bytea[], p_sizes bigint[], p_media_types text[], p_artifact_ids uuid[],
    p_url_seconds double precision, p_grace_seconds double precision, p_max_files integer
) RETURNS TABLE (
    status text, reason text, pointer text, epoch bigint, generation bigint,
    path text, artifact_id uuid, digest bytea, size bigint, media_type text,
    stored boolean, verified text, writable_until timestamptz, owner_id uuid, upload_id text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    p pointer; g generation; at timestamptz; v_epoch bigint; v_reason text; v_until timestamptz;
    v_new integer; v_bytes bigint; v_sources uuid[]; v_replaced uuid[]; v_candidates uuid[]; v_conflict record;
BEGIN
    PERFORM begin_decision();
    SELECT g2.* INTO g FROM generation g2
     WHERE g2.generation_id = p_lease_id AND g2.rollback_of IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT CASE WHEN p_epoch < i.epoch THEN 'lease-lost' ELSE 'lease-not-found' END,
            'epoch-superseded', null::text, null::bigint, null::bigint, null::text, null::uuid, null::bytea,
            null::bigint, null::text, null::boolean, null::text, null::timestamptz, null::uuid, null::text
            FROM installation i WHERE i.singleton;
        RETURN;
    END IF;
    -- What might be adopted: one artifact for each distinct content, however many paths share it,
    -- a stored one rather than one in parts. The first that will do ends the search.
    v_sources := adoption_sources(p_lease_id, g.pointer_id, clock_timestamp(), p_grace_seconds);
    SELECT array_agg(c.artifact_id) INTO v_candidates
      FROM (SELECT DISTINCT f.digest, f.size FROM unnest(p_digests, p_sizes) f (digest, size)) f
     CROSS JOIN LATERAL (
        (SELECT a.artifact_id FROM artifact a
          WHERE a.pointer_id = g.pointer_id AND a.digest = f.digest AND a.size = f.size
            AND a.stored_at IS NOT NULL AND a.missing_at IS NULL
            AND (SELECT true FROM manifest_file m
                  WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources) LIMIT 1) LIMIT 1)
        UNION ALL
        (SELECT a.artifact_id FROM artifact a
          WHERE a.pointer_id = g.pointer_id AND a.digest = f.digest AND a.size = f.size
            AND a.stored_at IS NULL AND a.upload_id IS NOT NULL AND a.missing_at IS NULL
            AND (SELECT true FROM manifest_file m
                  WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources) LIMIT 1) LIMIT 1)
        LIMIT 1) c;
    -- It must not be collected meanwhile; who loses that race finds the row gone below, and uploads.
    -- What may lose its name here is locked too: the collector, taking its last other name at the
    -- same time, then comes before or after, and one of the two sees it.
    PERFORM 1 FROM artifact a
      WHERE a.artifact_id IN (
            SELECT unnest(v_candidates)
            UNION ALL
            SELECT m.artifact_id FROM manifest_file m WHERE m.manifest_id = p_lease_id AND m.path = ANY (p_paths))
      ORDER BY a.artifact_id FOR NO KEY UPDATE;

    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i WHERE i.singleton;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = g.pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p_lease_id;
    v_reason := lease_reason(p, g, p_epoch, p_generation, v_epoch, at);
    IF v_reason IS NULL THEN
        SELECT count(*) FILTER (WHERE m.artifact_id IS NULL), coalesce(sum(f.size - coalesce(a.size, 0)), 0) INTO v_new, v_bytes
          FROM unnest(p_paths, p_sizes) f (path, size)
          LEFT JOIN LATERAL (
              SELECT s.artifact_id FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m ON true
          LEFT JOIN LATERAL (SELECT s.size FROM artifact s WHERE s.artifact_id = m.artifact_id LIMIT 1) a ON true;
    END IF;
    IF v_reason IS NOT NULL OR v_new + g.file_count > p_max_files THEN
        IF v_reason = 'expired' THEN PERFORM end_lease(p_lease_id, 'expired', at); END IF;
        RETURN QUERY SELECT CASE WHEN v_reason IS NULL THEN 'too-many-files' ELSE 'lease-lost' END,
            v_reason, p.name, g.epoch, g.generation, null::text, null::uuid, null::bytea,
            null::bigint, null::text, null::boolean, null::text, null::timestamptz, null::uuid, null::text;
        RETURN;
    END IF;
    SELECT * INTO v_conflict FROM path_conflict(p_lease_id, p_paths);
    IF FOUND THEN
        RETURN QUERY SELECT 'path-conflict', v_conflict.other, p.name, g.epoch, g.generation, v_conflict.path, null::uuid,
            null::bytea, null::bigint, null::text, null::boolean, null::text, null::timestamptz, null::uuid, null::text;
        RETURN;
    END IF;

    v_until := at + make_interval(secs => p_url_seconds);
    v_sources := adoption_sources(p_lease_id, p.pointer_id, at, p_grace_seconds);
    SELECT array_agg(m.artifact_id) INTO v_replaced
      FROM unnest(p_paths, p_digests, p_sizes) f (path, digest, size)
     CROSS JOIN LATERAL (
          SELECT s.artifact_id FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m
     CROSS JOIN LATERAL (SELECT s.digest, s.size, s.missing_at FROM artifact s WHERE s.artifact_id = m.artifact_id LIMIT 1) a
     WHERE a.digest <> f.digest OR a.size <> f.size OR a.missing_at IS NOT NULL;

    -- A missing object's artifact is replaced even by the same digest: that is how it is healed.
    WITH f AS (
        SELECT * FROM unnest(p_paths, p_digests, p_sizes, p_media_types, p_artifact_ids)
                      f (path, digest, size, media_type, fresh_id)
    ), candidate AS MATERIALIZED (
        SELECT DISTINCT ON (a.digest, a.size) a.artifact_id, a.digest, a.size FROM artifact a
         WHERE a.artifact_id = ANY (v_candidates) AND a.missing_at IS NULL AND (a.stored_at IS NOT NULL OR a.upload_id IS NOT NULL)
           AND (SELECT true FROM manifest_file m
                 WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources) LIMIT 1)
    ), paired AS (  -- by sorting: a join, planned for a handful, would compare every path with every candidate
        SELECT b.*, (array_agg(b.candidate_id) FILTER (WHERE b.candidate_id IS NOT NULL) OVER (PARTITION BY b.digest, b.size))[1] AS adopted_id
          FROM (SELECT f.*, null::uuid AS candidate_id FROM f
                UNION ALL
                SELECT null, c.digest, c.size, null, null, c.artifact_id FROM candidate c) b
    ), chosen AS (
        SELECT f.*, coalesce(mine.artifact_id, f.adopted_id, f.fresh_id) AS chosen_id,
               mine.artifact_id IS NULL AND f.adopted_id IS NULL AS fresh
          FROM paired f
          LEFT JOIN LATERAL (
              SELECT m.artifact_id FROM manifest_file m
               WHERE m.manifest_id = p_lease_id AND m.path = f.path LIMIT 1
          ) named ON true
          LEFT JOIN LATERAL (
              SELECT a.artifact_id FROM artifact a
               WHERE a.artifact_id = named.artifact_id
                 AND a.digest = f.digest AND a.size = f.size AND a.missing_at IS NULL LIMIT 1
          ) mine ON true
         WHERE f.candidate_id IS NULL
    ), made AS (
        INSERT INTO artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, writable_until)
        SELECT c.chosen_id, g.pointer_id, p_lease_id, c.digest, c.size, c.media_type, v_until
          FROM chosen c WHERE c.fresh
    )
    INSERT INTO manifest_file (manifest_id, path, artifact_id, media_type)
    SELECT p_lease_id, c.path, c.chosen_id, c.media_type FROM chosen c
    ON CONFLICT (manifest_id, path) DO UPDATE
        SET artifact_id = excluded.artifact_id, media_type = excluded.media_type;

    UPDATE artifact a SET unnamed_at = at
     WHERE a.artifact_id = ANY (v_replaced)
       AND NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id);
    -- URLs handed out again are written down before they leave.
    UPDATE artifact a SET writable_until = v_until
     WHERE a.artifact_id = ANY (ARRAY(
            SELECT m.artifact_id FROM unnest(p_paths) f (path) CROSS JOIN LATERAL (
                SELECT s.artifact_id FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m))
       AND a.stored_at IS NULL AND a.writable_until < v_until;
    UPDATE generation g2 SET file_count = g.file_count + v_new, total_bytes = g.total_bytes + v_bytes,
           sealed_at = NULL, manifest_digest = NULL
     WHERE g2.generation_id = p_lease_id;
    PERFORM count_decision();

    RETURN QUERY
    SELECT 'ok', null::text, p.name, h.epoch, h.generation, m.path, a.artifact_id, a.digest, a.size, m.media_type,
           a.stored_at IS NOT NULL, a.verified, a.writable_until, a.generation_id, a.upload_id
      FROM unnest(p_paths) WITH ORDINALITY f (path, n)
     CROSS JOIN LATERAL (
          SELECT s.path, s.artifact_id, s.media_type FROM manifest_file s WHERE s.manifest_id = p_lease_id AND s.path = f.path LIMIT 1) m
     CROSS JOIN LATERAL (SELECT s.* FROM artifact s WHERE s.artifact_id = m.artifact_id LIMIT 1) a
     CROSS JOIN LATERAL (SELECT s.epoch, s.generation FROM generation s WHERE s.generation_id = a.generation_id LIMIT 1) h
     ORDER BY f.n;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.adoption_sources(p_lease_id uuid, p_pointer_id bigint, p_at timestamptz, p_grace_seconds double precision)
RETURNS uuid[] LANGUAGE plpgsql VOLATILE SET search_path = artifactd, pg_temp AS $$
BEGIN
    RETURN (
    SELECT array_append(ARRAY(
        SELECT h.generation_id FROM generation h, installation i
         WHERE i.singleton  -- found by its index: stage allows no other way, and dear plans are compiled
           AND h.pointer_id = p_pointer_id AND h.collected_at IS NULL
           AND h.state IN ('released', 'broken', 'expired', 'superseded')
           AND h.collecting_at IS NULL AND h.file_count > 0
           AND h.ended_at > p_at - make_interval(secs => p_grace_seconds)
           AND (i.collection_held_at IS NULL OR h.epoch = i.epoch)
         ORDER BY h.ended_at DESC LIMIT 1000), p_lease_id)
        || ARRAY(SELECT g.manifest_id FROM installation i, pointer p JOIN generation g ON g.generation_id = p.current_id
                  WHERE i.singleton AND p.pointer_id = p_pointer_id
                    -- A rollback shares the manifest of an older generation, and says nothing of its objects.
                    AND (i.collection_held_at IS NULL
                         OR (SELECT true FROM generation m WHERE m.generation_id = g.manifest_id AND m.epoch = i.epoch LIMIT 1))));
END $$;
-- +goose StatementEnd
