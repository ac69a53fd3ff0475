-- +goose Up
-- A crash or a store that is back must not leave records out of the bucket for a minute: what the
-- database loses meanwhile is lost for good. So claims are short, and whoever is still at it renews
-- them; and what failed is tried again within seconds.

-- Pushes the end of a worker's claims ahead. Which claim of a row it is, its number of attempts tells.
-- Answers how many of the rows are still claimed so: when they are not all, another worker has one, or
-- its version was collected and its key waits for no upload that begins later than the old claim.
-- +goose StatementBegin
CREATE FUNCTION artifactd.renew_outbox(p_record_ids uuid[], p_attempts integer[], p_seconds double precision, OUT renewed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    UPDATE outbox o SET not_before = clock_timestamp() + make_interval(secs => p_seconds)
      FROM unnest(p_record_ids, p_attempts) c (id, attempts) WHERE o.record_id = c.id AND o.attempts = c.attempts;
    GET DIAGNOSTICS renewed = ROW_COUNT;
END $$;
-- +goose StatementEnd

-- Writes down what became of claimed rows: without an error the record is in the bucket, and the
-- row goes; otherwise it is tried again, ever later, up to every five seconds.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.finish_outbox(p_record_ids uuid[], p_errors text[]) RETURNS void
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
           not_before = clock_timestamp() + make_interval(secs => least(5, 0.5 * 2.0 ^ least(o.attempts - 1, 8)))
      FROM unnest(p_record_ids, p_errors) f (id, error) WHERE o.record_id = f.id AND f.error <> '';
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.finish_outbox(p_record_ids uuid[], p_errors text[]) RETURNS void
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
DROP FUNCTION artifactd.renew_outbox(uuid[], integer[], double precision);
