-- +goose Up
-- The bucket as a second witness of what was published. Whatever a pointer showed, and what it is
-- set to, is written down in the transaction that decided it, in the outbox; a worker puts a record
-- object into the bucket and then takes the row out. A crash anywhere only repeats work: records
-- never change, and their keys are never used for anything else. From the records the owner brings
-- back what a restored database has lost, or builds a whole catalogue anew.

-- What still has to be written into the bucket. The id is that of the record: the generation's,
-- the revision's of a pointer's settings, or one made for an aborted operation; all begin with a
-- time, so that the oldest is written first.
CREATE TABLE artifactd.outbox (
    record_id    uuid PRIMARY KEY,
    kind         text NOT NULL,  -- version, pointer, aborted
    pointer_id   bigint,
    operation_id uuid,           -- of an aborted one
    pointer      text,           -- whom the aborted operation concerned, as the caller named it
    replaces     text,           -- key of the record that the new one makes superfluous
    enqueued_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    not_before   timestamptz NOT NULL DEFAULT '-infinity',  -- next attempt; pushed ahead while a worker is at it
    attempts     integer NOT NULL DEFAULT 0,
    last_error   text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);

-- The newest revision of what a pointer is set to (settings, retirement, pins).
CREATE TABLE artifactd.pointer_revision (
    pointer_id         bigint PRIMARY KEY,
    epoch              bigint NOT NULL,
    revision           bigint NOT NULL,
    revision_id        uuid   NOT NULL,
    -- Every token up to this one had been issued when the pointer was last retired: what it showed
    -- before must not be shown again by itself.
    retired_epoch      bigint,
    retired_generation bigint
);

-- The revision whose record is in the bucket; older ones' are deleted.
CREATE TABLE artifactd.pointer_record (
    pointer_id  bigint PRIMARY KEY,
    epoch       bigint NOT NULL,
    revision    bigint NOT NULL,
    revision_id uuid   NOT NULL
);

CREATE INDEX generation_pinned ON artifactd.generation (pointer_id) WHERE pinned;

-- An id that begins with the time, as the service makes them.
-- +goose StatementBegin
CREATE FUNCTION artifactd.time_uuid() RETURNS uuid
LANGUAGE sql VOLATILE SET search_path = artifactd, pg_temp AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(r, 14, 3) || 'b' || substr(r, 18))::uuid
      FROM replace(gen_random_uuid()::text, '-', '') r
$$;
-- +goose StatementEnd

-- The keys of records. Tokens are padded so that they sort; the ids keep two histories that issued
-- the same token apart.
-- +goose StatementBegin
CREATE FUNCTION artifactd.version_record_key(p_prefix text, p_name text, p_epoch bigint, p_generation bigint, p_id uuid) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_prefix || 'versions/' || p_name || '/' || lpad(p_epoch::text, 10, '0') || '.' || lpad(p_generation::text, 15, '0') || '.' || p_id
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION artifactd.pointer_record_key(p_prefix text, p_name text, p_epoch bigint, p_revision bigint, p_id uuid) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_prefix || 'pointers/' || p_name || '/' || lpad(p_epoch::text, 10, '0') || '.' || lpad(p_revision::text, 15, '0') || '.' || p_id
$$;
-- +goose StatementEnd

-- Writes down that a pointer's settings, retirement or pins have changed. Called under the
-- pointer's lock, which is the only one needed: nobody else touches these rows.
-- +goose StatementBegin
CREATE FUNCTION artifactd.note_pointer(p_pointer_id bigint, p_retired boolean) RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
DECLARE v_id uuid := time_uuid();
BEGIN
    INSERT INTO pointer_revision AS r (pointer_id, epoch, revision, revision_id, retired_epoch, retired_generation)
    SELECT p.pointer_id, i.epoch, 1, v_id, CASE WHEN p_retired THEN i.epoch END, CASE WHEN p_retired THEN p.generation END
      FROM pointer p, installation i WHERE p.pointer_id = p_pointer_id
    ON CONFLICT (pointer_id) DO UPDATE SET epoch = excluded.epoch, revision = r.revision + 1, revision_id = excluded.revision_id,
        retired_epoch = coalesce(excluded.retired_epoch, r.retired_epoch),
        retired_generation = coalesce(excluded.retired_generation, r.retired_generation);
    INSERT INTO outbox (record_id, kind, pointer_id) VALUES (v_id, 'pointer', p_pointer_id);
