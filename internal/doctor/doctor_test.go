package doctor_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/miniostore"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/internal/doctor"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const prefix = "under/test/"

func config(b testenv.BucketConfig) s3store.Config {
	return s3store.Config{
		Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Name, AccessKeyID: b.AccessKeyID,
		SecretAccessKey: b.SecretAccessKey, PathStyle: true, Prefix: prefix, MaxAttempts: 2,
	}
}

// target examines a bucket through the SDK of Amazon.
func target(t *testing.T, c s3store.Config) doctor.Target {
	t.Helper()
	s, err := s3store.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return doctor.Target{
		Store: s, Bucket: s, Prefix: prefix, HTTP: client,
		DatabaseClock: func(context.Context) (time.Time, error) { return time.Now().Add(time.Second), nil },
	}
}

// examine runs the doctor and returns its findings by probe.
func examine(t *testing.T, target doctor.Target) map[string]doctor.Finding {
	t.Helper()
	report, err := doctor.Run(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]doctor.Finding{}
	for _, f := range report.Findings {
		t.Logf("%-32s %-9s %s; %s", f.Probe, f.Verdict, f.Found, f.Means)
		found[f.Probe] = f
		if (f.Verdict == doctor.OK) != (f.Means == "") {
			t.Errorf("%s: %s without, or ok with, what it means: %q", f.Probe, f.Verdict, f.Means)
		}
	}
	return found
}

// want compares verdicts; those that are not named must be ok.
func want(t *testing.T, found map[string]doctor.Finding, verdicts map[string]doctor.Verdict) {
	t.Helper()
	for name, f := range found {
		expected, ok := verdicts[name]
		if !ok {
			expected = doctor.OK
		}
		if f.Verdict != expected {
			t.Errorf("%s is %s, want %s: %s", name, f.Verdict, expected, f.Found)
		}
	}
	for name := range verdicts {
		if _, ok := found[name]; !ok {
			t.Errorf("%s was not probed", name)
		}
	}
}

// wantUntouched checks that nothing of the bucket is left but what was there before.
func wantUntouched(t *testing.T, b testenv.BucketConfig, before string) {
	t.Helper()
	client := b.Client()
	versions, err := client.ListObjectVersions(t.Context(), &s3.ListObjectVersionsInput{Bucket: &b.Name})
	if err != nil {
		t.Fatal(err)
	}
	if len(versions.DeleteMarkers) > 0 || len(versions.Versions) != 1 || *versions.Versions[0].Key != before {
		t.Errorf("left: %d delete markers and %d objects", len(versions.DeleteMarkers), len(versions.Versions))
	}
	uploads, err := client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &b.Name})
	if err != nil {
		t.Fatal(err)
	}
	if len(uploads.Uploads) > 0 {
		t.Errorf("%d uploads are left", len(uploads.Uploads))
	}
}

// occupy stores an object that is none of the doctor's business.
func occupy(t *testing.T, b testenv.BucketConfig) string {
	t.Helper()
	key := prefix + "probe/somebody-else"
	_, err := b.Client().PutObject(t.Context(), &s3.PutObjectInput{Bucket: &b.Name, Key: &key, Body: bytes.NewReader([]byte("x"))})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestRealStores(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		b := testenv.Bucket(t, server)
		other := occupy(t, b)
		t.Run("aws", func(t *testing.T) {
			want(t, examine(t, target(t, config(b))), nil)
			wantUntouched(t, b, other)
		})
		t.Run("minio", func(t *testing.T) {
			s, err := miniostore.New(t.Context(), config(b))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			through := target(t, config(b))
			through.Store = s
			want(t, examine(t, through), nil)
			wantUntouched(t, b, other)
		})
		t.Run("versioned", func(t *testing.T) {
			b := testenv.Bucket(t, server, testenv.Versioned())
			other := occupy(t, b)
			want(t, examine(t, target(t, config(b))), map[string]doctor.Verdict{"versioning": doctor.Degraded})
			wantUntouched(t, b, other)
		})
	})
}

