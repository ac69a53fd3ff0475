package gc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
)

var (
	// ErrForeignBucket: the bucket's prefix belongs to another installation.
	ErrForeignBucket = errors.New("the bucket belongs to another installation")
	// ErrUnmarkedBucket: the bucket does not say whose it is.
	ErrUnmarkedBucket = errors.New("the bucket carries no installation's marker")
)

const installationSQL = `SELECT installation_id FROM artifactd.installation`

// maxMarker bounds what is read of a marker, in bytes.
const maxMarker = 100

// markerKey is the object that says which installation a prefix of a bucket belongs to: it holds
// the installation's id as text.
func markerKey(l artifacts.Layout) string { return l.Prefix + "installation" }

// MarkerStore is what [ClaimBucket] needs of the object store.
type MarkerStore interface {
	artifacts.BlobReader
	artifacts.BlobWriter
}

// ClaimBucket marks the bucket's prefix as this database's installation's, unless it is marked
// already. [ErrForeignBucket] when it is another's. It may be called by any number of replicas at
// once; when it returns nil the marker was read back.
func ClaimBucket(ctx context.Context, pool *pgxpool.Pool, store MarkerStore, layout artifacts.Layout) error {
	id, err := installation(ctx, pool)
	if err != nil {
		return err
	}
	err = checkMarker(ctx, store, layout, id)
	if !errors.Is(err, ErrUnmarkedBucket) {
		return err
	}
	text := id.String()
	u := artifacts.Upload{Key: markerKey(layout), Digest: artifacts.DigestOf([]byte(text)), Size: int64(len(text)), ContentType: "text/plain"}
	if err := store.Put(ctx, u, strings.NewReader(text)); err != nil && !errors.Is(err, artifacts.ErrExists) {
		return fmt.Errorf("mark the bucket as this installation's: %w", err)
	}
	return checkMarker(ctx, store, layout, id) // another may have been faster, on a store that lets both write
}

// CheckBucket returns nil when the bucket's prefix is marked as this database's installation's, and
// marks nothing. [ErrForeignBucket], [ErrUnmarkedBucket].
func CheckBucket(ctx context.Context, pool *pgxpool.Pool, store artifacts.BlobReader, layout artifacts.Layout) error {
	id, err := installation(ctx, pool)
	if err != nil {
		return err
	}
	return checkMarker(ctx, store, layout, id)
}

func installation(ctx context.Context, pool *pgxpool.Pool) (uuid.UUID, error) {
	var id uuid.UUID
	if err := pool.QueryRow(ctx, installationSQL).Scan(&id); err != nil {
		return id, fmt.Errorf("ask the database for its installation id: %w", err)
	}
	return id, nil
}

// checkMarker returns nil when the marker names the installation.
func checkMarker(ctx context.Context, store artifacts.BlobReader, layout artifacts.Layout, id uuid.UUID) error {
	key := markerKey(layout)
	body, _, err := store.Get(ctx, key, artifacts.WholeObject)
	if errors.Is(err, artifacts.ErrNotFound) {
		return fmt.Errorf("%w: there is no object %q; a service that starts on this bucket writes it", ErrUnmarkedBucket, key)
	}
	if err != nil {
		return fmt.Errorf("read the bucket's marker: %w", err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxMarker))
	if err != nil {
		return fmt.Errorf("read the bucket's marker: %w", err)
	}
	if owner := strings.TrimSpace(string(text)); owner != id.String() {
		return fmt.Errorf("%w: the object %q names %q, and this database is installation %s: choose another bucket or --s3-prefix, "+
			"or the database of that installation", ErrForeignBucket, key, owner, id)
	}
	return nil
}
