package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

func payload(n int) ([]byte, string) {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	sum := sha256.Sum256(b)
	return b, "sha256:" + hex.EncodeToString(sum[:])
}

func source(t *testing.T, b []byte) client.Source {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := client.FileSource(t.Context(), name, "dir/file", nil)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

var artifactID = uuid.MustParse("018f3c2e-0000-7000-8000-00000000000a")

const completeRoute = "POST /v1/artifacts/018f3c2e-0000-7000-8000-00000000000a/complete"

func staged(url string, headers map[string]string) types.StagedFile {
	return types.StagedFile{Path: "dir/file", ArtifactId: artifactID, State: "pending",
		Upload: &types.Upload{Kind: "single", Url: &url, Headers: headers, ExpiresAt: time.Now().Add(time.Minute)}}
}

func TestUploadToTheStore(t *testing.T) {
	body, digest := payload(300_000)
	svc, store := newService(t), newService(t)
	svc.on(completeRoute, replies(200, types.Artifact{ArtifactId: artifactID, State: "stored"}))
	var got []byte
	store.on("PUT /bucket/key",
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		breaksOff,
		func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				t.Error("our credentials went to the store")
			}
			if r.Header.Get("If-None-Match") != "*" || r.Header.Get("X-Amz-Meta-Token") != "1.2" || r.ContentLength != int64(len(body)) {
				t.Errorf("headers %v, length %d", r.Header, r.ContentLength)
			}
			got, _ = io.ReadAll(r.Body)
		})
	src := source(t, body)
	if src.Digest != digest || src.Size != int64(len(body)) {
		t.Fatalf("hashed %s, %d bytes", src.Digest, src.Size)
	}
	var sum atomic.Int64
	err := svc.client(t).Upload(t.Context(), staged(store.URL+"/bucket/key?X-Amz-Signature=1",
		map[string]string{"If-None-Match": "*", "x-amz-meta-token": "1.2", "Content-Length": fmt.Sprint(len(body))}),
		src, func(n int64) { sum.Add(n) })
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, body) {
		t.Error("other bytes arrived")
	}
	if n := sum.Load(); n != int64(len(body)) {
		t.Errorf("progress counted %d of %d bytes", n, len(body))
	}
	if svc.count(completeRoute) != 1 {
		t.Error("the upload was not completed")
	}
}

func TestUploadWhoseAnswerWasLost(t *testing.T) {
	svc, store := newService(t), newService(t)
	svc.on(completeRoute, replies(200, types.Artifact{}))
	store.on("PUT /key", breaksOff, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPreconditionFailed) })
	err := svc.client(t).Upload(t.Context(), staged(store.URL+"/key", nil), source(t, []byte("x")), nil)
	if err != nil || svc.count(completeRoute) != 1 {
		t.Errorf("error %v, completed %d times", err, svc.count(completeRoute))
	}
}

func TestUploadThroughTheService(t *testing.T) {
	const route = "PUT /v1/artifacts/018f3c2e-0000-7000-8000-00000000000a/content"
	body, _ := payload(2 << 20)
	svc := newService(t)
	svc.on(route, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer artd_secret" {
			t.Error("no credentials for the service")
		}
		n, _ := io.Copy(io.Discard, r.Body)
		if n != int64(len(body)) {
			t.Errorf("%d bytes arrived", n)
		}
		replies(200, types.Artifact{})(w, r)
	})
	c := svc.client(t)
	if err := c.Upload(t.Context(), staged("/v1/artifacts/"+artifactID.String()+"/content", nil), source(t, body), nil); err != nil {
		t.Fatal(err)
	}
	svc.on(route, refuses(422, "digest-mismatch"))
	err := c.Upload(t.Context(), staged("/v1/artifacts/"+artifactID.String()+"/content", nil), source(t, body), nil)
	if !errors.Is(err, client.ErrDigestMismatch) {
		t.Errorf("error %v", err)
	}
}

func TestUploadOfAFileThatChanges(t *testing.T) {
	svc, store := newService(t), newService(t)
	store.on("PUT /key", breaksOff)
	src := source(t, []byte("as it was"))
	src.Open = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte("short"))), nil }
	if err := svc.client(t).Upload(t.Context(), staged(store.URL+"/key", nil), src, nil); !errors.Is(err, client.ErrSourceChanged) {
		t.Errorf("error %v", err)
	}
}

