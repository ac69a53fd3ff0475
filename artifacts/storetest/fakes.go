package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// constantMemory is the case that looks at what the whole process allocates.
const constantMemory = "PutUsesConstantMemory"

// RunFakes runs the cases against servers that no test environment has: ones that answer nonsense.
func RunFakes(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Open)
	}{
		{"FaultsAreTranslated", testFaultsAreTranslated},
		{"MissingInAForbiddenBucket", testForbiddenBucket},
		{"ConflictAfterARetryIsNotSuccess", testConflictAfterARetry},
		{"ReadThatIsCutShort", testReadCutShort},
		{"RangeThatIsIgnored", testRangeIgnored},
		{"CompositeChecksumIsNone", testCompositeChecksum},
		{"ProbeFindsNoEnforcement", testProbe},
		{"S1WrongBytesNeverLeave", testWrongBytesNeverLeave},
		{constantMemory, testConstantMemory},
		{"PublicEndpoint", testPublicEndpoint},
		{"G5ListingsFailClosed", testListingsFailClosed},
		{"G5EmptyPageInBetween", testEmptyPage},
		{"G5DeletePartly", testDeletePartly},
		{"DeleteWithoutBatches", testDeleteWithoutBatches},
		{"G5PartsFailClosed", testPartsFailClosed},
		{"G5UploadsFailClosed", testUploadsFailClosed},
		{"MultipartIsMissing", testMultipartMissing},
		{"CompleteWithoutConditions", testCompleteWithoutConditions},
		{"CompleteConflict", testCompleteConflict},
		{"CompleteComparesDigests", testCompleteComparesDigests},
		{"AbortThatComesBack", testAbortComesBack},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != constantMemory { // what others allocate meanwhile would count
				t.Parallel()
			}
			c.test(t, open)
		})
	}
}

// fake is a store on a server that misbehaves as told; two attempts, little patience.
func (open Open) fake(t *testing.T, handler http.HandlerFunc) artifacts.Store {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	return open(t, bucket.Config{
		Endpoint: server.URL, Bucket: "bucket", PathStyle: true, AccessKeyID: "id", SecretAccessKey: "secret",
		MaxAttempts: 2, ResponseTimeout: 5 * time.Second,
	})
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>as told</Message></Error>", code)
}

func answer(w http.ResponseWriter, xml string) {
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprint(w, xml)
}

func testFaultsAreTranslated(t *testing.T, open Open) {
	for _, c := range []struct {
		status   int
		code     string
		want     error
		not      error
		attempts int32
	}{
		{503, "SlowDown", artifacts.ErrStoreUnavailable, nil, 2},
		{500, "InternalError", artifacts.ErrStoreUnavailable, nil, 2},
		{502, "", artifacts.ErrStoreUnavailable, nil, 2},
		{403, "AccessDenied", bucket.ErrDenied, artifacts.ErrStoreUnavailable, 1},
		{404, "NoSuchBucket", bucket.ErrNoBucket, artifacts.ErrNotFound, 1},
		{404, "NoSuchKey", artifacts.ErrNotFound, artifacts.ErrStoreUnavailable, 1},
		{404, "NoSuchUpload", artifacts.ErrUploadGone, artifacts.ErrNotFound, 1},
		{416, "InvalidRange", artifacts.ErrBadRange, nil, 1},
		{412, "PreconditionFailed", artifacts.ErrExists, nil, 1},
		{400, "BadDigest", artifacts.ErrDigestMismatch, artifacts.ErrStoreUnavailable, 1},
		{400, "InvalidPart", artifacts.ErrPartMismatch, nil, 1},
		{400, "SomethingNew", bucket.ErrRefused, artifacts.ErrStoreUnavailable, 1},
		{507, "XMinioStorageFull", bucket.ErrFull, artifacts.ErrStoreUnavailable, 0},
		{301, "PermanentRedirect", bucket.ErrRegion, artifacts.ErrStoreUnavailable, 1},
	} {
		t.Run(fmt.Sprint(c.status, c.code), func(t *testing.T) {
			var attempts atomic.Int32
			store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) {
				attempts.Add(1)
				fail(w, c.status, c.code)
			})
			_, _, err := store.Get(t.Context(), "key", artifacts.WholeObject)
			if !errors.Is(err, c.want) || (c.not != nil && errors.Is(err, c.not)) {
				t.Errorf("%v", err)
			}
			if n := attempts.Load(); c.attempts != 0 && n != c.attempts {
				t.Errorf("%d attempts, want %d", n, c.attempts)
			}
		})
	}
}

