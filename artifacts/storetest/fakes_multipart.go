package storetest

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
)

var fakeUpload = artifacts.Multipart{Key: "key", UploadID: "id"}

func testPartsFailClosed(t *testing.T, open Open) {
	part := func(n string) string { return "<Part><PartNumber>" + n + "</PartNumber><Size>1</Size></Part>" }
	page := func(s string) string { return "<ListPartsResult>" + s + "</ListPartsResult>" }
	for name, xml := range map[string]string{
		"no word on completeness": page(part("1")),
		"truncated, no marker":    page(part("1") + "<IsTruncated>true</IsTruncated>"),
		"same page for ever":      page(part("1") + "<IsTruncated>true</IsTruncated><NextPartNumberMarker>1</NextPartNumberMarker>"),
		"out of order":            page(part("2") + part("1") + "<IsTruncated>false</IsTruncated>"),
		"twice":                   page(part("1") + part("1") + "<IsTruncated>false</IsTruncated>"),
		"number 0":                page(part("0") + "<IsTruncated>false</IsTruncated>"),
		"number 10001":            page(part("10001") + "<IsTruncated>false</IsTruncated>"),
		"broken off":              "<ListPartsResult>" + part("1") + "<IsTruncated>false</IsTruncated><Part>",
	} {
		t.Run(name, func(t *testing.T) {
			store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, xml) })
			if parts, err := store.ListParts(t.Context(), fakeUpload); !errors.Is(err, artifacts.ErrStoreUnavailable) || len(parts) != 0 {
				t.Errorf("ListParts: %v, %v", parts, err)
			}
		})
	}
}

func testUploadsFailClosed(t *testing.T, open Open) {
	entry := func(key, id string) string {
		return "<Upload><Key>" + key + "</Key><UploadId>" + id + "</UploadId></Upload>"
	}
	more := func(key, id string) string {
		return "<IsTruncated>true</IsTruncated><NextKeyMarker>" + key + "</NextKeyMarker><NextUploadIdMarker>" + id + "</NextUploadIdMarker>"
	}
	page := func(s string) string { return "<ListMultipartUploadsResult>" + s + "</ListMultipartUploadsResult>" }
	for name, xml := range map[string]string{
		"no word on completeness":   page(entry("a", "1")),
		"truncated, no marker":      page(entry("a", "1") + "<IsTruncated>true</IsTruncated>"),
		"same page for ever":        page(entry("a", "1") + entry("b", "2") + more("b", "2")),
		"an empty page for ever":    page(more("b", "2")),
		"more than a page of a key": page(entry("a", "1") + entry("a", "2") + more("a", "2")),
		"out of order":              page(entry("b", "1") + entry("a", "2") + more("a", "2")),
		"broken off":                "<ListMultipartUploadsResult>" + entry("a", "1") + "<IsTruncated>false</IsTruncated><Upload>",
	} {
		t.Run(name, func(t *testing.T) {
			store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, xml) })
			if err := last(store.ListMultiparts(t.Context(), "")); !errors.Is(err, artifacts.ErrStoreUnavailable) {
				t.Errorf("ListMultiparts ended with %v", err)
			}
		})
	}
}

func testMultipartMissing(t *testing.T, open Open) {
	for _, status := range []int{http.StatusNotImplemented, http.StatusMethodNotAllowed} {
		store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) { fail(w, status, "NotImplemented") })
		if id, err := store.CreateMultipart(t.Context(), upload([]byte("x"))); !errors.Is(err, artifacts.ErrNoMultipart) {
			t.Errorf("status %d: %q, %v", status, id, err)
		}
	}
	store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, "<InitiateMultipartUploadResult></InitiateMultipartUploadResult>")
	})
	if id, err := store.CreateMultipart(t.Context(), upload([]byte("x"))); !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("no upload id: %q, %v", id, err)
	}
}

