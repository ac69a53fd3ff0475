package miniostore_test

import (
	"testing"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/miniostore"
	"github.com/artifactd/artifactd/artifacts/storetest"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t testing.TB, c miniostore.Config) artifacts.Store {
	t.Helper()
	s, err := miniostore.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestConformance(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) { storetest.Run(t, server, open) })
}

func TestFaults(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) { storetest.RunFaults(t, server, open) })
}

func TestFakes(t *testing.T) { storetest.RunFakes(t, open) }
