package api

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// Wrong bytes are refused wherever they go, and leave nothing that could be published.
func TestWrongBytes(t *testing.T) {
	t.Parallel()
	testenv.EachServer(t, func(t *testing.T, s3 testenv.Server) {
		t.Parallel()
		h := newHarness(t, setup{s3: s3})
		h.admin.create("p")
		l := h.admin.acquire("p")
		content := make([]byte, 200<<10)
		_, _ = rand.Read(content)
		wrong := bytes.Clone(content)
		wrong[100<<10] ^= 1
		f := h.admin.stage(l, stageFile("f", content))[0]

		h.admin.do("PUT", contentPath(f), wrong).problem(422, "digest-mismatch")
		p := h.admin.do("PUT", contentPath(f), content[1:]).problem(422, "size-mismatch")
		if p.Field == nil || *p.Field != "Content-Length" {
			t.Errorf("size-mismatch: %+v", p)
		}
		h.admin.do("PUT", contentPath(f), append(content, 'x')).problem(422, "size-mismatch")
		req := h.admin.request("PUT", contentPath(f), io.MultiReader(bytes.NewReader(content))) // chunked
		if p := h.admin.send(req).problem(411, "length-required"); p.Field == nil || *p.Field != "Content-Length" {
			t.Errorf("length-required: %+v", p)
		}
		if keys := h.objects(); len(keys) != 0 {
			t.Errorf("left in the bucket: %v", keys)
		}
		h.admin.do("POST", artifactPath(f)+"/complete", nil).problem(409, "not-uploaded")
		h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: l.Token}).problem(409, "publish-refused")

		if f.Upload != nil && strings.HasPrefix(*f.Upload.Url, "http") {
			resp := sendPresigned(t, *f.Upload, wrong)
			if resp.StatusCode < 400 {
				t.Errorf("the store took other bytes than were signed: %s", resp.Status)
			}
			h.admin.do("POST", artifactPath(f)+"/complete", nil).problem(409, "not-uploaded")
		}

		if a := h.admin.upload(f, content); a.State != "stored" || *a.Verified != pointer.VerifiedOnTransfer {
			t.Errorf("the right bytes: %+v", a)
		}
		// Once stored, the same bytes are fine and others are not.
		h.admin.upload(f, content)
		h.admin.do("PUT", contentPath(f), wrong).problem(422, "digest-mismatch")
		h.admin.do("PUT", contentPath(f), content[1:]).problem(422, "size-mismatch")
		h.admin.publish(l)
		h.admin.do("PUT", contentPath(f), content).problem(409, "lease-lost")
		h.admin.do("POST", artifactPath(f)+"/complete", nil).problem(409, "lease-lost")
	})
}

func sendPresigned(t *testing.T, u types.Upload, body []byte) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), *u.Method, *u.Url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range u.Headers {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp
}

// What is in the store under an artifact's key without having gone through the service is proved
// before it counts.
func TestCompleteProvesTheObject(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		object   []byte
		checksum bool
		status   int
		code     string
	}{
		{"right, the store knows the checksum", []byte("right"), true, 200, pointer.VerifiedByStore},
		{"right, the store knows none", []byte("right"), false, 200, pointer.VerifiedByRead},
		{"other bytes, the store knows the checksum", []byte("wrong"), true, 422, "digest-mismatch"},
		{"other bytes, the store knows none", []byte("wrong"), false, 422, "digest-mismatch"},
		{"another size", []byte("longer than that"), true, 422, "size-mismatch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var forgetful *forgetfulStore
			h := newHarness(t, setup{tune: func(o *Options) {
				forgetful = &forgetfulStore{Store: o.Store, checksum: tc.checksum}
				o.Store = forgetful
			}})
			h.admin.create("p")
			l := h.admin.acquire("p")
			f := h.admin.stage(l, stageFile("f", []byte("right")))[0]
			key := h.layout.ArtifactKey(artifacts.DigestOf([]byte("right")), f.ArtifactId)
			err := h.store.Put(t.Context(), artifacts.Upload{Key: key, Digest: artifacts.DigestOf(tc.object), Size: int64(len(tc.object))}, bytes.NewReader(tc.object))
			if err != nil {
				t.Fatal(err)
			}
			a := h.admin.do("POST", artifactPath(f)+"/complete", nil)
			if tc.status != 200 {
				a.problem(tc.status, tc.code)
				h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: l.Token}).problem(409, "publish-refused")
				return
			}
			if got := decoded[types.Artifact](a.want(200)); got.Verified == nil || *got.Verified != tc.code {
				t.Errorf("proved by %s", a.body)
			}
			h.admin.publish(l)
		})
	}
}

