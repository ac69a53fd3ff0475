package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Bad input is refused with a document that names what is at fault, and nothing comes of it.
func TestBadInput(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	digest := artifacts.DigestOf(nil).String()
	file := func(path, digest string, size any) string {
		return fmt.Sprintf(`{"token":%q,"files":[{"path":"ok","digest":"sha256:%064d","size":1},{"path":%s,"digest":%q,"size":%v}]}`, l.Token, 1, path, digest, size)
	}
	leases, files, publish := "/v1/pointers/p/leases", leasePath(l)+"/files", leasePath(l)+"/publish"
	op := `"operation_id":"` + uuid.NewString() + `"`
	for _, tc := range []struct {
		method, path, body, field string
	}{
		// Names.
		{"PUT", "/v1/pointers/-p", ``, "name"},
		{"PUT", "/v1/pointers/a%2Fb", ``, "name"},
		{"PUT", "/v1/pointers/a%00b", ``, "name"},
		{"PUT", "/v1/pointers/" + strings.Repeat("n", 201), ``, "name"},
		{"GET", "/v1/pointers/%C3%BC", ``, "name"},
		{"GET", "/v1/pointers/..", ``, "name"},
		{"GET", "/v1/pointers/a%0Ab/files/x", ``, "name"},
		{"POST", "/v1/pointers/a%20b/leases", `{"holder":"A"}`, "name"},
		// Ids and tokens.
		{"GET", "/v1/leases/1", ``, "lease_id"},
		{"POST", "/v1/artifacts/zz/complete", ``, "artifact_id"},
		{"PUT", "/v1/artifacts/zz/content", `x`, "artifact_id"},
		{"GET", "/v1/operations/{018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f}", ``, "operation_id"},
		{"GET", "/v1/pointers/p/versions/1", ``, "token"},
		{"GET", "/v1/pointers/p/versions/01.2", ``, "token"},
		{"GET", "/v1/pointers/p/versions/1.0/files/f", ``, "token"},
		{"GET", "/v1/pointers/p/versions/1.99999999999999999999/files/f", ``, "token"},
		// Paths of reads.
		{"GET", "/v1/pointers/p/versions/1.1/files/a//b", ``, "path"},
		{"GET", "/v1/pointers/p/versions/1.1/files/a/%2E%2E/b", ``, "path"},
		{"GET", "/v1/pointers/p/versions/1.1/files/%FF", ``, "path"},
		{"GET", "/v1/pointers/p/files/a%00", ``, "path"},
		{"GET", "/v1/pointers/p/files/" + strings.Repeat("n", 1025), ``, "path"},
		// JSON.
		{"POST", leases, `{`, "body"},
		{"POST", leases, ``, "body"},
		{"POST", leases, `{"holder":"A"} {}`, "body"},
		{"POST", leases, `{"holder":"A"}x`, "body"},
		{"POST", leases, `[]`, "body"},
		{"POST", leases, `null`, "body"},
		{"POST", leases, "{\"holder\":\"\xff\"}", "body"},
		{"POST", leases, `{"holder":"\ud800"}`, "body"},
		{"POST", leases, `{"holder":"a\\\u0000"}`, "holder"},
		{"POST", leases, `"\u0000"`, "body"},
		{"POST", leases, `{"a\u0000":"b"}`, "body"},
		{"PUT", "/v1/pointers/q", `{"labels":{"a":"b","c":"\u0000"}}`, "labels.c"},
		{"PUT", "/v1/pointers/q", `{"labels":{"a":"b","c\u0000":"d"}}`, "labels"},
		{"POST", files, file(`"a\u0000"`, digest, 0), "files[1].path"},
		{"GET", "/v1/pointers?limit=1&limit=2", ``, "limit"},
		{"POST", leases, `{"holder":"A","extra":1}`, "extra"},
		{"POST", leases, `{"Holder":"A"}`, "Holder"},
		{"POST", leases, `{}`, "holder"},
		{"POST", leases, `{"holder":1}`, "holder"},
		{"POST", leases, `{"holder":""}`, "holder"},
		{"POST", leases, `{"holder":"` + strings.Repeat("ü", 101) + `"}`, "holder"},
		{"POST", leases, `{"holder":"a\nb"}`, "holder"},
		{"POST", leases, `{"holder":"A","ttl_seconds":0.5}`, "ttl_seconds"},
		{"POST", leases, `{"holder":"A","ttl_seconds":86401}`, "ttl_seconds"},
		{"POST", leases, `{"holder":"A","ttl_seconds":"60"}`, "ttl_seconds"},
		{"POST", leases, `{"holder":"A","wait_seconds":-1}`, "wait_seconds"},
		{"POST", leases, `{"holder":"A","operation_id":"x"}`, "operation_id"},
		{"POST", leases, `{"holder":"A","operation_id":"00000000-0000-0000-0000-000000000000"}`, "operation_id"},
		// Files.
		{"POST", files, `{"token":"` + l.Token + `","files":[]}`, "files"},
		{"POST", files, `{"token":"x","files":[{"path":"a","digest":"` + digest + `","size":0}]}`, "token"},
		{"POST", files, file(`""`, digest, 0), "files[1].path"},
		{"POST", files, file(`"/a"`, digest, 0), "files[1].path"},
		{"POST", files, file(`"a/"`, digest, 0), "files[1].path"},
		{"POST", files, file(`"a/../b"`, digest, 0), "files[1].path"},
		{"POST", files, file(`"a/./b"`, digest, 0), "files[1].path"},
		{"POST", files, file(`"a\tb"`, digest, 0), "files[1].path"},
		{"POST", files, file(`"`+strings.Repeat("ü", 513)+`"`, digest, 0), "files[1].path"},
		{"POST", files, file(`"ok"`, digest, 0), "files[1].path"},
		{"POST", files, file(`"a"`, strings.ToUpper(digest), 0), "files[1].digest"},
		{"POST", files, file(`"a"`, digest[:70], 0), "files[1].digest"},
		{"POST", files, file(`"a"`, "md5:d41d8cd98f00b204e9800998ecf8427e", 0), "files[1].digest"},
		{"POST", files, strings.Replace(file(`"a"`, digest, 0), digest, artifacts.Digest{}.String(), 1), "files[1].digest"},
		{"POST", files, file(`"a"`, digest, -1), "files[1].size"},
		{"POST", files, file(`"a"`, digest, int64(5<<40+1)), "files[1].size"},
		{"POST", files, file(`"a"`, digest, 1.5), "files[1].size"},
		{"POST", files, file(`"a"`, digest, `"1"`), "files[1].size"},
		{"POST", files, strings.Replace(file(`"a"`, digest, 0), `"size":0`, `"size":0,"media_type":"text"`, 1), "files[1].media_type"},
		{"POST", files, strings.Replace(file(`"a"`, digest, 0), `"size":0`, `"size":0,"media_type":"text/html\r\nX: y"`, 1), "files[1].media_type"},
		{"POST", files, `{"token":"` + l.Token + `","files":[` + strings.Repeat(`{"path":"a","digest":"`+digest+`","size":0},`, 1000) + `{"path":"a","digest":"` + digest + `","size":0}]}`, "files"},
		// Publishing.
		{"POST", publish, `{"token":"` + l.Token + `"}`, "operation_id"},
		{"POST", publish, `{` + op + `}`, "token"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","file_count":0}`, "file_count"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","source_revision":9223372036854775808}`, "source_revision"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","metadata":[]}`, "metadata"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","metadata":null}`, "metadata"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","metadata":{"n":1e999}}`, "metadata"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","metadata":{"n":1e-99999}}`, "metadata"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","metadata":{"n":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}}`, "metadata"},
		{"POST", publish, `{` + op + `,"token":"` + l.Token + `","metadata":{"n":"` + strings.Repeat("x", 16<<10) + `"}}`, "metadata"},
		// Settings and the rest.
		{"PUT", "/v1/pointers/q", `{"keep_versions":-1}`, "keep_versions"},
		{"PUT", "/v1/pointers/q", `{"keep_seconds":1e30}`, "keep_seconds"},
		{"PUT", "/v1/pointers/q", `{"public":"yes"}`, "public"},
		{"PUT", "/v1/pointers/q", `{"labels":{"a":1}}`, "labels.a"},
		{"PUT", "/v1/pointers/q", `{"labels":{"":"x"}}`, "labels"},
		{"DELETE", "/v1/pointers/p?current_token=x", ``, "current_token"},
		{"POST", "/v1/pointers/p/break-lease", `{}`, "token"},
		{"POST", "/v1/pointers/p/rollback", `{"to":"1.1","current_token":"","operation_id":"` + uuid.NewString() + `"}`, "current_token"},
		{"POST", "/v1/operations/" + uuid.NewString() + "/settle", `{"pointer":"-"}`, "pointer"},
		{"POST", "/v1/gc/runs", `{"dry_run":1}`, "dry_run"},
		{"POST", "/v1/gc/runs", `{"pointer":"p"}`, "pointer"},
		{"POST", "/v1/gc/runs", `{"dry_run":true,"plan_id":"018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f"}`, "plan_id"},
		{"POST", "/v1/gc/runs", `{"wait_seconds":-1}`, "wait_seconds"},
		{"POST", leasePath(l) + "/renew", `{"token":"` + l.Token + `","ttl_seconds":0}`, "ttl_seconds"},
	} {
		var body any
		if tc.body != "" {
			body = tc.body
		}
		a := h.admin.do(tc.method, tc.path, body)
		p := a.problem(400, "invalid-request")
		if p.Field == nil || *p.Field != tc.field {
			t.Errorf("%s %.60s %.200s: the field is not %s: %s", tc.method, tc.path, tc.body, tc.field, a.body)
		}
		if len(p.Detail) > 500 {
			t.Errorf("%s: a detail of %d bytes", tc.path, len(p.Detail))
		}
	}
	if log := h.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("bad input is no error of ours:\n%s", log)
	}
	page := decoded[types.StagedPage](h.admin.do("GET", files, nil).want(200))
	if len(page.Items) != 0 || len(h.objects()) != 0 {
		t.Errorf("left behind: %+v, %v", page, h.objects())
	}
	h.admin.do("GET", "/v1/pointers/p", nil).problem(404, "nothing-published")
}