// completing is a store that holds the one part of an upload, and answers to Complete as told.
func (open Open) completing(t *testing.T, u artifacts.Upload, complete http.HandlerFunc) (artifacts.Store, []artifacts.Part) {
	t.Helper()
	store := open.fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
			answer(w, "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber><ETag>e</ETag><Size>1</Size></Part></ListPartsResult>")
		case http.MethodPost:
			complete(w, r)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	return store, []artifacts.Part{{Number: 1, Size: u.Size, SHA256: u.Digest}}
}

func testCompleteWithoutConditions(t *testing.T, open Open) {
	var plain atomic.Int32
	u := upload([]byte("x"))
	store, parts := open.completing(t, u, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") != "" {
			fail(w, http.StatusNotImplemented, "NotImplemented")
			return
		}
		plain.Add(1)
		answer(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>key</Key><ETag>e-1</ETag></CompleteMultipartUploadResult>")
	})
	if err := store.CompleteMultipart(t.Context(), u, "id", parts); err != nil || plain.Load() != 1 {
		t.Errorf("CompleteMultipart: %v after %d requests without a condition", err, plain.Load())
	}
}

func testCompleteConflict(t *testing.T, open Open) {
	u := upload([]byte("x"))
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   error
	}{
		"409":             {func(w http.ResponseWriter, _ *http.Request) { fail(w, 409, "ConditionalRequestConflict") }, artifacts.ErrUploadGone},
		"404":             {func(w http.ResponseWriter, _ *http.Request) { fail(w, 404, "NoSuchUpload") }, artifacts.ErrUploadGone},
		"412":             {func(w http.ResponseWriter, _ *http.Request) { fail(w, 412, "PreconditionFailed") }, artifacts.ErrExists},
		"InvalidPart":     {func(w http.ResponseWriter, _ *http.Request) { fail(w, 400, "InvalidPart") }, artifacts.ErrPartMismatch},
		"an error in 200": {func(w http.ResponseWriter, _ *http.Request) { fail(w, 200, "InternalError") }, artifacts.ErrStoreUnavailable},
		"503":             {func(w http.ResponseWriter, _ *http.Request) { fail(w, 503, "SlowDown") }, artifacts.ErrStoreUnavailable},
	} {
		store, parts := open.completing(t, u, c.answer)
		if err := store.CompleteMultipart(t.Context(), u, "id", parts); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// A part with other bytes of the same number is found before the store is asked to complete.
func testCompleteComparesDigests(t *testing.T, open Open) {
	u := upload([]byte("x"))
	store := open.fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("the store was sent %s %s", r.Method, r.URL)
		}
		answer(w, "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber><ETag>e</ETag><Size>1</Size>"+
			"<ChecksumSHA256>"+artifacts.DigestOf([]byte("y")).Base64()+"</ChecksumSHA256></Part></ListPartsResult>")
	})
	parts := []artifacts.Part{{Number: 1, Size: 1, SHA256: u.Digest}}
	if err := store.CompleteMultipart(t.Context(), u, "id", parts); !errors.Is(err, artifacts.ErrPartMismatch) {
		t.Errorf("CompleteMultipart: %v", err)
	}
}

// A part on its way brings an upload back after it was aborted.
func testAbortComesBack(t *testing.T, open Open) {
	var aborts atomic.Int32
	until := int32(3)
	store := open.fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete && aborts.Add(1) > until:
			fail(w, http.StatusNotFound, "NoSuchUpload")
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case aborts.Load() < until:
			answer(w, "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber><Size>1</Size></Part></ListPartsResult>")
		default:
			fail(w, http.StatusNotFound, "NoSuchUpload")
		}
	})
	if err := store.AbortMultipart(t.Context(), fakeUpload); err != nil || aborts.Load() != until {
		t.Errorf("AbortMultipart: %v after %d requests", err, aborts.Load())
	}
	aborts.Store(0)
	until = 1000
	if err := store.AbortMultipart(t.Context(), fakeUpload); !errors.Is(err, artifacts.ErrStoreUnavailable) || aborts.Load() > 10 {
		t.Errorf("AbortMultipart of what stays: %v after %d requests", err, aborts.Load())
	}
}
