package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Head implements [artifacts.BlobReader]. A bucket that is missing is not taken for an object
// that is.
func (s *Store) Head(ctx context.Context, key string) (artifacts.Object, error) {
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &s.cfg.Bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		err = s.translate(ctx, "head", key, err)
		if errors.Is(err, artifacts.ErrNotFound) {
			return artifacts.Object{}, s.orNoBucket(ctx, err)
		}
		return artifacts.Object{}, err
	}
	o := artifacts.Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), ContentType: aws.ToString(out.ContentType),
		Metadata: bucket.LowerKeys(out.Metadata), LastModified: aws.ToTime(out.LastModified),
	}
	o.SHA256 = bucket.FullChecksum(aws.ToString(out.ChecksumSHA256), string(out.ChecksumType))
	return o, nil
}

// orNoBucket is notFound if the bucket is there. The answer to a HEAD has no body, and 404 in it
// may mean either.
func (s *Store) orNoBucket(ctx context.Context, notFound error) error {
	_, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &s.cfg.Bucket})
	if err == nil {
		return notFound
	}
	err = s.translate(ctx, "look for the bucket", s.cfg.Bucket, err)
	if errors.Is(err, artifacts.ErrNotFound) {
		return fmt.Errorf("s3: bucket %s: %w", s.cfg.Bucket, bucket.ErrNoBucket)
	}
	if errors.Is(err, bucket.ErrDenied) {
		return notFound // the key may read objects without being allowed to ask for the bucket
	}
	return err
}

// Get implements [artifacts.BlobReader]. The Object has no SHA256: the SDK would then hash every
// read, and callers that want proof hash for themselves.
func (s *Store) Get(ctx context.Context, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if r.Length == 0 {
		o, err := s.Head(ctx, key)
		if err != nil {
			return nil, artifacts.Object{}, err
		}
		return bucket.Nothing(o, r)
	}
	in := &s3.GetObjectInput{Bucket: &s.cfg.Bucket, Key: &key}
	switch header, err := bucket.RangeHeader(r); {
	case err != nil:
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w", key, err)
	case header != "":
		in.Range = &header
	}
	// The reader outlives this call, and so does its context: closing the reader cancels it.
	ctx, cancel := context.WithCancelCause(ctx)
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		err = s.translate(ctx, "get", key, err)
		cancel(nil)
		return nil, artifacts.Object{}, err
	}
	length := int64(-1)
	if out.ContentLength != nil {
		length = *out.ContentLength
	}
	want, size, err := bucket.Extent(r, length, aws.ToString(out.ContentRange))
	if err != nil {
		cancel(nil)
		_ = out.Body.Close()
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w: %w", key, artifacts.ErrStoreUnavailable, err)
	}
	o := artifacts.Object{
		Key: key, Size: size, ContentType: aws.ToString(out.ContentType),
		Metadata: bucket.LowerKeys(out.Metadata), LastModified: aws.ToTime(out.LastModified),
	}
	return bucket.NewReader(ctx, cancel, key, out.Body, want, s.cfg.ResponseTimeout), o, nil
}
