-- +goose Up
-- Credentials of callers, the installation's own facts, and what keeps even the owner's scripts
-- from breaking the fence by accident.

-- Fixes the key prefix at the first start; answers the one in force.
-- +goose StatementBegin
CREATE FUNCTION artifactd.claim_key_prefix(p_prefix text, OUT key_prefix text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
BEGIN
    UPDATE installation i SET key_prefix = p_prefix WHERE i.key_prefix IS NULL;
    SELECT i.key_prefix INTO key_prefix FROM installation i;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION artifactd.create_access_token(
    p_id uuid, p_secret_hash bytea, p_name text, p_scopes text[], p_patterns text[], p_expires_at timestamptz
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    INSERT INTO access_token (access_token_id, secret_hash, name, scopes, patterns, expires_at)
    VALUES (p_id, p_secret_hash, p_name, p_scopes, p_patterns, p_expires_at);
    -- Tokens are made in the database itself, so that its log is where all such acts are found.
    RAISE LOG 'artifactd audit: access token % (%) with scopes % on % was created by role % from %',
        p_id, quote_literal(p_name), p_scopes, p_patterns, session_user, coalesce(inet_client_addr()::text, 'a local socket');
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION artifactd.revoke_access_token(p_id uuid, OUT known boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    UPDATE access_token SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE access_token_id = p_id;
    known := FOUND;
    IF known THEN
        PERFORM count_decision();  -- a history that lost it would let the token in again
        RAISE LOG 'artifactd audit: access token % was revoked by role % from %',
            p_id, session_user, coalesce(inet_client_addr()::text, 'a local socket');
    END IF;
END $$;
-- +goose StatementEnd

-- Who holds this secret, if it is valid. Notes the use at most once a minute. A secret that is
-- nobody's costs one look into an index: most of those who ask in bulk are guessing.
-- +goose StatementBegin
CREATE FUNCTION artifactd.authenticate(p_secret_hash bytea, OUT id uuid, OUT name text, OUT scopes text[], OUT patterns text[])
RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE v_used timestamptz;
BEGIN
    SELECT t.access_token_id, t.name, t.scopes, t.patterns, t.last_used_at INTO id, name, scopes, patterns, v_used
      FROM access_token t
     WHERE t.secret_hash = p_secret_hash AND t.revoked_at IS NULL
       AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_used IS NULL OR v_used < clock_timestamp() - interval '1 minute' THEN
        UPDATE access_token t SET last_used_at = clock_timestamp() WHERE t.secret_hash = p_secret_hash;
    END IF;
    RETURN NEXT;
END $$;
-- +goose StatementEnd

-- A token only ever increases, a pointer's row never goes, and nothing is shown that was not
-- installed: whoever writes, the owner's scripts included.
-- +goose StatementBegin
CREATE FUNCTION artifactd.guard_pointer() RETURNS trigger
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'rows of artifactd.% are never deleted', TG_TABLE_NAME
            USING HINT = 'Retire the pointer instead; its numbers must go on.';
    END IF;
    IF NEW.keep_versions < 0 OR NEW.keep_seconds < 0 THEN
        RAISE EXCEPTION 'pointer % cannot keep % versions and % seconds', NEW.name, NEW.keep_versions, NEW.keep_seconds
            USING ERRCODE = 'check_violation';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.generation <> 0 OR NEW.epoch <> 0 OR NEW.current_id IS NOT NULL THEN
            RAISE EXCEPTION 'a new pointer starts at generation 0 and shows nothing';
        END IF;
        IF NEW.name !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$' THEN
            RAISE EXCEPTION 'pointer name % has another form than [A-Za-z0-9][A-Za-z0-9._-]{0,199}', NEW.name
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF NEW.pointer_id <> OLD.pointer_id OR NEW.name <> OLD.name THEN
        RAISE EXCEPTION 'a pointer cannot be renamed: its tokens belong to its name';
    END IF;
    IF (NEW.epoch, NEW.generation) < (OLD.epoch, OLD.generation) THEN
        RAISE EXCEPTION 'token of pointer % cannot go back from %.% to %.%',
            OLD.name, OLD.epoch, OLD.generation, NEW.epoch, NEW.generation;
    END IF;
    -- A query stands in an IF of its own: AND does not keep Postgres from starting it.
    IF NEW.current_id IS DISTINCT FROM OLD.current_id AND NEW.current_id IS NOT NULL THEN
        IF NEW.current_id IS DISTINCT FROM NEW.head_id
            OR (NEW.current_epoch, NEW.current_generation) IS DISTINCT FROM (NEW.epoch, NEW.generation)
            OR NOT EXISTS (SELECT 1 FROM generation WHERE generation_id = NEW.current_id AND state = 'published') THEN
            RAISE EXCEPTION 'pointer % can only show its newest generation %.%, once that is published',
                OLD.name, NEW.epoch, NEW.generation;
        END IF;
    END IF;
    IF NEW.current_id IS NOT DISTINCT FROM OLD.current_id AND
       (NEW.current_epoch, NEW.current_generation) IS DISTINCT FROM (OLD.current_epoch, OLD.current_generation) THEN
        RAISE EXCEPTION 'pointer %: the shown token belongs to the shown generation', OLD.name;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON artifactd.pointer
    FOR EACH ROW EXECUTE FUNCTION artifactd.guard_pointer();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON artifactd.pointer
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_pointer();

-- A generation is installed as its pointer's next one and of the current epoch; its identity never
-- changes; it is published while its lease lives, or never; an ended one never lives again, and a
-- published one keeps what it published.
-- +goose StatementBegin
CREATE FUNCTION artifactd.guard_generation() RETURNS trigger
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'rows of artifactd.% are never deleted', TG_TABLE_NAME
            USING HINT = 'They are the history, and remember which operation published what.';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NOT EXISTS (SELECT 1 FROM pointer p, installation i WHERE p.pointer_id = NEW.pointer_id
                AND NEW.generation = p.generation + 1 AND NEW.epoch = i.epoch AND NEW.epoch >= p.epoch)
           OR NOT (NEW.state = 'leased' OR (NEW.state = 'published'
                   AND (NEW.rollback_of IS NOT NULL OR NEW.recovered_from IS NOT NULL))) THEN
            RAISE EXCEPTION 'generation %.% is not the next one of its pointer', NEW.epoch, NEW.generation;
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.generation_id, NEW.pointer_id, NEW.epoch, NEW.generation, NEW.manifest_id)
       <> (OLD.generation_id, OLD.pointer_id, OLD.epoch, OLD.generation, OLD.manifest_id) THEN
        RAISE EXCEPTION 'the identity of a generation cannot change';
    END IF;
    IF OLD.state <> 'leased' AND NEW.state <> OLD.state THEN
        RAISE EXCEPTION 'generation %.% has ended as %: nothing revives it', OLD.epoch, OLD.generation, OLD.state;
    END IF;
    -- Queries stand in an IF of their own: AND does not keep Postgres from starting them.
    IF OLD.state = 'leased' AND NEW.state = 'published' THEN
        IF NOT EXISTS (
            SELECT 1 FROM pointer p, installation i WHERE p.head_id = OLD.generation_id AND p.pointer_id = OLD.pointer_id
               AND p.lease_expires_at > NEW.published_at AND p.retired_at IS NULL AND i.epoch = OLD.epoch) THEN
            RAISE EXCEPTION 'the lease of generation %.% does not live: it cannot publish', OLD.epoch, OLD.generation;
        END IF;
    END IF;
    IF OLD.state = 'published' AND (NEW.manifest_digest, NEW.file_count, NEW.published_at, NEW.publish_operation_id)
       IS DISTINCT FROM (OLD.manifest_digest, OLD.file_count, OLD.published_at, OLD.publish_operation_id) THEN
        RAISE EXCEPTION 'version %.% is published and cannot change', OLD.epoch, OLD.generation;
    END IF;
    IF OLD.collecting_at IS NOT NULL AND NEW.collecting_at IS NULL THEN
        RAISE EXCEPTION 'generation %.% is being collected and cannot come back', OLD.epoch, OLD.generation;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON artifactd.generation
    FOR EACH ROW EXECUTE FUNCTION artifactd.guard_generation();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON artifactd.generation
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_generation();

-- The installation keeps its identity and its key prefix; its epoch only rises, after every
-- decision of the old one is over.
-- +goose StatementBegin
CREATE FUNCTION artifactd.guard_installation() RETURNS trigger
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'the row of artifactd.installation is never deleted';
    END IF;
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'the epoch cannot go back from % to %', OLD.epoch, NEW.epoch
            USING HINT = 'Leases of an old history would live again.';
    END IF;
    IF NEW.installation_id <> OLD.installation_id AND EXISTS (SELECT 1 FROM pointer) THEN
        RAISE EXCEPTION 'the installation id cannot change';
    END IF;
    IF OLD.key_prefix IS NOT NULL AND NEW.key_prefix IS DISTINCT FROM OLD.key_prefix THEN
        RAISE EXCEPTION 'the key prefix cannot change: objects lie under %', OLD.key_prefix;
    END IF;
    IF NEW.epoch > OLD.epoch THEN
        LOCK TABLE installation IN ACCESS EXCLUSIVE MODE;  -- see begin_decision
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON artifactd.installation
    FOR EACH ROW EXECUTE FUNCTION artifactd.guard_installation();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON artifactd.installation
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_installation();

-- A recorded outcome never changes, and is kept 30 days at least. (Within the transaction that
-- wrote it, a record may be taken back: nobody has been told.)
-- +goose StatementBegin
CREATE FUNCTION artifactd.guard_operation() RETURNS trigger
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'outcomes are never deleted together';
    END IF;
    IF TG_OP = 'DELETE' THEN
        IF OLD.recorded_at < now() AND OLD.recorded_at > clock_timestamp() - interval '30 days' THEN
            RAISE EXCEPTION 'the outcome of operation % is kept for 30 days', OLD.operation_id;
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.outcome IS NOT NULL AND (NEW.operation_id, NEW.kind, NEW.outcome, NEW.answer, NEW.request_digest)
       IS DISTINCT FROM (OLD.operation_id, OLD.kind, OLD.outcome, OLD.answer, OLD.request_digest) THEN
        RAISE EXCEPTION 'operation % has the outcome %: nothing changes it', OLD.operation_id, OLD.outcome;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON artifactd.operation
    FOR EACH ROW EXECUTE FUNCTION artifactd.guard_operation();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON artifactd.operation
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_operation();

-- The files of a version stay while it can be read. Checked by the statement, not by the row:
-- manifests are large.
-- +goose StatementBegin
CREATE FUNCTION artifactd.guard_files() RETURNS trigger
LANGUAGE plpgsql SET search_path = artifactd, pg_temp SET enable_seqscan = off AS $$
DECLARE v_manifest uuid;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'rows of artifactd.% are deleted by the collector only', TG_TABLE_NAME;
    END IF;
    SELECT g.manifest_id INTO v_manifest
      FROM (SELECT DISTINCT manifest_id FROM changed) c
      JOIN generation g ON g.generation_id = c.manifest_id OR (g.manifest_id = c.manifest_id AND g.manifest_id <> g.generation_id)
     WHERE g.state = 'published' AND g.collecting_at IS NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the files of manifest % are published and cannot change', v_manifest;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard_delete AFTER DELETE ON artifactd.manifest_file
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_files();
CREATE TRIGGER guard_update AFTER UPDATE ON artifactd.manifest_file
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_files();
CREATE TRIGGER guard_insert AFTER INSERT ON artifactd.manifest_file
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_files();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON artifactd.manifest_file
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_files();
-- An artifact's bytes are what they were declared to be, and once proved stay proved.
-- +goose StatementBegin
CREATE FUNCTION artifactd.guard_artifact() RETURNS trigger
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF (NEW.artifact_id, NEW.pointer_id, NEW.digest, NEW.size) <> (OLD.artifact_id, OLD.pointer_id, OLD.digest, OLD.size)
       OR (OLD.stored_at IS NOT NULL AND NEW.stored_at IS NULL) THEN
        RAISE EXCEPTION 'artifact % is immutable', OLD.artifact_id;
    END IF;
    -- Only what came back from the bucket can be without its generation, for a while.
    IF NEW.generation_id <> OLD.generation_id THEN
        IF EXISTS (SELECT 1 FROM generation g WHERE g.generation_id = OLD.generation_id) THEN
            RAISE EXCEPTION 'artifact % is immutable', OLD.artifact_id;
        END IF;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard BEFORE UPDATE ON artifactd.artifact
    FOR EACH ROW EXECUTE FUNCTION artifactd.guard_artifact();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON artifactd.artifact
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_files();

-- +goose Down
DROP TRIGGER guard ON artifactd.pointer;
DROP TRIGGER guard_truncate ON artifactd.pointer;
DROP TRIGGER guard ON artifactd.generation;
DROP TRIGGER guard_truncate ON artifactd.generation;
DROP TRIGGER guard ON artifactd.installation;
DROP TRIGGER guard_truncate ON artifactd.installation;
DROP TRIGGER guard ON artifactd.operation;
DROP TRIGGER guard_truncate ON artifactd.operation;
DROP TRIGGER guard_delete ON artifactd.manifest_file;
DROP TRIGGER guard_update ON artifactd.manifest_file;
DROP TRIGGER guard_insert ON artifactd.manifest_file;
DROP TRIGGER guard ON artifactd.artifact;
DROP TRIGGER guard_truncate ON artifactd.manifest_file;
DROP TRIGGER guard_truncate ON artifactd.artifact;
DROP FUNCTION artifactd.guard_artifact, artifactd.guard_files, artifactd.guard_operation, artifactd.guard_installation,
    artifactd.guard_generation, artifactd.guard_pointer, artifactd.authenticate,
    artifactd.revoke_access_token, artifactd.create_access_token, artifactd.claim_key_prefix;
