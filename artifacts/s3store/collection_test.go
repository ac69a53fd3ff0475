package s3store_test

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
)

// G5, as far as it is the driver's: a listing that may be incomplete is an error.
func TestG5ListingsFailClosed(t *testing.T) {
	entry := func(key string) string { return "<Contents><Key>" + key + "</Key><Size>1</Size></Contents>" }
	page := func(s string) string { return "<ListBucketResult>" + s + "</ListBucketResult>" }
	for name, xml := range map[string]string{
		"no word on completeness": page(entry("a")),
		"truncated, no token":     page(entry("a") + "<IsTruncated>true</IsTruncated>"),
		"same token for ever":     page("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"),
		"fewer than announced":    page(entry("a") + "<KeyCount>2</KeyCount><IsTruncated>false</IsTruncated>"),
		"out of order":            page(entry("b") + entry("a") + "<IsTruncated>false</IsTruncated>"),
		"broken off":              "<ListBucketResult>" + entry("a") + "<Contents><Key>b",
	} {
		t.Run(name, func(t *testing.T) {
			store := fakeStore(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, xml) })
			var last error
			for _, last = range store.List(t.Context(), "") {
			}
			if !errors.Is(last, artifacts.ErrStoreUnavailable) {
				t.Errorf("List ended with %v", last)
			}
		})
	}
	t.Run("foreign key", func(t *testing.T) {
		store := fakeStore(t, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, page(entry("other/a")+"<IsTruncated>false</IsTruncated>"))
		})
		var last error
		for _, last = range store.List(t.Context(), "mine/") {
		}
		if !errors.Is(last, artifacts.ErrStoreUnavailable) {
			t.Errorf("List ended with %v", last)
		}
	})
	t.Run("an empty page in between is none of these", func(t *testing.T) {
		store := fakeStore(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("continuation-token") == "" {
				answer(w, page("<KeyCount>0</KeyCount><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"))
				return
			}
			answer(w, page(entry("a")+"<KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>"))
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
	})
}

// deleting is a store without versions whose DeleteObjects and DeleteObject behave as told.
func deleting(t *testing.T, batch, single http.HandlerFunc) *s3store.Store {
	t.Helper()
	return fakeStore(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("versioning"):
			fail(w, http.StatusNotImplemented, "NotImplemented")
		case r.Method == http.MethodPost:
			batch(w, r)
		default:
			single(w, r)
		}
	})
}

// G5: a batch is answered 200 with one key refused and one not mentioned.
func TestG5DeletePartly(t *testing.T) {
	store := deleting(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, `<DeleteResult><Deleted><Key>a</Key></Deleted>
			<Error><Key>b</Key><Code>InternalError</Code></Error>
			<Error><Key>c</Key><Code>NoSuchKey</Code></Error></DeleteResult>`)
	}, nil)
	deleted, err := store.Delete(t.Context(), []string{"a", "b", "c", "d"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, artifacts.ErrStoreUnavailable, nil, artifacts.ErrStoreUnavailable} {
		if !errors.Is(deleted[i].Err, want) {
			t.Errorf("%s: %v, want %v", deleted[i].Key, deleted[i].Err, want)
		}
	}
}

func TestDeleteWithoutBatches(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusNotImplemented} {
		var batches, singles atomic.Int32
		store := deleting(t, func(w http.ResponseWriter, _ *http.Request) {
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
		// 501 is repeated once by the SDK; after that no batch is tried again.
		if n := batches.Load(); n > 2 || singles.Load() != 6 {
			t.Errorf("status %d: %d batches, %d single deletes", status, n, singles.Load())
		}
	}
}