END $$;
-- +goose StatementEnd

-- Takes rows for one worker: for p_seconds nobody else gets them. With each comes what its record
-- says; a version's files are read apart. gone: the version is being collected, so that there is
-- nothing to write any more.
-- +goose StatementBegin
CREATE FUNCTION artifactd.claim_outbox(p_limit integer, p_seconds double precision) RETURNS TABLE (
    record_id uuid, kind text, installation_id uuid, pointer text,
    operation_id uuid, attempts integer,
    epoch bigint, epoch_uuid uuid, generation bigint, published_at timestamptz, holder text, source_revision bigint, metadata jsonb,
    rollback_of uuid, recovered_from uuid, recovered_epoch bigint, recovered_generation bigint,
    manifest_id uuid, manifest_digest bytea, file_count integer, total_bytes bigint, gone boolean,
    revision bigint, revision_id uuid, settings jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE at timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT o.record_id FROM outbox o WHERE o.not_before <= at ORDER BY o.record_id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE outbox o SET not_before = at + make_interval(secs => p_seconds), attempts = o.attempts + 1
          FROM due WHERE o.record_id = due.record_id RETURNING o.*)
    SELECT c.record_id, c.kind, i.installation_id, coalesce(p.name, c.pointer),
           coalesce(g.publish_operation_id, c.operation_id), c.attempts,
           coalesce(g.epoch, r.epoch), e.epoch_uuid, g.generation, g.published_at, g.holder, g.source_revision, g.metadata,
           g.rollback_of, g.recovered_from, g.recovered_epoch, g.recovered_generation,
           g.manifest_id, g.manifest_digest, g.file_count, g.total_bytes, g.collecting_at IS NOT NULL,
           r.revision, r.revision_id,
           CASE WHEN c.kind = 'pointer' THEN jsonb_build_object(
               'keep_versions', p.keep_versions, 'keep_seconds', p.keep_seconds, 'public', p.public, 'labels', p.labels,
               'created_at', p.created_at, 'retired_at', p.retired_at,
               'retired_epoch', r.retired_epoch, 'retired_generation', r.retired_generation,
               'pinned', (SELECT coalesce(jsonb_agg(h.generation_id), '[]') FROM generation h
                           WHERE h.pointer_id = p.pointer_id AND h.pinned AND h.collecting_at IS NULL)) END
      FROM claimed c CROSS JOIN installation i
      LEFT JOIN generation g ON c.kind = 'version' AND g.generation_id = c.record_id
      LEFT JOIN pointer p ON p.pointer_id = c.pointer_id
      LEFT JOIN pointer_revision r ON c.kind = 'pointer' AND r.pointer_id = c.pointer_id
      LEFT JOIN history e ON e.epoch = coalesce(g.epoch, r.epoch);
END $$;
-- +goose StatementEnd