// A key may read objects without being allowed to ask for the bucket.
func testForbiddenBucket(t *testing.T, open Open) {
	store := open.fake(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/key") {
			w.WriteHeader(http.StatusNotFound)
		} else {
			w.WriteHeader(http.StatusForbidden)
		}
	})
	if _, err := store.Head(t.Context(), "key"); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Head: %v", err)
	}
}

// A repeated attempt that meets an object is a success only if that is its own.
func testConflictAfterARetry(t *testing.T, open Open) {
	for name, c := range map[string]struct {
		length, pointer string
		want            error
	}{
		"its own": {"4", "acme.reports", nil}, "another size": {"5", "acme.reports", artifacts.ErrExists},
		"another pointer": {"4", "other", artifacts.ErrExists},
	} {
		var puts atomic.Int32
		store := open.fake(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodHead:
				w.Header().Set("Content-Length", c.length)
				w.Header().Set("X-Amz-Meta-Artifactd-Pointer", c.pointer)
				w.Header().Set("X-Amz-Meta-Artifactd-Token", "1.42")
			case puts.Add(1) == 1:
				fail(w, http.StatusInternalServerError, "InternalError")
			default:
				fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
			}
		})
		if err := store.Put(t.Context(), upload([]byte("abcd")), strings.NewReader("abcd")); !errors.Is(err, c.want) {
			t.Errorf("%s: Put: %v", name, err)
		}
		if puts.Load() != 2 {
			t.Errorf("%s: %d attempts", name, puts.Load())
		}
	}
}

func testReadCutShort(t *testing.T, open Open) {
	for name, handler := range map[string]http.HandlerFunc{
		"closed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "ten bytes.")
		},
		"silent": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "ten bytes.")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := open.fake(t, handler)
			r, o, err := store.Get(t.Context(), "key", artifacts.WholeObject)
			if err != nil || o.Size != 100 {
				t.Fatalf("Get: %+v %v", o, err)
			}
			defer r.Close()
			got, err := io.ReadAll(r)
			if string(got) != "ten bytes." || !errors.Is(err, artifacts.ErrStoreUnavailable) {
				t.Errorf("read %q, %v", got, err)
			}
			if _, again := r.Read(make([]byte, 1)); again == nil || again == io.EOF {
				t.Errorf("the error does not stay: %v", again)
			}
		})
	}
}

func testRangeIgnored(t *testing.T, open Open) {
	store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the whole object") })
	_, _, err := store.Get(t.Context(), "key", artifacts.ByteRange{Offset: 4, Length: 5})
	if !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("Get: %v", err)
	}
}

func testCompositeChecksum(t *testing.T, open Open) {
	sum := artifacts.DigestOf([]byte("parts")).Base64()
	for _, c := range []struct {
		header, kind string
		want         artifacts.Digest
	}{
		{sum, "FULL_OBJECT", artifacts.DigestOf([]byte("parts"))},
		{sum, "", artifacts.DigestOf([]byte("parts"))},
		{sum, "COMPOSITE", artifacts.Digest{}},
		{sum + "-3", "", artifacts.Digest{}},
		{"nonsense", "FULL_OBJECT", artifacts.Digest{}},
	} {
		store := open.fake(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.Header().Set("X-Amz-Checksum-Sha256", c.header)
			if c.kind != "" {
				w.Header().Set("X-Amz-Checksum-Type", c.kind)
			}
		})
		if o, err := store.Head(t.Context(), "key"); err != nil || o.SHA256 != c.want || o.Size != 5 {
			t.Errorf("%+v: %+v %v", c, o, err)
		}
	}
}

