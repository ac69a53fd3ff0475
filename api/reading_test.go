package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	h.admin.create("empty")
	version := h.admin.publishFiles("p", map[string]string{"f": "1"})
	tag := `"` + version + `"`
	a := h.admin.do("GET", "/v1/pointers/p", nil).want(200)
	if a.header.Get("ETag") != tag || a.header.Get("Cache-Control") != "no-cache" || a.header.Get("Content-Length") == "" {
		t.Errorf("headers %v", a.header)
	}
	head := h.admin.do("HEAD", "/v1/pointers/p", nil).want(200)
	if head.header.Get("ETag") != tag || head.header.Get("Content-Length") != a.header.Get("Content-Length") || head.header.Get("Content-Type") != "application/json" {
		t.Errorf("HEAD headers %v, GET %v", head.header, a.header)
	}
	h.admin.do("GET", "/v1/pointers/p", nil, "If-None-Match", `"1.99"`, "If-None-Match", tag).want(304)
	h.admin.do("HEAD", "/v1/pointers/p", nil, "If-None-Match", tag).want(304)
	h.admin.do("HEAD", "/v1/pointers/unknown", nil).want(404)
	h.admin.do("GET", "/v1/pointers/empty", nil).problem(404, "nothing-published")

	items := decoded[types.ResolveResponse](h.admin.do("POST", "/v1/resolve", types.ResolveRequest{Names: []string{"p", "unknown", "empty", "p"}}).want(200)).Items
	if len(items) != 4 || *items[0].Version != version || items[0].Code != nil || *items[1].Code != "pointer-not-found" ||
		*items[2].Code != "nothing-published" || items[2].Version != nil || items[3].Files[0].Path != "f" {
		t.Errorf("resolved: %+v", items)
	}
	h.admin.do("POST", "/v1/resolve", map[string]any{"names": []string{"p", "../q"}}).invalid("names[1]")
	h.admin.do("POST", "/v1/resolve", map[string]any{"names": []string{}}).invalid("names")
}

func TestWaitForANewerVersion(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	start := time.Now()
	h.admin.do("GET", "/v1/pointers/p?wait=0.3", nil).problem(404, "nothing-published")
	if waited := time.Since(start); waited < 300*time.Millisecond {
		t.Errorf("waited %s for a first version, not 0.3 s", waited)
	}
	answers := make(chan answer, 2)
	ask := func(header ...string) {
		go func() { answers <- h.admin.do("GET", "/v1/pointers/p?wait=50", nil, header...) }()
	}
	ask()
	eventually(t, "the call is under way", func() bool { return strings.Contains(h.metrics(), "artifactd_http_requests_in_flight 2") })
	first := h.admin.publishFiles("p", map[string]string{"f": "1"})
	if r := decoded[types.ResolvedVersion]((<-answers).want(200)); r.Version != first {
		t.Errorf("waited for %s", r.Version)
	}
	tag := `"` + first + `"`
	if h.admin.do("GET", "/v1/pointers/p?wait=0.2", nil, "If-None-Match", tag).status != 304 {
		t.Error("nothing newer: not 304")
	}
	h.admin.do("GET", "/v1/pointers/p?wait=50", nil, "If-None-Match", `"1.0"`).want(200) // not what is current: no wait
	ask("If-None-Match", tag)
	ask("If-None-Match", tag)
	eventually(t, "both calls are under way", func() bool { return strings.Contains(h.metrics(), "artifactd_http_requests_in_flight 3") })
	second := h.admin.publishFiles("p", map[string]string{"f": "2"})
	if r := decoded[types.ResolvedVersion]((<-answers).want(200)); r.Version != second {
		t.Errorf("waited for %s", r.Version)
	}
	(<-answers).want(200)
	// Shutting down ends a wait as if it was over.
	ask("If-None-Match", `"`+second+`"`)
	eventually(t, "the call is under way", func() bool { return strings.Contains(h.metrics(), "artifactd_http_requests_in_flight 2") })
	h.server.Drain()
	(<-answers).want(304)
	if a := h.admin.do("GET", "/readyz", nil); !strings.Contains(a.problem(503, "unavailable").Detail, "shutting down") {
		t.Errorf("%s", a.body)
	}
	h.admin.do("GET", "/healthz", nil).want(200)
	h.admin.do("GET", "/v1/pointers/p?wait=x", nil).invalid("wait")
	h.admin.do("GET", "/v1/pointers/p?wait=-1", nil).invalid("wait")
}

