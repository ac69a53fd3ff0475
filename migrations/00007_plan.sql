-- +goose Up
-- Plans of collection: what a run would take and why, and what stays and why. A plan is made
-- pointer by pointer with the judgement that a run uses, and written down. Running it rechecks each
-- item under the locks; it takes what still is garbage, and nothing that the plan does not name.

CREATE TABLE artifactd.gc_plan (
    plan_id       uuid PRIMARY KEY,
    pointer       text COLLATE "C",  -- the one it is about; null for all
    grace_seconds double precision NOT NULL,
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    summary       jsonb              -- null until the plan is complete
);
CREATE INDEX gc_plan_created ON artifactd.gc_plan (created_at);

CREATE TABLE artifactd.gc_plan_item (
    plan_id     uuid    NOT NULL,
    pointer_id  bigint  NOT NULL,
    item_id     uuid    NOT NULL,  -- a generation's id, or an artifact's that was replaced
    kind        text    NOT NULL CHECK (kind IN ('generation', 'artifact')),
    goes        boolean NOT NULL,
    reason      text    NOT NULL,  -- why it goes, or what keeps it
    keeps_until timestamptz,       -- when time alone lets it go
    objects     bigint  NOT NULL,
    bytes       bigint  NOT NULL,
    outcome     text,              -- what became of it when the plan ran: collected, or what keeps it
    PRIMARY KEY (plan_id, pointer_id, item_id)
);

-- Begins a plan of one pointer or of all. Status: begun, pointer-not-found.
-- +goose StatementBegin
CREATE FUNCTION artifactd.begin_plan(p_plan_id uuid, p_pointer text, p_grace double precision, p_seconds double precision, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
BEGIN
    PERFORM begin_decision();
    PERFORM check_grace(p_grace);
    PERFORM check_grace(p_seconds);
    IF p_pointer IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pointer WHERE name = p_pointer) THEN
        status := 'pointer-not-found'; RETURN;
    END IF;
    INSERT INTO gc_plan (plan_id, pointer, grace_seconds, created_at, expires_at)
    VALUES (p_plan_id, p_pointer, p_grace, clock_timestamp(), clock_timestamp() + make_interval(secs => p_seconds));
    status := 'begun';
END $$;
-- +goose StatementEnd