-- Writes down what became of claimed rows: without an error the record is in the bucket, and the
-- row goes; otherwise it is tried again, ever later, up to once a minute.
-- +goose StatementBegin
CREATE FUNCTION artifactd.finish_outbox(p_record_ids uuid[], p_errors text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    WITH gone AS (
        DELETE FROM outbox o USING unnest(p_record_ids, p_errors) f (id, error)
         WHERE o.record_id = f.id AND f.error = '' RETURNING o.replaces)
    INSERT INTO deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
    SELECT g.replaces, 0, 'record', false, clock_timestamp(), clock_timestamp(), clock_timestamp()
      FROM gone g WHERE g.replaces IS NOT NULL
    ON CONFLICT (object_key) DO NOTHING;
    UPDATE outbox o SET last_error = f.error,
           not_before = clock_timestamp() + make_interval(secs => least(60, 0.5 * 2.0 ^ least(o.attempts - 1, 8)))
      FROM unnest(p_record_ids, p_errors) f (id, error) WHERE o.record_id = f.id AND f.error <> '';
END $$;
-- +goose StatementEnd

-- Notes which revision of a pointer's settings is in the bucket, and lets the older one's record go.
-- +goose StatementBegin
CREATE FUNCTION artifactd.finish_pointer_record(p_pointer text, p_epoch bigint, p_revision bigint, p_revision_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE v_id bigint; v_prefix text; old pointer_record; v_stale pointer_record;
BEGIN
    SELECT pointer_id INTO STRICT v_id FROM pointer WHERE name = p_pointer;
    SELECT key_prefix INTO v_prefix FROM installation;
    INSERT INTO pointer_record (pointer_id, epoch, revision, revision_id) VALUES (v_id, p_epoch, p_revision, p_revision_id)
    ON CONFLICT (pointer_id) DO NOTHING;
    SELECT * INTO STRICT old FROM pointer_record WHERE pointer_id = v_id FOR UPDATE;
    IF old.revision_id = p_revision_id THEN RETURN; END IF;
    v_stale := old;
    IF (p_epoch, p_revision) > (old.epoch, old.revision) THEN
        UPDATE pointer_record SET epoch = p_epoch, revision = p_revision, revision_id = p_revision_id WHERE pointer_id = v_id;
    ELSE
        v_stale.epoch := p_epoch; v_stale.revision := p_revision; v_stale.revision_id := p_revision_id;
    END IF;
    INSERT INTO deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
    SELECT pointer_record_key(v_prefix, p_pointer, v_stale.epoch, v_stale.revision, v_stale.revision_id),
           0, 'record', false, clock_timestamp(), clock_timestamp(), clock_timestamp()
    ON CONFLICT (object_key) DO NOTHING;
END $$;
-- +goose StatementEnd

-- Lets the record of a collected version go. A worker that has claimed it begins no upload after
-- its claim, and the landing grace is for one that began in time.
-- +goose StatementBegin
CREATE FUNCTION artifactd.bury_record(p_generation_id uuid, p_landing_seconds double precision) RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
DECLARE v_waiting outbox; at timestamptz;
BEGIN
    DELETE FROM outbox WHERE record_id = p_generation_id RETURNING * INTO v_waiting;
    at := clock_timestamp();
    INSERT INTO deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
    SELECT k.key, 0, 'record', false, at,
           CASE WHEN v_waiting.record_id IS NULL THEN at
                ELSE greatest(at, v_waiting.not_before) + make_interval(secs => p_landing_seconds) END, at
      FROM generation g JOIN pointer p USING (pointer_id) CROSS JOIN installation i
     CROSS JOIN LATERAL (VALUES (version_record_key(i.key_prefix, p.name, g.epoch, g.generation, g.generation_id)), (v_waiting.replaces)) k (key)
     WHERE g.generation_id = p_generation_id AND k.key IS NOT NULL
       -- What no worker has ever claimed was never written.
       AND (v_waiting.record_id IS NULL OR v_waiting.attempts > 0 OR k.key = v_waiting.replaces)
    ON CONFLICT (object_key) DO NOTHING;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.bury_record, artifactd.finish_pointer_record, artifactd.finish_outbox, artifactd.claim_outbox,
    artifactd.note_pointer, artifactd.pointer_record_key, artifactd.version_record_key, artifactd.time_uuid;
DROP INDEX artifactd.generation_pinned;
DROP TABLE artifactd.pointer_record, artifactd.pointer_revision, artifactd.outbox;
