-- +goose Up
-- Reconciliation of the bucket with the catalogue, and what verification finds. An object that
-- nobody knows is written down when it is first seen. It moves to the deletion ledger only in a
-- later pass that saw it again, once it is older than the grace by this database's clock, and
-- after everything was looked at once more: nothing is decided by what a listing said alone.

-- One walk over the whole bucket.
CREATE TABLE artifactd.reconcile_pass (
    pass_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at    timestamptz NOT NULL,
    grace_seconds double precision NOT NULL CHECK (grace_seconds >= 0),
    max_share     double precision NOT NULL CHECK (max_share BETWEEN 0 AND 1),
    dry_run       boolean NOT NULL,
    lease_seconds double precision NOT NULL CHECK (lease_seconds > 0),
    live_until    timestamptz NOT NULL,  -- renewed by every step; after it another pass may take over
    ended_at      timestamptz,
    outcome       text,    -- done, share-limit, failed, or lost to a pass that took over
    listed        bigint,  -- objects and uploads in the bucket; null until the listing was complete
    allowed       bigint,  -- how many of them this pass may condemn
    condemned     bigint NOT NULL DEFAULT 0
);
-- One at a time, whoever runs it.
CREATE UNIQUE INDEX reconcile_pass_only ON artifactd.reconcile_pass ((true)) WHERE ended_at IS NULL;

-- Objects, and multipart uploads (which have an upload id), that no row knows.
CREATE TABLE artifactd.orphan (
    object_key    text COLLATE "C" NOT NULL,
    upload_id     text COLLATE "C" NOT NULL,  -- empty for an object
    size          bigint NOT NULL,
    first_seen_at timestamptz NOT NULL,
    last_seen_at  timestamptz NOT NULL,
    quarantine    text,  -- why it is not deleted although it is due
    PRIMARY KEY (object_key, upload_id)
);

-- Which of these keys, by their place from 1, neither the catalogue nor the deletion ledger knows.
-- One statement: a key that moves from one to the other meanwhile is in one of them.
-- +goose StatementBegin
CREATE FUNCTION artifactd.unknown_keys(p_keys text[], p_upload_ids text[]) RETURNS TABLE (place integer, object_key text, upload_id text)
LANGUAGE sql STABLE SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT k.place::integer, k.object_key, k.upload_id
      FROM unnest(p_keys, p_upload_ids) WITH ORDINALITY k (object_key, upload_id, place) CROSS JOIN installation i
     WHERE NOT EXISTS (
           SELECT 1 FROM artifact a WHERE a.artifact_id = right(k.object_key, 36)::uuid
              AND k.object_key = i.key_prefix || 'artifacts/' || encode(a.digest, 'hex') || '/' || a.artifact_id
              AND (k.upload_id = '' OR a.upload_id = k.upload_id))
       AND NOT EXISTS (
           SELECT 1 FROM deletion d WHERE d.object_key = k.object_key COLLATE "C"
              AND (k.upload_id = '' OR d.upload_id = k.upload_id))
$$;
-- +goose StatementEnd

