package pointer

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	claimOutboxSQL = `SELECT record_id, kind, installation_id, coalesce(pointer, ''), operation_id, attempts,
			coalesce(epoch, 0), epoch_uuid, coalesce(generation, 0), published_at, coalesce(holder, ''), source_revision, metadata,
			rollback_of, recovered_from, coalesce(recovered_epoch, 0), coalesce(recovered_generation, 0),
			manifest_id, manifest_digest, coalesce(file_count, 0), coalesce(total_bytes, 0), gone,
			coalesce(revision, 0), revision_id, settings
		FROM artifactd.claim_outbox($1, $2)`
	renewOutboxSQL   = `SELECT renewed FROM artifactd.renew_outbox($1, $2, $3)`
	finishOutboxSQL  = `SELECT artifactd.finish_outbox($1, $2)`
	finishPointerSQL = `SELECT artifactd.finish_pointer_record($1, $2, $3, $4)`
	outboxLagSQL     = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(enqueued_at)), 0)::float8 FROM artifactd.outbox`
	manifestsSQL     = `SELECT m.manifest_id, m.path, a.digest, a.size, m.media_type, a.artifact_id
		FROM artifactd.manifest_file m JOIN artifactd.artifact a USING (artifact_id)
		WHERE m.manifest_id = ANY ($1) ORDER BY m.manifest_id, m.path`
)

// RecordKind says what a record in the bucket is of.
type RecordKind string

// The kinds of records.
const (
	RecordVersion RecordKind = "version" // a published generation and its manifest
	RecordPointer RecordKind = "pointer" // what a pointer is set to
	RecordAborted RecordKind = "aborted" // an operation that was settled as aborted
)

// Recovered says which version of a lost history a generation is, brought back by an operator.
type Recovered struct {
	GenerationID uuid.UUID
	Token        Token // its token then, which still says what is older and what is newer
}

// OutboxRow is one record that the bucket does not have yet, claimed by one worker.
type OutboxRow struct {
	ID             uuid.UUID // of a version its generation's
	Kind           RecordKind
	InstallationID uuid.UUID
	Pointer        string
	OperationID    uuid.UUID // that published the version, or was aborted
	Attempts       int       // this one included

	// EpochUUID names the history that Token's epoch stands for; zero when no service had armed it.
	EpochUUID uuid.UUID

	// Of a version.
	Token          Token
	PublishedAt    time.Time
	Holder         string
	SourceRevision *int64
	Metadata       json.RawMessage
	RollbackOf     *uuid.UUID
	Recovered      *Recovered
	ManifestID     uuid.UUID
	ManifestDigest artifacts.Digest
	FileCount      int
	TotalBytes     int64
	Gone           bool // it is being collected: there is nothing to write any more

	// Of a pointer: a revision of its settings, as JSON. Token.Epoch is the revision's epoch.
	Revision   int64
	RevisionID uuid.UUID
	Settings   json.RawMessage
}

// ClaimOutbox takes the oldest records that still have to be written, at most limit of them. For
// ttl, by the database's clock, nobody else gets them; what is not finished by then is claimed anew.
func (c *Catalogue) ClaimOutbox(ctx context.Context, limit int, ttl time.Duration) ([]OutboxRow, error) {
	rows, err := c.pool.Query(ctx, claimOutboxSQL, limit, ttl.Seconds())
	if err != nil {
		return nil, readFault(err)
	}
	claimed, err := pgx.CollectRows(rows, scanOutbox)
	return claimed, readFault(err)
}

// RenewOutbox pushes the end of claims ahead: nobody else gets the rows for ttl from now. It reports
// whether all of them were still claimed as they are here; if not, nothing may be begun on them after
// the claims' old end.
func (c *Catalogue) RenewOutbox(ctx context.Context, rows []OutboxRow, ttl time.Duration) (bool, error) {
	ids, attempts := make([]uuid.UUID, len(rows)), make([]int32, len(rows))
	for i, row := range rows {
		ids[i], attempts[i] = row.ID, int32(row.Attempts)
	}
	var renewed int
	err := c.pool.QueryRow(ctx, renewOutboxSQL, ids, attempts, ttl.Seconds()).Scan(&renewed)
	return renewed == len(rows), readFault(err)
}

func scanOutbox(row pgx.CollectableRow) (OutboxRow, error) {
	var o OutboxRow
	var operation, epoch, recovered, manifest, revision *uuid.UUID
	var published *time.Time
	var digest []byte
	var lost Token
	err := row.Scan(&o.ID, &o.Kind, &o.InstallationID, &o.Pointer, &operation, &o.Attempts,
		&o.Token.Epoch, &epoch, &o.Token.Generation, &published, &o.Holder, &o.SourceRevision, &o.Metadata,
		&o.RollbackOf, &recovered, &lost.Epoch, &lost.Generation,
		&manifest, &digest, &o.FileCount, &o.TotalBytes, &o.Gone, &o.Revision, &revision, &o.Settings)
	if err != nil {
		return o, err
	}
	o.OperationID, o.EpochUUID, o.ManifestID, o.RevisionID = orZero(operation), orZero(epoch), orZero(manifest), orZero(revision)
	o.PublishedAt = orZero(published).UTC()
	if recovered != nil {
		o.Recovered = &Recovered{GenerationID: *recovered, Token: lost}
	}
	if digest != nil {
		o.ManifestDigest, err = artifacts.DigestFromSum(digest)
	}
	return o, err
}

// FinishOutbox says what became of claimed records: one error text a record, empty when the bucket
// has it. Repeating it is harmless.
func (c *Catalogue) FinishOutbox(ctx context.Context, ids []uuid.UUID, faults []string) error {
	_, err := c.pool.Exec(ctx, finishOutboxSQL, ids, faults)
	return readFault(err)
}

// FinishPointerRecord says that the bucket has this revision of a pointer's settings, so that the
// records of older ones can go. Repeating it is harmless.
func (c *Catalogue) FinishPointerRecord(ctx context.Context, row OutboxRow) error {
	_, err := c.pool.Exec(ctx, finishPointerSQL, row.Pointer, row.Token.Epoch, row.Revision, row.RevisionID)
	return readFault(err)
}

// OutboxLag tells how many records the bucket does not have yet, and how long the oldest has waited.
func (c *Catalogue) OutboxLag(ctx context.Context) (rows int64, oldest time.Duration, err error) {
	var seconds float64
	if err := c.pool.QueryRow(ctx, outboxLagSQL).Scan(&rows, &seconds); err != nil {
		return 0, 0, readFault(err)
	}
	return rows, time.Duration(seconds * float64(time.Second)), nil
}

// ManifestFiles yields the files of several manifests, manifest by manifest, each in the order of
// its paths. An error ends the sequence. Files of a manifest that is being collected may be missing.
func (c *Catalogue) ManifestFiles(ctx context.Context, manifests []uuid.UUID) iter.Seq2[ManifestFile, error] {
	return func(yield func(ManifestFile, error) bool) {
		rows, err := c.pool.Query(ctx, manifestsSQL, manifests)
		if err != nil {
			yield(ManifestFile{}, readFault(err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			var f ManifestFile
			if err := rows.Scan(&f.ManifestID, &f.Path, &f.Digest, &f.Size, &f.MediaType, &f.ArtifactID); err != nil {
				yield(f, fmt.Errorf("files of a manifest: %w", err))
				return
			}
			if !yield(f, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(ManifestFile{}, readFault(err))
		}
	}
}

// ManifestFile is one file of one manifest.
type ManifestFile struct {
	ManifestID uuid.UUID
	File
}
