-- +goose Up
-- What a lost history published is told by the bucket, not by the database: such a version may name
-- files of generations that the restored database takes for dead or displaced, and objects that it does
-- not know at all. Once an operator lets collection go on, both are therefore kept for another while, so
-- that somebody who resumed too early can still bring a version back.
ALTER TABLE artifactd.history ADD COLUMN quarantine_until timestamptz;

-- Until when what earlier epochs left is kept in this one; null when nobody asked for that.
-- +goose StatementBegin
CREATE FUNCTION artifactd.quarantined_until(p_epoch bigint) RETURNS timestamptz
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
    SELECT h.quarantine_until FROM history h WHERE h.epoch = p_epoch
$$;
-- +goose StatementEnd

-- Whether a pass may condemn an orphan: it was first seen before the pass began, the pass saw it
-- again, the grace is over, and so is the quarantine.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.orphan_due(o artifactd.orphan, v artifactd.reconcile_pass, at timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT o.first_seen_at < v.started_at
       AND o.last_seen_at >= v.started_at
       AND o.first_seen_at + make_interval(secs => v.grace_seconds) <= at
       AND coalesce((SELECT artifactd.quarantined_until(i.epoch) FROM artifactd.installation i) <= at, true)
$$;
-- +goose StatementEnd

-- What collection makes of one generation, from the facts alone: whether it is garbage and why, or
-- what keeps it and, where time alone ends that, until when. A lease whose end nobody has recorded
-- yet counts as ended at this moment. The edge is the pointer's keep_boundary. Marking, plans and
-- explanations all ask here, so that none of them can tell another story than the others.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.judge_generation(
    p artifactd.pointer, g artifactd.generation, p_epoch bigint, p_at timestamptz, p_grace_seconds double precision,
    p_edge_epoch bigint, p_edge_generation bigint,
    OUT garbage boolean, OUT reason text, OUT keeps_until timestamptz
) LANGUAGE plpgsql STABLE SET search_path = artifactd, pg_temp AS $$
DECLARE v_ended timestamptz := g.ended_at; v_quarantine timestamptz;
BEGIN
    garbage := false;
    IF g.state = 'published' THEN
        -- One that is pinned, or still among the newest, stays until that changes.
        IF g.displaced_at IS NULL OR g.generation_id IS NOT DISTINCT FROM p.current_id THEN reason := 'current'; RETURN; END IF;
        IF g.pinned THEN reason := 'pinned'; RETURN; END IF;
        keeps_until := g.displaced_at + make_interval(secs => least(p.keep_seconds, 3155760000));
        IF keeps_until > p_at THEN reason := 'keep-seconds'; RETURN; END IF;
        keeps_until := NULL;
        IF (g.epoch, g.generation) <= (p_edge_epoch, p_edge_generation) THEN
            garbage := true; reason := 'displaced';
        ELSE
            reason := 'keep-versions';
        END IF;
    ELSE
        reason := g.state;
        IF g.state = 'leased' THEN
            reason := lease_reason(p, g, g.epoch, g.generation, p_epoch, p_at);
            IF reason IS NULL THEN
                reason := 'leased'; keeps_until := effective_expiry(p.lease_expires_at, g.ttl_seconds, p_at); RETURN;
            END IF;
            reason := CASE WHEN reason = 'expired' THEN 'expired' ELSE 'superseded' END;
            v_ended := p_at;
        END IF;
        keeps_until := v_ended + make_interval(secs => coalesce(p_grace_seconds, 3600));
        IF keeps_until <= p_at OR (g.epoch, g.generation) < (p.current_epoch, p.current_generation) THEN
            garbage := true; keeps_until := NULL;
        ELSE
            reason := 'resume-grace';
        END IF;
    END IF;
    IF garbage AND g.epoch < p_epoch THEN
        v_quarantine := quarantined_until(p_epoch);
        IF v_quarantine > p_at THEN
            garbage := false; reason := 'quarantined'; keeps_until := v_quarantine;
        END IF;
    END IF;
END $$;
-- +goose StatementEnd

-- Lets collection go on, as an operator who has seen what the epoch began with. What earlier epochs
-- left, and what nobody knows, stays for p_quarantine seconds from now; said again, the last word
-- counts. Answers whether collection was held.
DROP FUNCTION artifactd.resume_collection(bigint);
-- +goose StatementBegin
CREATE FUNCTION artifactd.resume_collection(p_epoch bigint, p_quarantine double precision DEFAULT 86400, OUT resumed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE v_before timestamptz; v_until timestamptz;
BEGIN
    PERFORM begin_decision();
    PERFORM check_grace(p_quarantine);
    UPDATE installation SET collection_held_at = NULL WHERE epoch = p_epoch AND collection_held_at IS NOT NULL;
    resumed := FOUND;
    SELECT quarantine_until INTO v_before FROM history WHERE epoch = p_epoch FOR NO KEY UPDATE;
    v_until := clock_timestamp() + make_interval(secs => p_quarantine);
    UPDATE history SET quarantine_until = v_until, resumed_at = coalesce(resumed_at, clock_timestamp())
     WHERE epoch = p_epoch AND (resumed OR resumed_at IS NOT NULL);
    -- What was looked at meanwhile is looked at again when the quarantine ends.
    UPDATE generation SET collect_at = v_until WHERE collect_at = v_before;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.resume_collection(bigint, double precision);
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
CREATE OR REPLACE FUNCTION artifactd.judge_generation(
    p artifactd.pointer, g artifactd.generation, p_epoch bigint, p_at timestamptz, p_grace_seconds double precision,
    p_edge_epoch bigint, p_edge_generation bigint,
    OUT garbage boolean, OUT reason text, OUT keeps_until timestamptz
) LANGUAGE plpgsql IMMUTABLE SET search_path = artifactd, pg_temp AS $$
DECLARE v_ended timestamptz := g.ended_at;
BEGIN
    garbage := false;
    IF g.state = 'published' THEN
        IF g.displaced_at IS NULL OR g.generation_id IS NOT DISTINCT FROM p.current_id THEN reason := 'current'; RETURN; END IF;
        IF g.pinned THEN reason := 'pinned'; RETURN; END IF;
        keeps_until := g.displaced_at + make_interval(secs => least(p.keep_seconds, 3155760000));
        IF keeps_until > p_at THEN reason := 'keep-seconds'; RETURN; END IF;
        keeps_until := NULL;
        IF (g.epoch, g.generation) <= (p_edge_epoch, p_edge_generation) THEN
            garbage := true; reason := 'displaced';
        ELSE
            reason := 'keep-versions';
        END IF;
        RETURN;
    END IF;
    reason := g.state;
    IF g.state = 'leased' THEN
        reason := lease_reason(p, g, g.epoch, g.generation, p_epoch, p_at);
        IF reason IS NULL THEN
            reason := 'leased'; keeps_until := effective_expiry(p.lease_expires_at, g.ttl_seconds, p_at); RETURN;
        END IF;
        reason := CASE WHEN reason = 'expired' THEN 'expired' ELSE 'superseded' END;
        v_ended := p_at;
    END IF;
    keeps_until := v_ended + make_interval(secs => coalesce(p_grace_seconds, 3600));
    IF keeps_until <= p_at OR (g.epoch, g.generation) < (p.current_epoch, p.current_generation) THEN
        garbage := true; keeps_until := NULL;
    ELSE
        reason := 'resume-grace';
    END IF;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION artifactd.orphan_due(o artifactd.orphan, v artifactd.reconcile_pass, at timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT o.first_seen_at < v.started_at
       AND o.last_seen_at >= v.started_at
       AND o.first_seen_at + make_interval(secs => v.grace_seconds) <= at
$$;
-- +goose StatementEnd
DROP FUNCTION artifactd.quarantined_until(bigint);
ALTER TABLE artifactd.history DROP COLUMN quarantine_until;