-- Judges the generations of some pointers and writes down what goes; what stays, too, when the plan
-- is about one pointer alone. Answers both, summed up. An object goes when every file that names it
-- is of a generation that goes; one that several of them share is counted once.
-- +goose StatementBegin
CREATE FUNCTION artifactd.plan_pointers(p_plan_id uuid, p_pointer_ids bigint[])
RETURNS TABLE (goes boolean, reason text, generations bigint, objects bigint, bytes bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE v gc_plan; at timestamptz; v_epoch bigint;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO STRICT v FROM gc_plan WHERE plan_id = p_plan_id AND summary IS NULL;
    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    RETURN QUERY
    WITH uncollected AS MATERIALIZED (
        SELECT p.pointer_id, g.generation_id
          FROM pointer p CROSS JOIN LATERAL (
               SELECT g0.generation_id FROM generation g0 WHERE g0.generation_id IN (p.head_id, p.current_id) AND g0.collected_at IS NULL
               UNION
               SELECT g1.generation_id FROM generation g1 WHERE g1.pointer_id = p.pointer_id AND g1.displaced_at IS NOT NULL AND g1.collected_at IS NULL
               UNION
               SELECT g2.generation_id FROM generation g2 WHERE g2.pointer_id = p.pointer_id AND g2.collected_at IS NULL
                  AND g2.state IN ('released', 'broken', 'expired', 'superseded')) g
         WHERE p.pointer_id = ANY (p_pointer_ids)
    ), judged AS MATERIALIZED (
        SELECT u.pointer_id, g.generation_id, g.manifest_id, g.file_count, g.total_bytes,
               j.garbage OR g.collecting_at IS NOT NULL AS goes,
               CASE WHEN g.collecting_at IS NULL THEN j.reason WHEN g.state = 'published' THEN 'displaced' ELSE g.state END AS reason,
               CASE WHEN g.collecting_at IS NULL THEN j.keeps_until END AS keeps_until
          FROM uncollected u JOIN pointer p ON p.pointer_id = u.pointer_id JOIN generation g ON g.generation_id = u.generation_id
          CROSS JOIN LATERAL keep_boundary(p.pointer_id, p.keep_versions) b
          CROSS JOIN LATERAL judge_generation(p, g, v_epoch, at, v.grace_seconds, b.epoch, b.generation) j
    ), files AS (
        SELECT DISTINCT ON (m.artifact_id) m.artifact_id, j.generation_id, a.size
          FROM judged j JOIN manifest_file m ON m.manifest_id = j.manifest_id JOIN artifact a ON a.artifact_id = m.artifact_id
         WHERE j.goes
           AND NOT EXISTS (
               SELECT 1 FROM manifest_file m2 JOIN generation h ON h.generation_id = m2.manifest_id
                WHERE m2.artifact_id = m.artifact_id AND h.manifest_id = h.generation_id AND h.collected_at IS NULL
                  AND NOT EXISTS (SELECT 1 FROM judged k WHERE k.generation_id = h.generation_id AND k.goes))
           AND NOT EXISTS (
               SELECT 1 FROM manifest_file m2 JOIN generation h ON h.manifest_id = m2.manifest_id AND h.manifest_id <> h.generation_id
                WHERE m2.artifact_id = m.artifact_id AND h.collected_at IS NULL
                  AND NOT EXISTS (SELECT 1 FROM judged k WHERE k.generation_id = h.generation_id AND k.goes))
         ORDER BY m.artifact_id, j.generation_id
    ), counted AS (
        SELECT f.generation_id, count(*) AS objects, sum(f.size)::bigint AS bytes FROM files f GROUP BY f.generation_id
    ), items AS MATERIALIZED (
        SELECT j.pointer_id, j.generation_id, j.goes, j.reason, j.keeps_until,
               CASE WHEN j.goes THEN coalesce(c.objects, 0) ELSE j.file_count END AS objects,
               CASE WHEN j.goes THEN coalesce(c.bytes, 0) ELSE j.total_bytes END AS bytes
          FROM judged j LEFT JOIN counted c ON c.generation_id = j.generation_id
    ), written AS (
        INSERT INTO gc_plan_item (plan_id, pointer_id, item_id, kind, goes, reason, keeps_until, objects, bytes)
        SELECT p_plan_id, i.pointer_id, i.generation_id, 'generation', i.goes, i.reason, i.keeps_until, i.objects, i.bytes
          FROM items i WHERE i.goes OR v.pointer IS NOT NULL
    )
    SELECT i.goes, i.reason, count(*), sum(i.objects)::bigint, sum(i.bytes)::bigint FROM items i GROUP BY i.goes, i.reason;
END $$;
-- +goose StatementEnd

-- Writes down which artifacts go because their path was staged again with other bytes, a page after
-- another in the order of time. Answers where the next page begins, and nulls behind the last one.
-- +goose StatementBegin
CREATE FUNCTION artifactd.plan_replaced(
    p_plan_id uuid, p_after timestamptz, p_after_id uuid, p_limit integer,
    OUT next timestamptz, OUT next_id uuid, OUT objects bigint, OUT bytes bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE v gc_plan;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO STRICT v FROM gc_plan WHERE plan_id = p_plan_id AND summary IS NULL;
    WITH page AS MATERIALIZED (
        SELECT a.* FROM artifact a WHERE a.unnamed_at IS NOT NULL AND (a.unnamed_at, a.artifact_id) > (p_after, p_after_id)
         ORDER BY a.unnamed_at, a.artifact_id LIMIT p_limit
    ), written AS (
        INSERT INTO gc_plan_item (plan_id, pointer_id, item_id, kind, goes, reason, objects, bytes)
        SELECT p_plan_id, a.pointer_id, a.artifact_id, 'artifact', true, 'replaced', 1, a.size FROM page a
         WHERE NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id)
           AND (v.pointer IS NULL OR a.pointer_id = (SELECT p.pointer_id FROM pointer p WHERE p.name = v.pointer))
        RETURNING gc_plan_item.bytes
    )
    SELECT (SELECT max(a.unnamed_at) FROM page a), (SELECT a.artifact_id FROM page a ORDER BY a.unnamed_at DESC, a.artifact_id DESC LIMIT 1),
           count(*), coalesce(sum(w.bytes), 0) INTO next, next_id, objects, bytes FROM written w;
END $$;
-- +goose StatementEnd

-- The plan is complete, and can be run until it expires.
-- +goose StatementBegin
CREATE FUNCTION artifactd.finish_plan(p_plan_id uuid, p_seconds double precision, p_summary jsonb) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE v_expires timestamptz;
BEGIN
    PERFORM begin_decision();
    PERFORM check_grace(p_seconds);
    UPDATE gc_plan SET summary = p_summary, expires_at = clock_timestamp() + make_interval(secs => p_seconds)
     WHERE plan_id = p_plan_id AND summary IS NULL RETURNING expires_at INTO STRICT v_expires;
    RETURN v_expires;
END $$;
-- +goose StatementEnd

-- Whether a plan may be run now. Status: ready, plan-not-found, plan-expired, plan-incomplete. A
-- run that began in time may end after the expiry: each of its items is rechecked anyway.
-- +goose StatementBegin
CREATE FUNCTION artifactd.open_plan(p_plan_id uuid, OUT status text, OUT grace_seconds double precision, OUT expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp AS $$
DECLARE v gc_plan;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO v FROM gc_plan g WHERE g.plan_id = p_plan_id;
    grace_seconds := v.grace_seconds; expires_at := v.expires_at;
    status := CASE WHEN v.plan_id IS NULL THEN 'plan-not-found'
                   WHEN v.expires_at <= clock_timestamp() THEN 'plan-expired'
                   WHEN v.summary IS NULL THEN 'plan-incomplete'
                   ELSE 'ready' END;
END $$;
-- +goose StatementEnd

-- Writes down what became of items: collected, or what keeps them after all. Answers how many of
-- these were left alone, by what keeps them.
-- +goose StatementBegin
CREATE FUNCTION artifactd.settle_plan_items(p_plan_id uuid, p_pointer_id bigint, p_item_ids uuid[])
RETURNS TABLE (reason text, items bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE v gc_plan; at timestamptz; v_epoch bigint;
BEGIN
    PERFORM begin_decision();
    SELECT * INTO STRICT v FROM gc_plan WHERE plan_id = p_plan_id;
    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    RETURN QUERY
    WITH fates AS MATERIALIZED (
        SELECT i.item_id, CASE WHEN g.collected_at IS NOT NULL THEN 'collected'
                               WHEN g.collecting_at IS NOT NULL OR j.garbage THEN 'busy' ELSE j.reason END AS outcome
          FROM gc_plan_item i JOIN generation g ON g.generation_id = i.item_id JOIN pointer p ON p.pointer_id = i.pointer_id
          CROSS JOIN LATERAL keep_boundary(p.pointer_id, p.keep_versions) b
          CROSS JOIN LATERAL judge_generation(p, g, v_epoch, at, v.grace_seconds, b.epoch, b.generation) j
         WHERE i.plan_id = p_plan_id AND i.pointer_id = p_pointer_id AND i.item_id = ANY (p_item_ids) AND i.kind = 'generation'
        UNION ALL
        SELECT i.item_id, CASE WHEN a.artifact_id IS NULL THEN 'collected' WHEN a.unnamed_at IS NOT NULL THEN 'busy' ELSE 'named' END
          FROM gc_plan_item i LEFT JOIN artifact a ON a.artifact_id = i.item_id
         WHERE i.plan_id = p_plan_id AND i.pointer_id = p_pointer_id AND i.item_id = ANY (p_item_ids) AND i.kind = 'artifact'
    ), written AS (
        UPDATE gc_plan_item i SET outcome = f.outcome FROM fates f
         WHERE i.plan_id = p_plan_id AND i.pointer_id = p_pointer_id AND i.item_id = f.item_id
    )
    SELECT f.outcome, count(*) FROM fates f WHERE f.outcome <> 'collected' GROUP BY f.outcome;
END $$;
-- +goose StatementEnd

-- Who names an artifact, and what collection makes of each of them.
-- +goose StatementBegin
CREATE FUNCTION artifactd.explain_names(p_artifact_id uuid, p_grace double precision, p_limit integer)
RETURNS TABLE (pointer text, epoch bigint, generation bigint, state text, path text, goes boolean, reason text, keeps_until timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE at timestamptz; v_epoch bigint;
BEGIN
    SELECT clock_timestamp(), i.epoch INTO at, v_epoch FROM installation i;
    RETURN QUERY
    SELECT p.name, g.epoch, g.generation, g.state, m.path, j.garbage OR g.collecting_at IS NOT NULL,
           CASE WHEN g.collecting_at IS NULL THEN j.reason WHEN g.state = 'published' THEN 'displaced' ELSE g.state END,
           CASE WHEN g.collecting_at IS NULL THEN j.keeps_until END
      FROM (SELECT m0.manifest_id, m0.path FROM manifest_file m0 WHERE m0.artifact_id = p_artifact_id
             ORDER BY m0.manifest_id, m0.path LIMIT p_limit) m
      CROSS JOIN LATERAL (
           SELECT g0.generation_id FROM generation g0 WHERE g0.generation_id = m.manifest_id AND g0.collected_at IS NULL
           UNION ALL
           SELECT g1.generation_id FROM generation g1 WHERE g1.manifest_id = m.manifest_id AND g1.manifest_id <> g1.generation_id
              AND g1.collected_at IS NULL) u
      JOIN generation g ON g.generation_id = u.generation_id
      JOIN pointer p ON p.pointer_id = g.pointer_id
      CROSS JOIN LATERAL keep_boundary(p.pointer_id, p.keep_versions) b
      CROSS JOIN LATERAL judge_generation(p, g, v_epoch, at, p_grace, b.epoch, b.generation) j
     ORDER BY g.epoch DESC, g.generation DESC LIMIT p_limit;
END $$;
-- +goose StatementEnd

-- Drops plans a day after their expiry, their items first and by the piece.
-- +goose StatementBegin
CREATE FUNCTION artifactd.forget_plans(p_limit integer, OUT forgotten integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = artifactd, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE v_plan uuid; at timestamptz;
BEGIN
    PERFORM begin_decision();
    forgotten := 0; at := clock_timestamp();
    SELECT plan_id INTO v_plan FROM gc_plan WHERE created_at < at - interval '1 day' AND expires_at < at - interval '1 day'
     ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN; END IF;
    DELETE FROM gc_plan_item i WHERE i.plan_id = v_plan AND (i.pointer_id, i.item_id) IN (
        SELECT i2.pointer_id, i2.item_id FROM gc_plan_item i2 WHERE i2.plan_id = v_plan
         ORDER BY i2.pointer_id, i2.item_id LIMIT p_limit);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    IF forgotten < p_limit THEN
        DELETE FROM gc_plan WHERE plan_id = v_plan;
        forgotten := p_limit;  -- there may be another plan
    END IF;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION artifactd.forget_plans, artifactd.explain_names, artifactd.settle_plan_items, artifactd.open_plan,
    artifactd.finish_plan, artifactd.plan_replaced, artifactd.plan_pointers, artifactd.begin_plan;
DROP TABLE artifactd.gc_plan_item, artifactd.gc_plan;
