package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
)

// eachOf calls do with 0 to n-1, several at once.
func eachOf(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// One page of a listing has 1,000 entries.
func testListMultiparts1001(t *testing.T, f fixture) {
	const n = 1001
	ids, keys := make([]string, n), make([]string, n)
	eachOf(t, n, func(i int) (err error) {
		u := upload(fmt.Appendf(nil, "upload %d", i))
		keys[i] = u.Key
		ids[i], err = f.CreateMultipart(t.Context(), u)
		return err
	})
	want := make(map[string]string, n)
	for i, id := range ids {
		want[id] = keys[i]
	}
	if got := f.uploads(t, Prefix); !maps.Equal(got, want) {
		t.Errorf("listed %d uploads, want %d", len(got), len(want))
	}
}

func testListParts1001(t *testing.T, f fixture) {
	const n = 1001
	content := strings.Repeat("x", n)
	m := f.begin(t, upload([]byte(content)))
	want := make([]artifacts.Part, n)
	eachOf(t, n, func(i int) error {
		want[i] = artifacts.Part{Number: i + 1, Size: 1, SHA256: artifacts.DigestOf([]byte("x"))}
		return f.PutPart(t.Context(), m, want[i], bytes.NewReader([]byte("x")))
	})
	got, err := f.ListParts(t.Context(), m)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %d parts, %v; want %d", len(got), err, n)
	}
	if err := f.AbortMultipart(t.Context(), m); err != nil {
		t.Errorf("AbortMultipart: %v", err)
	}
}

// uploads lists the multipart uploads under a prefix, by id.
func (f fixture) uploads(t *testing.T, prefix string) map[string]string {
	t.Helper()
	uploads := map[string]string{}
	for m, err := range f.ListMultiparts(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("ListMultiparts: %v", err)
		}
		if m.Initiated.IsZero() || uploads[m.UploadID] != "" {
			t.Errorf("listed %+v, once more or without a time", m)
		}
		uploads[m.UploadID] = m.Key
	}
	return uploads
}

func testListMultiparts(t *testing.T, f fixture) {
	want := map[string]string{}
	twice := upload([]byte("begun twice"))
	for _, u := range []artifacts.Upload{twice, twice, upload([]byte("begun once"))} {
		m := f.begin(t, u)
		want[m.UploadID] = m.Key
	}
	foreign := upload([]byte("somebody else's"))
	foreign.Key = "foreign/" + foreign.Key
	theirs := f.begin(t, foreign)
	if got := f.uploads(t, layout.ArtifactsPrefix()); !maps.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	for id, key := range want {
		if err := f.AbortMultipart(t.Context(), artifacts.Multipart{Key: key, UploadID: id}); err != nil {
			t.Errorf("AbortMultipart: %v", err)
		}
	}
	if got := f.uploads(t, ""); !maps.Equal(got, map[string]string{theirs.UploadID: theirs.Key}) {
		t.Errorf("left over: %v", got)
	}
	for range f.ListMultiparts(t.Context(), "") {
		break // a listing stops when told to
	}
}
