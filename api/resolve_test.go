package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// A database that lost its last hour gives out tokens that it gave out before. What was encoded of
// the version that was lost is not the answer for the one that has its token now.
func TestEncodedVersionsAreKeptByVersion(t *testing.T) {
	t.Parallel()
	bodies := newResolvedBodies()
	spell := func(v *pointer.Version) types.ResolvedVersion { return types.ResolvedVersion{Holder: v.Holder} }
	lost := &pointer.Version{ID: uuid.New(), Pointer: "p", Token: pointer.Token{Epoch: 1, Generation: 7}, Holder: "lost"}
	now := &pointer.Version{ID: uuid.New(), Pointer: "p", Token: lost.Token, Holder: "now"}
	first, err := bodies.get(lost, spell)
	if err != nil {
		t.Fatal(err)
	}
	again, err := bodies.get(lost, spell)
	if err != nil || &first[0] != &again[0] {
		t.Errorf("the same version is encoded twice (%v)", err)
	}
	other, err := bodies.get(now, spell)
	if err != nil || string(other) == string(first) {
		t.Errorf("%s for another version (%v)", other, err)
	}
}

// A short request for many names, or for one many times, does not make an answer without bounds.
func TestResolveManyIsBounded(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	files := map[string]string{}
	for i := range 40 { // more than are kept in memory
		files[fmt.Sprintf("%02d", i)] = "x"
	}
	for name, files := range map[string]map[string]string{"large": files, "small": {"f": "x"}} {
		h.admin.create(name)
		h.admin.publishFiles(name, files)
	}
	most := pointer.MaxResolveFiles / 40
	names := []string{"small"}
	for range most + 1 {
		names = append(names, "large")
	}
	names = append(names, "small")
	items := decoded[types.ResolveResponse](h.admin.do("POST", "/v1/resolve", types.ResolveRequest{Names: names}).want(200)).Items
	for i, item := range items {
		want, truncated := 40, false
		switch {
		case i == 0:
			want = 1
		case i == most: // the first name has taken one
			want, truncated = 39, true
		case i > most:
			want, truncated = 0, true
		}
		if len(item.Files) != want || *item.FilesTruncated != truncated || *item.FileCount != int32(len(map[bool]map[string]string{true: files, false: {"f": ""}}[item.Name == "large"])) {
			t.Errorf("item %d: %d files of %d, truncated: %v", i, len(item.Files), *item.FileCount, *item.FilesTruncated)
		}
	}
	// What the cut-off answer was made of is not what the next one gets.
	if r := h.admin.resolve("small"); len(r.Files) != 1 || r.FilesTruncated {
		t.Errorf("resolved %+v", r)
	}
	b := h.bucketOf(h.admin)
	b.bodies.Store(maxBodies - 64<<10)
	h.admin.do("POST", "/v1/resolve", types.ResolveRequest{Names: names[:1]}).want(200)
	h.admin.do("POST", "/v1/resolve", types.ResolveRequest{Names: names}).problem(429, "too-many-requests")
	if n := b.bodies.Load(); n != maxBodies-64<<10 {
		t.Errorf("%d bytes are counted when nothing is under way", n)
	}
}

// A large version is counted before its answer is made, not only while that is sent.
func TestLargeVersionsAreCounted(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	b := h.bucketOf(h.admin)
	c := echo.New().NewContext(httptest.NewRequest("HEAD", "/", nil), httptest.NewRecorder())
	c.Set(bucketKey, b)
	large := &pointer.Version{Files: []pointer.File{{Path: strings.Repeat("p", largeAnswer)}}}
	if _, err := h.server.encoded(c, large); err != nil || b.bodies.Load() != 0 {
		t.Errorf("%v, %d bytes counted", err, b.bodies.Load())
	}
	b.bodies.Store(maxBodies)
	if _, err := h.server.encoded(c, large); !errors.Is(err, errTooManyRequests) {
		t.Errorf("made all the same: %v", err)
	}
	if _, err := h.server.encoded(c, &pointer.Version{Files: []pointer.File{{Path: "p"}}}); err != nil {
		t.Errorf("a small one: %v", err)
	}
}

// Nothing is loaded of what a caller may not read, so that no time is spent on it either.
func TestResolveManyLoadsNothingForbidden(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	h.admin.publishFiles("p", map[string]string{"f": "x"})
	versions, errs, err := h.catalogue.ResolveMany(t.Context(), []string{"p", "nobody"}, func(_ string, public bool) bool { return public })
	if err != nil || versions[0] != nil || !errors.Is(errs[0], pointer.ErrUnreadable) || !errors.Is(errs[1], pointer.ErrUnreadable) {
		t.Errorf("%v %v %v", versions, errs, err)
	}
}

// Large answers that are sent at a time are counted; small ones, and those to what was done, are not.
func TestLargeAnswersAreCounted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method  string
		size    int
		refused bool
	}{{"GET", largeAnswer + 1, true}, {"GET", largeAnswer, false}, {"PUT", largeAnswer + 1, false}} {
		b := newBuckets[int](0, 1, 0).of(1)
		b.bodies.Store(maxBodies)
		c := echo.New().NewContext(httptest.NewRequest(tc.method, "/", nil), httptest.NewRecorder())
		c.Set(bucketKey, b)
		err := writeBody(c, http.StatusOK, []byte(strings.Repeat("x", tc.size)))
		if refused := errors.Is(err, errTooManyRequests); refused != tc.refused || b.bodies.Load() != maxBodies {
			t.Errorf("%+v: %v, %d bytes counted", tc, err, b.bodies.Load())
		}
	}
}