// S1 on a store that checks nothing: wrong bytes never become a whole request.
func testWrongBytesNeverLeave(t *testing.T, open Open) {
	content := bytes.Repeat([]byte("x"), 300_000)
	wrong := bytes.Clone(content)
	wrong[0] = 'y'
	u := upload(content)
	m, p := artifacts.Multipart{Key: u.Key, UploadID: "id"}, artifacts.Part{Number: 1, Size: u.Size, SHA256: u.Digest}
	for name, sent := range map[string][]byte{"digest": wrong, "long": append(bytes.Clone(content), 'x'), "short": content[1:]} {
		received := make(chan error, 1)
		store := open.fake(t, func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			received <- err
		})
		for call, put := range map[string]func(io.Reader) error{
			"Put":     func(body io.Reader) error { return store.Put(t.Context(), u, body) },
			"PutPart": func(body io.Reader) error { return store.PutPart(t.Context(), m, p, body) },
		} {
			for kind, body := range bodies(sent) {
				if err := put(body); err == nil || errors.Is(err, artifacts.ErrStoreUnavailable) {
					t.Errorf("%s, %s, %s: %v", call, name, kind, err)
				}
				if err := <-received; err == nil {
					t.Errorf("%s, %s, %s: the store received a whole request", call, name, kind)
				}
			}
		}
	}
}

// Memory is constant: what a streamed PUT allocates does not grow with the body.
func testConstantMemory(t *testing.T, open Open) {
	const size = 64 << 20
	store := open.fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			_, _ = io.CopyN(w, zeroReader{}, size)
			return
		}
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n != size {
			t.Errorf("the store received %d bytes: %v", n, err)
		}
	})
	body, digest := zeros(size)
	part, _ := zeros(size)
	u := artifacts.Upload{Key: "key", Digest: digest, Size: size}
	for call, do := range map[string]func() error{
		"Put": func() error { return store.Put(t.Context(), u, body) },
		"PutPart": func() error {
			return store.PutPart(t.Context(), artifacts.Multipart{Key: "key", UploadID: "id"}, artifacts.Part{Number: 1, Size: size, SHA256: digest}, part)
		},
		"ReadDigest": func() error {
			d, err := artifacts.ReadDigest(t.Context(), store, "key", size)
			if d != digest {
				return errors.Join(err, artifacts.ErrDigestMismatch)
			}
			return err
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > size/2 {
			t.Errorf("%s of %d MiB allocated %d MiB", call, size>>20, grown>>20)
		}
	}
}

func testPublicEndpoint(t *testing.T, open Open) {
	const public = "https://files.example.com:8443"
	store := open(t, bucket.Config{
		Endpoint: "http://127.0.0.1:1", PublicEndpoint: public, Bucket: "bucket", PathStyle: true, AccessKeyID: "id", SecretAccessKey: "secret",
		SessionToken: "session",
	})
	u := upload([]byte("x"))
	put, err1 := store.SignPut(t.Context(), u, time.Minute)
	get, err2 := store.SignGet(t.Context(), "key", artifacts.ReadDisposition{}, time.Minute)
	part, err3 := store.SignPart(t.Context(), artifacts.Multipart{Key: u.Key, UploadID: "id"}, artifacts.Part{Number: 1, Size: 1, SHA256: u.Digest}, time.Minute)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{put.URL, get.URL, part.URL} {
		if !strings.HasPrefix(url, public+"/bucket/") || !strings.Contains(url, "X-Amz-Security-Token=session") {
			t.Errorf("signed URL: %s", url)
		}
	}
}
