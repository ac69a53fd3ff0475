package miniostore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Delete implements [artifacts.BlobDeleter].
func (s *Store) Delete(ctx context.Context, keys []string) ([]artifacts.Deleted, error) {
	return s.deleter.Delete(ctx, driver{s}, keys)
}

func (s driver) Versioned(ctx context.Context) (bool, error) {
	v, err := s.core.GetBucketVersioning(ctx, s.cfg.Bucket)
	switch {
	case err == nil:
		return v.Status != "", nil // enabled, or suspended with versions left
	case status(err) == http.StatusNotImplemented || status(err) == http.StatusMethodNotAllowed:
		return false, nil // a store without versions
	}
	return false, s.translate(ctx, "ask for the versioning of", s.cfg.Bucket, err)
}

func (s driver) VersionsOf(ctx context.Context, key string) ([]bucket.Version, error) {
	var versions []bucket.Version
	options := minio.ListObjectsOptions{Prefix: key, Recursive: true, WithVersions: true}
	for info := range s.core.ListObjectsIter(ctx, s.cfg.Bucket, options) {
		if info.Err != nil {
			return nil, s.translate(ctx, "list the versions of", key, info.Err)
		}
		// The prefix is a whole key: what follows it in the listing belongs to longer keys. A
		// delete marker of theirs may come out of order, a version may not.
		if info.Key > key && !info.IsDeleteMarker {
			return versions, nil
		}
		if info.Key == key {
			versions = append(versions, bucket.Version{Key: key, ID: info.VersionID})
		}
	}
	// The sequence ends without a word when it is cancelled.
	return versions, s.translate(ctx, "list the versions of", key, ctx.Err())
}

func (s driver) TryDeleteBatch(ctx context.Context, versions []bucket.Version) (map[bucket.Version]error, int, error) {
	objects := func(yield func(minio.ObjectInfo) bool) {
		for _, v := range versions {
			if !yield(minio.ObjectInfo{Key: v.Key, VersionID: v.ID}) {
				return
			}
		}
	}
	results, err := s.core.RemoveObjectsWithIter(ctx, s.cfg.Bucket, objects, minio.RemoveObjectsOptions{})
	if err != nil {
		return nil, 0, s.translate(ctx, "delete from", s.cfg.Bucket, err)
	}
	fates := make(map[bucket.Version]error, len(versions))
	for r := range results {
		v := bucket.Version{Key: r.ObjectName, ID: r.ObjectVersionID}
		var refused minio.ErrorResponse
		switch {
		case r.Err == nil:
			fates[v] = nil
		case r.ObjectName != "" && errors.As(r.Err, &refused) && refused.StatusCode == 0:
			// Without a status of its own it is one key's error in a 200 answer.
			fates[v] = fmt.Errorf("s3: delete %s: %w: %s: %w", v.Key, bucket.BatchRefusal(refused.Code), refused.Code, refused)
		default: // the whole request was refused; minio-go says so once for every key
			return nil, status(r.Err), s.translate(ctx, "delete from", s.cfg.Bucket, r.Err)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, s.translate(ctx, "delete from", s.cfg.Bucket, err)
	}
	return fates, 0, nil
}

func (s driver) TryDelete(ctx context.Context, v bucket.Version) error {
	err := s.core.RemoveObject(ctx, s.cfg.Bucket, v.Key, minio.RemoveObjectOptions{VersionID: v.ID})
	return s.translate(ctx, "delete", v.Key, err)
}

func (s driver) Retained(ctx context.Context, v bucket.Version) (bool, error) {
	info, err := s.core.StatObject(ctx, s.cfg.Bucket, v.Key, minio.StatObjectOptions{VersionID: v.ID})
	if err != nil {
		return false, s.translate(ctx, "head", v.Key, err)
	}
	h := info.Headers
	if h.Get("X-Amz-Object-Lock-Legal-Hold") == "ON" {
		return true, nil
	}
	until, err := time.Parse(time.RFC3339, h.Get("X-Amz-Object-Lock-Retain-Until-Date"))
	if err == nil && h.Get("X-Amz-Object-Lock-Mode") != "" && time.Now().Before(until) {
		return true, nil
	}
	// The bucket's own rule, which versitygw applies without telling it in the object's headers.
	_, validity, unit, err := s.core.GetBucketObjectLockConfig(ctx, s.cfg.Bucket)
	switch {
	case err != nil:
		return false, s.translate(ctx, "object lock of", s.cfg.Bucket, err)
	case validity == nil || unit == nil:
		return false, nil
	case *unit == minio.Years:
		return time.Now().Before(info.LastModified.AddDate(int(*validity), 0, 0)), nil
	}
	return time.Now().Before(info.LastModified.AddDate(0, 0, int(*validity))), nil
}