// Texts at the edge of what is allowed come back as they went in.
func TestTextsSurvive(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.do("PUT", "/v1/pointers/p", map[string]any{"labels": map[string]string{strings.Repeat("k", 200): "v\n\u2028"}}).want(201)
	holder := strings.Repeat("h", 196) + "😀"
	body := fmt.Sprintf(`{"holder":%q}`, strings.Repeat("h", 196)+`😀`)
	l := decoded[types.Lease](h.admin.do("POST", "/v1/pointers/p/leases", body).want(201))
	if l.Holder != holder {
		t.Errorf("holder %q", l.Holder)
	}
	h.admin.do("POST", leasePath(l)+"/renew", `{"token":"`+l.Token+`"}`, "Content-Type", "").want(200)
	var files []types.StageFile
	for i := range 1000 {
		files = append(files, stageFile(fmt.Sprintf("%04d/%s", i, strings.Repeat("\u00e9", 509)), []byte("x")))
	}
	staged := h.admin.stage(l, files...)
	if len(staged) != 1000 || staged[999].Path != files[999].Path {
		t.Errorf("staged %d files", len(staged))
	}
}

func TestOtherRefusalsOfRequests(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	leases := "/v1/pointers/p/leases"
	large := bytes.Repeat([]byte(" "), 10<<20)
	if p := h.admin.do("POST", leases, large).problem(413, "too-large"); p.Field == nil || *p.Field != "body" {
		t.Errorf("the field is not named: %+v", p)
	}
	chunked := h.admin.request("POST", leases, io.MultiReader(bytes.NewReader(large)))
	h.admin.send(chunked).problem(413, "too-large")
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "nonsense;;"} {
		r := h.admin.request("POST", leases, `{"holder":"A"}`)
		r.Header.Set("Content-Type", media)
		h.admin.send(r).problem(415, "unsupported-media-type")
	}
	r := h.admin.request("POST", leases, `{"holder":"A"}`)
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	h.admin.send(r).want(201)

	h.admin.do("GET", "/", nil).problem(404, "not-found")
	h.admin.do("GET", "/v1/pointers/p/nothing", nil).problem(404, "not-found")
	h.admin.do("GET", "/v2/pointers", nil).problem(404, "not-found")
	a := h.admin.do("POST", "/v1/pointers/p", nil)
	a.problem(405, "method-not-allowed")
	for _, m := range []string{"GET", "HEAD", "PUT", "DELETE"} {
		if !strings.Contains(a.header.Get("Allow"), m) {
			t.Errorf("Allow: %q has no %s", a.header.Get("Allow"), m)
		}
	}
	h.admin.do("BREW", "/v1/pointers", nil).problem(405, "method-not-allowed")
	for _, path := range []string{leasePath(types.Lease{LeaseId: uuid.New()}), leasePath(types.Lease{LeaseId: uuid.New()}) + "/files"} {
		h.admin.do("GET", path, nil).problem(404, "lease-not-found")
	}
	unknown := types.StagedFile{ArtifactId: uuid.New()}
	h.admin.do("PUT", contentPath(unknown), []byte("x")).problem(404, "artifact-not-found")
	h.admin.do("POST", artifactPath(unknown)+"/complete", nil).problem(404, "artifact-not-found")
	h.admin.do("DELETE", leasePath(types.Lease{LeaseId: uuid.New()}), nil).problem(404, "lease-not-found")
	h.admin.do("POST", leasePath(types.Lease{LeaseId: uuid.New()})+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: "1.1"}).problem(404, "lease-not-found")
	if !strings.Contains(h.metrics(), `artifactd_http_problems_total{code="too-large",reason=""} 2`) {
		t.Error("refusals are not counted")
	}
	if strings.Contains(h.metrics(), "nothing") || strings.Contains(h.metrics(), "BREW") {
		t.Error("a stranger's path or method became a label")
	}
}