// TestRetention has every object locked for a day: what the doctor made stays, and that is told.
func TestRetention(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		b := testenv.Bucket(t, server, testenv.ObjectLock())
		_, err := b.Client().PutObjectLockConfiguration(t.Context(), &s3.PutObjectLockConfigurationInput{
			Bucket: &b.Name, ObjectLockConfiguration: &types.ObjectLockConfiguration{
				ObjectLockEnabled: types.ObjectLockEnabledEnabled,
				Rule: &types.ObjectLockRule{DefaultRetention: &types.DefaultRetention{
					Mode: types.ObjectLockRetentionModeGovernance, Days: aws.Int32(1),
				}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		found := examine(t, target(t, config(b)))
		want(t, found, map[string]doctor.Verdict{"versioning": doctor.Degraded, "object lock": doctor.Degraded})
		if f := found["object lock"]; !strings.Contains(f.Found, "GOVERNANCE, 1 days") {
			t.Errorf("%+v", f)
		}
	})
}

func TestLaxStore(t *testing.T) {
	lax := &laxStore{}
	endpoint := startLax(t, lax)
	found := examine(t, target(t, laxConfig(endpoint)))
	want(t, found, map[string]doctor.Verdict{
		"SHA-256 on HEAD": doctor.Degraded, "range reads": doctor.Missing,
		"create-only PUT": doctor.Degraded, "create-only PUT, concurrent": doctor.Degraded,
		"signed PUT, other bytes": doctor.Degraded, "signed PUT, other headers": doctor.Missing,
		"signed GET, response overrides": doctor.Degraded, "anonymous requests": doctor.Missing,
		"multipart upload": doctor.Degraded, "batch delete": doctor.Degraded, "clock of the store": doctor.Missing,
	})
	for _, absent := range []string{"multipart abort", "multipart listing", "create-only Complete", "public endpoint"} {
		if _, ok := found[absent]; ok {
			t.Errorf("%s was probed, which this store cannot have", absent)
		}
	}
	if len(lax.objects) > 0 {
		t.Errorf("left: %d objects", len(lax.objects))
	}
}

func laxConfig(endpoint string) s3store.Config {
	return config(testenv.BucketConfig{Endpoint: endpoint, Region: "us-east-1", Name: "lax", AccessKeyID: "a", SecretAccessKey: "b"})
}

func TestForgetfulStore(t *testing.T) {
	endpoint := startLax(t, &laxStore{forgets: true})
	found := examine(t, target(t, laxConfig(endpoint)))
	if f := found["write, read, list, delete"]; f.Verdict != doctor.Missing || !strings.Contains(f.Found, "HEAD") {
		t.Errorf("%+v", f)
	}
}

func TestStoreThatDoesNotAnswer(t *testing.T) {
	endpoint := startLax(t, &laxStore{})
	c := laxConfig(endpoint)
	c.Endpoint = "http://127.0.0.1:1"
	report, err := doctor.Run(t.Context(), target(t, c))
	if !errors.Is(err, artifacts.ErrStoreUnavailable) || len(report.Findings) > 0 {
		t.Errorf("%v, %+v", err, report)
	}
}

// TestPublicEndpoint signs for an address that this machine does, or does not, reach.
func TestPublicEndpoint(t *testing.T) {
	b := testenv.Bucket(t, testenv.Versitygw)
	for address, verdict := range map[string]doctor.Verdict{b.Endpoint: doctor.OK, "http://127.0.0.1:1": doctor.Degraded} {
		c := config(b)
		c.PublicEndpoint = address
		signer, err := s3store.New(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(signer.Close)
		through := target(t, config(b))
		through.Public = signer
		want(t, examine(t, through), map[string]doctor.Verdict{"public endpoint": verdict})
	}
}

func TestClocks(t *testing.T) {
	b := testenv.Bucket(t, testenv.Versitygw)
	for by, verdict := range map[time.Duration]doctor.Verdict{-time.Minute: doctor.Degraded, time.Hour: doctor.Missing} {
		skewed := target(t, config(b))
		skewed.DatabaseClock = func(context.Context) (time.Time, error) { return time.Now().Add(by), nil }
		want(t, examine(t, skewed), map[string]doctor.Verdict{"clock of the database": verdict})
	}
}
