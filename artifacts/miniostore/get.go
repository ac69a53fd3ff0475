package miniostore

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Head implements [artifacts.BlobReader]. A bucket that is missing is not taken for an object
// that is.
func (s *Store) Head(ctx context.Context, key string) (artifacts.Object, error) {
	info, err := s.core.StatObject(ctx, s.cfg.Bucket, key, minio.StatObjectOptions{Checksum: true})
	if err != nil {
		err = s.translate(ctx, "head", key, err)
		if errors.Is(err, artifacts.ErrNotFound) {
			return artifacts.Object{}, s.orNoBucket(ctx, err)
		}
		return artifacts.Object{}, err
	}
	if info.Size < 0 {
		return artifacts.Object{}, fmt.Errorf("s3: head %s: %w: the store does not say how long the object is", key, artifacts.ErrStoreUnavailable)
	}
	o := object(key, info)
	o.Size, o.SHA256 = info.Size, bucket.FullChecksum(info.ChecksumSHA256, info.ChecksumMode)
	return o, nil
}

// object is what an answer's headers tell; size and checksum of the whole are not always there.
func object(key string, info minio.ObjectInfo) artifacts.Object {
	return artifacts.Object{
		Key: key, ContentType: info.ContentType, Metadata: bucket.LowerKeys(info.UserMetadata), LastModified: info.LastModified,
	}
}

// orNoBucket is notFound if the bucket is there. The answer to a HEAD has no body, and 404 in it
// may mean either.
func (s *Store) orNoBucket(ctx context.Context, notFound error) error {
	exists, err := s.core.BucketExists(ctx, s.cfg.Bucket)
	switch {
	case err == nil && exists:
		return notFound
	case err == nil:
		return fmt.Errorf("s3: bucket %s: %w", s.cfg.Bucket, bucket.ErrNoBucket)
	}
	err = s.translate(ctx, "look for the bucket", s.cfg.Bucket, err)
	if errors.Is(err, bucket.ErrDenied) {
		return notFound // the key may read objects without being allowed to ask for the bucket
	}
	return err
}

// Get implements [artifacts.BlobReader]. The Object has no SHA256, as in package s3store.
func (s *Store) Get(ctx context.Context, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if r.Length == 0 {
		o, err := s.Head(ctx, key)
		if err != nil {
			return nil, artifacts.Object{}, err
		}
		return bucket.Nothing(o, r)
	}
	var options minio.GetObjectOptions
	switch header, err := bucket.RangeHeader(r); {
	case err != nil:
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w", key, err)
	case header != "":
		options.Set("Range", header)
	}
	// The reader outlives this call, and so does its context: closing the reader cancels it.
	ctx, cancel := context.WithCancelCause(ctx)
	body, info, header, err := s.core.GetObject(ctx, s.cfg.Bucket, key, options)
	if err != nil {
		err = s.translate(ctx, "get", key, err)
		cancel(nil)
		return nil, artifacts.Object{}, err
	}
	want, size, err := bucket.Extent(r, info.Size, header.Get("Content-Range"))
	if err != nil {
		cancel(nil)
		_ = body.Close()
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w: %w", key, artifacts.ErrStoreUnavailable, err)
	}
	o := object(key, info)
	o.Size = size
	return bucket.NewReader(ctx, cancel, key, body, want, s.cfg.ResponseTimeout), o, nil
}
