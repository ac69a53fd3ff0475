package client_test

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

const (
	bulkLease   = "018f3c2e-0000-7000-8000-0000000000bb"
	stageRoute  = "POST /v1/leases/" + bulkLease + "/files"
	bulkRoute   = "PUT /v1/leases/" + bulkLease + "/content"
	bulkContent = "content of file %02d"
)

// bulkService takes archives, and remembers what came whole in them.
type bulkService struct {
	*service
	mu    sync.Mutex
	ids   map[string]uuid.UUID // by path
	came  map[uuid.UUID]string
	times map[uuid.UUID]int
}

func newBulkService(t *testing.T) *bulkService {
	s := &bulkService{service: newService(t), ids: map[string]uuid.UUID{}, came: map[uuid.UUID]string{}, times: map[uuid.UUID]int{}}
	s.on(stageRoute, s.stage)
	return s
}

func (s *bulkService) stage(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("bulk") != "true" {
		s.t.Error("it does not say that small files can go together")
	}
	var in types.StageRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out types.StageResponse
	for _, f := range in.Files {
		if s.ids[f.Path] == uuid.Nil {
			s.ids[f.Path] = uuid.New()
		}
		file := types.StagedFile{Path: f.Path, ArtifactId: s.ids[f.Path], Digest: f.Digest, Size: f.Size, State: "stored"}
		if _, stored := s.came[file.ArtifactId]; !stored {
			url := "/v1/leases/" + bulkLease + "/content"
			file.State, file.Upload = "pending", &types.Upload{Kind: "bulk", Url: &url, ExpiresAt: time.Now().Add(time.Minute)}
		}
		out.Files = append(out.Files, file)
	}
	replies(201, out)(w, r)
}

// take reads n files of the archive, all for a negative number, and answers for those it was sent.
func (s *bulkService) take(n int, say func(http.ResponseWriter, *http.Request, types.CompleteManyResponse)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		archive := tar.NewReader(r.Body)
		var out types.CompleteManyResponse
		for ; n != 0; n-- {
			h, err := archive.Next()
			if err == io.EOF {
				break
			}
			id, idErr := uuid.Parse(h.Name)
			content, readErr := io.ReadAll(archive)
			if err := errors.Join(err, idErr, readErr); err != nil {
				s.t.Error(err)
				return
			}
			s.mu.Lock()
			s.came[id] = string(content)
			s.times[id]++
			s.mu.Unlock()
			out.Items = append(out.Items, types.CompletedArtifact{ArtifactId: id, State: new("stored")})
		}
		if n < 0 {
			if rest, err := io.Copy(io.Discard, r.Body); err != nil || rest != 0 {
				s.t.Errorf("%d bytes stand behind the archive: %v", rest, err)
			}
		}
		say(w, r, out)
	}
}

func says(w http.ResponseWriter, r *http.Request, out types.CompleteManyResponse) {
	replies(200, out)(w, r)
}

// smallFiles are n files in a folder.
func smallFiles(t *testing.T, n int) (string, []client.Source) {
	t.Helper()
	dir, sources := t.TempDir(), make([]client.Source, n)
	for i := range sources {
		name := fmt.Sprintf("f%02d", i)
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, bulkContent, i), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if sources[i], err = client.FileSource(t.Context(), filepath.Join(dir, name), name, nil); err != nil {
			t.Fatal(err)
		}
	}
	return dir, sources
}

// uploadAll uploads files, and checks that progress ends where it should.
func (s *bulkService) uploadAll(files []client.Source) (client.Moved, error) {
	s.t.Helper()
	var told, size atomic.Int64
	perFile := make([]atomic.Int64, len(files))
	for i := range files {
		size.Add(files[i].Size)
		files[i].Progress = func(n int64) { perFile[i].Add(n) }
	}
	moved, err := s.client(s.t).UploadAll(s.t.Context(), client.Lease{Lease: types.Lease{LeaseId: uuid.MustParse(bulkLease), Token: "1.1"}}, files, func(n int64) { told.Add(n) })
	if err != nil {
		return moved, err
	}
	if told.Load() != size.Load() {
		s.t.Errorf("progress tells %d bytes of %d", told.Load(), size.Load())
	}
	for i := range files {
		if n := perFile[i].Load(); n != files[i].Size {
			s.t.Errorf("progress tells %d bytes of %s", n, files[i].Path)
		}
		if got := s.came[s.ids[files[i].Path]]; got != fmt.Sprintf(bulkContent, i) {
			s.t.Errorf("of %s came %q", files[i].Path, got)
		}
	}
	return moved, nil
}

func TestSmallFilesGoTogether(t *testing.T) {
	svc := newBulkService(t)
	svc.on(bulkRoute, svc.take(-1, says))
	_, files := smallFiles(t, 40)
	moved, err := svc.uploadAll(files)
	if err != nil || moved.UploadedFiles != 40 || moved.UploadedBytes != 40*18 || moved.AdoptedBytes != 0 {
		t.Errorf("moved %+v, error %v", moved, err)
	}
	if n := svc.count(bulkRoute); n != 1 {
		t.Errorf("%d archives were sent", n)
	}
}