func TestUploadAllStagesExpiredURLsAgain(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusBadRequest} {
		stagesAgain(t, status)
	}
}

// stagesAgain: the first URL is refused with a status.
func stagesAgain(t *testing.T, status int) {
	t.Helper()
	const route = "POST /v1/leases/018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f/files"
	svc, store := newService(t), newService(t)
	old, fresh := staged(store.URL+"/old", nil), staged(store.URL+"/new", nil)
	svc.on(route, replies(201, types.StageResponse{Files: []types.StagedFile{old}}), replies(201, types.StageResponse{Files: []types.StagedFile{fresh}}))
	svc.on(completeRoute, replies(200, types.Artifact{}))
	store.on("PUT /old", func(w http.ResponseWriter, _ *http.Request) {
		if w.WriteHeader(status); status == http.StatusBadRequest {
			_, _ = io.WriteString(w, "<Error><Code>ExpiredToken</Code></Error>") // Amazon's, of the credentials behind the URL
		}
	})
	store.on("PUT /new", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	if _, err := svc.client(t).UploadAll(t.Context(), heldLease(), []client.Source{source(t, []byte("x"))}, nil); err != nil {
		t.Fatal(err)
	}
	if svc.count(route) != 2 || store.count("PUT /new") != 1 {
		t.Errorf("staged %d times, uploaded %d times", svc.count(route), store.count("PUT /new"))
	}
}

// A store without room is no reason to try for long, and no reason to ask for other URLs.
func TestUploadToAFullStore(t *testing.T) {
	const route = "POST /v1/leases/018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f/files"
	svc, store := newService(t), newService(t)
	svc.on(route, replies(201, types.StageResponse{Files: []types.StagedFile{staged(store.URL+"/key", nil)}}))
	store.on("PUT /key", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusInsufficientStorage)
		_, _ = io.WriteString(w, "<Error><Code>XMinioStorageFull</Code></Error>")
	})
	_, err := svc.client(t).UploadAll(t.Context(), heldLease(), []client.Source{source(t, []byte("x"))}, nil)
	var refused *client.StoreError
	if !errors.As(err, &refused) || refused.Status != 507 || !strings.Contains(err.Error(), "dir/file") || !strings.Contains(err.Error(), "507 XMinioStorageFull") {
		t.Errorf("error %v", err)
	}
	if store.count("PUT /key") != 1 || svc.count(route) != 1 {
		t.Errorf("sent %d times, staged %d times", store.count("PUT /key"), svc.count(route))
	}
}

// TestDownloadGoesOnWhereItBroke: the service redirects to the store, the store breaks off, and the
// rest is asked for.
func TestDownloadGoesOnWhereItBroke(t *testing.T) {
	body, digest := payload(1 << 20)
	svc, store := newService(t), newService(t)
	svc.on("GET /v1/file", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			t.Error("no credentials for the service")
		}
		http.Redirect(w, r, store.URL+"/key?X-Amz-Signature=1", http.StatusTemporaryRedirect)
	})
	store.on("GET /key",
		func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				t.Error("our credentials went to the store")
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			_, _ = w.Write(body[:len(body)/3])
			panic(http.ErrAbortHandler)
		},
		func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
		})
	var out bytes.Buffer
	f := types.File{Path: "file", Size: int64(len(body)), Digest: digest, Url: "/v1/file"}
	if err := svc.client(t).Download(t.Context(), f, &out, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), body) {
		t.Error("other bytes came")
	}
}

// TestDownloadOfWhatTheStoreDoesNotHave: the service, which led to the store, is asked what became of it.
func TestDownloadOfWhatTheStoreDoesNotHave(t *testing.T) {
	svc, store := newService(t), newService(t)
	svc.on("GET /v1/file", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("via") == "proxy" {
			refuses(http.StatusNotFound, "version-not-found")(w, r)
			return
		}
		http.Redirect(w, r, store.URL+"/key?X-Amz-Signature=1", http.StatusTemporaryRedirect)
	})
	store.on("GET /key", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
	})
	err := svc.client(t).Download(t.Context(), types.File{Size: 10, Url: "/v1/file"}, io.Discard, nil)
	if !errors.Is(err, client.ErrVersionNotFound) || store.count("GET /key") != 1 {
		t.Errorf("error %v after %d tries", err, store.count("GET /key"))
	}
}

