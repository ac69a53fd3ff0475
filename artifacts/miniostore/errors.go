package miniostore

import (
	"context"
	"errors"
	"fmt"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// translate turns an error of the SDK into one of package artifacts, by its code, status and
// type. Every error of this driver passes here.
func (s *Store) translate(ctx context.Context, doing, key string, err error) error {
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("s3: %s %s: %w", doing, key, cause)
	}
	return fmt.Errorf("s3: %s %s: %w: %w", doing, key, meaning(err), err)
}

// meaning is the sentinel for an error of the SDK.
func meaning(err error) error {
	var bodyErr *bucket.BodyError
	if errors.As(err, &bodyErr) {
		return bucket.ErrBody
	}
	var resp minio.ErrorResponse
	if errors.As(err, &resp) {
		return bucket.Meaning(resp.Code, resp.StatusCode)
	}
	if errors.Is(err, errNoCredentials) {
		return bucket.ErrRequest
	}
	return artifacts.ErrStoreUnavailable
}

// status is the HTTP status of the store's refusal, or 0.
func status(err error) int {
	var resp minio.ErrorResponse
	if errors.As(err, &resp) {
		return resp.StatusCode
	}
	return 0
}
