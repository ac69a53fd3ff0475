package s3store

import (
	"context"
	"errors"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

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
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &s.cfg.Bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		return artifacts.Object{}, s.translate(ctx, "head", key, err)
	}
	return artifacts.Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), ContentType: aws.ToString(out.ContentType),
		Metadata: bucket.LowerKeys(out.Metadata), LastModified: aws.ToTime(out.LastModified),
		SHA256: bucket.FullChecksum(aws.ToString(out.ChecksumSHA256), string(out.ChecksumType)),
	}, nil
}

func (s driver) TryGet(ctx context.Context, key, rangeHeader string) (bucket.Answer, error) {
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.cfg.Bucket, Key: &key, Range: optional(rangeHeader)})
	if err != nil {
		return bucket.Answer{}, s.translate(ctx, "get", key, err)
	}
	length := int64(-1)
	if out.ContentLength != nil {
		length = *out.ContentLength
	}
	return bucket.Answer{Body: out.Body, Length: length, ContentRange: aws.ToString(out.ContentRange), Object: artifacts.Object{
		Key: key, ContentType: aws.ToString(out.ContentType),
		Metadata: bucket.LowerKeys(out.Metadata), LastModified: aws.ToTime(out.LastModified),
	}}, nil
}

func (s driver) BucketExists(ctx context.Context) (bool, error) {
	_, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &s.cfg.Bucket})
	err = s.translate(ctx, "look for the bucket", s.cfg.Bucket, err)
	if errors.Is(err, artifacts.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