-- Whether a pass may condemn an orphan: it was first seen before the pass began, the pass saw it
-- again, and the grace is over.
-- +goose StatementBegin
CREATE FUNCTION artifactd.orphan_due(o artifactd.orphan, v artifactd.reconcile_pass, at timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT o.first_seen_at < v.started_at
       AND o.last_seen_at >= v.started_at
       AND o.first_seen_at + make_interval(secs => v.grace_seconds) <= at
$$;
-- +goose StatementEnd

-- Begins a pass, unless another is alive; one whose lease has run out is taken over, and can do
-- nothing any more. With p_every, only when so long has passed since the last one began, or an hour
-- since one that failed: replicas share one schedule. Status: begun, running (another pass, alive
-- until then), not-due (before then).
-- +goose StatementBegin
CREATE FUNCTION artifactd.begin_reconcile(
    p_prefix text, p_grace double precision, p_max_share double precision, p_dry_run boolean, p_lease double precision, p_every double precision,
    OUT status text, OUT pass_id bigint, OUT until timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE v_prefix text; v reconcile_pass; at timestamptz;
BEGIN
    PERFORM begin_collection();
    PERFORM check_grace(p_grace);
    SELECT i.key_prefix INTO v_prefix FROM installation i;
    IF v_prefix IS DISTINCT FROM p_prefix THEN
        RAISE EXCEPTION 'this installation''s objects lie under the prefix "%", not "%"', coalesce(v_prefix, '(none yet)'), p_prefix
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give --s3-prefix the value that the service has.';
    END IF;
    -- One at a time: else a whole pass of somebody else could begin and end between the look at what
    -- is due and the row of this one.
    PERFORM pg_advisory_xact_lock(hashtextextended('artifactd reconcile', 0));
    SELECT * INTO v FROM reconcile_pass r WHERE r.ended_at IS NULL FOR UPDATE;
    at := clock_timestamp();
    IF v.live_until > at THEN
        status := 'running'; until := v.live_until; RETURN;
    END IF;
    UPDATE reconcile_pass r SET ended_at = at, outcome = 'lost' WHERE r.pass_id = v.pass_id;
    SELECT * INTO v FROM reconcile_pass r WHERE NOT r.dry_run ORDER BY r.pass_id DESC LIMIT 1;
    until := v.started_at + make_interval(secs => CASE WHEN v.outcome IN ('done', 'share-limit') THEN p_every ELSE least(p_every, 3600) END);
    IF p_every IS NOT NULL AND until > at THEN
        status := 'not-due'; RETURN;
    END IF;
    DELETE FROM reconcile_pass r WHERE r.started_at < at - interval '40 days' AND r.ended_at IS NOT NULL;
    INSERT INTO reconcile_pass AS r (started_at, grace_seconds, max_share, dry_run, lease_seconds, live_until)
    VALUES (at, p_grace, p_max_share, p_dry_run, p_lease, at + make_interval(secs => p_lease))
    ON CONFLICT DO NOTHING RETURNING r.pass_id, r.live_until INTO pass_id, until;
    status := CASE WHEN pass_id IS NULL THEN 'running' ELSE 'begun' END;  -- another was a moment faster
END $$;
-- +goose StatementEnd

-- Every step of a pass holds its row, renews its lease, and fails when another pass has taken over.
-- +goose StatementBegin
CREATE FUNCTION artifactd.hold_pass(p_pass_id bigint) RETURNS artifactd.reconcile_pass
LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
DECLARE v reconcile_pass;
BEGIN
    PERFORM 1 FROM reconcile_pass WHERE pass_id = p_pass_id FOR UPDATE;
    UPDATE reconcile_pass SET live_until = clock_timestamp() + make_interval(secs => lease_seconds)
     WHERE pass_id = p_pass_id AND ended_at IS NULL RETURNING * INTO v;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'reconcile pass % has ended or was taken over', p_pass_id USING ERRCODE = 'AD003';
    END IF;
    RETURN v;
END $$;
-- +goose StatementEnd

-- Renews the lease of a pass that is busy elsewhere.
-- +goose StatementBegin
CREATE FUNCTION artifactd.keep_pass(p_pass_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    PERFORM hold_pass(p_pass_id);
END $$;
-- +goose StatementEnd

-- Ends a pass. One that was taken over has ended already.
-- +goose StatementBegin
CREATE FUNCTION artifactd.end_reconcile(p_pass_id bigint, p_outcome text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    UPDATE reconcile_pass SET ended_at = clock_timestamp(), outcome = p_outcome WHERE pass_id = p_pass_id AND ended_at IS NULL;
END $$;
-- +goose StatementEnd

-- Writes down which of the listed keys nobody knows; answers how many. The keys must have the
-- form of this installation's artifacts.
-- +goose StatementBegin
CREATE FUNCTION artifactd.note_unknown(p_pass_id bigint, p_keys text[], p_upload_ids text[], p_sizes bigint[], OUT unknown integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE v_prefix text; v_odd text;
BEGIN
    PERFORM begin_decision();
    PERFORM hold_pass(p_pass_id);
    SELECT i.key_prefix || 'artifacts/' INTO v_prefix FROM installation i;
    SELECT k INTO v_odd FROM unnest(p_keys) k
     WHERE NOT starts_with(k, v_prefix)
        OR substr(k, length(v_prefix) + 1) !~ '^[0-9a-f]{64}/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '"%" is no artifact''s key of this installation', v_odd USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO orphan (object_key, upload_id, size, first_seen_at, last_seen_at)
    SELECT u.object_key, u.upload_id, p_sizes[u.place], clock_timestamp(), clock_timestamp()
      FROM unknown_keys(p_keys, p_upload_ids) u
     ORDER BY u.object_key COLLATE "C", u.upload_id COLLATE "C"
    ON CONFLICT (object_key, upload_id) DO UPDATE SET last_seen_at = clock_timestamp(), size = excluded.size;
    GET DIAGNOSTICS unknown = ROW_COUNT;
END $$;
-- +goose StatementEnd

-- The listing came to its end. Orphans that it did not show are gone. Answers how many are due
-- and how many the pass may condemn: when there are more it condemns none, for then it is likelier
-- that the database lacks rows than that the bucket has so much that nobody knows.
-- +goose StatementBegin
CREATE FUNCTION artifactd.end_listing(p_pass_id bigint, p_listed bigint, OUT due bigint, OUT limit_of_pass bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE v reconcile_pass;
BEGIN
    PERFORM begin_collection();
    v := hold_pass(p_pass_id);
    DELETE FROM orphan WHERE (object_key, upload_id) IN (
        SELECT o.object_key, o.upload_id FROM orphan o WHERE o.last_seen_at < v.started_at
         ORDER BY o.object_key, o.upload_id FOR UPDATE SKIP LOCKED);
    SELECT count(*) INTO due FROM orphan o WHERE orphan_due(o, v, clock_timestamp()) AND o.quarantine IS NULL;
    limit_of_pass := ceil(v.max_share::numeric * p_listed);
    UPDATE reconcile_pass SET listed = p_listed, allowed = CASE WHEN due <= limit_of_pass THEN limit_of_pass ELSE 0 END
     WHERE pass_id = p_pass_id;
END $$;
-- +goose StatementEnd

-- The next orphans that are due in a pass, by key.
-- +goose StatementBegin
CREATE FUNCTION artifactd.due_orphans(p_pass_id bigint, p_after_key text, p_after_upload_id text, p_limit integer)
RETURNS TABLE (object_key text, upload_id text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    SELECT o.object_key, o.upload_id FROM orphan o, reconcile_pass v
     WHERE v.pass_id = p_pass_id AND (o.object_key, o.upload_id) > (p_after_key, p_after_upload_id)
       AND orphan_due(o, v, clock_timestamp())
     ORDER BY o.object_key, o.upload_id LIMIT p_limit
$$;
-- +goose StatementEnd

-- Why an object with this metadata comes from a history that this database does not know, or null.
-- Generations are never deleted, so one of the current epoch without a row was never issued here.
-- One of an epoch before that may have been lost when the next one was raised: it is garbage like any
-- other, once collection has been resumed.
-- +goose StatementBegin
CREATE FUNCTION artifactd.orphan_history(p_pointer text, p_token text, p_epoch bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = artifactd, pg_temp AS $$
BEGIN
    IF p_token = '' THEN RETURN NULL; END IF;
    IF p_token !~ '^[0-9]{1,18}\.[0-9]{1,18}$' THEN RETURN 'unreadable token'; END IF;
    IF split_part(p_token, '.', 1)::bigint > p_epoch THEN RETURN 'unknown epoch'; END IF;
    IF p_pointer <> '' AND split_part(p_token, '.', 1)::bigint = p_epoch AND NOT EXISTS (
        SELECT 1 FROM pointer p JOIN generation g ON g.pointer_id = p.pointer_id
         WHERE p.name = p_pointer AND g.epoch = split_part(p_token, '.', 1)::bigint
           AND g.generation = split_part(p_token, '.', 2)::bigint) THEN
        RETURN 'unknown generation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- Decides what becomes of orphans, with everything looked at once more: 'ledger' moved to the
-- deletion ledger, 'abort' the caller aborts the upload and then says so, 'quarantined' written by
-- a history that this database does not know, 'known' somebody knows it by now, 'refused' beyond
-- what the pass may condemn, 'later' not due. Pointers and tokens are the objects' own metadata,
-- empty where there is none.
--
-- A row for the key of an object that exists cannot be on its way: rows are committed before
-- anybody learns the key, and no key is used twice.
-- +goose StatementBegin
CREATE FUNCTION artifactd.condemn_orphans(p_pass_id bigint, p_keys text[], p_upload_ids text[], p_pointers text[], p_tokens text[])
RETURNS TABLE (object_key text, upload_id text, fate text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE v reconcile_pass; v_epoch bigint; v_unknown integer[]; at timestamptz;
BEGIN
    PERFORM begin_collection();
    -- Before the facts: a version that is brought back from the bucket (restore_files) gets its rows
    -- either before this looks, or after the ledger says what goes.
    LOCK TABLE deletion IN ROW EXCLUSIVE MODE;
    v := hold_pass(p_pass_id);
    IF v.listed IS NULL THEN
        RAISE EXCEPTION 'the listing of reconcile pass % is not complete: it cannot condemn anything', p_pass_id;
    END IF;
    PERFORM 1 FROM unnest(p_keys, p_upload_ids) k (object_key, upload_id) JOIN orphan o
        ON o.object_key = k.object_key COLLATE "C" AND o.upload_id = k.upload_id COLLATE "C"
     ORDER BY o.object_key, o.upload_id FOR UPDATE OF o;
    SELECT clock_timestamp(), epoch INTO at, v_epoch FROM installation;
    v_unknown := ARRAY(SELECT u.place FROM unknown_keys(p_keys, p_upload_ids) u);
    RETURN QUERY
    WITH judged AS (
        SELECT o.object_key, o.upload_id, o.size,
               orphan_history(k.pointer, k.token, v_epoch) AS reason,
               CASE WHEN NOT orphan_due(o, v, at) THEN 'later'
                    WHEN k.place <> ALL (v_unknown) THEN 'known'
                    WHEN orphan_history(k.pointer, k.token, v_epoch) IS NOT NULL THEN 'quarantined' END AS fate
          FROM unnest(p_keys, p_upload_ids, p_pointers, p_tokens) WITH ORDINALITY k (object_key, upload_id, pointer, token, place)
          JOIN orphan o ON o.object_key = k.object_key COLLATE "C" AND o.upload_id = k.upload_id COLLATE "C"
    ), decided AS MATERIALIZED (
        SELECT j.object_key, j.upload_id, j.size, j.reason, CASE
                   WHEN j.fate IS NOT NULL THEN j.fate
                   WHEN v.condemned + row_number() OVER (PARTITION BY j.fate IS NULL) > v.allowed THEN 'refused'
                   WHEN j.upload_id = '' THEN 'ledger' ELSE 'abort' END AS fate
          FROM judged j
    ), buried AS (
        INSERT INTO deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
        SELECT d.object_key, d.size, 'unknown', true, at, at, at FROM decided d WHERE d.fate = 'ledger'
    ), settled AS (
        DELETE FROM orphan o USING decided d
         WHERE o.object_key = d.object_key AND o.upload_id = d.upload_id AND d.fate IN ('ledger', 'known')
    ), kept AS (
        UPDATE orphan o SET quarantine = d.reason FROM decided d
         WHERE o.object_key = d.object_key AND o.upload_id = d.upload_id AND d.fate = 'quarantined'
    ), spent AS (
        UPDATE reconcile_pass SET condemned = condemned + (SELECT count(*) FROM decided d WHERE d.fate IN ('ledger', 'abort'))
         WHERE pass_id = p_pass_id
    )
    SELECT d.object_key, d.upload_id, d.fate FROM decided d;
END $$;
-- +goose StatementEnd

-- The store does not know these uploads any more.
-- +goose StatementBegin
CREATE FUNCTION artifactd.forget_uploads(p_keys text[], p_upload_ids text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    DELETE FROM orphan o USING unnest(p_keys, p_upload_ids) k (object_key, upload_id)
     WHERE o.object_key = k.object_key AND o.upload_id = k.upload_id AND o.upload_id <> '';
END $$;
-- +goose StatementEnd

-- Writes down that the objects of stored artifacts are gone or wrong; answers which of the
-- artifacts still have a row. One that has none any more was collected: its object may be gone.
-- No decision: what a restored database lacks in the bucket is to be seen before anything is decided.
-- +goose StatementBegin
CREATE FUNCTION artifactd.mark_missing(p_artifact_ids uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (p_artifact_ids) ORDER BY artifact_id FOR NO KEY UPDATE;
    RETURN QUERY UPDATE artifact SET missing_at = coalesce(missing_at, clock_timestamp())
     WHERE artifact_id = ANY (p_artifact_ids) AND stored_at IS NOT NULL RETURNING artifact_id;
END $$;
-- +goose StatementEnd

-- Writes down that objects which were missing have been read back whole.
-- +goose StatementBegin
CREATE FUNCTION artifactd.mark_found(p_artifact_ids uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM 1 FROM artifact WHERE artifact_id = ANY (p_artifact_ids) ORDER BY artifact_id FOR NO KEY UPDATE;
    UPDATE artifact SET missing_at = NULL
     WHERE artifact_id = ANY (p_artifact_ids) AND stored_at IS NOT NULL AND missing_at IS NOT NULL;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.mark_found, artifactd.mark_missing, artifactd.forget_uploads, artifactd.condemn_orphans,
    artifactd.due_orphans, artifactd.end_listing, artifactd.note_unknown, artifactd.end_reconcile, artifactd.keep_pass,
    artifactd.hold_pass, artifactd.begin_reconcile,
    artifactd.orphan_history, artifactd.orphan_due, artifactd.unknown_keys;
DROP TABLE artifactd.orphan, artifactd.reconcile_pass;
