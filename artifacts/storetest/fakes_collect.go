package storetest

import (
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
)

// last is the error that a sequence ends with.
func last[T any](seq iter.Seq2[T, error]) (err error) {
	for _, err = range seq {
	}
	return err
}

// G5, as far as it is the driver's: a listing that may be incomplete is an error.
func testListingsFailClosed(t *testing.T, open Open) {
	entry := func(key string) string { return "<Contents><Key>" + key + "</Key><Size>1</Size></Contents>" }
	page := func(s string) string { return "<ListBucketResult>" + s + "</ListBucketResult>" }
	for name, xml := range map[string]string{
		"no word on completeness": page(entry("mine/a")),
		"truncated, no token":     page(entry("mine/a") + "<IsTruncated>true</IsTruncated>"),
		"same token for ever":     page("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"),
		"fewer than announced":    page(entry("mine/a") + "<KeyCount>2</KeyCount><IsTruncated>false</IsTruncated>"),
		"out of order":            page(entry("mine/b") + entry("mine/a") + "<IsTruncated>false</IsTruncated>"),
		"broken off":              "<ListBucketResult>" + entry("mine/a") + "<IsTruncated>false</IsTruncated><Contents><Key>mine/b",
		"no listing":              "all is well",
		"foreign key":             page(entry("other/a") + "<IsTruncated>false</IsTruncated>"),
	} {
		t.Run(name, func(t *testing.T) {
			store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, xml) })
			if err := last(store.List(t.Context(), "mine/")); !errors.Is(err, artifacts.ErrStoreUnavailable) {
				t.Errorf("List ended with %v", err)
			}
		})
	}
}

// An empty page in between is nothing to worry about.
func testEmptyPage(t *testing.T, open Open) {
	store := open.fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("continuation-token") == "" {
			answer(w, "<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>true</IsTruncated>"+
				"<NextContinuationToken>t</NextContinuationToken></ListBucketResult>")
			return
		}
		answer(w, "<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>")
	})
	n := 0
	for _, err := range store.List(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d objects", n)
	}
}

// deletes is a store without versions whose DeleteObjects and other requests behave as told.
func (open Open) deletes(t *testing.T, batch, single http.HandlerFunc) artifacts.Store {
	t.Helper()
	return open.fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("versioning"):
			fail(w, http.StatusNotImplemented, "NotImplemented")
		case r.Method == http.MethodPost && r.URL.Query().Has("delete"):
			batch(w, r)
		default:
			single(w, r)
		}
	})
}

// G5: a batch is answered 200 with one key refused and one not mentioned.
func testDeletePartly(t *testing.T, open Open) {
	store := open.deletes(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, `<DeleteResult><Deleted><Key>a</Key></Deleted>
			<Error><Key>b</Key><Code>InternalError</Code></Error>
			<Error><Key>c</Key><Code>NoSuchKey</Code></Error>
			<Error><Key>e</Key><Code>InvalidArgument</Code></Error></DeleteResult>`)
	}, nil)
	deleted, err := store.Delete(t.Context(), []string{"a", "b", "c", "d", "e"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, artifacts.ErrStoreUnavailable, nil, artifacts.ErrStoreUnavailable, artifacts.ErrStoreUnavailable} {
		if !errors.Is(deleted[i].Err, want) {
			t.Errorf("%s: %v, want %v", deleted[i].Key, deleted[i].Err, want)
		}
	}
}

func testDeleteWithoutBatches(t *testing.T, open Open) {
	for _, status := range []int{http.StatusBadRequest, http.StatusNotImplemented} {
		var batches, singles atomic.Int32
		store := open.deletes(t, func(w http.ResponseWriter, _ *http.Request) {
			batches.Add(1)
			fail(w, status, "MissingContentMD5")
		}, func(w http.ResponseWriter, r *http.Request) {
			singles.Add(1)
			switch r.URL.Path {
			case "/bucket/refused":
				fail(w, http.StatusForbidden, "AccessDenied")
			case "/bucket/missing":
				fail(w, http.StatusNotFound, "NoSuchKey")
			default:
				w.WriteHeader(http.StatusNoContent)
			}
		})
		for range 2 {
			deleted, err := store.Delete(t.Context(), []string{"a", "refused", "missing"})
			if err != nil {
				t.Fatal(err)
			}
			if deleted[0].Err != nil || deleted[1].Err == nil || deleted[2].Err != nil {
				t.Errorf("fates: %v", deleted)
			}
		}
		// 501 may be repeated once by the SDK; after that no batch is tried again.
		if n := batches.Load(); n < 1 || n > 2 || singles.Load() != 6 {
			t.Errorf("status %d: %d batches, %d single deletes", status, n, singles.Load())
		}
	}
}

func testProbe(t *testing.T, open Open) {
	removes := func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, rest, _ := strings.Cut(string(b), "<Key>")
		key, _, _ := strings.Cut(rest, "</Key>")
		answer(w, "<DeleteResult><Deleted><Key>"+key+"</Key></Deleted></DeleteResult>")
	}
	// refuses checks what is sent; creates answers to the beginning of a multipart upload.
	refuses := func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if artifacts.DigestOf(b).Base64() != r.Header.Get("X-Amz-Checksum-Sha256") {
			fail(w, http.StatusBadRequest, "BadDigest")
		}
	}
	begins := func(w http.ResponseWriter, _ *http.Request) {
		answer(w, "<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>")
	}
	none := func(w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusNotImplemented, "NotImplemented") }
	takes := func(http.ResponseWriter, *http.Request) {}
	denies := func(w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusForbidden, "SignatureDoesNotMatch") }
	for name, c := range map[string]struct {
		object, create, part http.HandlerFunc
		enforced, fails      bool
	}{
		"enforces both":     {refuses, begins, refuses, true, false},
		"not for objects":   {takes, begins, refuses, false, false},
		"not for parts":     {refuses, begins, takes, false, false},
		"has no parts":      {refuses, none, nil, true, false},
		"refuses all":       {denies, begins, refuses, false, true},
		"refuses all parts": {refuses, begins, denies, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var aborted atomic.Bool
			store := open.deletes(t, removes, func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				switch {
				case q.Has("uploads"):
					c.create(w, r)
				case r.Method == http.MethodDelete:
					aborted.Store(true)
					w.WriteHeader(http.StatusNoContent)
				case r.Method == http.MethodGet:
					fail(w, http.StatusNotFound, "NoSuchUpload")
				case q.Has("uploadId"):
					c.part(w, r)
				default:
					c.object(w, r)
				}
			})
			enforced, err := store.EnforcesSignedDigest(t.Context())
			if enforced != c.enforced || (err != nil) != c.fails {
				t.Errorf("enforced: %v, %v", enforced, err)
			}
			if c.enforced && c.part != nil && !aborted.Load() {
				t.Error("the probe's multipart upload was left behind")
			}
		})
	}
}
