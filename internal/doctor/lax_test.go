package doctor_test

import (
	"encoding/xml"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// laxStore speaks S3 and checks nothing: no signature, no digest, no condition, no range. It has
// neither checksums, multipart uploads, batches nor versions.
type laxStore struct {
	mu      sync.Mutex
	objects map[string][]byte // by path
	// forgets has it lose every object that is asked for by HEAD.
	forgets bool
}

func startLax(t *testing.T, s *laxStore) string {
	t.Helper()
	s.objects = map[string][]byte{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.URL
}

func (s *laxStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Date", "Tue, 01 Jan 2030 00:00:00 GMT")
	q := r.URL.Query()
	switch {
	case q.Has("list-type"):
		s.list(w, q.Get("prefix"))
	case r.Method == http.MethodPost, q.Has("versioning"), q.Has("object-lock"), q.Has("uploads"):
		w.WriteHeader(http.StatusNotImplemented)
	case r.Method == http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.objects[r.URL.Path] = body
	case r.Method == http.MethodDelete:
		delete(s.objects, r.URL.Path)
		w.WriteHeader(http.StatusNoContent)
	case strings.Trim(r.URL.Path, "/") == "lax": // is there such a bucket?
	default:
		body, ok := s.objects[r.URL.Path]
		if !ok || s.forgets && r.Method == http.MethodHead {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(body) // a client that is gone
	}
}

func (s *laxStore) list(w io.Writer, prefix string) {
	type object struct {
		Key  string
		Size int
	}
	var answer struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		IsTruncated bool
		Contents    []object
	}
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		key := strings.TrimPrefix(path, "/lax/")
		if strings.HasPrefix(key, prefix) {
			answer.Contents = append(answer.Contents, object{key, len(s.objects[path])})
		}
	}
	_ = xml.NewEncoder(w).Encode(answer) // a client that is gone
}
