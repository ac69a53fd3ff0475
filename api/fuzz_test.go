package api

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/artifactd/artifactd/pointer"
)

// emptyFile has a size and no bytes worth reading.
type emptyFile struct{ *io.SectionReader }

type zeroAt struct{}

func (zeroAt) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

// A range that is answered lies within the file, and is the one that the standard library answers.
func FuzzRequestedSpan(f *testing.F) {
	for _, s := range []string{"bytes=0-0", "bytes=5-", "bytes=-5", "bytes=-0", "bytes=9-5", "bytes=0-1,3-4", "BYTES=1-2", "bytes= 1-2", "bytes=1-99999999999999999999", "lines=1-2", "bytes=--1", "bytes=+1-2"} {
		f.Add(s, "", uint16(10))
		f.Add(s, `"tag"`, uint16(0))
	}
	f.Fuzz(func(t *testing.T, value, condition string, length uint16) {
		size := int64(length)
		h := http.Header{"Range": {value}}
		if condition != "" {
			h.Set("If-Range", condition)
		}
		s, partial, err := requestedSpan(h, `"tag"`, size)
		switch {
		case err != nil:
			if !errors.Is(err, errRangeNotSatisfied) || partial {
				t.Fatalf("%q of %d: %v", value, size, err)
			}
			return
		case !partial:
			return
		case s.first < 0 || s.length < 1 || s.first+s.length > size:
			t.Fatalf("%q of %d bytes is %+v", value, size, s)
		case condition != "" && condition != `"tag"`:
			t.Fatalf("%q is answered although If-Range is %q", value, condition)
		}
		if len(value) > 20 || !strings.HasPrefix(value, "bytes=") {
			return // numbers, and spellings of the unit, that the library does not read
		}
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = h
		w.Header().Set("ETag", `"tag"`)
		http.ServeContent(w, r, "", time.Time{}, emptyFile{io.NewSectionReader(zeroAt{}, 0, size)})
		// The library answers a range of every byte by 206 too.
		if got := w.Header().Get("Content-Range"); w.Code != http.StatusPartialContent || got != s.contentRange(size) {
			t.Fatalf("%q of %d bytes is %s, and to the library %d %s", value, size, s.contentRange(size), w.Code, got)
		}
	})
}

// Whatever stands in the header, a tag matches only if its very text is there.
func FuzzNoneMatch(f *testing.F) {
	for _, s := range []string{`"tag"`, `W/"tag"`, `"a,b", "tag"`, `"tag`, `*`, `,, "x"`, `tag`, `"x" "tag"`, `W/`, `"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		matches := noneMatch(http.Header{"If-None-Match": {value}}, `"tag"`)
		if matches && strings.TrimSpace(value) != "*" && !strings.Contains(value, `"tag"`) {
			t.Errorf("%q matches", value)
		}
		if !noneMatch(http.Header{"If-None-Match": {value, `"tag"`}}, `"tag"`) {
			t.Errorf("%q hides the tag after it", value)
		}
	})
}

// The URL of a file leads back to its path, whatever characters are in it.
func FuzzFileURL(f *testing.F) {
	for _, s := range []string{"a", "a b/c?d#e", "100%/x", "a+b;c=d&e", "é/ü", "a:b", "%2e%2e/x", "...", "a\\b"} {
		f.Add(s)
	}
	s := &Server{}
	f.Fuzz(func(t *testing.T, path string) {
		if pointer.CheckPath("path", path) != nil {
			return
		}
		text := s.fileURL("p", pointer.Token{Epoch: 1, Generation: 2}, path)
		u, err := url.Parse(text)
		if err != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "/v1/pointers/p/versions/1.2/files/"+path {
			t.Errorf("%q became %s (%+v, %v)", path, text, u, err)
		}
	})
}
