package s3store

import (
	"context"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Versioning is how the bucket keeps old versions: "Enabled", "Suspended", or "" for not at all.
func (s *Store) Versioning(ctx context.Context) (string, error) {
	out, err := s.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &s.cfg.Bucket})
	switch {
	case err == nil:
		return string(out.Status), nil
	case status(err) == http.StatusNotImplemented || status(err) == http.StatusMethodNotAllowed:
		return "", nil // a store without versions
	}
	return "", s.translate(ctx, "ask for the versioning of", s.cfg.Bucket, err)
}

// DefaultRetention is the object lock that every new object of the bucket gets, such as
// "GOVERNANCE, 30 days"; "" when none does.
func (s *Store) DefaultRetention(ctx context.Context) (string, error) {
	out, err := s.client.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &s.cfg.Bucket})
	switch status(err) {
	case http.StatusNotFound, http.StatusNotImplemented, http.StatusMethodNotAllowed, http.StatusBadRequest:
		return "", nil // stores disagree about how to say that there is none
	}
	if err != nil {
		return "", s.translate(ctx, "ask for the object lock of", s.cfg.Bucket, err)
	}
	if out.ObjectLockConfiguration == nil || out.ObjectLockConfiguration.Rule == nil ||
		out.ObjectLockConfiguration.Rule.DefaultRetention == nil {
		return "", nil
	}
	r := out.ObjectLockConfiguration.Rule.DefaultRetention
	if years := aws.ToInt32(r.Years); years > 0 {
		return fmt.Sprintf("%s, %d years", r.Mode, years), nil
	}
	return fmt.Sprintf("%s, %d days", r.Mode, aws.ToInt32(r.Days)), nil
}

// DeletesInBatches sends one batch and reports whether the store took it and told the fate of each
// key. Delete does without batches on its own where they fail, so it cannot tell.
func (s *Store) DeletesInBatches(ctx context.Context, keys []string) (bool, error) {
	versions := make([]bucket.Version, len(keys))
	for i, key := range keys {
		versions[i] = bucket.Version{Key: key}
	}
	fates, code, err := driver{s}.TryDeleteBatch(ctx, versions)
	if code >= 400 && code < 500 || code == http.StatusNotImplemented {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	told := map[string]bool{}
	for v, fate := range fates {
		told[v.Key] = fate == nil
	}
	for _, key := range keys {
		if !told[key] {
			return false, nil
		}
	}
	return true, nil
}
