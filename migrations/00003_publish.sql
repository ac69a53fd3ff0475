-- +goose Up
-- Staging, proof, seal, publish, rollback, settle.

-- What a manifest holds, and its digest: the SHA-256 over one line a file, ordered by path, of
-- path, NUL, digest, NUL, size, NUL, media type, newline. Planned for no particular size: row by
-- row from the indexes, so that a small manifest never pays for the large ones of others.
-- +goose StatementBegin
CREATE FUNCTION artifactd.manifest_facts(
    p_manifest_id uuid, OUT files integer, OUT bytes bigint, OUT digest bytea, OUT not_stored integer
) LANGUAGE plpgsql VOLATILE SET search_path = artifactd, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    SELECT count(*)::integer, coalesce(sum(a.size), 0)::bigint,
           sha256(coalesce(string_agg(
               convert_to(m.path, 'UTF8') || '\x00'::bytea || a.digest || '\x00'::bytea
               || convert_to(a.size::text, 'UTF8') || '\x00'::bytea || convert_to(m.media_type, 'UTF8') || '\x0a'::bytea,
               ''::bytea ORDER BY m.path), ''::bytea)),
           (count(*) FILTER (WHERE a.stored_at IS NULL OR a.missing_at IS NOT NULL))::integer
      INTO files, bytes, digest, not_stored
      FROM manifest_file m JOIN artifact a USING (artifact_id)
     WHERE m.manifest_id = p_manifest_id;
END $$;
-- +goose StatementEnd

-- The manifests whose files a lease's files may be adopted from: its own, what its pointer shows,
-- and those of the dead generations within the resume grace.
-- +goose StatementBegin
CREATE FUNCTION artifactd.adoption_sources(p_lease_id uuid, p_pointer_id bigint, p_at timestamptz, p_grace_seconds double precision)
RETURNS uuid[] LANGUAGE sql VOLATILE SET search_path = artifactd, pg_temp AS $$
    SELECT array_append(ARRAY(
        SELECT h.generation_id FROM generation h
         WHERE h.pointer_id = p_pointer_id AND h.collected_at IS NULL
           AND h.state IN ('released', 'broken', 'expired', 'superseded')
           AND h.collecting_at IS NULL AND h.file_count > 0
           AND h.ended_at > p_at - make_interval(secs => p_grace_seconds)
         ORDER BY h.ended_at DESC LIMIT 1000), p_lease_id)
        || ARRAY(SELECT g.manifest_id FROM pointer p JOIN generation g ON g.generation_id = p.current_id
                  WHERE p.pointer_id = p_pointer_id)
$$;
-- +goose StatementEnd

-- Two paths of which one is a folder of the other, which no file system could hold: of those given,
-- or one of them and one that is staged already. No row when there are none. Its cost is that of
-- sorting the paths and of a few looks into the index for each, however deep they are.
-- +goose StatementBegin
CREATE FUNCTION artifactd.path_conflict(p_manifest_id uuid, p_paths text[], OUT path text, OUT other text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_folder text; v_start text; v_last text := ''; v_path text; v_found text;
BEGIN
    -- With a separator that sorts before every character of a path, what lies in a folder follows it.
    SELECT o.below, o.path INTO path, other FROM (
        SELECT f.path, lead(f.path) OVER (ORDER BY translate(f.path, '/', chr(1)) COLLATE "C") AS below
          FROM (SELECT DISTINCT unnest(p_paths) AS path) f) o
     WHERE starts_with(o.below, o.path || '/') LIMIT 1;
    IF FOUND THEN RETURN NEXT; RETURN; END IF;
    IF NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.manifest_id = p_manifest_id) THEN RETURN; END IF;
    SELECT f.path, m.path INTO path, other FROM unnest(p_paths) f (path) CROSS JOIN LATERAL (
        SELECT s.path FROM manifest_file s  -- '0' is the character after '/'
         WHERE s.manifest_id = p_manifest_id AND s.path > f.path || '/' AND s.path < f.path || '0' LIMIT 1) m LIMIT 1;
    IF FOUND THEN RETURN NEXT; RETURN; END IF;
    -- Is a folder, or one above it, staged as a file? If so, everything between that and the folder
    -- begins with it: what stands last before the folder tells how far up to go on looking. What is
    -- above the folder before this one too has been looked at.
    FOR v_path, v_start IN
        SELECT min(f.path), d.folder
          FROM unnest(p_paths) f (path), LATERAL (SELECT left(f.path, -strpos(reverse(f.path), '/')) AS folder) d
         WHERE strpos(f.path, '/') > 0 GROUP BY d.folder ORDER BY translate(d.folder, '/', chr(1)) COLLATE "C" LOOP
        v_folder := v_start;
        LOOP
            EXIT WHEN v_folder = '' OR starts_with(v_last || '/', v_folder || '/');
            SELECT m.path INTO v_found FROM manifest_file m
             WHERE m.manifest_id = p_manifest_id AND m.path <= v_folder ORDER BY m.path DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
            IF v_found = v_folder OR starts_with(v_folder, v_found || '/') THEN
                path := v_path; other := v_found;
                RETURN NEXT; RETURN;
            END IF;
            LOOP
                v_folder := CASE WHEN strpos(v_folder, '/') > 0 THEN left(v_folder, -strpos(reverse(v_folder), '/')) ELSE '' END;
                EXIT WHEN starts_with(v_found, v_folder);
            END LOOP;
        END LOOP;
        v_last := v_start;
    END LOOP;
