-- +goose Up
-- The schema itself is made by migrations.Up, so that goose's own table can live in it.

-- One row: what this installation is, and which database history (epoch) it is in.
CREATE TABLE artifactd.installation (
    singleton       boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    installation_id uuid        NOT NULL DEFAULT gen_random_uuid(),
    epoch           bigint      NOT NULL DEFAULT 1 CHECK (epoch >= 1),
    -- Every object key of this installation begins with it; set once by the first service that
    -- starts, and compared by every later one, so that a changed setting cannot strand objects.
    key_prefix      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO artifactd.installation DEFAULT VALUES;

-- A pointer is never deleted, so its numbers never start again. The row is hot: acquire, renew
-- and publish change it, so no column they change is indexed (HOT updates), and pages are left
-- half empty for the new row versions. What its columns may hold is checked by a trigger where
-- they change: CHECK constraints are evaluated anew at every update of a row.
CREATE TABLE artifactd.pointer (
    pointer_id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name               text COLLATE "C" NOT NULL UNIQUE,
    -- The newest generation installed, 0.0 before the first. Installing it fences every earlier one.
    epoch              bigint NOT NULL DEFAULT 0,
    generation         bigint NOT NULL DEFAULT 0,
    head_id            uuid,        -- that generation's id, which is the id of its lease
    lease_expires_at   timestamptz, -- of the newest generation; whether it lives is said by its state too
    -- What readers see.
    current_id         uuid,
    current_epoch      bigint,
    current_generation bigint,
    highest_revision   bigint,
    retired_at         timestamptz,
    -- Settings.
    keep_versions      integer NOT NULL DEFAULT 5,
    keep_seconds       bigint  NOT NULL DEFAULT 86400,
    public             boolean NOT NULL DEFAULT false,
    labels             jsonb   NOT NULL DEFAULT '{}',
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at         timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- One ownership of a pointer. Rows stay for good: they are the history, and they remember which
-- operation published them. Its id is the id of its lease. Pointers and generations are never
-- deleted, so nothing refers to them by foreign key: its checks would lock the hot rows.
CREATE TABLE artifactd.generation (
    generation_id        uuid PRIMARY KEY,
    pointer_id           bigint NOT NULL,
    epoch                bigint NOT NULL,
    generation           bigint NOT NULL,
    state                text   NOT NULL,  -- leased, published, released, broken, expired, superseded
    holder               text   NOT NULL,
    ttl_seconds          double precision NOT NULL,
    acquired_at          timestamptz NOT NULL,
    ended_at             timestamptz,  -- of the lease; null while leased
    -- The manifest: whose files these are (a rollback shares an older generation's), and its seal.
    manifest_id          uuid    NOT NULL,
    file_count           integer NOT NULL DEFAULT 0,
    total_bytes          bigint  NOT NULL DEFAULT 0,
    manifest_digest      bytea,        -- of the files as staged now; null after staging again
    sealed_at            timestamptz,  -- every file was stored then; cleared by staging again
    -- The version.
    published_at         timestamptz,
    publish_operation_id uuid,
    source_revision      bigint,
    metadata             jsonb,
    rollback_of          uuid,
    -- A version that a lost history had published and an operator brought back: which generation
    -- that was, and its token there, which still says what is older and what is newer.
    recovered_from       uuid,
    recovered_epoch      bigint,
    recovered_generation bigint,
    displaced_at         timestamptz,
    pinned               boolean NOT NULL DEFAULT false,
    -- Collection: when the collector should look at this row next (null: nothing to do until
    -- something else changes), since when it may not be read or adopted from, and when it was done.
    collect_at           timestamptz,  -- a leased one is looked at when it should have expired
    collecting_at        timestamptz,
    collected_at         timestamptz,
    UNIQUE (pointer_id, epoch, generation)
) WITH (fillfactor = 70);
CREATE INDEX generation_due ON artifactd.generation (collect_at) WHERE collect_at IS NOT NULL;
CREATE INDEX generation_collecting ON artifactd.generation (collecting_at)
    WHERE collecting_at IS NOT NULL AND collected_at IS NULL;
-- The displaced versions that a pointer still keeps, for ranking them.
CREATE INDEX generation_displaced ON artifactd.generation (pointer_id, epoch, generation)
    WHERE displaced_at IS NOT NULL AND collected_at IS NULL;
CREATE INDEX generation_published_by ON artifactd.generation (publish_operation_id)
    WHERE publish_operation_id IS NOT NULL;
CREATE UNIQUE INDEX generation_recovered ON artifactd.generation (recovered_from)
    WHERE recovered_from IS NOT NULL;
-- Displaced versions kept by number or by a pin, to be looked at when that changes.
CREATE INDEX generation_parked ON artifactd.generation (pointer_id)
    WHERE displaced_at IS NOT NULL AND collect_at IS NULL AND collecting_at IS NULL;
-- Generations that ended unpublished and wait out the resume grace, which the next publish ends.
CREATE INDEX generation_dead ON artifactd.generation (pointer_id)
    WHERE collected_at IS NULL AND state IN ('released', 'broken', 'expired', 'superseded');
-- Which rollbacks share a manifest: asked before its files are collected.
CREATE INDEX generation_shares ON artifactd.generation (manifest_id)
    WHERE manifest_id <> generation_id;

-- Who waits for a pointer's lease, through whichever replica, in order of arrival. Advice, not
-- safety: it is lost in a crash, and one who has not been seen for a second counts no more.
CREATE UNLOGGED TABLE artifactd.waiter (
    pointer_id bigint NOT NULL,
    waiter_id  uuid   NOT NULL,
    arrived_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    PRIMARY KEY (pointer_id, waiter_id)
) WITH (fillfactor = 50);

-- One upload. Its key is never used again, so a late PUT or DELETE can only touch this object.
CREATE TABLE artifactd.artifact (
    artifact_id    uuid PRIMARY KEY,
    pointer_id     bigint NOT NULL,
    generation_id  uuid   NOT NULL,
    digest         bytea  NOT NULL CHECK (length(digest) = 32),
    size           bigint NOT NULL CHECK (size >= 0),
    media_type     text   NOT NULL,
    stored_at      timestamptz,  -- since when its bytes are proved to be there
    verified       text,         -- how they were proved
    writable_until timestamptz NOT NULL,  -- expiry of the last upload URL handed out
    upload_id      text,         -- the store's id of its multipart upload, while that is open
    missing_at     timestamptz,  -- known or suspected to be gone or wrong: never adopted, staged anew
    unnamed_at     timestamptz   -- since when no path of a living generation names it
);
CREATE INDEX artifact_by_digest ON artifactd.artifact (pointer_id, digest);
CREATE INDEX artifact_unnamed ON artifactd.artifact (unnamed_at) WHERE unnamed_at IS NOT NULL;

-- The manifest's files. The foreign key referees the race between adopting an artifact and
-- collecting it.
CREATE TABLE artifactd.manifest_file (
    manifest_id uuid NOT NULL,
    path        text COLLATE "C" NOT NULL CHECK (octet_length(path) BETWEEN 1 AND 1024),
    artifact_id uuid NOT NULL REFERENCES artifactd.artifact,
    media_type  text NOT NULL,
    PRIMARY KEY (manifest_id, path)
);
CREATE INDEX manifest_file_artifact ON artifactd.manifest_file (artifact_id, manifest_id);

-- The durable outcome of one caller-chosen operation id.
CREATE TABLE artifactd.operation (
    operation_id     uuid PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('publish', 'rollback', 'acquire', 'settle')),
    request_digest   bytea,    -- of what the caller asked; null for a tombstone
    manifest_digests bytea[],  -- of what it would have published, lease by lease
    outcome          text CHECK (outcome IN ('published', 'refused', 'aborted', 'acquired')),
    pointers         text[] NOT NULL,  -- whom it concerns, for authorisation
    generation_ids   uuid[] NOT NULL,
    answer           jsonb,
    recorded_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Written before each answer that only repeats what is recorded: committing it proves that
    -- the record itself is as durable as this server makes anything.
    told_at          timestamptz
) WITH (fillfactor = 80);
CREATE INDEX operation_recorded ON artifactd.operation (recorded_at);

-- Object keys whose rows are gone. A key leaves after the store confirmed a deletion that was
-- made once no upload to it could begin or land any more.
CREATE TABLE artifactd.deletion (
    object_key  text COLLATE "C" PRIMARY KEY,
    size        bigint NOT NULL,
    reason      text   NOT NULL,
    upload_id   text,                  -- a multipart upload to abort too
    stored      boolean NOT NULL,      -- its bytes were proved to be there; else there may be none
    enqueued_at timestamptz NOT NULL,
    final_after timestamptz NOT NULL,  -- a deletion made later than this one is final
    not_before  timestamptz NOT NULL,  -- next attempt; pushed ahead while a collector works on it
    deleted_at  timestamptz,           -- first deletion that the store confirmed
    attempts    integer NOT NULL DEFAULT 0,
    last_error  text
) WITH (fillfactor = 70);
CREATE INDEX deletion_due ON artifactd.deletion (not_before);

-- The last runs of the collector, for operators.
CREATE TABLE artifactd.gc_run (
    run_id      uuid PRIMARY KEY,
    started_at  timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    report      jsonb NOT NULL
);
CREATE INDEX gc_run_started ON artifactd.gc_run (started_at);

-- Credentials of callers. Only a hash is kept; a secret is shown once.
CREATE TABLE artifactd.access_token (
    access_token_id uuid PRIMARY KEY,
    secret_hash  bytea  NOT NULL UNIQUE CHECK (length(secret_hash) = 32),
    name         text   NOT NULL,
    scopes       text[] NOT NULL,
    patterns     text[] NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);

-- +goose Down
DROP TABLE artifactd.access_token, artifactd.waiter, artifactd.gc_run, artifactd.deletion, artifactd.operation,
    artifactd.manifest_file, artifactd.artifact, artifactd.generation, artifactd.pointer,
    artifactd.installation;
