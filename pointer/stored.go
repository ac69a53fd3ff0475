package pointer

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	findArtifactsSQL = `SELECT artifact_id, pointer, epoch, generation, owner_id, digest, size, media_type,
			stored, verified, writable_until, upload_id
		FROM artifactd.find_artifacts($1, $2, $3)`
	markStoredManySQL = `SELECT artifact_id, status, reason FROM artifactd.mark_stored_many($1, $2)`
)

// LeaseArtifacts tells of those of the artifacts that belong to a lease's pointer.
func (c *Catalogue) LeaseArtifacts(ctx context.Context, lease uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]Artifact, error) {
	return c.findArtifacts(ctx, lease, ids, false)
}

// StagedArtifacts tells of those of the artifacts that are staged under a lease at this moment.
func (c *Catalogue) StagedArtifacts(ctx context.Context, lease uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]Artifact, error) {
	return c.findArtifacts(ctx, lease, ids, true)
}

func (c *Catalogue) findArtifacts(ctx context.Context, lease uuid.UUID, ids []uuid.UUID, staged bool) (map[uuid.UUID]Artifact, error) {
	rows, err := c.pool.Query(ctx, findArtifactsSQL, lease, ids, staged)
	if err != nil {
		return nil, readFault(err)
	}
	found := make(map[uuid.UUID]Artifact, len(ids))
	var a Artifact
	_, err = pgx.ForEachRow(rows, []any{&a.ID, &a.Pointer, &a.Token.Epoch, &a.Token.Generation, &a.LeaseID, &a.Digest, &a.Size,
		&a.MediaType, &a.Stored, &a.Verified, &a.WritableTil, &a.UploadID}, func() error {
		found[a.ID] = a
		return nil
	})
	return found, readFault(err)
}

// Proof says of one artifact how its bytes were proved.
type Proof struct {
	ArtifactID uuid.UUID
	Verified   string
}

// MarkStoredMany is [Catalogue.MarkStored] of many artifacts in one transaction. What it returns is
// as MarkStored's error for each; an artifact without an entry is stored. After an error nothing is
// known to be.
func (c *Catalogue) MarkStoredMany(ctx context.Context, proofs []Proof) (map[uuid.UUID]error, error) {
	ids, verified := make([]uuid.UUID, len(proofs)), make([]string, len(proofs))
	for i, p := range proofs {
		ids[i], verified[i] = p.ArtifactID, p.Verified
	}
	var refused map[uuid.UUID]error
	err := c.decideRows(ctx, func(ctx context.Context, conn *pgxpool.Conn) error {
		refused = map[uuid.UUID]error{}
		rows, err := conn.Query(ctx, markStoredManySQL, ids, verified)
		if err != nil {
			return err
		}
		var id uuid.UUID
		var status string
		var reason *string
		_, err = pgx.ForEachRow(rows, []any{&id, &status, &reason}, func() error {
			if err := markFault(status, reason); err != nil {
				refused[id] = err
			}
			return nil
		})
		return err
	})
	return refused, definite(err)
}

// markFault is the error of one artifact's status.
func markFault(status string, reason *string) error {
	switch status {
	case "stored":
		return nil
	case "artifact-not-found":
		return ErrArtifactNotFound
	case "lease-lost":
		return &LeaseLostError{Reason: Reason(orZero(reason))}
	}
	return fmt.Errorf("mark stored: unexpected status %q", status)
}
