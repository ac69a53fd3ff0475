package miniostore

import (
	"context"
	"errors"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// translate is [bucket.Translate] with this SDK's errors. Every error of this driver passes here.
func (s *Store) translate(ctx context.Context, doing, key string, err error) error {
	return bucket.Translate(ctx, doing, key, err, meaning)
}

// meaning is the sentinel for an error of the SDK.
func meaning(err error) error {
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