// A refused body is read off, so that a client that sends first and listens later gets its answer,
// and the connection can be used again.
func TestRefusedUploadIsAnswered(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	f := h.admin.stage(h.admin.acquire("p"), stageFile("f", nil))[0]
	for range 5 {
		h.admin.do("PUT", contentPath(f), bytes.Repeat([]byte("x"), 8<<20)).problem(422, "size-mismatch")
	}
	// Who asks before sending is told at once.
	r := h.admin.request("PUT", contentPath(f), bytes.Repeat([]byte("x"), 64<<20), "Expect", "100-continue")
	h.admin.send(r).problem(422, "size-mismatch")
}

func TestOperatingCalls(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	who := h.anonymous()
	if a := who.do("GET", "/healthz", nil).want(200); decoded[types.Health](a).Status != "ok" {
		t.Errorf("%s", a.body)
	}
	who.do("GET", "/readyz", nil).want(200)
	if a := who.do("GET", "/openapi.yaml", nil).want(200); !bytes.Equal(a.body, document) || a.header.Get("Content-Type") != "application/yaml" {
		t.Error("not the document")
	}
	run := decoded[types.GcRun](h.admin.do("POST", "/v1/gc/runs", map[string]any{"dry_run": true}).want(200))
	if !run.DryRun || run.DeletedObjects != 2 || run.ByReason["superseded"] != 2 {
		t.Errorf("run: %+v", run)
	}
	h.admin.do("POST", "/v1/gc/runs", nil).want(200)
	runs := decoded[types.GcRunPage](h.admin.do("GET", "/v1/gc/runs", nil).want(200))
	if len(runs.Items) != 2 || runs.Items[0].DryRun || !runs.Items[1].DryRun {
		t.Errorf("runs: %+v", runs)
	}
	if len(decoded[types.GcRunPage](h.admin.do("GET", "/v1/gc/runs?limit=1", nil).want(200)).Items) != 1 {
		t.Error("limit is ignored")
	}
	// One who does not wait is told where to look.
	begun := decoded[types.GcRun](h.admin.do("POST", "/v1/gc/runs", map[string]any{"wait_seconds": 0}).want(202))
	if one := decoded[types.GcRun](h.admin.do("GET", "/v1/gc/runs/"+begun.RunId.String()+"?wait=1", nil).want(200)); one.RunId != begun.RunId || one.State != "done" {
		t.Errorf("%+v", one)
	}
	h.admin.do("GET", "/v1/gc/runs/"+uuid.NewString(), nil).problem(404, "run-not-found")
	h.admin.do("GET", "/v1/gc/runs/x", nil).problem(400, "invalid-request")
	h.admin.do("GET", "/v1/gc/plans", nil).want(200)
	for _, path := range []string{"", "/items"} {
		h.admin.do("GET", "/v1/gc/plans/"+uuid.NewString()+path, nil).problem(404, "plan-not-found")
	}
	h.admin.do("GET", "/v1/gc/explain", nil).problem(400, "invalid-request")
	if metrics := h.metrics(); !strings.Contains(metrics, `artifactd_http_requests_total{method="GET",route="/healthz",status="200"} 1`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a server without a catalogue")
	}
}