func TestDownloadFromAServerThatIgnoresRanges(t *testing.T) {
	body, digest := payload(100_000)
	svc := newService(t)
	svc.on("GET /v1/file",
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			_, _ = w.Write(body[:50_000])
			panic(http.ErrAbortHandler)
		},
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
	var out bytes.Buffer
	if err := svc.client(t).Download(t.Context(), types.File{Size: int64(len(body)), Digest: digest, Url: "/v1/file"}, &out, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), body) {
		t.Error("other bytes came")
	}
}

func TestDownloadOfWrongBytes(t *testing.T) {
	body, digest := payload(1000)
	wrong := bytes.Clone(body)
	wrong[500] ^= 1
	for name, test := range map[string]struct {
		served []byte
		want   error
	}{
		"other bytes": {wrong, client.ErrDigestMismatch},
		"more bytes":  {append(bytes.Clone(body), 'x'), client.ErrSizeMismatch},
	} {
		svc := newService(t)
		svc.on("GET /v1/file", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(test.served) })
		err := svc.client(t).Download(t.Context(), types.File{Size: 1000, Digest: digest, Url: "/v1/file"}, io.Discard, nil)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestDownloadStopsWithItsContext(t *testing.T) {
	svc := newService(t)
	ctx, cancel := context.WithCancel(t.Context())
	svc.on("GET /v1/file", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("x"))
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done()
	})
	if err := svc.client(t).Download(ctx, types.File{Size: 10, Url: "/v1/file"}, io.Discard, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestUploadOfAFileThatChangesInPlace: its size tells nothing, so the store finds out.
func TestUploadOfAFileThatChangesInPlace(t *testing.T) {
	svc, store := newService(t), newService(t)
	store.on("PUT /key", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "<Error><Code>BadDigest</Code></Error>")
	})
	err := svc.client(t).Upload(t.Context(), staged(store.URL+"/key", nil), source(t, []byte("x")), nil)
	if !errors.Is(err, client.ErrSourceChanged) || !errors.Is(err, client.ErrDigestMismatch) || store.count("PUT /key") != 1 {
		t.Errorf("error %v after %d tries", err, store.count("PUT /key"))
	}
}

func TestSourcesThatCannotBePublished(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, path, says string }{
		{pipe, "pipe", "not a regular file"}, // without waiting for its writer
		{dir, "dir", "not a regular file"},
		{file, "caf\xe9", "UTF-8"},
		{file, "a\nb", "control character"},
		{file, "a/../b", "segment"},
		{file, "/a", "segment"},
		{file, "", "segment"},
		{file, strings.Repeat("ü", 513), "1026 bytes"},
	} {
		_, err := client.FileSource(t.Context(), test.name, test.path, nil)
		if err == nil || !strings.Contains(err.Error(), test.says) || test.name == file && !errors.Is(err, client.ErrInvalidRequest) {
			t.Errorf("%q as %q: %v", test.name, test.path, err)
		}
	}
	if _, err := client.FileSource(t.Context(), file, strings.Repeat("ü", 512), nil); err != nil {
		t.Error(err)
	}
	// Sources made otherwise are checked before anything is sent.
	_, err := newService(t).client(t).UploadAll(t.Context(), heldLease(), []client.Source{{Path: "caf\xe9"}}, nil)
	if !errors.Is(err, client.ErrInvalidRequest) {
		t.Errorf("error %v", err)
	}
}

// TestAStoreThatDoesNotAnswer is not taken for the service, wherever its name was learnt.
func TestAStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	svc, store := newService(t), newService(t)
	store.Close()
	svc.on("GET /v1/file", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, store.URL+"/key?X-Amz-Signature=secret", http.StatusTemporaryRedirect)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // it is tried again for longer
	defer cancel()
	up := svc.client(t).Upload(ctx, staged(store.URL+"/key?X-Amz-Signature=secret", nil), source(t, []byte("x")), nil)
	ctx, cancel = context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	down := svc.client(t).Download(ctx, types.File{Size: 1, Url: "/v1/file"}, io.Discard, nil)
	for _, err := range []error{up, down} {
		var transport *client.TransportError
		if !errors.As(err, &transport) || !transport.Store || !strings.Contains(err.Error(), "the object store at ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("error %v", err)
		}
	}
}
