package miniostore

import (
	"context"
	"fmt"
	"iter"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// List implements [artifacts.BlobLister]. It fails closed: besides the guard's checks of each
// page, keys must come in order and under the prefix. The objects have no content type, metadata
// or checksum; a listing does not carry them.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[artifacts.Object, error] {
	return func(yield func(artifacts.Object, error) bool) {
		owner, last := false, ""
		options := minio.ListObjectsOptions{Prefix: prefix, Recursive: true, FetchOwner: &owner}
		for info := range s.core.ListObjectsIter(ctx, s.cfg.Bucket, options) {
			if info.Err != nil {
				yield(artifacts.Object{}, s.translate(ctx, "list", prefix, info.Err))
				return
			}
			if err := bucket.Follows(info.Key, last, prefix); err != nil {
				yield(artifacts.Object{}, fmt.Errorf("s3: list %s: %w: %w", prefix, artifacts.ErrStoreUnavailable, err))
				return
			}
			last = info.Key
			if !yield(artifacts.Object{Key: info.Key, Size: info.Size, LastModified: info.LastModified}, nil) {
				return
			}
		}
		if ctx.Err() != nil { // the sequence ends without a word when it is cancelled
			yield(artifacts.Object{}, s.translate(ctx, "list", prefix, ctx.Err()))
		}
	}
}

// ListMultiparts implements [artifacts.BlobLister].
func (s *Store) ListMultiparts(ctx context.Context, prefix string) iter.Seq2[artifacts.Multipart, error] {
	return bucket.ListMultiparts(ctx, prefix, func(ctx context.Context, keyMarker string) (bucket.UploadsPage, error) {
		out, err := s.core.ListMultipartUploads(ctx, s.cfg.Bucket, "", keyMarker, "", "", 0)
		if err != nil {
			return bucket.UploadsPage{}, s.translate(ctx, "list the multipart uploads of", s.cfg.Bucket, err)
		}
		page := bucket.UploadsPage{Truncated: out.IsTruncated, NextKey: out.NextKeyMarker, Uploads: make([]artifacts.Multipart, len(out.Uploads))}
		for i, u := range out.Uploads {
			page.Uploads[i] = artifacts.Multipart{Key: u.Key, UploadID: u.UploadID, Initiated: u.Initiated}
		}
		return page, nil
	})
}