// A handler that panics answers 500 and leaves the service standing.
func TestPanicInAHandler(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Collector = panickingCollector{} }})
	p := h.admin.do("POST", "/v1/gc/runs", nil).problem(http.StatusInternalServerError, "internal")
	if p.ErrorId == nil || !strings.Contains(h.log.String(), *p.ErrorId) || !strings.Contains(h.log.String(), "the roof is on fire") {
		t.Errorf("%+v is not in the log", p)
	}
	h.anonymous().do("GET", "/healthz", nil).want(200)
}

type panickingCollector struct{ Collector }

func (panickingCollector) Collect(context.Context, CollectRequest) (types.GcRun, error) {
	panic("the roof is on fire")
}

// A connection keeps its deadlines from one request to the next; whatever comes first on an old
// connection is answered all the same.
func TestStaleDeadlines(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	mine := h.occupy("p")
	stale := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Error(err)
		}
		h.server.ServeHTTP(w, r)
	}))
	defer stale.Close()
	h.url = stale.URL
	for _, operation := range slices.Sorted(maps.Keys(calls)) {
		for _, target := range []target{mine.nowhere("q"), mine} {
			h.admin.call(target, operation) // fails the test when there is no answer
		}
	}
	h.admin.do("GET", "/nowhere", nil).problem(404, "not-found")
}