// After a connection that broke, or an answer that did not come, only what is missing is sent again.
func TestArchiveIsContinued(t *testing.T) {
	for name, first := range map[string]func(*bulkService) http.HandlerFunc{
		"it broke in the middle": func(s *bulkService) http.HandlerFunc {
			return s.take(15, func(http.ResponseWriter, *http.Request, types.CompleteManyResponse) { panic(http.ErrAbortHandler) })
		},
		"the answer was lost": func(s *bulkService) http.HandlerFunc {
			return s.take(-1, func(http.ResponseWriter, *http.Request, types.CompleteManyResponse) { panic(http.ErrAbortHandler) })
		},
		"the service was busy": func(*bulkService) http.HandlerFunc { return refuses(429, "too-many-requests") },
		"some failed for now": func(s *bulkService) http.HandlerFunc {
			return s.take(-1, func(w http.ResponseWriter, r *http.Request, out types.CompleteManyResponse) {
				s.mu.Lock()
				defer s.mu.Unlock()
				for _, i := range []int{3, 30} {
					delete(s.came, out.Items[i].ArtifactId)
					s.times[out.Items[i].ArtifactId]--
					out.Items[i].State, out.Items[i].Problem = nil, &types.Problem{Code: "unavailable", Status: 503}
				}
				says(w, r, out)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newBulkService(t)
			svc.on(bulkRoute, first(svc), svc.take(-1, says))
			_, files := smallFiles(t, 40)
			moved, err := svc.uploadAll(files)
			if err != nil || moved.UploadedFiles != 40 || moved.UploadedBytes != 40*18 || moved.AdoptedBytes != 0 {
				t.Errorf("moved %+v, error %v", moved, err)
			}
			for id, n := range svc.times {
				if n != 1 {
					t.Errorf("%s was taken %d times", id, n)
				}
			}
		})
	}
}

// What one file of an archive is refused for is told with its name, and so is a file that changes.
func TestFilesThatCannotBeArchived(t *testing.T) {
	refused := func(code string, status int32) func(http.ResponseWriter, *http.Request, types.CompleteManyResponse) {
		return func(w http.ResponseWriter, r *http.Request, out types.CompleteManyResponse) {
			out.Items[7].State, out.Items[7].Problem = nil, &types.Problem{Code: code, Status: int(status)}
			says(w, r, out)
		}
	}
	for name, tc := range map[string]struct {
		handler func(*bulkService) http.HandlerFunc
		change  func(name string) error
		want    error
	}{
		"refused":                      {func(s *bulkService) http.HandlerFunc { return s.take(-1, refused("artifact-not-found", 404)) }, nil, client.ErrArtifactNotFound},
		"changed, as the service says": {func(s *bulkService) http.HandlerFunc { return s.take(-1, refused("digest-mismatch", 422)) }, nil, client.ErrSourceChanged},
		"shorter":                      {func(*bulkService) http.HandlerFunc { return breaksOff }, func(name string) error { return os.Truncate(name, 3) }, client.ErrSourceChanged},
		"longer": {func(*bulkService) http.HandlerFunc { return breaksOff },
			func(name string) error { return os.WriteFile(name, []byte("much longer than it was"), 0o600) }, client.ErrSourceChanged},
		"gone": {func(*bulkService) http.HandlerFunc { return breaksOff }, os.Remove, os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newBulkService(t)
			svc.on(bulkRoute, tc.handler(svc))
			dir, files := smallFiles(t, 40)
			if tc.change != nil {
				if err := tc.change(filepath.Join(dir, "f07")); err != nil {
					t.Fatal(err)
				}
			}
			_, err := svc.uploadAll(files)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "f07") {
				t.Errorf("error %v", err)
			}
			if n := svc.count(bulkRoute); n > 1 {
				t.Errorf("it was tried %d times", n)
			}
		})
	}
}

// A lost lease ends the upload at once.
func TestArchiveUnderALostLease(t *testing.T) {
	svc := newBulkService(t)
	svc.on(bulkRoute, refuses(409, "lease-lost", "reason", "expired"))
	_, files := smallFiles(t, 40)
	if _, err := svc.uploadAll(files); !errors.Is(err, client.ErrLeaseLost) || svc.count(bulkRoute) != 1 {
		t.Errorf("error %v after %d attempts", err, svc.count(bulkRoute))
	}
}

// A few files are sent each by itself.
func TestFewFilesGoAlone(t *testing.T) {
	svc := newService(t)
	svc.on(stageRoute, func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(r.URL.Query()["bulk"], "true") {
			t.Error("three files are to go together")
		}
		refuses(409, "lease-lost", "reason", "expired")(w, r)
	})
	_, files := smallFiles(t, 3)
	if _, err := svc.client(t).UploadAll(t.Context(), client.Lease{Lease: types.Lease{LeaseId: uuid.MustParse(bulkLease), Token: "1.1"}}, files, nil); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("error %v", err)
	}
}
