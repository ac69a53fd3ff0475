package s3store

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Delete implements [artifacts.BlobDeleter].
func (s *Store) Delete(ctx context.Context, keys []string) ([]artifacts.Deleted, error) {
	return s.deleter.Delete(ctx, driver{s}, keys)
}

func (s driver) Versioned(ctx context.Context) (bool, error) {
	versioning, err := s.Versioning(ctx)
	return versioning != "", err // enabled, or suspended with versions left
}

func (s driver) VersionsOf(ctx context.Context, key string) ([]bucket.Version, error) {
	var versions []bucket.Version
	in := &s3.ListObjectVersionsInput{Bucket: &s.cfg.Bucket, Prefix: &key}
	for {
		page, err := s.client.ListObjectVersions(ctx, in)
		if err != nil {
			return nil, s.translate(ctx, "list the versions of", key, err)
		}
		for _, v := range page.Versions {
			if aws.ToString(v.Key) == key {
				versions = append(versions, bucket.Version{Key: key, ID: aws.ToString(v.VersionId)})
			}
		}
		for _, m := range page.DeleteMarkers {
			if aws.ToString(m.Key) == key {
				versions = append(versions, bucket.Version{Key: key, ID: aws.ToString(m.VersionId)})
			}
		}
		if page.IsTruncated == nil {
			return nil, fmt.Errorf("s3: list the versions of %s: %w: the store does not say whether the listing is complete",
				key, artifacts.ErrStoreUnavailable)
		}
		// The prefix is a whole key: what follows it in the listing belongs to longer keys, and
		// those sort after every version of this one.
		if !*page.IsTruncated || beyond(page, key) {
			return versions, nil
		}
		if aws.ToString(page.NextKeyMarker) == "" || aws.ToString(page.NextKeyMarker) == aws.ToString(in.KeyMarker) &&
			aws.ToString(page.NextVersionIdMarker) == aws.ToString(in.VersionIdMarker) {
			return nil, fmt.Errorf("s3: list the versions of %s: %w: the store cut the listing short without a way to go on",
				key, artifacts.ErrStoreUnavailable)
		}
		in.KeyMarker, in.VersionIdMarker = page.NextKeyMarker, page.NextVersionIdMarker
	}
}

func beyond(page *s3.ListObjectVersionsOutput, key string) bool {
	for _, v := range page.Versions {
		if aws.ToString(v.Key) > key {
			return true
		}
	}
	return false
}

func (s driver) TryDeleteBatch(ctx context.Context, versions []bucket.Version) (map[bucket.Version]error, int, error) {
	ids := make([]types.ObjectIdentifier, len(versions))
	for i, v := range versions {
		ids[i] = types.ObjectIdentifier{Key: &v.Key, VersionId: optional(v.ID)}
	}
	out, err := s.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: &s.cfg.Bucket, Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(false)},
	})
	if err != nil {
		return nil, status(err), s.translate(ctx, "delete from", s.cfg.Bucket, err)
	}
	fates := make(map[bucket.Version]error, len(versions))
	for _, d := range out.Deleted {
		fates[bucket.Version{Key: aws.ToString(d.Key), ID: aws.ToString(d.VersionId)}] = nil
	}
	for _, e := range out.Errors {
		v, code := bucket.Version{Key: aws.ToString(e.Key), ID: aws.ToString(e.VersionId)}, aws.ToString(e.Code)
		fates[v] = fmt.Errorf("s3: delete %s: %w: %s: %s", v.Key, bucket.BatchRefusal(code), code, aws.ToString(e.Message))
	}
	return fates, 0, nil
}

func (s driver) TryDelete(ctx context.Context, v bucket.Version) error {
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.cfg.Bucket, Key: &v.Key, VersionId: optional(v.ID)})
	return s.translate(ctx, "delete", v.Key, err)
}

func (s driver) Retained(ctx context.Context, v bucket.Version) (bool, error) {
	head, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.cfg.Bucket, Key: &v.Key, VersionId: optional(v.ID)})
	if err != nil {
		return false, s.translate(ctx, "head", v.Key, err)
	}
	if head.ObjectLockLegalHoldStatus == types.ObjectLockLegalHoldStatusOn ||
		(head.ObjectLockMode != "" && head.ObjectLockRetainUntilDate != nil && time.Now().Before(*head.ObjectLockRetainUntilDate)) {
		return true, nil
	}
	return s.retainedByDefault(ctx, aws.ToTime(head.LastModified))
}

// retainedByDefault asks for the bucket's own rule, which versitygw applies without telling it in the
// headers of the object.
func (s driver) retainedByDefault(ctx context.Context, modified time.Time) (bool, error) {
	out, err := s.client.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &s.cfg.Bucket})
	if err != nil {
		return false, s.translate(ctx, "object lock of", s.cfg.Bucket, err)
	}
	if out.ObjectLockConfiguration == nil || out.ObjectLockConfiguration.Rule == nil || out.ObjectLockConfiguration.Rule.DefaultRetention == nil {
		return false, nil
	}
	rule := out.ObjectLockConfiguration.Rule.DefaultRetention
	return time.Now().Before(modified.AddDate(int(aws.ToInt32(rule.Years)), 0, int(aws.ToInt32(rule.Days)))), nil
}

// optional is nil for "": the SDK would send an empty parameter.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