// An upload whose object arrived although its answer was lost is proved, not refused.
func TestUploadWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	f := h.admin.stage(l, stageFile("f", []byte("right")))[0]
	digest := artifacts.DigestOf([]byte("right"))
	err := h.store.Put(t.Context(), artifacts.Upload{Key: h.layout.ArtifactKey(digest, f.ArtifactId), Digest: digest, Size: 5}, strings.NewReader("right"))
	if err != nil {
		t.Fatal(err)
	}
	if a := h.admin.upload(f, []byte("right")); a.State != "stored" {
		t.Errorf("%+v", a)
	}
	h.admin.publish(l)
}

// Where the store does not enforce signed digests, bytes go through the service.
func TestUploadURLOfTheService(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Store = laxStore{o.Store} }})
	h.admin.create("p")
	l := h.admin.acquire("p")
	f := h.admin.stage(l, stageFile("f", []byte("x")))[0]
	if *f.Upload.Url != contentPath(f) || *f.Upload.Method != "PUT" || f.Upload.Kind != "single" || f.Upload.Headers["Content-Type"] == "" {
		t.Fatalf("upload: %+v", f.Upload)
	}
	h.admin.do(*f.Upload.Method, *f.Upload.Url, []byte("x")).want(200)
	h.admin.publish(l)
}

// An upload that breaks off leaves nothing, and the artifact can be uploaded after it.
func TestUploadThatBreaksOff(t *testing.T) {
	t.Parallel()
	testenv.EachServer(t, func(t *testing.T, s3 testenv.Server) {
		t.Parallel()
		h := newHarness(t, setup{s3: s3})
		h.admin.create("p")
		l := h.admin.acquire("p")
		content := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
		f := h.admin.stage(l, stageFile("f", content))[0]
		conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", contentPath(f), h.admin.secret, len(content))
		if _, err := conn.Write(content[:len(content)/2]); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the broken upload has ended", func() bool { return strings.Contains(h.metrics(), "artifactd_http_requests_in_flight 1") })
		if keys := h.objects(); len(keys) != 0 {
			t.Errorf("left in the bucket: %v", keys)
		}
		h.admin.do("POST", artifactPath(f)+"/complete", nil).problem(409, "not-uploaded")
		h.admin.upload(f, content)
		h.admin.publish(l)
	})
}

// A body is passed on as it arrives; no part of it grows with the file.
func TestUploadTakesConstantMemory(t *testing.T) {
	t.Parallel()
	var largest int64
	h := newHarness(t, setup{tune: func(o *Options) { o.Store = &countingStore{Store: o.Store, largest: &largest} }})
	h.admin.create("p")
	l := h.admin.acquire("p")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	f := h.admin.stage(l, stageFile("f", content))[0]
	h.admin.upload(f, content)
	if largest == 0 || largest > 1<<20 {
		t.Errorf("the body was asked for %d bytes at once", largest)
	}
}

// A collector that takes an artifact while its bytes are under way leaves no object behind.
func TestUploadThatLandsAfterItsRowIsGone(t *testing.T) {
	t.Parallel()
	var h *harness
	var f types.StagedFile
	h = newHarness(t, setup{tune: func(o *Options) {
		o.Store = afterPut{o.Store, func() {
			conn := h.db.Connect(t)
			for _, sql := range []string{`DELETE FROM artifactd.manifest_file WHERE artifact_id = $1`, `DELETE FROM artifactd.artifact WHERE artifact_id = $1`} {
				if _, err := conn.Exec(t.Context(), sql, f.ArtifactId); err != nil {
					t.Error(err)
				}
			}
		}}
	}})
	h.admin.create("p")
	l := h.admin.acquire("p")
	f = h.admin.stage(l, stageFile("f", []byte("late")))[0]
	h.admin.do("PUT", contentPath(f), []byte("late")).problem(404, "artifact-not-found")
	if keys := h.objects(); len(keys) != 0 {
		t.Errorf("left in the bucket: %v", keys)
	}
}

// Each read pushes the deadline ahead; the end of the body takes it away.
func TestArrivalDeadline(t *testing.T) {
	t.Parallel()
	a := &arrival{body: strings.NewReader("x"), control: http.NewResponseController(noDeadlines{})}
	if _, err := io.ReadAll(a); err != nil || a.count.Load() != 1 || a.err() != nil {
		t.Errorf("read %d bytes, %v, %v", a.count.Load(), err, a.err())
	}
	if !a.over.Load() {
		t.Error("a body that was read to its end still holds its deadline")
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("a late read: %v", err)
	}
	broken := &arrival{body: failing{}, control: http.NewResponseController(noDeadlines{})}
	if _, err := io.ReadAll(broken); err == nil || broken.err() == nil {
		t.Error("the body's own error is lost")
	}
	if until := time.Until(broken.deadline); until <= stallLimit-stallRefresh || until > stallLimit {
		t.Errorf("deadline in %s", until)
	}
}

// noDeadlines is a ResponseWriter without a connection.
type noDeadlines struct{ http.ResponseWriter }
