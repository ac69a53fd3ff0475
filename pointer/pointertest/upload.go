// Package pointertest does a worker's part in the tests of what is built on package pointer.
package pointertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Upload stages a file for each body, named f000, f001, …, and really uploads those that are not stored yet.
func Upload(t testing.TB, c *pointer.Catalogue, store artifacts.BlobWriter, layout artifacts.Layout, l pointer.Lease, bodies ...string) []pointer.StagedFile {
	t.Helper()
	files := make([]pointer.StageFile, len(bodies))
	for i, b := range bodies {
		files[i] = pointer.StageFile{Path: fmt.Sprintf("f%03d", i), Digest: artifacts.DigestOf([]byte(b)), Size: int64(len(b)), MediaType: "text/plain"}
	}
	staged, err := c.Stage(t.Context(), l.ID, l.Token, files)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range staged {
		if f.Artifact.Stored {
			continue
		}
		u := artifacts.Upload{Key: layout.ArtifactKey(f.Artifact.Digest, f.Artifact.ID), Digest: f.Artifact.Digest, Size: f.Artifact.Size}
		if err := store.Put(t.Context(), u, strings.NewReader(bodies[i])); err != nil {
			t.Fatal(err)
		}
		if err := c.MarkStored(t.Context(), f.Artifact.ID, pointer.VerifiedOnTransfer); err != nil {
			t.Fatal(err)
		}
	}
	return staged
}
