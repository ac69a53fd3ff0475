package miniostore_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/miniostore"
)

// minio-go would go on without a signature.
func TestNoCredentialsIsAnError(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
		"AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "MINIO_ACCESS_KEY", "MINIO_SECRET_KEY",
	} {
		t.Setenv(name, "")
	}
	var requests, metadata atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		metadata.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer role.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.URL)
	store, err := miniostore.New(t.Context(), miniostore.Config{Endpoint: server.URL, Bucket: "bucket", PathStyle: true, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, head := store.Head(t.Context(), "key")
	_, sign := store.SignGet(t.Context(), "key", artifacts.ReadDisposition{}, time.Minute)
	for call, err := range map[string]error{"Head": head, "SignGet": sign} {
		if err == nil || !strings.Contains(err.Error(), "no credentials") {
			t.Errorf("%s: %v", call, err)
		}
	}
	if requests.Load() != 0 || metadata.Load() == 0 {
		t.Errorf("%d requests went to the store, %d to the role", requests.Load(), metadata.Load())
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_SESSION_TOKEN", "session")
	r, err := store.SignGet(t.Context(), "key", artifacts.ReadDisposition{}, time.Minute)
	if err != nil || !strings.Contains(r.URL, "X-Amz-Credential=id%2F") || !strings.Contains(r.URL, "X-Amz-Security-Token=session") {
		t.Errorf("with credentials in the environment: %s, %v", r.URL, err)
	}
}

func TestWhereTheBucketStands(t *testing.T) {
	for _, c := range []struct {
		endpoint, bucket string
		pathStyle        bool
		host, path       string
	}{
		{"https://s3.example.com", "files", false, "files.s3.example.com", "/key"},
		{"https://s3.example.com", "files", true, "s3.example.com", "/files/key"},
		{"https://s3.example.com/", "my.files", false, "s3.example.com", "/my.files/key"},
		{"http://s3.example.com:9000", "my.files", false, "my.files.s3.example.com:9000", "/key"},
		{"", "files", false, "files.s3.dualstack.eu-west-1.amazonaws.com", "/key"},
	} {
		store, err := miniostore.New(t.Context(), miniostore.Config{
			Endpoint: c.endpoint, Bucket: c.bucket, PathStyle: c.pathStyle, Region: "eu-west-1", AccessKeyID: "id", SecretAccessKey: "secret",
		})
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		r, err := store.SignGet(t.Context(), "key", artifacts.ReadDisposition{}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := url.Parse(r.URL); err != nil || u.Host != c.host || u.Path != c.path {
			t.Errorf("%+v: %s, %v", c, r.URL, err)
		}
	}
	if _, err := miniostore.New(t.Context(), miniostore.Config{Endpoint: "https://example.com/s3", Bucket: "files"}); err == nil {
		t.Error("an endpoint with a path was accepted")
	}
}
