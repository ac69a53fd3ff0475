package s3store_test

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

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/artifacts/storetest"
	"github.com/artifactd/artifactd/internal/testenv"
)

func upload(content []byte) artifacts.Upload {
	d := artifacts.DigestOf(content)
	return artifacts.Upload{
		Key: artifacts.Layout{Prefix: storetest.Prefix}.ArtifactKey(d, uuid.New()), Digest: d, Size: int64(len(content)),
		Metadata: map[string]string{"artifactd-token": "1.1"},
	}
}

// onlyReader hides that a reader can be rewound.
type onlyReader struct{ io.Reader }

// S2: the store stores, the answer is lost. The SDK's second attempt meets the object of the
// first; a stream cannot be sent again at all. Both are one success.
func TestS2LostAnswerToPut(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		b := testenv.Bucket(t, server)
		proxy := testenv.NewProxy(t, b.Endpoint)
		c := config(b)
		c.Endpoint = "http://" + proxy.Addr()
		store := open(t, c)
		content := []byte("stored once, told late")
		for name, body := range map[string]io.Reader{
			"seekable": bytes.NewReader(content), "unseekable": onlyReader{bytes.NewReader(content)},
		} {
			u := upload(content)
			tripped := proxy.TripOn("PUT /"+b.Name, testenv.Fault{LoseAnswer: true})
			if err := store.Put(t.Context(), u, body); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			<-tripped
			if o, err := store.Head(t.Context(), u.Key); err != nil || o.SHA256 != u.Digest {
				t.Errorf("%s: %+v %v", name, o, err)
			}
		}
	})
}

// A repeated attempt that meets another object than its own is not a success.
func TestConflictAfterARetryIsNotSuccess(t *testing.T) {
	var puts atomic.Int32
	store := fakeStore(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			if puts.Add(1) == 1 {
				fail(w, http.StatusInternalServerError, "InternalError")
				return
			}
			fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
		default:
			w.Header().Set("Content-Length", "5") // another size than was put
		}
	})
	if err := store.Put(t.Context(), upload([]byte("abcd")), strings.NewReader("abcd")); !errors.Is(err, artifacts.ErrExists) {
		t.Errorf("Put: %v", err)
	}
	if puts.Load() != 2 {
		t.Errorf("%d attempts", puts.Load())
	}
}

// fakeStore is a store on a server that misbehaves as told; two attempts, little patience.
func fakeStore(t *testing.T, handler http.HandlerFunc) *s3store.Store {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return open(t, s3store.Config{
		Endpoint: server.URL, Bucket: "bucket", PathStyle: true, AccessKeyID: "id", SecretAccessKey: "secret",
		MaxAttempts: 2, ResponseTimeout: time.Second,
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

func TestFaultsAreTranslated(t *testing.T) {
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
		{403, "AccessDenied", nil, artifacts.ErrStoreUnavailable, 1},
		{404, "NoSuchBucket", nil, artifacts.ErrNotFound, 1},
		{404, "NoSuchKey", artifacts.ErrNotFound, artifacts.ErrStoreUnavailable, 1},
		{416, "InvalidRange", artifacts.ErrBadRange, nil, 1},
		{412, "PreconditionFailed", artifacts.ErrExists, nil, 1},
		{400, "BadDigest", artifacts.ErrDigestMismatch, artifacts.ErrStoreUnavailable, 1},
		{400, "SomethingNew", nil, artifacts.ErrStoreUnavailable, 1},
	} {
		t.Run(fmt.Sprint(c.status, c.code), func(t *testing.T) {
			var attempts atomic.Int32
			store := fakeStore(t, func(w http.ResponseWriter, _ *http.Request) {
				attempts.Add(1)
				fail(w, c.status, c.code)
			})
			_, _, err := store.Get(t.Context(), "key", artifacts.WholeObject)
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) || (c.not != nil && errors.Is(err, c.not)) {
				t.Errorf("%v", err)
			}
			if n := attempts.Load(); n != c.attempts {
				t.Errorf("%d attempts, want %d", n, c.attempts)
			}
		})
	}
}

func TestMissingBucketIsNotAMissingObject(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		c := config(testenv.Bucket(t, server))
		c.Bucket = "no-such-bucket"
		store := open(t, c)
		_, err := store.Head(t.Context(), "key")
		if err == nil || errors.Is(err, artifacts.ErrNotFound) || !strings.Contains(err.Error(), "bucket does not exist") {
			t.Errorf("Head: %v", err)
		}
		for _, err = range store.List(t.Context(), "") {
		}
		if err == nil || errors.Is(err, artifacts.ErrNotFound) {
			t.Errorf("List: %v", err)
		}
		if _, err := store.Delete(t.Context(), []string{"key"}); err == nil {
			t.Error("Delete in no bucket succeeded")
		}
		for range 2 { // the second time it is there
			if err := store.EnsureBucket(t.Context()); err != nil {
				t.Fatalf("EnsureBucket: %v", err)
			}
		}
		if _, err := store.Head(t.Context(), "key"); !errors.Is(err, artifacts.ErrNotFound) {
			t.Errorf("Head in the new bucket: %v", err)
		}
	})
}