// metrics are the registry's, in the text format.
func (h *harness) metrics() string { return string(h.admin.do("GET", "/metrics", nil).want(200).body) }

func TestFileReads(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	content := "0123456789"
	names := []string{"a b/ü?.txt", "plain.txt", "zero", "percent%41", "semi;colon", "we\"ird'name", "+plus&amp=="}
	files := map[string]string{}
	for _, n := range names {
		files[n] = content
	}
	files["zero"] = ""
	version := h.admin.publishFiles("p", files)
	for _, f := range h.admin.resolve("p").Files {
		if a := h.admin.do("GET", f.Url, nil).want(200); string(a.body) != files[f.Path] {
			t.Errorf("%s at %s: %q", f.Path, f.Url, a.body)
		}
	}
	base := "/v1/pointers/p/versions/" + version + "/files/"
	digest := artifacts.DigestOf([]byte(content))
	a := h.admin.do("GET", base+"a%20b/%C3%BC%3F.txt", nil).want(200)
	for name, want := range map[string]string{
		"ETag": `"` + digest.String() + `"`, "Repr-Digest": "sha-256=:" + digest.Base64() + ":",
		"Cache-Control": "private, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "sandbox; default-src 'none'", "Content-Disposition": "attachment; filename*=UTF-8''%C3%BC%3F.txt",
		"Content-Type": "text/plain", "Content-Length": "10", "Accept-Ranges": "bytes",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := h.admin.do("GET", base+"a%20b%2F%C3%BC%3F.txt", nil).want(200); string(got.body) != content {
		t.Error("a slash that is percent-encoded, as generated clients send it")
	}
	head := h.admin.do("HEAD", base+"plain.txt", nil, "Range", "bytes=0-1").want(200)
	if head.header.Get("Content-Length") != "10" || head.header.Get("ETag") != a.header.Get("ETag") {
		t.Errorf("HEAD: %v", head.header)
	}
	for _, tc := range []struct {
		headers []string
		status  int
		body    string
		ranged  string
	}{
		{[]string{"Range", "bytes=2-4"}, 206, "234", "bytes 2-4/10"},
		{[]string{"Range", "bytes=-3"}, 206, "789", "bytes 7-9/10"},
		{[]string{"Range", "bytes=8-"}, 206, "89", "bytes 8-9/10"},
		{[]string{"Range", "bytes=0-1,4-5"}, 200, content, ""},
		{[]string{"Range", "bytes=2-4", "If-Range", a.header.Get("ETag")}, 206, "234", "bytes 2-4/10"},
		{[]string{"Range", "bytes=2-4", "If-Range", `"other"`}, 200, content, ""},
		{[]string{"If-None-Match", a.header.Get("ETag")}, 304, "", ""},
		{[]string{"If-None-Match", "*"}, 304, "", ""},
		{[]string{"If-None-Match", `"other"`}, 200, content, ""},
	} {
		got := h.admin.do("GET", base+"plain.txt", nil, tc.headers...).want(tc.status)
		if string(got.body) != tc.body || got.header.Get("Content-Range") != tc.ranged {
			t.Errorf("%v: %q, Content-Range %q", tc.headers, got.body, got.header.Get("Content-Range"))
		}
	}
	bad := h.admin.do("GET", base+"plain.txt", nil, "Range", "bytes=10-")
	bad.problem(416, "range-not-satisfiable")
	if bad.header.Get("Content-Range") != "bytes */10" || bad.header.Get("ETag") != "" {
		t.Errorf("416: %v", bad.header)
	}
	h.admin.do("GET", base+"zero", nil, "Range", "bytes=0-").problem(416, "range-not-satisfiable")

	to := h.admin.do("GET", "/v1/pointers/p/files/a%20b/%C3%BC%3F.txt", nil).want(307)
	if to.header.Get("Location") != base+"a%20b/%C3%BC%3F.txt" || to.header.Get("Cache-Control") != "no-store" {
		t.Errorf("redirect: %v", to.header)
	}
	h.admin.do("HEAD", "/v1/pointers/p/files/x", nil).want(307)
	h.admin.do("GET", base+"absent", nil).problem(404, "file-not-found")
	h.admin.do("GET", "/v1/pointers/p/versions/3.3/files/plain.txt", nil).problem(404, "version-not-found")
	h.admin.do("GET", base+"plain.txt?via=pigeon", nil).invalid("via")

	page := decoded[types.FilePage](h.admin.do("GET", strings.TrimSuffix(base, "/")+"?prefix=p&limit=1", nil).want(200))
	if len(page.Items) != 1 || page.Items[0].Path != "percent%41" || page.NextCursor == nil {
		t.Fatalf("files: %+v", page)
	}
	page = decoded[types.FilePage](h.admin.do("GET", strings.TrimSuffix(base, "/")+"?prefix=p&cursor="+*page.NextCursor, nil).want(200))
	if len(page.Items) != 1 || page.Items[0].Path != "plain.txt" || page.NextCursor != nil {
		t.Errorf("files: %+v", page)
	}
	h.admin.do("GET", strings.TrimSuffix(base, "/")+"?prefix=%ff", nil).invalid("prefix")
}

func TestUnpublishedBytesAreNotReadable(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	h.admin.upload(h.admin.stage(l, stageFile("f", []byte("secret")))[0], []byte("secret"))
	h.admin.do("GET", "/v1/pointers/p/versions/"+l.Token+"/files/f", nil).problem(404, "version-not-found")
	h.admin.do("GET", "/v1/pointers/p/versions/"+l.Token+"/files", nil).problem(404, "version-not-found")
	h.admin.do("GET", "/v1/pointers/p/files/f", nil).problem(404, "nothing-published")
}

// A file above the limit is redirected to; a HEAD never is.
func TestProxyLimit(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.ProxyLimit, o.PublicURL = 4, "https://artifacts.example.com/base/" }})
	h.admin.create("p")
	h.admin.publishFiles("p", map[string]string{"large": "12345", "small": "1234"})
	for i, f := range h.admin.resolve("p").Files {
		path, ok := strings.CutPrefix(f.Url, "https://artifacts.example.com/base")
		if !ok {
			t.Fatalf("url %s", f.Url)
		}
		status := []int{307, 200}[i]
		a := h.admin.do("GET", path, nil).want(status)
		if status == 307 && (a.header.Get("Cache-Control") != "no-store" || !strings.Contains(a.header.Get("Location"), "X-Amz-Signature")) {
			t.Errorf("redirect: %v", a.header)
		}
		h.admin.do("GET", path+"?via=proxy", nil).want(200)
		h.admin.do("GET", path+"?via=redirect", nil).want(307)
		h.admin.do("HEAD", path, nil).want(200)
		h.admin.do("HEAD", path+"?via=redirect", nil).want(200)
	}
}