// TestADatabaseThatDoesNotAnswer: a frozen database, or a network that swallows everything, gives no
// error of its own. Each call ends all the same, also those that set no deadline for their bytes.
func TestADatabaseThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // connections wait in its queue
	h.server.catalogue = openCatalogue(t, "postgres://nobody@"+silent.Addr().String()+"/none?sslmode=disable", pointer.Options{})
	var group sync.WaitGroup
	for _, tc := range []struct {
		who   client
		path  string
		limit time.Duration
	}{
		{h.admin, "/readyz", readyDeadline}, {h.admin, "/v1/pointers/p", admitDeadline}, {h.admin, "/v1/pointers", admitDeadline},
		{h.admin, "/v1/pointers/p/versions/1.1/files/f", admitDeadline}, {h.anonymous(), "/v1/pointers/p/versions/1.1/files/f", admitDeadline},
	} {
		group.Go(func() {
			began := time.Now()
			resp, err := direct.Do(tc.who.request("GET", tc.path, nil))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || !strings.Contains(string(body), `"detail":"the database does not answer; `) || strings.Contains(string(body), silent.Addr().String()) {
				t.Errorf("%s: %s, %v", tc.path, body, err)
			}
			if took := time.Since(began); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || took > tc.limit+time.Minute {
				t.Errorf("%s: %s after %s", tc.path, resp.Status, took)
			}
		})
	}
	group.Wait()
}

// TestLargeJSON: what the limits of files and paths allow fits, and no more, in bytes or in values:
// a tree of many small values takes far more memory than its text.
func TestLargeJSON(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	files := make([]types.StageFile, 1000)
	for i := range files {
		files[i] = stageFile(fmt.Sprintf("%04d", i)+strings.Repeat("/long", 204), nil)
	}
	if staged := h.admin.stage(l, files...); len(staged) != 1000 {
		t.Errorf("%d files are staged", len(staged))
	}
	for path, body := range map[string]string{
		"/v1/pointers/p/leases": `{"holder":"` + strings.Repeat("x", maxJSONBody) + `"}`,
		leasePath(l) + "/renew": "[" + strings.Repeat("{},", maxJSONValues) + "{}]",
		leasePath(l) + "/files": `{"token":"1.1","files":[` + strings.Repeat(`[],`, maxJSONValues) + `[]]}`,
		"/v1/publish":           `{"leases":[` + strings.Repeat(`0,`, 1_000_000) + `0]}`,
	} {
		if p := h.admin.do("POST", path, body).problem(413, "too-large"); p.Field == nil || *p.Field != "body" {
			t.Errorf("%s: %+v", path, p)
		}
	}
}

func TestCountValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`0`: 1, `"a,[{"`: 1, `"\\"`: 1, `["\"",1]`: 3, `{"a,b":"c\\","d":[1,2]}`: 5, `[[],{}]`: 5,
	} {
		if got := countValues([]byte(text)); got != want || !json.Valid([]byte(text)) {
			t.Errorf("%s: %d values, want %d", text, got, want)
		}
	}
}

func TestProbesMayUseHEAD(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	for _, path := range []string{"/healthz", "/readyz"} {
		res, err := http.Head(h.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("HEAD %s: %s", path, res.Status)
		}
	}
}