END $$;
-- +goose StatementEnd

-- Declares files of a live lease's manifest. Each gets an artifact: the one it has already when
-- digest and size are the same, one adopted from the pointer's current version or from a dead
-- generation within the resume grace, or a new one, to be uploaded before writable_until. One
-- row a file in the order given (an adopted one may be stored, or have some of its parts
-- uploaded); or one row that says lease-not-found, lease-lost, too-many-files, or path-conflict
-- with a path and, as the reason, the other one (see path_conflict).
-- +goose StatementBegin
CREATE FUNCTION artifactd.stage(
    p_lease_id uuid, p_epoch bigint, p_generation bigint,
    p_paths text[], p_digests bytea[], p_sizes bigint[], p_media_types text[], p_artifact_ids uuid[],
    p_url_seconds double precision, p_grace_seconds double precision, p_max_files integer
) RETURNS TABLE (
    status text, reason text, pointer text, epoch bigint, generation bigint,
    path text, artifact_id uuid, digest bytea, size bigint, media_type text,
    stored boolean, verified text, writable_until timestamptz, owner_id uuid, upload_id text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
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
            FROM installation i;
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
            AND EXISTS (SELECT 1 FROM manifest_file m
                         WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources)) LIMIT 1)
        UNION ALL
        (SELECT a.artifact_id FROM artifact a
          WHERE a.pointer_id = g.pointer_id AND a.digest = f.digest AND a.size = f.size
            AND a.stored_at IS NULL AND a.upload_id IS NOT NULL AND a.missing_at IS NULL
            AND EXISTS (SELECT 1 FROM manifest_file m
                         WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources)) LIMIT 1)
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

    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = g.pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p_lease_id;
    v_reason := lease_reason(p, g, p_epoch, p_generation, v_epoch, at);
    IF v_reason IS NULL THEN
        SELECT count(*) FILTER (WHERE m.path IS NULL), coalesce(sum(f.size - coalesce(a.size, 0)), 0) INTO v_new, v_bytes
          FROM unnest(p_paths, p_sizes) f (path, size)
          LEFT JOIN manifest_file m ON m.manifest_id = p_lease_id AND m.path = f.path
          LEFT JOIN artifact a ON a.artifact_id = m.artifact_id;
    END IF;
    IF v_reason IS NOT NULL OR g.file_count + v_new > p_max_files THEN
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
      JOIN manifest_file m ON m.manifest_id = p_lease_id AND m.path = f.path
      JOIN artifact a ON a.artifact_id = m.artifact_id
     WHERE a.digest <> f.digest OR a.size <> f.size OR a.missing_at IS NOT NULL;

    -- A missing object's artifact is replaced even by the same digest: that is how it is healed.
    WITH f AS (
        SELECT * FROM unnest(p_paths, p_digests, p_sizes, p_media_types, p_artifact_ids)
                      f (path, digest, size, media_type, fresh_id)
    ), candidate AS MATERIALIZED (
        SELECT DISTINCT ON (a.digest, a.size) a.artifact_id, a.digest, a.size FROM artifact a
         WHERE a.artifact_id = ANY (v_candidates) AND (a.stored_at IS NOT NULL OR a.upload_id IS NOT NULL) AND a.missing_at IS NULL
           AND EXISTS (SELECT 1 FROM manifest_file m
                        WHERE m.artifact_id = a.artifact_id AND m.manifest_id = ANY (v_sources))
    ), chosen AS (
        SELECT f.*, coalesce(mine.artifact_id, adopted.artifact_id, f.fresh_id) AS chosen_id,
               mine.artifact_id IS NULL AND adopted.artifact_id IS NULL AS fresh
          FROM f
          -- One look into an index for each path. Joined as tables, a plan made while they were empty
          -- compared each path with each that was staged before: seconds, once there are thousands.
          LEFT JOIN LATERAL (
              SELECT m.artifact_id FROM manifest_file m
               WHERE m.manifest_id = p_lease_id AND m.path = f.path LIMIT 1
          ) named ON true
          LEFT JOIN LATERAL (
              SELECT a.artifact_id FROM artifact a
               WHERE a.artifact_id = named.artifact_id
                 AND a.digest = f.digest AND a.size = f.size AND a.missing_at IS NULL LIMIT 1
          ) mine ON true
          LEFT JOIN candidate adopted ON adopted.digest = f.digest AND adopted.size = f.size
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
           manifest_digest = NULL, sealed_at = NULL
     WHERE g2.generation_id = p_lease_id;
    PERFORM count_decision();

    RETURN QUERY
    SELECT 'ok', null::text, p.name, h.epoch, h.generation, m.path, a.artifact_id, a.digest, a.size, m.media_type,
           a.stored_at IS NOT NULL, a.verified, a.writable_until, a.generation_id, a.upload_id
      FROM unnest(p_paths) WITH ORDINALITY f (path, n)
      JOIN manifest_file m ON m.manifest_id = p_lease_id AND m.path = f.path
      JOIN artifact a ON a.artifact_id = m.artifact_id
      JOIN generation h ON h.generation_id = a.generation_id
     ORDER BY f.n;
END $$;
-- +goose StatementEnd

-- Why nobody can upload this artifact any more, or null: the lease it was made for, or a live one
-- that adopted it. Reads the clock and the facts of the statement that calls it.
-- +goose StatementBegin
CREATE FUNCTION artifactd.upload_reason(a artifactd.artifact) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE p pointer; g generation; at timestamptz; v_epoch bigint; v_reason text;
BEGIN
    SELECT clock_timestamp(), epoch INTO at, v_epoch FROM installation;
    SELECT * INTO p FROM pointer WHERE pointer_id = a.pointer_id;
    SELECT * INTO g FROM generation WHERE generation_id = a.generation_id;
    v_reason := lease_reason(p, g, g.epoch, g.generation, v_epoch, at);
    -- An IF of its own: AND does not keep Postgres from starting the query, which costs more than
    -- all else here, for every file of every upload.
    IF v_reason IS NOT NULL THEN
        IF EXISTS (
            SELECT 1 FROM manifest_file m JOIN generation h ON h.generation_id = m.manifest_id
             WHERE m.artifact_id = a.artifact_id AND h.state = 'leased'
               AND lease_reason(p, h, h.epoch, h.generation, v_epoch, at) IS NULL) THEN
            v_reason := NULL;
        END IF;
    END IF;
    RETURN v_reason;
END $$;
-- +goose StatementEnd

-- Records that an artifact's bytes were proved to be in the store. Touches its own row only, so
-- that uploads of one lease complete side by side. Status: stored, artifact-not-found, lease-lost.
-- +goose StatementBegin
CREATE FUNCTION artifactd.mark_stored(p_artifact_id uuid, p_verified text, OUT status text, OUT reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE a artifact;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO a FROM artifact WHERE artifact_id = p_artifact_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'artifact-not-found'; RETURN; END IF;
    reason := upload_reason(a);
    IF reason IS NOT NULL THEN status := 'lease-lost'; RETURN; END IF;
    UPDATE artifact SET stored_at = coalesce(stored_at, clock_timestamp()), verified = coalesce(verified, p_verified),
           upload_id = NULL
     WHERE artifact_id = p_artifact_id;
    status := 'stored';
END $$;
-- +goose StatementEnd

-- mark_stored for many artifacts in one transaction: one row for each, in no order.
-- +goose StatementBegin
CREATE FUNCTION artifactd.mark_stored_many(p_artifact_ids uuid[], p_verified text[])
RETURNS TABLE (artifact_id uuid, status text, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE at timestamptz; v_epoch bigint;
BEGIN
    PERFORM begin_decision();
    PERFORM 1 FROM artifact a WHERE a.artifact_id = ANY (p_artifact_ids) ORDER BY a.artifact_id FOR NO KEY UPDATE;
    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT a AS it, a.artifact_id, a.generation_id, f.verified
          FROM unnest(p_artifact_ids, p_verified) f (artifact_id, verified) JOIN artifact a USING (artifact_id)
    ), lease AS MATERIALIZED (  -- most were made for one lease, which lives: that is asked once
        SELECT g.generation_id, lease_reason(p, g, g.epoch, g.generation, v_epoch, at) AS reason
          FROM generation g JOIN pointer p USING (pointer_id)
         WHERE g.generation_id IN (SELECT generation_id FROM found)
    ), judged AS MATERIALIZED (
        SELECT f.artifact_id, f.verified, CASE WHEN l.reason IS NOT NULL THEN upload_reason(f.it) END AS reason
          FROM found f JOIN lease l USING (generation_id)
    ), marked AS (
        UPDATE artifact a SET stored_at = coalesce(a.stored_at, clock_timestamp()), verified = coalesce(a.verified, j.verified),
               upload_id = NULL
          FROM judged j WHERE a.artifact_id = j.artifact_id AND j.reason IS NULL
    )
    SELECT f.artifact_id, CASE WHEN j.artifact_id IS NULL THEN 'artifact-not-found' WHEN j.reason IS NULL THEN 'stored' ELSE 'lease-lost' END,
           j.reason
      FROM unnest(p_artifact_ids) f (artifact_id) LEFT JOIN judged j USING (artifact_id);
END $$;
-- +goose StatementEnd

-- Notes the store's multipart upload of an artifact, unless it has one, and prolongs the time in
-- which URLs of its parts may be used, before any of them leaves. Without an upload id it only
-- prolongs. Status: ok with the upload id in force, stored, artifact-not-found, lease-lost.
-- +goose StatementBegin
CREATE FUNCTION artifactd.open_upload(
    p_artifact_id uuid, p_upload_id text, p_url_seconds double precision,
    OUT status text, OUT reason text, OUT upload_id text, OUT writable_until timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE a artifact;
BEGIN
    PERFORM begin_decision();
    SELECT x.* INTO a FROM artifact x WHERE x.artifact_id = p_artifact_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'artifact-not-found'; RETURN; END IF;
    reason := upload_reason(a);
    IF reason IS NOT NULL THEN status := 'lease-lost'; RETURN; END IF;
    IF a.stored_at IS NOT NULL THEN status := 'stored'; RETURN; END IF;
    UPDATE artifact x SET upload_id = coalesce(x.upload_id, p_upload_id),
           writable_until = greatest(x.writable_until, clock_timestamp() + make_interval(secs => p_url_seconds))
     WHERE x.artifact_id = p_artifact_id RETURNING x.upload_id, x.writable_until INTO upload_id, writable_until;
    status := 'ok';
END $$;
-- +goose StatementEnd

-- Forgets a multipart upload that the store no longer has.
-- +goose StatementBegin
CREATE FUNCTION artifactd.close_upload(p_artifact_id uuid, p_upload_id text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    UPDATE artifact SET upload_id = NULL WHERE artifact_id = p_artifact_id AND upload_id = p_upload_id
$$;
-- +goose StatementEnd

-- Notes that what was uploaded for an artifact is not what was declared. Its key is never used
-- again, so staging the path anew gives a new artifact; this one is collected.
-- +goose StatementBegin
CREATE FUNCTION artifactd.reject_upload(p_artifact_id uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    UPDATE artifact SET missing_at = clock_timestamp()
     WHERE artifact_id = p_artifact_id AND stored_at IS NULL AND missing_at IS NULL
$$;
-- +goose StatementEnd

-- Seals a manifest outside of the pointer's lock, so that the flip costs the same however many
-- files there are. Status: sealed, incomplete, lease-not-found. The digest is fixed either way.
-- +goose StatementBegin
CREATE FUNCTION artifactd.seal(p_lease_id uuid, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE g generation; f record;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO g FROM generation WHERE generation_id = p_lease_id AND rollback_of IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'lease-not-found'; RETURN; END IF;
    IF g.sealed_at IS NOT NULL THEN status := 'sealed'; RETURN; END IF;
    IF g.collecting_at IS NOT NULL THEN status := 'incomplete'; RETURN; END IF;
    SELECT * INTO f FROM manifest_facts(g.manifest_id);
    status := CASE WHEN f.files > 0 AND f.not_stored = 0 THEN 'sealed' ELSE 'incomplete' END;
    UPDATE generation SET file_count = f.files, total_bytes = f.bytes, manifest_digest = f.digest,
           sealed_at = CASE WHEN status = 'sealed' THEN clock_timestamp() END
     WHERE generation_id = p_lease_id;
END $$;
-- +goose StatementEnd

-- The answer that is recorded for an operation id, after a write of its own: once that write is
-- committed, so is the record, on whatever this server waits for. Rows: none when nothing is
-- recorded. A generation remembers its publishing operation for good, even when the record is gone.
-- +goose StatementBegin
CREATE FUNCTION artifactd.recorded(
    p_operation_id uuid, OUT kind text, OUT outcome text, OUT answer jsonb, OUT pointers text[],
    OUT generation_ids uuid[], OUT request_digest bytea, OUT manifest_digests bytea[]
) RETURNS SETOF record LANGUAGE plpgsql SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY UPDATE operation o SET told_at = clock_timestamp() WHERE o.operation_id = p_operation_id
        RETURNING o.kind, o.outcome, o.answer, o.pointers, o.generation_ids, o.request_digest, o.manifest_digests;
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT CASE WHEN bool_or(g.rollback_of IS NOT NULL) THEN 'rollback' ELSE 'publish' END, 'published',
               jsonb_build_object('versions', jsonb_agg(jsonb_build_object(
                   'pointer', p.name, 'version', g.epoch || '.' || g.generation) ORDER BY p.name)),
               array_agg(p.name ORDER BY p.name), array_agg(g.generation_id ORDER BY p.name),
               null::bytea, null::bytea[]
          FROM generation g JOIN pointer p USING (pointer_id)
         WHERE g.publish_operation_id = p_operation_id HAVING count(*) > 0;
    END IF;
END $$;
-- +goose StatementEnd

-- Publishes one or several generations, all or none, and records the outcome in the same
-- transaction. Status: published, refused, aborted (the recorded or new outcome, told in answer);
-- operation-mismatch, lease-not-found, epoch-superseded, duplicate-pointer, needs-seal (nothing
-- changed; answer may name the lease).
-- +goose StatementBegin
CREATE FUNCTION artifactd.publish(
    p_operation_id uuid, p_request_digest bytea, p_lease_ids uuid[], p_epochs bigint[], p_generations bigint[],
    p_file_counts integer[], p_revisions bigint[], p_metadata text[], p_seal_tried boolean,
    p_inline_files integer,
    OUT status text, OUT answer jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    n integer := array_length(p_lease_ids, 1);
    v_pointer_ids bigint[]; v_names text[]; v_shown uuid[];
    o record; p pointer; g generation; f record;
    at timestamptz; v_epoch bigint; v_reason text; v_new boolean; v_digest bytea; v_unknown uuid; i integer;
    v_digests bytea[] := '{}'; v_files integer[] := '{}'; v_bytes bigint[] := '{}'; v_ready boolean[] := '{}';
    v_refusals jsonb := '[]'; v_versions jsonb := '[]';
BEGIN
    PERFORM begin_decision();
    -- Which pointer a lease belongs to never changes: no lock is needed to know it.
    SELECT array_agg(g2.pointer_id ORDER BY l.n), array_agg(p2.name::text ORDER BY l.n)
      INTO v_pointer_ids, v_names
      FROM unnest(p_lease_ids) WITH ORDINALITY l (id, n)
      JOIN generation g2 ON g2.generation_id = l.id AND g2.rollback_of IS NULL
      JOIN pointer p2 USING (pointer_id);
    IF coalesce(array_length(v_pointer_ids, 1), 0) < n THEN
        SELECT l.id, CASE WHEN l.epoch < inst.epoch THEN 'epoch-superseded' ELSE 'lease-not-found' END
          INTO v_unknown, status
          FROM unnest(p_lease_ids, p_epochs) l (id, epoch), installation inst
         WHERE NOT EXISTS (SELECT 1 FROM generation g2
                            WHERE g2.generation_id = l.id AND g2.rollback_of IS NULL)
         ORDER BY l.epoch >= inst.epoch DESC LIMIT 1;
        answer := jsonb_build_object('lease_id', v_unknown);
        IF status = 'epoch-superseded' THEN
            -- A lease of a history that was lost. The refusal is recorded like any other.
            INSERT INTO operation (operation_id, kind, request_digest, outcome, pointers, generation_ids, answer)
            SELECT p_operation_id, 'publish', p_request_digest, 'refused', coalesce(v_names, '{}'), p_lease_ids,
                   jsonb_build_object('refusals', jsonb_build_array(jsonb_build_object('pointer', '',
                       'reason', 'epoch-superseded', 'token', l.epoch || '.' || l.generation)))
              FROM unnest(p_lease_ids, p_epochs, p_generations) l (id, epoch, generation) WHERE l.id = v_unknown
            ON CONFLICT (operation_id) DO NOTHING;
            IF FOUND AND EXISTS (SELECT 1 FROM generation g2 WHERE g2.publish_operation_id = p_operation_id) THEN
                -- What this operation published in the lost history has been brought back.
                DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id;
            END IF;
            SELECT * INTO STRICT o FROM recorded(p_operation_id);
            status := o.outcome; answer := o.answer;
            IF o.outcome <> 'aborted' AND (o.kind <> 'publish' OR (o.request_digest IS NOT NULL AND o.request_digest IS DISTINCT FROM p_request_digest)
                OR (o.request_digest IS NULL AND NOT EXISTS (SELECT 1 FROM generation g2
                     WHERE g2.publish_operation_id = p_operation_id AND g2.recovered_from = ANY (p_lease_ids)))) THEN
                status := 'operation-mismatch'; answer := NULL;
            END IF;
        END IF;
        RETURN;
    END IF;
    IF n > 1 AND (SELECT count(DISTINCT x) FROM unnest(v_pointer_ids) x) < n THEN
        status := 'duplicate-pointer'; RETURN;
    END IF;

    -- Locks: pointers by name, operation, generations by id.
    PERFORM 1 FROM pointer p2 WHERE p2.pointer_id = ANY (v_pointer_ids) ORDER BY p2.name FOR NO KEY UPDATE;
    IF NOT p_seal_tried AND (
        SELECT coalesce(sum(g2.file_count), 0) > p_inline_files FROM generation g2
         WHERE g2.generation_id = ANY (p_lease_ids) AND g2.sealed_at IS NULL AND g2.state = 'leased') THEN
        status := 'needs-seal'; RETURN;
    END IF;
    INSERT INTO operation (operation_id, kind, request_digest, pointers, generation_ids)
    VALUES (p_operation_id, 'publish', p_request_digest, v_names, p_lease_ids)
    ON CONFLICT (operation_id) DO NOTHING;
    v_new := FOUND;
    SELECT array_agg(p2.current_id) INTO v_shown FROM pointer p2
     WHERE p2.pointer_id = ANY (v_pointer_ids) AND p2.current_id IS NOT NULL;
    PERFORM 1 FROM generation g2 WHERE g2.generation_id = ANY (p_lease_ids || v_shown)
      ORDER BY g2.generation_id FOR NO KEY UPDATE;

    -- What would be published. The clock is not read yet, so this may take its time.
    FOR i IN 1..n LOOP
        SELECT g2.* INTO STRICT g FROM generation g2 WHERE g2.generation_id = p_lease_ids[i];
        IF g.sealed_at IS NOT NULL OR g.state = 'published' OR g.collecting_at IS NOT NULL
           OR (g.manifest_digest IS NOT NULL AND p_seal_tried) THEN
            v_digests := v_digests || ARRAY[g.manifest_digest]; v_files := v_files || g.file_count;
            v_bytes := v_bytes || g.total_bytes; v_ready := v_ready || (g.sealed_at IS NOT NULL);
        ELSE
            SELECT * INTO f FROM manifest_facts(g.manifest_id);
            v_digests := v_digests || ARRAY[f.digest]; v_files := v_files || f.files;
            v_bytes := v_bytes || f.bytes; v_ready := v_ready || (f.files > 0 AND f.not_stored = 0);
        END IF;
    END LOOP;

    IF v_new AND EXISTS (SELECT 1 FROM generation g2 WHERE g2.publish_operation_id = p_operation_id) THEN
        -- The record is past its keeping, but the generation remembers.
        DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id;
        v_new := false;
    END IF;
    IF NOT v_new THEN
        SELECT * INTO STRICT o FROM recorded(p_operation_id);
        status := o.outcome; answer := o.answer;
        IF o.outcome <> 'aborted' AND (o.kind <> 'publish'
            OR (o.request_digest IS NULL AND NOT (o.generation_ids <@ p_lease_ids AND p_lease_ids <@ o.generation_ids))
            OR (o.request_digest IS NOT NULL AND (o.request_digest IS DISTINCT FROM p_request_digest
                OR o.manifest_digests IS DISTINCT FROM v_digests))) THEN
            status := 'operation-mismatch'; answer := NULL;
        END IF;
        RETURN;
    END IF;

    SELECT clock_timestamp(), inst.epoch INTO at, v_epoch FROM installation inst;
    FOR i IN 1..n LOOP
        SELECT p2.* INTO STRICT p FROM pointer p2 WHERE p2.pointer_id = v_pointer_ids[i];
        SELECT g2.* INTO STRICT g FROM generation g2 WHERE g2.generation_id = p_lease_ids[i];
        v_reason := lease_reason(p, g, p_epochs[i], p_generations[i], v_epoch, at);
        IF v_reason = 'expired' THEN PERFORM end_lease(g.generation_id, 'expired', at); END IF;
        IF v_reason IS NULL AND (NOT v_ready[i] OR v_files[i] IS DISTINCT FROM coalesce(p_file_counts[i], v_files[i])) THEN
            v_reason := 'incomplete';
        END IF;
        IF v_reason IS NULL AND p_revisions[i] < p.highest_revision THEN v_reason := 'source-stale'; END IF;
        IF v_reason IS NOT NULL THEN
            v_refusals := v_refusals || jsonb_build_object('pointer', p.name, 'reason', v_reason,
                'token', p_epochs[i] || '.' || p_generations[i],
                'current_token', p.current_epoch || '.' || p.current_generation);
        END IF;
        v_versions := v_versions || jsonb_build_object('pointer', p.name, 'version', g.epoch || '.' || g.generation);
    END LOOP;

    IF v_refusals <> '[]' THEN
        status := 'refused'; answer := jsonb_build_object('refusals', v_refusals);
        -- What was refused stays known when the files are gone, so that the same request is still
        -- seen to be the same.
        UPDATE generation g2 SET manifest_digest = d.digest FROM unnest(p_lease_ids, v_digests) d (id, digest)
         WHERE g2.generation_id = d.id AND g2.manifest_digest IS NULL AND d.digest IS NOT NULL;
    ELSE
        FOR i IN 1..n LOOP
            UPDATE generation g2 SET state = 'published', ended_at = at, published_at = at,
                   publish_operation_id = p_operation_id, source_revision = p_revisions[i],
                   metadata = p_metadata[i]::jsonb, collect_at = NULL, file_count = v_files[i],
                   total_bytes = v_bytes[i], manifest_digest = v_digests[i], sealed_at = coalesce(g2.sealed_at, at)
             WHERE g2.generation_id = p_lease_ids[i];
            PERFORM flip(v_pointer_ids[i], p_lease_ids[i], at, p_revisions[i]);
        END LOOP;
        status := 'published'; answer := jsonb_build_object('versions', v_versions);
    END IF;
    UPDATE operation o2 SET outcome = status, answer = publish.answer, manifest_digests = v_digests
     WHERE o2.operation_id = p_operation_id;
    PERFORM count_decision();
END $$;
-- +goose StatementEnd

-- Makes a generation what its pointer shows. Called by publish and rollback, which hold the
-- locks and have decided. Whatever waited out the resume grace before it is garbage at once.
-- +goose StatementBegin
CREATE FUNCTION artifactd.flip(p_pointer_id bigint, p_generation_id uuid, p_at timestamptz, p_revision bigint)
RETURNS void LANGUAGE plpgsql SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    UPDATE generation g SET displaced_at = p_at, collect_at = p_at
      FROM pointer p WHERE p.pointer_id = p_pointer_id AND g.generation_id = p.current_id;
    -- The clock was read: one that somebody else holds is left to its grace, not waited for.
    UPDATE generation SET collect_at = p_at WHERE generation_id IN (
        SELECT generation_id FROM generation
         WHERE pointer_id = p_pointer_id AND collected_at IS NULL AND collect_at > p_at
           AND state IN ('released', 'broken', 'expired', 'superseded')
           FOR NO KEY UPDATE SKIP LOCKED);
    UPDATE pointer p SET current_id = p_generation_id, current_epoch = p.epoch, current_generation = p.generation,
           highest_revision = greatest(p.highest_revision, p_revision)
     WHERE p.pointer_id = p_pointer_id AND p.head_id = p_generation_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'generation % is not the newest of its pointer', p_generation_id;
    END IF;
    INSERT INTO outbox (record_id, kind, pointer_id) VALUES (p_generation_id, 'version', p_pointer_id);
END $$;
-- +goose StatementEnd

-- Publishes an old version's manifest as a new generation. Status: published, refused, aborted,
-- operation-mismatch, pointer-not-found, version-not-found, or lease-held (which is not recorded).
-- +goose StatementBegin
CREATE FUNCTION artifactd.rollback(
    p_name text, p_to_epoch bigint, p_to_generation bigint, p_current_epoch bigint, p_current_generation bigint,
    p_operation_id uuid, p_request_digest bytea, p_generation_id uuid, p_holder text,
    OUT status text, OUT answer jsonb, OUT holder text, OUT epoch bigint, OUT generation bigint,
    OUT expires_in double precision
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    p pointer; g generation; t generation; o record; at timestamptz; v_epoch bigint; v_reason text; v_new boolean;
    v_target uuid;
BEGIN
    PERFORM begin_decision();
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'pointer-not-found'; RETURN; END IF;
    INSERT INTO operation (operation_id, kind, request_digest, pointers, generation_ids)
    VALUES (p_operation_id, 'rollback', p_request_digest, ARRAY[p.name], ARRAY[p_generation_id])
    ON CONFLICT (operation_id) DO NOTHING;
    v_new := FOUND;
    SELECT g2.generation_id INTO v_target FROM generation g2
     WHERE g2.pointer_id = p.pointer_id AND g2.epoch = p_to_epoch AND g2.generation = p_to_generation;
    PERFORM 1 FROM generation g2 WHERE g2.generation_id IN (p.head_id, p.current_id, v_target)
      ORDER BY g2.generation_id FOR NO KEY UPDATE;

    IF v_new AND EXISTS (SELECT 1 FROM generation g2 WHERE g2.publish_operation_id = p_operation_id) THEN
        DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id;
        v_new := false;
    END IF;
    IF NOT v_new THEN
        SELECT * INTO STRICT o FROM recorded(p_operation_id);
        status := o.outcome; answer := o.answer;
        IF o.outcome <> 'aborted' AND (o.kind <> 'rollback' OR (o.request_digest IS NOT NULL
              AND o.request_digest IS DISTINCT FROM p_request_digest)
            OR (o.request_digest IS NULL AND NOT EXISTS (
                SELECT 1 FROM generation g2 WHERE g2.generation_id = o.generation_ids[1]
                   AND g2.pointer_id = p.pointer_id AND g2.rollback_of = v_target))) THEN
            status := 'operation-mismatch'; answer := NULL;
        END IF;
        RETURN;
    END IF;

    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = p.pointer_id;
    SELECT g2.* INTO g FROM generation g2 WHERE g2.generation_id = p.head_id;
    SELECT g2.* INTO t FROM generation g2 WHERE g2.generation_id = v_target;
    IF p.retired_at IS NULL AND g.state = 'leased' AND g.epoch = v_epoch AND p.lease_expires_at > at THEN
        SELECT a.status, a.holder, a.epoch, a.generation, a.expires_in
          INTO status, holder, epoch, generation, expires_in FROM held_lease(p.pointer_id) a;
    ELSIF p.retired_at IS NOT NULL THEN
        v_reason := 'pointer-retired';
    ELSIF p.current_epoch IS DISTINCT FROM p_current_epoch OR p.current_generation IS DISTINCT FROM p_current_generation THEN
        v_reason := 'superseded';
    ELSIF t.state IS DISTINCT FROM 'published' OR t.collecting_at IS NOT NULL THEN
        status := 'version-not-found';
    END IF;
    IF status IS NOT NULL THEN
        DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id;
        RETURN;
    END IF;

    IF v_reason IS NOT NULL THEN
        status := 'refused';
        answer := jsonb_build_object('refusals', jsonb_build_array(jsonb_build_object('pointer', p.name,
            'reason', v_reason, 'token', p_current_epoch || '.' || p_current_generation,
            'current_token', p.current_epoch || '.' || p.current_generation)));
    ELSE
        PERFORM end_lease(p.head_id, 'superseded', at);
        INSERT INTO generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at,
            ended_at, manifest_id, file_count, total_bytes, manifest_digest, sealed_at, published_at,
            publish_operation_id, source_revision, metadata, rollback_of)
        VALUES (p_generation_id, p.pointer_id, v_epoch, p.generation + 1, 'published', p_holder, 0, at,
            at, t.manifest_id, t.file_count, t.total_bytes, t.manifest_digest, t.sealed_at, at,
            p_operation_id, t.source_revision, t.metadata, t.generation_id);
        UPDATE pointer p2 SET epoch = v_epoch, generation = p.generation + 1, head_id = p_generation_id,
               lease_expires_at = NULL
         WHERE p2.pointer_id = p.pointer_id;
        PERFORM flip(p.pointer_id, p_generation_id, at, NULL);
        status := 'published';
        answer := jsonb_build_object('versions', jsonb_build_array(jsonb_build_object('pointer', p.name,
            'version', v_epoch || '.' || (p.generation + 1))));
    END IF;
    UPDATE operation o2 SET outcome = status, answer = rollback.answer
     WHERE o2.operation_id = p_operation_id;
    PERFORM count_decision();
END $$;
-- +goose StatementEnd

-- The outcome that is recorded for an operation id, or no row, which is no answer.
-- +goose StatementBegin
CREATE FUNCTION artifactd.operation_outcome(
    p_operation_id uuid, OUT kind text, OUT outcome text, OUT answer jsonb, OUT pointers text[], OUT generation_ids uuid[]
) RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    RETURN QUERY SELECT r.kind, r.outcome, r.answer, r.pointers, r.generation_ids FROM recorded(p_operation_id) r;
END $$;
-- +goose StatementEnd

-- The final outcome of an operation id. Where none is recorded, writes the tombstone that keeps
-- it from ever happening: one in flight is waited for, one still queued finds the tombstone.
-- Without a pointer (whom the operation would have concerned) nothing can be written: no row.
-- +goose StatementBegin
CREATE FUNCTION artifactd.settle(
    p_operation_id uuid, p_pointer text, OUT kind text, OUT outcome text, OUT answer jsonb, OUT pointers text[],
    OUT generation_ids uuid[]
) RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_new boolean;
BEGIN
    PERFORM begin_decision();
    IF p_pointer IS NOT NULL THEN
        INSERT INTO operation (operation_id, kind, outcome, pointers, generation_ids)
        VALUES (p_operation_id, 'settle', 'aborted', ARRAY[p_pointer], '{}')
        ON CONFLICT (operation_id) DO NOTHING;
        v_new := FOUND;
        IF v_new AND EXISTS (SELECT 1 FROM generation g WHERE g.publish_operation_id = p_operation_id) THEN
            DELETE FROM operation o WHERE o.operation_id = p_operation_id;
        ELSIF v_new THEN
            INSERT INTO outbox (record_id, kind, operation_id, pointer) VALUES (time_uuid(), 'aborted', p_operation_id, p_pointer);
            PERFORM count_decision();
        END IF;
    END IF;
    RETURN QUERY SELECT r.kind, r.outcome, r.answer, r.pointers, r.generation_ids FROM recorded(p_operation_id) r;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.settle, artifactd.operation_outcome, artifactd.rollback, artifactd.flip, artifactd.publish, artifactd.recorded,
    artifactd.seal, artifactd.reject_upload, artifactd.close_upload, artifactd.open_upload,
    artifactd.mark_stored_many, artifactd.mark_stored, artifactd.upload_reason, artifactd.stage, artifactd.path_conflict,
    artifactd.adoption_sources, artifactd.manifest_facts;