func TestStoreDown(t *testing.T) {
	b := testenv.Bucket(t, testenv.Versitygw)
	proxy := testenv.NewProxy(t, b.Endpoint)
	c := config(b)
	c.Endpoint, c.MaxAttempts, c.ResponseTimeout = "http://"+proxy.Addr(), 2, time.Second
	store := open(t, c)
	for name, fault := range map[string]testenv.Fault{
		"reset": {Reset: true}, "deaf": {HoldToServer: true}, "mute": {HoldToClient: true},
	} {
		proxy.Set(fault)
		content := bytes.Repeat([]byte("x"), 1<<20)
		if _, err := store.Head(t.Context(), "key"); !errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: Head: %v", name, err)
		}
		if err := store.Put(t.Context(), upload(content), onlyReader{bytes.NewReader(content)}); !errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: Put: %v", name, err)
		}
		proxy.Set(testenv.Fault{})
		u := upload(content)
		if err := store.Put(t.Context(), u, bytes.NewReader(content)); err != nil {
			t.Errorf("%s: after it: %v", name, err)
		}
	}
}

func TestReadThatIsCutShort(t *testing.T) {
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
			store := fakeStore(t, handler)
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

func TestRangeThatIsIgnored(t *testing.T) {
	store := fakeStore(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the whole object") })
	_, _, err := store.Get(t.Context(), "key", artifacts.ByteRange{Offset: 4, Length: 5})
	if !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("Get: %v", err)
	}
}

func TestCompositeChecksumIsNone(t *testing.T) {
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
		store := fakeStore(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Checksum-Sha256", c.header)
			if c.kind != "" {
				w.Header().Set("X-Amz-Checksum-Type", c.kind)
			}
		})
		if o, err := store.Head(t.Context(), "key"); err != nil || o.SHA256 != c.want {
			t.Errorf("%+v: %v %v", c, o.SHA256, err)
		}
	}
}

func TestStoreThatIgnoresTheSignedDigest(t *testing.T) {
	var deletes, puts atomic.Int32
	store := deleting(t, func(w http.ResponseWriter, r *http.Request) {
		deletes.Add(1)
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, rest, _ := strings.Cut(string(b), "<Key>")
		key, _, _ := strings.Cut(rest, "</Key>")
		answer(w, "<DeleteResult><Deleted><Key>"+key+"</Key></Deleted></DeleteResult>")
	}, func(http.ResponseWriter, *http.Request) { puts.Add(1) })
	enforced, err := store.EnforcesSignedDigest(t.Context())
	if err != nil || enforced {
		t.Errorf("enforced: %v %v", enforced, err)
	}
	if puts.Load() != 2 || deletes.Load() != 2 {
		t.Errorf("%d PUTs, %d deletes", puts.Load(), deletes.Load())
	}
}