func TestASourceThatBreaksLooksBroken(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Store = brokenStore{Store: o.Store, after: 1 << 20} }})
	h.admin.create("p")
	content := bytes.Repeat([]byte("x"), 2<<20)
	h.admin.publishFiles("p", map[string]string{"f": string(content)})
	for range 3 { // a broken connection is not used again
		resp, err := direct.Do(h.admin.request("GET", h.admin.resolve("p").Files[0].Url, nil))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !errors.Is(err, io.ErrUnexpectedEOF) || n >= int64(len(content)) {
			t.Errorf("status %d, %d bytes, %v: looks complete", resp.StatusCode, n, err)
		}
	}
	if !strings.Contains(h.metrics(), `artifactd_http_requests_total{method="GET",route="/v1/pointers/:name/versions/:token/files/:path",status="aborted"} 3`) {
		t.Error("the broken answers are not counted as aborted")
	}
}

// Who reads a version while its collection begins is told that it is gone, and nobody is alarmed.
func TestAVersionThatIsCollectedMeanwhileIsGone(t *testing.T) {
	t.Parallel()
	store := &brokenStore{fail: fmt.Errorf("get: %w", artifacts.ErrNotFound)}
	h := newHarness(t, setup{tune: func(o *Options) { store.Store = o.Store; o.Store = store }})
	h.admin.create("p")
	h.admin.publishFiles("p", map[string]string{"f": "1"})
	path := h.admin.resolve("p").Files[0].Url
	h.admin.publishFiles("p", map[string]string{"f": "2"})
	owner := h.db.Connect(t)
	store.before = func() {
		if _, err := owner.Exec(t.Context(), `UPDATE artifactd.generation SET collecting_at = clock_timestamp() WHERE generation = 1`); err != nil {
			t.Error(err)
		}
	}
	h.admin.do("GET", path, nil).problem(404, "version-not-found")
	if strings.Contains(h.log.String(), "is missing from the store") {
		t.Error("the log tells of a loss")
	}
	h.admin.do("GET", h.admin.resolve("p").Files[0].Url, nil).problem(500, "internal") // that one nobody collects
}

