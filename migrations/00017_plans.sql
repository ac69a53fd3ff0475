-- +goose Up
-- Postgres 18 makes two plans of an EXISTS that stands in an OR, of which one reads the table from end
-- to end once, and takes that one where it looks cheap, which it does while plans are made on empty
-- tables. A limited subquery has one plan, which goes by the index.
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

-- +goose Down
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
                         OR EXISTS (SELECT 1 FROM generation m WHERE m.generation_id = g.manifest_id AND m.epoch = i.epoch))));
END $$;
-- +goose StatementEnd