func TestStoreThatRefusesEveryPresignedPut(t *testing.T) {
	store := deleting(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, "<DeleteResult></DeleteResult>") },
		func(w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusForbidden, "SignatureDoesNotMatch") })
	if enforced, err := store.EnforcesSignedDigest(t.Context()); err == nil {
		t.Errorf("a store that refuses everything enforces: %v", enforced)
	}
}

// S1 on a store that checks nothing: wrong bytes never become a whole request.
func TestS1WrongBytesNeverLeave(t *testing.T) {
	content := bytes.Repeat([]byte("x"), 300_000)
	wrong := bytes.Clone(content)
	wrong[0] = 'y'
	for name, sent := range map[string][]byte{"digest": wrong, "long": append(bytes.Clone(content), 'x'), "short": content[1:]} {
		received := make(chan error, 1)
		store := fakeStore(t, func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			received <- err
		})
		if err := store.Put(t.Context(), upload(content), onlyReader{bytes.NewReader(sent)}); err == nil {
			t.Errorf("%s: Put succeeded", name)
		}
		if err := <-received; err == nil {
			t.Errorf("%s: the store received a whole request", name)
		}
	}
}

// Memory is constant: what a streamed PUT allocates does not grow with the body.
func TestPutUsesConstantMemory(t *testing.T) {
	const size = 256 << 20
	store := fakeStore(t, func(_ http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n != size {
			t.Errorf("the store received %d bytes: %v", n, err)
		}
	})
	body := func() io.Reader { return onlyReader{io.LimitReader(zeros{}, size)} }
	digest := artifacts.Digest{
		0xa6, 0xd7, 0x2a, 0xc7, 0x69, 0x0f, 0x53, 0xbe, 0x6a, 0xe4, 0x6b, 0xa8, 0x85, 0x06, 0xbd, 0x97,
		0x30, 0x2a, 0x09, 0x3f, 0x71, 0x08, 0x47, 0x2b, 0xd9, 0xef, 0xc3, 0xce, 0xfd, 0xa0, 0x64, 0x84,
	}
	u := artifacts.Upload{Key: "key", Digest: digest, Size: size}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := store.Put(t.Context(), u, body()); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("storing %d MiB allocated %d MiB", size>>20, grown>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestPublicEndpoint(t *testing.T) {
	b := testenv.Bucket(t, testenv.Versitygw)
	c := config(b)
	c.PublicEndpoint = "https://files.example.com:8443"
	store := open(t, c)
	put, err := store.SignPut(t.Context(), upload([]byte("x")), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	get, err := store.SignGet(t.Context(), "key", artifacts.ReadDisposition{}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{put.URL, get.URL} {
		if !strings.HasPrefix(url, c.PublicEndpoint+"/"+b.Name+"/") {
			t.Errorf("signed URL: %s", url)
		}
	}
	if _, err := store.EnforcesSignedDigest(t.Context()); err != nil {
		t.Errorf("the probe must not need the public endpoint: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := s3store.Config{Endpoint: "http://localhost:1", Bucket: "b", AccessKeyID: "a", SecretAccessKey: "s"}
	if _, err := s3store.New(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*s3store.Config){
		"bucket":            func(c *s3store.Config) { c.Bucket = "" },
		"endpoint":          func(c *s3store.Config) { c.Endpoint = "localhost:9000" },
		"public endpoint":   func(c *s3store.Config) { c.PublicEndpoint = "files.example.com" },
		"secret access key": func(c *s3store.Config) { c.SecretAccessKey = "" },
		"prefix":            func(c *s3store.Config) { c.Prefix = "tenant" },
	} {
		c := good
		change(&c)
		if _, err := s3store.New(t.Context(), c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
