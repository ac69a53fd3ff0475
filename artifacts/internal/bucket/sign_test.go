package bucket_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

func TestSigned(t *testing.T) {
	u := artifacts.Upload{Size: 1, ContentType: "text/plain", Metadata: map[string]string{"Artifactd-Token": "1.1"}}
	must := bucket.PutHeaders(u)
	for _, name := range []string{"host", "content-length", "content-type", "if-none-match", "x-amz-checksum-sha256", "x-amz-meta-artifactd-token"} {
		if !slices.Contains(must, name) {
			t.Errorf("%s need not be signed: %q", name, must)
		}
	}
	const signed = "https://s3.example.com/b/k?X-Amz-SignedHeaders=content-length%3Bhost%3Bx-amz-checksum-sha256"
	if _, err := bucket.Signed(http.MethodPut, signed, nil, time.Time{}, bucket.PartHeaders()); err != nil {
		t.Errorf("a part: %v", err)
	}
	for _, bad := range []string{
		signed[:len(signed)-len("%3Bx-amz-checksum-sha256")], "https://s3.example.com/b/k", "https://s3.example.com/%zz",
	} {
		if _, err := bucket.Signed(http.MethodPut, bad, nil, time.Time{}, bucket.PartHeaders()); err == nil {
			t.Errorf("%s was taken for signed", bad)
		}
	}
	if _, err := bucket.Signed(http.MethodPut, signed, nil, time.Time{}, must); err == nil {
		t.Error("a part's signature was taken for an object's")
	}
}

func TestLife(t *testing.T) {
	const week = 7 * 24 * time.Hour
	soon := time.Now().Add(90 * time.Second)
	for _, c := range []struct {
		ttl         time.Duration
		credentials time.Time
		min, max    time.Duration
	}{
		{time.Minute, time.Time{}, time.Minute, time.Minute},
		{1500 * time.Millisecond, time.Time{}, time.Second, time.Second},
		{30 * week, time.Time{}, week, week},
		{time.Hour, soon, 80 * time.Second, 90 * time.Second},
		{time.Minute, soon, time.Minute, time.Minute},
	} {
		ttl, until, err := bucket.Life(c.ttl, c.credentials)
		if err != nil || ttl < c.min || ttl > c.max || time.Until(until) > ttl {
			t.Errorf("Life(%v): %v until %v, %v", c.ttl, ttl, until, err)
		}
	}
	for _, c := range []struct {
		ttl         time.Duration
		credentials time.Time
	}{{0, time.Time{}}, {time.Millisecond, time.Time{}}, {-time.Hour, time.Time{}}, {time.Hour, time.Now().Add(-time.Second)}} {
		if ttl, _, err := bucket.Life(c.ttl, c.credentials); err == nil {
			t.Errorf("Life(%v, %v): %v", c.ttl, c.credentials, ttl)
		}
	}
}
