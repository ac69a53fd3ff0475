package storetest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
)

// versions counts the versions and delete markers in the bucket.
func (f fixture) versions(t *testing.T) int {
	t.Helper()
	out, err := f.bucket.Client().ListObjectVersions(t.Context(), &s3.ListObjectVersionsInput{Bucket: &f.bucket.Name})
	if err != nil {
		t.Fatal(err)
	}
	return len(out.Versions) + len(out.DeleteMarkers)
}

func testDeleteAllVersions(t *testing.T, f fixture) {
	client := f.bucket.Client()
	drop, keep := f.put(t, []byte("first version")), f.put(t, []byte("another key"))
	// Something else wrote over it, and deleted it, as lifecycle tools do.
	_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: &f.bucket.Name, Key: &drop.Key, Body: bytes.NewReader([]byte("second version")),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &f.bucket.Name, Key: &drop.Key}); err != nil {
		t.Fatal(err)
	}
	longer := drop
	longer.Key += "-and-more" // the first key is its prefix
	if err := f.Put(t.Context(), longer, bytes.NewReader([]byte("first version"))); err != nil {
		t.Fatal(err)
	}
	if n := f.versions(t); n != 5 {
		t.Fatalf("%d versions and markers, want 5", n)
	}
	deleted, err := f.Delete(t.Context(), []string{drop.Key})
	if err != nil || len(deleted) != 1 || deleted[0].Err != nil {
		t.Fatalf("Delete: %v %v", deleted, err)
	}
	if n := f.versions(t); n != 2 {
		t.Errorf("%d versions and markers are left, want the other two keys'", n)
	}
	f.holds(t, keep, []byte("another key"))
	f.holds(t, longer, []byte("first version"))
}

func testDeleteRetained(t *testing.T, f fixture) {
	client := f.bucket.Client()
	locked, held, free := f.put(t, []byte("locked")), f.put(t, []byte("held")), f.put(t, []byte("free"))
	_, err := client.PutObjectRetention(t.Context(), &s3.PutObjectRetentionInput{
		Bucket: &f.bucket.Name, Key: &locked.Key, ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
		Retention: &types.ObjectLockRetention{
			Mode: types.ObjectLockRetentionModeGovernance, RetainUntilDate: aws.Time(time.Now().Add(time.Hour)),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.PutObjectLegalHold(t.Context(), &s3.PutObjectLegalHoldInput{
		Bucket: &f.bucket.Name, Key: &held.Key, ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
		LegalHold: &types.ObjectLockLegalHold{Status: types.ObjectLockLegalHoldStatusOn},
	})
	if err != nil {
		t.Fatal(err)
	}
	deleted, err := f.Delete(t.Context(), []string{locked.Key, held.Key, free.Key})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{artifacts.ErrRetained, artifacts.ErrRetained, nil} {
		if got := deleted[i].Err; !errors.Is(got, want) {
			t.Errorf("fate %d: %v, want %v", i, got, want)
		}
	}
	f.holds(t, locked, []byte("locked"))
	f.absent(t, free.Key)
}

// The bucket's own rule retains what says nothing of it itself.
func testDeleteRetainedByDefault(t *testing.T, f fixture) {
	_, err := f.bucket.Client().PutObjectLockConfiguration(t.Context(), &s3.PutObjectLockConfigurationInput{
		Bucket: &f.bucket.Name, ObjectLockConfiguration: &types.ObjectLockConfiguration{
			ObjectLockEnabled: types.ObjectLockEnabledEnabled,
			Rule:              &types.ObjectLockRule{DefaultRetention: &types.DefaultRetention{Mode: types.ObjectLockRetentionModeGovernance, Days: aws.Int32(1)}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	u := f.put(t, []byte("retained"))
	deleted, err := f.Delete(t.Context(), []string{u.Key})
	if err != nil || !errors.Is(deleted[0].Err, artifacts.ErrRetained) {
		t.Errorf("%v, %v", deleted, err)
	}
	f.holds(t, u, []byte("retained"))
}
