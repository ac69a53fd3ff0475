-- +goose Up
-- Which history this database is in, and how it takes the next epoch. begin_decision refuses every
-- decision that is not made on the server, timeline and tables that are written down here.

-- The epochs of this database.
CREATE TABLE artifactd.history (
    epoch       bigint PRIMARY KEY,
    epoch_uuid  uuid   NOT NULL,
    begun_at    timestamptz NOT NULL,
    why         text   NOT NULL,
    counter     bigint NOT NULL,  -- what the table had counted then
    known_ahead bigint,           -- what somebody had known to be counted; the difference is lost
    resumed_at  timestamptz       -- when an operator let collection go on
);

-- The replicas of the service that look at this database, and the start of the server that each
-- has looked at and found nothing lost.
CREATE TABLE artifactd.replica (
    replica_id        uuid PRIMARY KEY,
    seen_at           timestamptz NOT NULL,
    server_started_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What is written down of the history, and what there is now. The counter is read here, so the
-- bucket must have been read before.
-- +goose StatementBegin
CREATE FUNCTION artifactd.history_now(
    OUT installation_id uuid, OUT epoch bigint, OUT epoch_uuid uuid, OUT armed boolean, OUT counter bigint,
    OUT in_recovery boolean, OUT same_system boolean, OUT same_timeline boolean, OUT same_server boolean,
    OUT was text, OUT now text, OUT changed_at timestamptz, OUT changed_why text, OUT loss_known boolean,
    OUT known_ahead bigint, OUT collection_held_at timestamptz, OUT pending_uuid uuid
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
#variable_conflict use_column
DECLARE i installation; v_system bigint; v_timeline text;
BEGIN
    in_recovery := pg_is_in_recovery();
    SELECT x.* INTO STRICT i FROM installation x;
    SELECT sum(c.n) INTO counter FROM counter c;
    SELECT c.system_identifier INTO v_system FROM pg_control_system() c;
    v_timeline := CASE WHEN in_recovery THEN i.timeline ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END;
    installation_id := i.installation_id; epoch := i.epoch; epoch_uuid := i.epoch_uuid; armed := i.armed_at IS NOT NULL;
    same_system := i.system_identifier IS NOT DISTINCT FROM v_system;
    same_timeline := i.timeline IS NOT DISTINCT FROM v_timeline;
    same_server := i.server_started_at IS NOT DISTINCT FROM pg_postmaster_start_time()
        AND i.table_path IS NOT DISTINCT FROM pg_relation_filepath('artifactd.installation');
    was := format('system %s, timeline %s, started %s, table %s', i.system_identifier, i.timeline, i.server_started_at, i.table_path);
    now := format('system %s, timeline %s, started %s, table %s', v_system, v_timeline, pg_postmaster_start_time(),
        pg_relation_filepath('artifactd.installation'));
    changed_at := i.changed_at; changed_why := i.changed_why; loss_known := i.loss_known; known_ahead := i.known_ahead;
    collection_held_at := i.collection_held_at; pending_uuid := i.pending_uuid;
END $$;
-- +goose StatementEnd

-- A replica has looked and misses nothing. Those not seen for a minute are forgotten, but only on a
-- history that is not in doubt: on a restored one they have not been seen for as long as it is old.
-- +goose StatementBegin
CREATE FUNCTION artifactd.note_look(p_replica uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    INSERT INTO replica AS r (replica_id, seen_at, server_started_at)
    VALUES (p_replica, clock_timestamp(), pg_postmaster_start_time())
    ON CONFLICT (replica_id) DO UPDATE SET seen_at = excluded.seen_at, server_started_at = excluded.server_started_at;
    DELETE FROM replica r WHERE r.replica_id IN (
        SELECT o.replica_id FROM replica o, installation i
         WHERE o.seen_at < clock_timestamp() - interval '1 minute' AND i.changed_at IS NULL
           AND i.server_started_at = pg_postmaster_start_time() AND i.table_path = pg_relation_filepath('artifactd.installation')
           FOR UPDATE OF o SKIP LOCKED);
END $$;
-- +goose StatementEnd

-- A replica ends and will not look again.
-- +goose StatementBegin
CREATE FUNCTION artifactd.leave_replicas(p_replica uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    DELETE FROM replica WHERE replica_id = p_replica
$$;
-- +goose StatementEnd

-- Writes down a sign that the history changed, as seen of one epoch; from now on nothing is decided.
-- Answers whether it is the first sign. A loss waits for a person.
-- +goose StatementBegin
CREATE FUNCTION artifactd.note_history(
    p_epoch bigint, p_epoch_uuid uuid, p_why text, p_loss boolean, p_ahead bigint, OUT first boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE i installation;
BEGIN
    PERFORM 1 FROM installation FOR NO KEY UPDATE;
    SELECT * INTO STRICT i FROM installation;
    first := false;
    IF i.epoch <> p_epoch OR i.epoch_uuid IS DISTINCT FROM p_epoch_uuid THEN RETURN; END IF;
    first := i.changed_at IS NULL;
    IF first OR (p_loss AND NOT i.loss_known) OR p_ahead > coalesce(i.known_ahead, 0) THEN
        UPDATE installation SET changed_at = coalesce(i.changed_at, clock_timestamp()),
               changed_why = CASE WHEN first OR (p_loss AND NOT i.loss_known) THEN p_why ELSE i.changed_why END,
               loss_known = i.loss_known OR p_loss, known_ahead = greatest(i.known_ahead, p_ahead);
    END IF;
END $$;
-- +goose StatementEnd

-- Accepts another start of the same server, once it was compared with the bucket: nothing is lost.
-- Every replica known of must have said so for this start, or had p_hold seconds to object.
-- +goose StatementBegin
CREATE FUNCTION artifactd.release_server(p_replica uuid, p_epoch bigint, p_epoch_uuid uuid, p_hold double precision, OUT released boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    UPDATE installation i SET server_started_at = pg_postmaster_start_time(),
           table_path = pg_relation_filepath('artifactd.installation')
     WHERE i.epoch = p_epoch AND i.epoch_uuid = p_epoch_uuid AND i.armed_at IS NOT NULL AND i.changed_at IS NULL
       AND i.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
       AND i.system_identifier = (SELECT c.system_identifier FROM pg_control_system() c)
       AND (clock_timestamp() >= pg_postmaster_start_time() + make_interval(secs => p_hold)
            OR NOT EXISTS (SELECT 1 FROM replica r WHERE r.replica_id <> p_replica
                              AND r.server_started_at <> pg_postmaster_start_time()));
    released := FOUND;
END $$;
-- +goose StatementEnd

-- Becomes the one who takes the next epoch, for p_seconds. Answers the uuid to issue it under: the
-- one that an earlier owner, who did not come to an end, may have issued already, or p_uuid. No row
-- while somebody else is at it, or when the epoch is not p_epoch's any more.
-- +goose StatementBegin
CREATE FUNCTION artifactd.claim_epoch(
    p_owner uuid, p_epoch bigint, p_epoch_uuid uuid, p_uuid uuid, p_seconds double precision
) RETURNS SETOF uuid LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    UPDATE installation SET pending_owner = p_owner, pending_uuid = coalesce(pending_uuid, p_uuid),
           pending_until = clock_timestamp() + make_interval(secs => p_seconds)
     WHERE epoch = p_epoch AND epoch_uuid IS NOT DISTINCT FROM p_epoch_uuid
       AND (pending_until IS NULL OR pending_until < clock_timestamp() OR pending_owner = p_owner)
    RETURNING pending_uuid
$$;
-- +goose StatementEnd

-- Leaves the claim to the next one, who goes on with the same uuid.
-- +goose StatementBegin
CREATE FUNCTION artifactd.unclaim_epoch(p_owner uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    UPDATE installation SET pending_until = NULL, pending_owner = NULL WHERE pending_owner = p_owner
$$;
-- +goose StatementEnd

-- Begins an epoch that was issued in the bucket: this server, its timeline and its tables are the
-- history from now on, and every lease of the old epoch is dead. Waits for the decisions under way.
-- The first one arms the guard; any later one holds collection. Status: taken; superseded (the epoch
-- is not p_from's any more); loss (something is known to be lost, and p_acknowledged says nothing of
-- it); quiet (no sign of a change, and not p_acknowledged).
-- +goose StatementBegin
CREATE FUNCTION artifactd.take_epoch(
    p_from_epoch bigint, p_from_uuid uuid, p_epoch bigint, p_uuid uuid, p_why text, p_acknowledged boolean, OUT status text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE i installation; v_counter bigint; v_first boolean;
BEGIN
    LOCK TABLE installation IN ACCESS EXCLUSIVE MODE;
    SELECT * INTO STRICT i FROM installation;
    SELECT sum(n) INTO v_counter FROM counter;
    IF i.epoch <> p_from_epoch OR i.epoch_uuid IS DISTINCT FROM p_from_uuid OR i.pending_uuid IS DISTINCT FROM p_uuid THEN
        status := 'superseded'; RETURN;
    END IF;
    v_first := i.armed_at IS NULL AND i.changed_at IS NULL;
    IF NOT p_acknowledged AND (i.loss_known OR i.known_ahead > v_counter) THEN status := 'loss'; RETURN; END IF;
    IF NOT p_acknowledged AND NOT v_first AND i.changed_at IS NULL THEN status := 'quiet'; RETURN; END IF;
    IF p_epoch < i.epoch OR (p_epoch = i.epoch AND NOT v_first) THEN
        RAISE EXCEPTION 'epoch % cannot follow epoch %', p_epoch, i.epoch;
    END IF;
    UPDATE installation SET epoch = p_epoch, epoch_uuid = p_uuid, armed_at = coalesce(i.armed_at, clock_timestamp()),
           system_identifier = (SELECT c.system_identifier FROM pg_control_system() c),
           timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8), server_started_at = pg_postmaster_start_time(),
           table_path = pg_relation_filepath('artifactd.installation'),
           changed_at = NULL, changed_why = NULL, loss_known = false, known_ahead = NULL,
           collection_held_at = CASE WHEN v_first THEN i.collection_held_at ELSE coalesce(i.collection_held_at, clock_timestamp()) END,
           pending_uuid = NULL, pending_owner = NULL, pending_until = NULL;
    INSERT INTO history (epoch, epoch_uuid, begun_at, why, counter, known_ahead)
    VALUES (p_epoch, p_uuid, clock_timestamp(), p_why, v_counter, i.known_ahead);
    PERFORM count_decision();
    status := 'taken';
END $$;
-- +goose StatementEnd

-- Lets collection go on, as an operator who has seen what the epoch began with. Answers whether it
-- was held.
-- +goose StatementBegin
CREATE FUNCTION artifactd.resume_collection(p_epoch bigint, OUT resumed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    UPDATE installation SET collection_held_at = NULL WHERE epoch = p_epoch AND collection_held_at IS NOT NULL;
    resumed := FOUND;
    IF resumed THEN UPDATE history SET resumed_at = clock_timestamp() WHERE epoch = p_epoch; END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION artifactd.guard_counter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of artifactd.% are never deleted', TG_TABLE_NAME
        USING HINT = 'A counter that goes back is taken for a lost history.';
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard BEFORE DELETE OR TRUNCATE ON artifactd.counter
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_counter();
CREATE TRIGGER guard BEFORE DELETE OR TRUNCATE ON artifactd.history
    FOR EACH STATEMENT EXECUTE FUNCTION artifactd.guard_counter();

-- +goose Down
DROP TRIGGER guard ON artifactd.counter;
DROP TRIGGER guard ON artifactd.history;
DROP FUNCTION artifactd.guard_counter, artifactd.resume_collection, artifactd.take_epoch, artifactd.unclaim_epoch,
    artifactd.claim_epoch, artifactd.release_server, artifactd.note_history, artifactd.leave_replicas, artifactd.note_look,
    artifactd.history_now;
DROP TABLE artifactd.replica, artifactd.history;
