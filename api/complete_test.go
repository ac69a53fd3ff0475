package api

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// completeMany asks for many proofs and answers the code of each; empty for stored.
func (c client) completeMany(l types.Lease, ids ...uuid.UUID) []string {
	c.h.t.Helper()
	got := decoded[types.CompleteManyResponse](c.do("POST", leasePath(l)+"/complete", types.CompleteManyRequest{ArtifactIds: ids}).want(200))
	codes := make([]string, len(got.Items))
	for i, item := range got.Items {
		switch {
		case item.ArtifactId != ids[i]:
			c.h.t.Fatalf("item %d is of %s, asked was %s", i, item.ArtifactId, ids[i])
		case item.Problem != nil:
			codes[i] = item.Problem.Code
		case item.State == nil || *item.State != "stored":
			c.h.t.Fatalf("item %d has neither a problem nor a state", i)
		}
	}
	return codes
}

// One artifact that cannot be proved keeps no other from being stored, and what is answered is what
// the catalogue knows afterwards.
func TestCompleteManyUploads(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{s3: testenv.Versitygw, tune: withSmallParts})
	h.admin.create("p")
	h.admin.create("other")
	foreign := h.admin.stage(h.admin.acquire("other"), stageFile("f", []byte("foreign")))[0]
	l := h.admin.acquire("p")
	var files []types.StageFile
	for i := range 40 {
		files = append(files, stageFile(fmt.Sprintf("f%02d", i), fmt.Appendf(nil, "content %d", i)))
	}
	staged := h.admin.stage(l, append(files, stageFile("large", large(1)))...)
	var ids []uuid.UUID
	want := make([]string, 0, len(staged)+2)
	for i, f := range staged {
		ids = append(ids, f.ArtifactId)
		content := fmt.Appendf(nil, "content %d", i)
		switch {
		case f.Path == "large":
			want = append(want, "invalid-request") // sent in parts
			continue
		case i == 3:
			want = append(want, "not-uploaded")
			continue
		case i == 5: // behind the service's back
			content = []byte("something")
			key := h.layout.ArtifactKey(artifacts.DigestOf([]byte("content 5")), f.ArtifactId)
			if err := h.store.Put(t.Context(), artifacts.Upload{Key: key, Digest: artifacts.DigestOf(content), Size: int64(len(content))}, bytes.NewReader(content)); err != nil {
				t.Fatal(err)
			}
			want = append(want, "digest-mismatch")
			continue
		}
		if resp := sendPresigned(t, *f.Upload, content); resp.StatusCode != 200 {
			t.Fatalf("PUT of %s: %s", f.Path, resp.Status)
		}
		want = append(want, "")
	}
	ids, want = append(ids, uuid.New(), foreign.ArtifactId, ids[0]), append(want, "artifact-not-found", "artifact-not-found", "")
	for range 2 { // again is the same
		if got := h.admin.completeMany(l, ids...); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("answered %q, want %q", got, want)
		}
	}
	var stored int
	row := h.db.Connect(t).QueryRow(t.Context(), `SELECT count(*) FROM artifactd.artifact WHERE stored_at IS NOT NULL AND verified = 'store-checksum'`)
	if err := row.Scan(&stored); err != nil || stored != 38 {
		t.Errorf("%d artifacts are stored, want 38 (%v)", stored, err)
	}

	h.admin.do("POST", leasePath(l)+"/complete", types.CompleteManyRequest{}).invalid("artifact_ids")
	h.as([]pointer.Scope{pointer.ScopePublish}, "other").do("POST", leasePath(l)+"/complete", types.CompleteManyRequest{ArtifactIds: ids[:1]}).
		problem(404, "lease-not-found")

	h.admin.do("DELETE", leasePath(l), nil).want(204)
	if got := h.admin.completeMany(l, ids[0], ids[1]); fmt.Sprint(got) != "[lease-lost lease-lost]" {
		t.Errorf("under a released lease: %q", got)
	}
	// The next lease adopts them; then they may be completed again.
	next := h.admin.acquire("p")
	adopted := h.admin.stage(next, files[0])[0]
	if adopted.ArtifactId != ids[0] || adopted.State != "stored" {
		t.Fatalf("staged %+v", adopted)
	}
	if got := h.admin.completeMany(next, ids[0], ids[1]); fmt.Sprint(got) != "[ lease-lost]" {
		t.Errorf("adopted and not adopted: %q", got)
	}
}

// vanishing takes the artifact's row away between proof and record, as the collector may.
type vanishing struct {
	artifacts.Store
	gone func()
}

func (v vanishing) Head(ctx context.Context, key string) (artifacts.Object, error) {
	o, err := v.Store.Head(ctx, key)
	v.gone()
	return o, err
}

// An object whose row was collected while it was looked at is named by nothing; it is deleted.
func TestCompleteManyOfWhatIsCollected(t *testing.T) {
	t.Parallel()
	var gone func()
	h := newHarness(t, setup{tune: func(o *Options) { o.Store = vanishing{o.Store, func() { gone() }} }})
	owner := h.db.Connect(t)
	gone = func() {
		if _, err := owner.Exec(t.Context(), `WITH f AS (DELETE FROM artifactd.manifest_file) DELETE FROM artifactd.artifact`); err != nil {
			t.Error(err)
		}
	}
	h.admin.create("p")
	l := h.admin.acquire("p")
	f := h.admin.stage(l, stageFile("f", []byte("f")))[0]
	sendPresigned(t, *f.Upload, []byte("f"))
	if n := len(h.objects()); n != 1 {
		t.Fatalf("%d objects", n)
	}
	if got := h.admin.completeMany(l, f.ArtifactId); got[0] != "artifact-not-found" {
		t.Errorf("answered %q", got)
	}
	if n := len(h.objects()); n != 0 {
		t.Errorf("%d objects are left that nothing names", n)
	}
}
