-- +goose Up
-- Bringing back from the bucket's records what the database has lost. This is the owner's business:
-- none of it runs as its owner (SECURITY DEFINER), so the service's role gets none of it. A version
-- comes back as a new generation of the current epoch, above every token ever issued. Everything is
-- keyed by the id of the generation that the record is of, so that it can be repeated, and by two at
-- once. A crash leaves rows that name objects and no generation; nothing collects those, and the
-- next run goes on with them.

-- A version that is being brought back. The generation it will be does not exist yet; its manifest
-- and artifacts do, so that nobody takes their objects for garbage.
CREATE TABLE artifactd.restore (
    recovered_from uuid PRIMARY KEY,
    generation_id  uuid NOT NULL,
    pointer_id     bigint NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which of these generations, by their ids in the records, this database has published or brought back.
-- +goose StatementBegin
CREATE FUNCTION artifactd.known_versions(p_ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql STABLE SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT k.id FROM unnest(p_ids) k (id)
     WHERE EXISTS (SELECT 1 FROM generation g WHERE g.generation_id = k.id AND g.state = 'published')
        OR EXISTS (SELECT 1 FROM generation g WHERE g.recovered_from = k.id)
$$;
-- +goose StatementEnd

-- What a version's own order is among its pointer's: a version that came back keeps its old place.
-- +goose StatementBegin
CREATE FUNCTION artifactd.shown_order(g artifactd.generation, OUT epoch bigint, OUT generation bigint)
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(g.recovered_epoch, g.epoch), coalesce(g.recovered_generation, g.generation)
$$;
-- +goose StatementEnd

-- Takes over the identity of the installation that the bucket belongs to, in an epoch above every
-- one that the bucket knows. Only a database without any pointer may (see guard_installation).
-- +goose StatementBegin
CREATE FUNCTION artifactd.adopt_installation(p_installation_id uuid, p_prefix text, p_above bigint) RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pointer) THEN
        RAISE EXCEPTION 'this database has pointers of its own: it cannot become another installation''s';
    END IF;
    -- Nothing is decided until an epoch above everything is issued in the bucket, too.
    UPDATE installation SET installation_id = p_installation_id, key_prefix = p_prefix, epoch = greatest(epoch, p_above + 1),
           changed_at = clock_timestamp(), changed_why = 'the database is empty and is built anew from the bucket', loss_known = true;
END $$;
-- +goose StatementEnd

-- Brings back tombstones: an operation that was settled as aborted stays so.
-- +goose StatementBegin
CREATE FUNCTION artifactd.restore_aborted(p_operation_ids uuid[], p_pointers text[], OUT restored integer)
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    INSERT INTO operation (operation_id, kind, outcome, pointers, generation_ids)
    SELECT DISTINCT ON (o.id) o.id, 'settle', 'aborted', ARRAY[o.pointer], '{}'::uuid[]
      FROM unnest(p_operation_ids, p_pointers) o (id, pointer)
     WHERE NOT EXISTS (SELECT 1 FROM generation g WHERE g.publish_operation_id = o.id)
     ORDER BY o.id
    ON CONFLICT (operation_id) DO NOTHING;
    GET DIAGNOSTICS restored = ROW_COUNT;
END $$;
-- +goose StatementEnd

-- Whether a recorded revision of a pointer's settings is newer than what the database has: unknown
-- (there is no such pointer), newer, or known.
-- +goose StatementBegin
CREATE FUNCTION artifactd.pointer_standing(p_name text, p_epoch bigint, p_revision bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = artifactd, pg_temp AS $$
    SELECT coalesce((
        SELECT CASE WHEN (p_epoch, p_revision) > (coalesce(r.epoch, 0), coalesce(r.revision, 0)) THEN 'newer' ELSE 'known' END
          FROM pointer p LEFT JOIN pointer_revision r USING (pointer_id) WHERE p.name = p_name), 'unknown')
$$;
-- +goose StatementEnd

-- Gives a pointer the settings of a recorded revision, unless the database has a newer one. It is
-- made when it is missing; a null epoch stands for no record at all, and the defaults. A retirement
-- clears what the pointer shows. Status: restored, known, epoch (not above the record's).
-- +goose StatementBegin
CREATE FUNCTION artifactd.restore_pointer(
    p_name text, p_epoch bigint, p_revision bigint, p_keep_versions integer, p_keep_seconds bigint, p_public boolean,
    p_labels jsonb, p_created_at timestamptz, p_retired_at timestamptz, p_retired_epoch bigint, p_retired_generation bigint,
    OUT status text
) LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
DECLARE p pointer; at timestamptz; v_made boolean;
BEGIN
    PERFORM begin_decision();
    INSERT INTO pointer (name, created_at) VALUES (p_name, coalesce(p_created_at, clock_timestamp())) ON CONFLICT (name) DO NOTHING;
    v_made := FOUND;
    SELECT * INTO STRICT p FROM pointer WHERE name = p_name FOR NO KEY UPDATE;
    PERFORM 1 FROM generation WHERE generation_id IN (p.head_id, p.current_id) ORDER BY generation_id FOR NO KEY UPDATE;

    at := clock_timestamp();
    SELECT * INTO STRICT p FROM pointer WHERE pointer_id = p.pointer_id;
    status := 'known';
    IF p_epoch IS NULL THEN
        IF v_made THEN PERFORM note_pointer(p.pointer_id, false); status := 'restored'; END IF;
        RETURN;
    END IF;
    IF pointer_standing(p_name, p_epoch, p_revision) = 'known' THEN RETURN; END IF;
    IF p_epoch >= (SELECT i.epoch FROM installation i) THEN
        -- Raised, so that the pointer just made goes again.
        RAISE EXCEPTION 'settings of pointer % were recorded in epoch % and this database is not beyond it', p_name, p_epoch
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE pointer SET keep_versions = coalesce(p_keep_versions, keep_versions), keep_seconds = coalesce(p_keep_seconds, keep_seconds),
           public = coalesce(p_public, public), labels = coalesce(p_labels, labels), retired_at = p_retired_at, updated_at = at
     WHERE pointer_id = p.pointer_id;
    IF p_retired_at IS NOT NULL AND p.retired_at IS NULL THEN
        PERFORM end_lease(p.head_id, 'broken', at);
        UPDATE generation SET displaced_at = at, collect_at = at WHERE generation_id = p.current_id;
        UPDATE pointer SET current_id = NULL, current_epoch = NULL, current_generation = NULL WHERE pointer_id = p.pointer_id;
    END IF;
    PERFORM note_pointer(p.pointer_id, false);
    UPDATE pointer_revision SET retired_epoch = p_retired_epoch, retired_generation = p_retired_generation
     WHERE pointer_id = p.pointer_id AND p_retired_epoch IS NOT NULL
       AND (retired_epoch IS NULL OR (retired_epoch, retired_generation) < (p_retired_epoch, p_retired_generation));
    status := 'restored';
END $$;
-- +goose StatementEnd

-- Gives files of a lost version their rows, so that from now on their objects are known. Status: ok;
-- known (somebody brought the version back); deleting (detail: a key that is in the deletion ledger);
-- conflict (detail: an artifact whose row says otherwise); pointer-not-found.
-- +goose StatementBegin
CREATE FUNCTION artifactd.restore_files(
    p_recovered_from uuid, p_pointer text, p_generation_id uuid, p_writable_until timestamptz,
    p_paths text[], p_artifact_ids uuid[], p_digests bytea[], p_sizes bigint[], p_media_types text[],
    OUT status text, OUT detail text
) LANGUAGE plpgsql SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE r restore; v_pointer bigint; v_prefix text;
BEGIN
    PERFORM begin_decision();
    SELECT pointer_id INTO v_pointer FROM pointer WHERE name = p_pointer;
    IF NOT FOUND THEN status := 'pointer-not-found'; RETURN; END IF;
    SELECT key_prefix INTO v_prefix FROM installation;
    INSERT INTO restore (recovered_from, generation_id, pointer_id)
    SELECT p_recovered_from, p_generation_id, v_pointer
     WHERE NOT EXISTS (SELECT 1 FROM generation g WHERE g.recovered_from = p_recovered_from)
    ON CONFLICT (recovered_from) DO NOTHING;
    SELECT * INTO r FROM restore WHERE recovered_from = p_recovered_from FOR UPDATE;
    IF NOT FOUND THEN status := 'known'; RETURN; END IF;
    -- The collector buries artifacts under their locks; those that exist stay while these are held.
    -- Then the ledger: what is in it goes, and nobody can add to it before this has committed.
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (p_artifact_ids) ORDER BY artifact_id FOR NO KEY UPDATE;
    LOCK TABLE deletion IN SHARE MODE;

    SELECT d.object_key INTO detail FROM unnest(p_artifact_ids, p_digests) f (id, digest)
      JOIN deletion d ON d.object_key = (v_prefix || 'artifacts/' || encode(f.digest, 'hex') || '/' || f.id) COLLATE "C" LIMIT 1;
    IF FOUND THEN status := 'deleting'; RETURN; END IF;
    SELECT a.artifact_id::text INTO detail FROM unnest(p_artifact_ids, p_digests, p_sizes) f (id, digest, size)
      JOIN artifact a ON a.artifact_id = f.id WHERE a.digest <> f.digest OR a.size <> f.size LIMIT 1;
    IF FOUND THEN status := 'conflict'; RETURN; END IF;
    INSERT INTO artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, writable_until)
    SELECT DISTINCT ON (f.id) f.id, v_pointer, r.generation_id, f.digest, f.size, f.media_type, p_writable_until
      FROM unnest(p_artifact_ids, p_digests, p_sizes, p_media_types) f (id, digest, size, media_type)
     ORDER BY f.id
    ON CONFLICT (artifact_id) DO NOTHING;
    INSERT INTO manifest_file (manifest_id, path, artifact_id, media_type)
    SELECT r.generation_id, f.path, f.id, f.media_type FROM unnest(p_paths, p_artifact_ids, p_media_types) f (path, id, media_type)
    ON CONFLICT (manifest_id, path) DO NOTHING;
    status := 'ok';
END $$;
-- +goose StatementEnd

-- Records that the objects of these artifacts were proved to be there after they had their rows.
-- +goose StatementBegin
CREATE FUNCTION artifactd.restore_proved(p_artifact_ids uuid[], p_verified text[]) RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM begin_decision();
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (p_artifact_ids) ORDER BY artifact_id FOR NO KEY UPDATE;
    UPDATE artifact a SET stored_at = coalesce(a.stored_at, clock_timestamp()), verified = coalesce(a.verified, f.verified),
           upload_id = NULL, missing_at = NULL
      FROM unnest(p_artifact_ids, p_verified) f (id, verified) WHERE a.artifact_id = f.id
       AND (a.stored_at IS NULL OR a.missing_at IS NOT NULL);
END $$;
-- +goose StatementEnd

-- Gives up bringing a version back, an object of which is not there: its rows go, and the objects that
-- are there are unknown again, which does not delete them.
-- +goose StatementBegin
CREATE FUNCTION artifactd.drop_restore(p_recovered_from uuid) RETURNS void
LANGUAGE plpgsql SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE r restore; v_ids uuid[];
BEGIN
    PERFORM begin_decision();
    SELECT * INTO r FROM restore WHERE recovered_from = p_recovered_from FOR UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT array_agg(DISTINCT artifact_id) INTO v_ids FROM manifest_file WHERE manifest_id = r.generation_id;
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (v_ids) ORDER BY artifact_id FOR UPDATE;
    DELETE FROM manifest_file WHERE manifest_id = r.generation_id;
    DELETE FROM artifact a WHERE a.artifact_id = ANY (v_ids) AND a.generation_id = r.generation_id
       AND NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id);
    DELETE FROM restore WHERE recovered_from = p_recovered_from;
END $$;
-- +goose StatementEnd

-- Brings a lost version back as its pointer's next generation, all of whose files have been proved.
-- Status: restored (token and whether it is shown in epoch, generation and shown), known, lease-held
-- (detail: by whom), settled (detail: what its operation was answered since), epoch (the database is
-- not beyond the record's), incomplete, pointer-not-found.
--
-- It is shown when it is newer than what the pointer shows, in the order in which the tokens were
-- issued, and nobody has retired the pointer since; otherwise it is history.
-- +goose StatementBegin
CREATE FUNCTION artifactd.finish_restore(
    p_recovered_from uuid, p_pointer text, p_record_epoch bigint, p_epoch bigint, p_generation bigint,
    p_operation_id uuid, p_rollback boolean, p_rollback_of uuid, p_published_at timestamptz, p_holder text, p_source_revision bigint,
    p_metadata text, p_manifest_digest bytea, p_file_count integer, p_pinned boolean, p_record_key text,
    OUT status text, OUT detail text, OUT epoch bigint, OUT generation bigint, OUT shown boolean
) LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE p pointer; h generation; c generation; r restore; f record; o record; q pointer_revision; at timestamptz; v_epoch bigint;
BEGIN
    PERFORM begin_decision();
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.name = p_pointer FOR NO KEY UPDATE;
    IF NOT FOUND THEN status := 'pointer-not-found'; RETURN; END IF;
    SELECT r2.* INTO r FROM restore r2 WHERE r2.recovered_from = p_recovered_from FOR UPDATE;
    IF NOT FOUND THEN
        status := CASE WHEN EXISTS (SELECT 1 FROM known_versions(ARRAY[p_recovered_from])) THEN 'known' ELSE 'incomplete' END;
        RETURN;
    END IF;
    -- Holds the operation's id until this is decided; the generation will remember it.
    INSERT INTO operation (operation_id, kind, pointers, generation_ids)
    VALUES (p_operation_id, 'publish', ARRAY[p.name], ARRAY[r.generation_id]) ON CONFLICT (operation_id) DO NOTHING;
    IF NOT FOUND THEN
        SELECT o2.outcome INTO detail FROM operation o2 WHERE o2.operation_id = p_operation_id;
        status := 'settled'; RETURN;
    END IF;
    PERFORM 1 FROM generation g2 WHERE g2.generation_id IN (p.head_id, p.current_id) ORDER BY g2.generation_id FOR NO KEY UPDATE;
    SELECT * INTO f FROM manifest_facts(r.generation_id);

    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    SELECT p2.* INTO p FROM pointer p2 WHERE p2.pointer_id = p.pointer_id;
    SELECT g2.* INTO h FROM generation g2 WHERE g2.generation_id = p.head_id;
    SELECT g2.* INTO c FROM generation g2 WHERE g2.generation_id = p.current_id;
    SELECT q2.* INTO q FROM pointer_revision q2 WHERE q2.pointer_id = p.pointer_id;
    IF EXISTS (SELECT 1 FROM generation g2 WHERE g2.publish_operation_id = p_operation_id
                AND (g2.recovered_from IS NULL OR g2.pointer_id = p.pointer_id)) THEN
        status := 'settled'; detail := 'published';
    ELSIF v_epoch <= p_record_epoch THEN
        status := 'epoch';
    ELSIF p.retired_at IS NULL AND h.state = 'leased' AND h.epoch = v_epoch AND p.lease_expires_at > at THEN
        status := 'lease-held'; detail := h.holder;
    ELSIF f.files <> p_file_count OR f.not_stored > 0 OR f.digest IS DISTINCT FROM p_manifest_digest THEN
        status := 'incomplete';
    END IF;
    DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id;
    IF status IS NOT NULL THEN RETURN; END IF;

    shown := p.retired_at IS NULL
         AND (q.retired_epoch IS NULL OR (p_epoch, p_generation) > (q.retired_epoch, q.retired_generation))
         AND (c.generation_id IS NULL OR (p_epoch, p_generation) > (SELECT s.epoch, s.generation FROM shown_order(c) s));
    epoch := v_epoch; generation := p.generation + 1;
    PERFORM end_lease(p.head_id, 'superseded', at);
    INSERT INTO generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at, ended_at,
        manifest_id, file_count, total_bytes, manifest_digest, sealed_at, published_at, publish_operation_id, source_revision,
        metadata, rollback_of, recovered_from, recovered_epoch, recovered_generation, displaced_at, collect_at, pinned)
    VALUES (r.generation_id, p.pointer_id, epoch, generation, 'published', p_holder, 0, at, at,
        r.generation_id, f.files, f.bytes, f.digest, at, p_published_at, p_operation_id, p_source_revision,
        p_metadata::jsonb, CASE WHEN p_rollback THEN coalesce((
            SELECT g2.generation_id FROM generation g2 WHERE g2.pointer_id = p.pointer_id
               AND (g2.generation_id = p_rollback_of OR g2.recovered_from = p_rollback_of)), p_rollback_of) END,
        p_recovered_from, p_epoch, p_generation, CASE WHEN NOT shown THEN at END, CASE WHEN NOT shown THEN at END, p_pinned);
    -- An artifact belongs to the version that was prepared first, which may have come to nothing.
    UPDATE artifact a SET generation_id = r.generation_id FROM manifest_file m
     WHERE m.manifest_id = r.generation_id AND a.artifact_id = m.artifact_id AND a.generation_id <> r.generation_id
       AND NOT EXISTS (SELECT 1 FROM generation g2 WHERE g2.generation_id = a.generation_id);
    UPDATE pointer p2 SET epoch = v_epoch, generation = p.generation + 1, head_id = r.generation_id, lease_expires_at = NULL,
           highest_revision = greatest(p2.highest_revision, p_source_revision)
     WHERE p2.pointer_id = p.pointer_id;
    IF shown THEN
        PERFORM flip(p.pointer_id, r.generation_id, at, p_source_revision);
    ELSE
        INSERT INTO outbox (record_id, kind, pointer_id) VALUES (r.generation_id, 'version', p.pointer_id);
    END IF;
    -- The new generation's record makes the lost one's superfluous.
    UPDATE outbox SET replaces = p_record_key WHERE record_id = r.generation_id;
    DELETE FROM restore r2 WHERE r2.recovered_from = p_recovered_from;
    IF p_pinned THEN PERFORM note_pointer(p.pointer_id, false); END IF;
    PERFORM count_decision();
    status := 'restored';
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.finish_restore, artifactd.drop_restore, artifactd.restore_proved, artifactd.restore_files, artifactd.restore_pointer,
    artifactd.pointer_standing, artifactd.restore_aborted, artifactd.adopt_installation, artifactd.shown_order, artifactd.known_versions;
DROP TABLE artifactd.restore;
