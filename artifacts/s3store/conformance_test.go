package s3store_test

import (
	"testing"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/artifacts/storetest"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func config(b testenv.BucketConfig) s3store.Config {
	return s3store.Config{
		Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Name, PathStyle: true, Prefix: storetest.Prefix,
		AccessKeyID: b.AccessKeyID, SecretAccessKey: b.SecretAccessKey,
	}
}

func open(t testing.TB, c s3store.Config) *s3store.Store {
	t.Helper()
	s, err := s3store.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestConformance(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		storetest.Run(t, server, func(t testing.TB, b testenv.BucketConfig) artifacts.Store { return open(t, config(b)) })
	})
}
