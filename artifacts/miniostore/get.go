package miniostore

import (
	"context"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Head implements [artifacts.BlobReader].
func (s *Store) Head(ctx context.Context, key string) (artifacts.Object, error) {
	return bucket.Head(ctx, driver{s}, s.cfg, key)
}

// Get implements [artifacts.BlobReader].
func (s *Store) Get(ctx context.Context, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	return bucket.Get(ctx, driver{s}, s.cfg, key, r)
}

func (s driver) TryHead(ctx context.Context, key string) (artifacts.Object, error) {
	info, err := s.core.StatObject(ctx, s.cfg.Bucket, key, minio.StatObjectOptions{Checksum: true})
	if err != nil {
		return artifacts.Object{}, s.translate(ctx, "head", key, err)
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

func (s driver) TryGet(ctx context.Context, key, rangeHeader string) (bucket.Answer, error) {
	var options minio.GetObjectOptions
	if rangeHeader != "" {
		options.Set("Range", rangeHeader)
	}
	body, info, header, err := s.core.GetObject(ctx, s.cfg.Bucket, key, options)
	if err != nil {
		return bucket.Answer{}, s.translate(ctx, "get", key, err)
	}
	return bucket.Answer{Object: object(key, info), Body: body, Length: info.Size, ContentRange: header.Get("Content-Range")}, nil
}

func (s driver) BucketExists(ctx context.Context) (bool, error) {
	exists, err := s.core.BucketExists(ctx, s.cfg.Bucket)
	return exists, s.translate(ctx, "look for the bucket", s.cfg.Bucket, err)
}