// Whoever watches ends that by going away. The operator's log has warnings of what the service lacks,
// and that is nothing of the kind.
func TestACallerThatGoesAwayIsNoWarning(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	h.admin.publishFiles("p", map[string]string{"f": "1"})
	tag := h.admin.do("GET", "/v1/pointers/p", nil).header.Get("ETag")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	gone := make(chan error, 1)
	go func() {
		resp, err := direct.Do(h.admin.request("GET", "/v1/pointers/p?wait=50", nil, "If-None-Match", tag).WithContext(ctx))
		if err == nil {
			resp.Body.Close()
		}
		gone <- err
	}()
	eventually(t, "the watch begins", func() bool {
		return strings.Contains(h.metrics(), `artifactd_http_requests_in_flight 2`)
	})
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("the watch ended by itself: %v", err)
	}
	eventually(t, "its end is in the log", func() bool { return strings.Contains(h.log.String(), "context canceled") })
	if log := h.log.String(); strings.Contains(log, "level=WARN") {
		t.Errorf("a warning: %s", log)
	}
}

func TestAMissingObjectIsNoAnswer(t *testing.T) {
	t.Parallel()
	broken := &brokenStore{}
	h := newHarness(t, setup{tune: func(o *Options) { broken.Store = o.Store; o.Store = broken }})
	h.admin.create("p")
	h.admin.publishFiles("p", map[string]string{"f": "1"})
	path := h.admin.resolve("p").Files[0].Url
	for fault, line := range map[error]string{
		artifacts.ErrNotFound: "is missing from the store", artifacts.ErrBadRange: "is shorter in the store",
	} {
		broken.fail = fmt.Errorf("get: %w", fault)
		p := h.admin.do("GET", path, nil).problem(500, "internal")
		if p.ErrorId == nil || !strings.Contains(h.log.String(), *p.ErrorId) || !strings.Contains(h.log.String(), line) {
			t.Errorf("the error id is not in the log: %+v", p)
		}
		if !strings.Contains(p.Detail, "artifactd verify") || !strings.Contains(p.Detail, "Publish the file again") {
			t.Errorf("the answer does not say what to do: %s", p.Detail)
		}
		if strings.Contains(p.Detail, "artifacts/") {
			t.Errorf("the answer tells what only the log should: %s", p.Detail)
		}
	}
	broken.fail = fmt.Errorf("get: %w: dial tcp 10.0.0.1", artifacts.ErrStoreUnavailable)
	a := h.admin.do("GET", path, nil)
	if p := a.problem(503, "unavailable"); a.header.Get("Retry-After") == "" || strings.Contains(p.Detail, "10.0.0.1") {
		t.Errorf("unavailable: %s, %v", a.body, a.header)
	}
	if got := h.admin.do("HEAD", path, nil); got.status != http.StatusOK {
		t.Errorf("HEAD asks the store: %d", got.status)
	}
}
