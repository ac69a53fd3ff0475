package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/internal/identity"
	"github.com/artifactd/artifactd/internal/identity/issuertest"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// harness is a whole service behind a listening socket, on a database and a bucket of its own.
type harness struct {
	t         testing.TB
	url       string
	server    *Server
	db        *testenv.DB
	catalogue *pointer.Catalogue
	store     artifacts.Store
	layout    artifacts.Layout
	collector *fakeCollector
	log       *lockedBuffer
	issuer    *issuertest.Issuer
	admin     client
}

type setup struct {
	s3        testenv.Server
	tune      func(*Options)
	catalogue pointer.Options
}

func newHarness(t testing.TB, s setup) *harness {
	t.Helper()
	if s.s3 == "" {
		s.s3 = testenv.Versitygw
	}
	h := &harness{t: t, collector: &fakeCollector{}, log: &lockedBuffer{}, layout: artifacts.Layout{Prefix: "test/"}}
	h.issuer = issuertest.New(t)
	h.db = testenv.Database(t)
	h.catalogue = openCatalogue(t, h.db.ServiceURL, s.catalogue)
	h.store = openStore(t, testenv.Bucket(t, s.s3), h.layout.Prefix)
	options := Options{
		Catalogue: h.catalogue, Store: h.store, Layout: h.layout, Collector: h.collector,
		Logger:     slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Identities: h.identities(),
	}
	if s.tune != nil {
		s.tune(&options)
	}
	var err error
	if h.server, err = New(options); err != nil {
		t.Fatal(err)
	}
	h.serve()
	h.admin = h.as([]pointer.Scope{pointer.ScopeAdmin}, "*")
	return h
}

func openCatalogue(t testing.TB, url string, o pointer.Options) *pointer.Catalogue {
	t.Helper()
	cfg, err := pointer.PoolConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c, err := pointer.New(pool, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openStore(t testing.TB, b testenv.BucketConfig, prefix string) artifacts.Store {
	t.Helper()
	store, err := s3store.New(t.Context(), s3store.Config{
		Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Name, PathStyle: true,
		AccessKeyID: b.AccessKeyID, SecretAccessKey: b.SecretAccessKey, Prefix: prefix,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

func (h *harness) serve() {
	h.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	srv := h.server.HTTPServer()
	go func() { _ = srv.Serve(listener) }()
	h.url = "http://" + listener.Addr().String()
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			h.t.Errorf("shut down: %v", err)
		}
	})
}

// as is a client with an access token of its own.
func (h *harness) as(scopes []pointer.Scope, patterns ...string) client {
	h.t.Helper()
	_, secret, err := h.catalogue.CreateToken(h.t.Context(), "test", scopes, patterns, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return client{h: h, secret: secret}
}

const testAudience = "https://artifacts.test"

// identities trusts the harness's issuer: the claims scope and pattern say what a workload gets.
func (h *harness) identities() Identities {
	h.t.Helper()
	var rules strings.Builder
	for _, scope := range []string{"read", "publish", "admin"} {
		for _, pattern := range []string{"*", "team-a.*"} {
			fmt.Fprintf(&rules, "      - {claims: {scope: %s, pattern: '%s.'}, scopes: [%s], patterns: ['%s']}\n", scope, strings.TrimSuffix(pattern, "*"), scope, pattern)
		}
	}
	c, err := identity.Load(issuertest.WriteConfig(h.t, fmt.Sprintf("issuers:\n  - issuer: %s\n    audience: %s\n    rules:\n%s", h.issuer.URL(), testAudience, rules.String())))
	if err != nil {
		h.t.Fatal(err)
	}
	return identity.New(c)
}

// workload is a client with an identity token.
func (h *harness) workload(subject string, scope pointer.Scope, pattern string) client {
	h.t.Helper()
	claims := map[string]any{"scope": scope, "pattern": strings.TrimSuffix(pattern, "*") + ".", "exp": time.Now().Add(time.Hour).Unix()}
	return client{h: h, secret: h.issuer.Sign(h.issuer.Claims(testAudience, subject, claims))}
}

// revoked is a client whose token was revoked before anybody saw it, expired one whose time is over.
func (h *harness) revoked(pattern string) client {
	h.t.Helper()
	token, secret, err := h.catalogue.CreateToken(h.t.Context(), "revoked", []pointer.Scope{pointer.ScopeAdmin}, []string{pattern}, nil)
	if err == nil {
		err = h.catalogue.RevokeToken(h.t.Context(), token.ID)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return client{h: h, secret: secret}
}

func (h *harness) expired(pattern string) client {
	h.t.Helper()
	_, secret, err := h.catalogue.CreateToken(h.t.Context(), "expired", []pointer.Scope{pointer.ScopeAdmin}, []string{pattern}, new(time.Now().Add(-time.Hour)))
	if err != nil {
		h.t.Fatal(err)
	}
	return client{h: h, secret: secret}
}

// anonymous is a client without a token.
func (h *harness) anonymous() client { return client{h: h} }

// client sends requests and holds every answer against the document.
type client struct {
	h      *harness
	secret string
}

// answer is a response, read to its end.
type answer struct {
	t      testing.TB
	call   string
	status int
	header http.Header
	body   []byte
}

// request builds a request; body may be nil, bytes, a reader, or anything that becomes JSON.
func (c client) request(method, path string, body any, header ...string) *http.Request {
	c.h.t.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		reader = bytes.NewReader(b)
	case io.Reader:
		reader = b
	case string:
		reader = strings.NewReader(b)
	default:
		encoded, err := json.Marshal(b)
		if err != nil {
			c.h.t.Fatal(err)
		}
		reader = bytes.NewReader(encoded)
	}
	r, err := http.NewRequestWithContext(c.h.t.Context(), method, c.h.url+path, reader)
	if err != nil {
		c.h.t.Fatal(err)
	}
	if c.secret != "" {
		r.Header.Set("Authorization", "Bearer "+c.secret)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// direct follows no redirects.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (c client) do(method, path string, body any, header ...string) answer {
	c.h.t.Helper()
	return c.send(c.request(method, path, body, header...))
}

func (c client) send(r *http.Request) answer {
	c.h.t.Helper()
	resp, err := direct.Do(r)
	if err != nil {
		c.h.t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.h.t.Fatalf("%s %s: read the answer: %v", r.Method, r.URL.Path, err)
	}
	a := answer{t: c.h.t, call: r.Method + " " + r.URL.RequestURI(), status: resp.StatusCode, header: resp.Header, body: b}
	a.checkAgainstDocument(r)
	return a
}

// documented finds the document's operation for a request.
var documented = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		return nil, err
	}
	return legacy.NewRouter(doc)
})

// checkAgainstDocument fails the test when an answer is not what the document promises.
func (a answer) checkAgainstDocument(r *http.Request) {
	a.t.Helper()
	if r.Method == http.MethodHead || len(a.body) == 0 || strings.Contains(r.URL.Path, "/files/") {
		return // the router here takes {path} for one segment; those answers have tests of their own
	}
	router, err := documented()
	if err != nil {
		a.t.Fatal(err)
	}
	route, params, err := router.FindRoute(r)
	if err != nil {
		return // not an operation: the answer is a problem of the router
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 a.status, Header: a.header,
		Body:    io.NopCloser(bytes.NewReader(a.body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: !strings.Contains(a.header.Get("Content-Type"), "json")},
	})
	if err != nil {
		a.t.Errorf("%s answered what the document does not have: %v\n%s", a.call, err, a.body)
	}
}

// want checks the status and returns the answer.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: %d, want %d: %s", a.call, a.status, status, a.body)
	}
	return a
}

// problem checks that the answer is a whole problem document of this status and code.
func (a answer) problem(status int, code string) types.Problem {
	a.t.Helper()
	a.want(status)
	if ct := a.header.Get("Content-Type"); ct != problemMediaType {
		a.t.Errorf("%s: Content-Type %q", a.call, ct)
	}
	var p types.Problem
	a.into(&p)
	if p.Code != code || p.Type != "/problems/"+code || p.Status != status || p.Title == "" || p.Detail == "" {
		a.t.Fatalf("%s: not a whole %s problem: %s", a.call, code, a.body)
	}
	return p
}

// invalid checks for a 400 that names field.
func (a answer) invalid(field string) types.Problem {
	a.t.Helper()
	p := a.problem(http.StatusBadRequest, "invalid-request")
	if p.Field == nil || *p.Field != field {
		a.t.Errorf("%s: the field is not %q: %s", a.call, field, a.body)
	}
	return p
}

func (a answer) into(v any) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		a.t.Fatalf("%s: %v: %s", a.call, err, a.body)
	}
}

func decoded[T any](a answer) T {
	a.t.Helper()
	var v T
	a.into(&v)
	return v
}

// Short forms of the calls that most tests need.

func (c client) create(name string) { c.h.t.Helper(); c.do("PUT", "/v1/pointers/"+name, nil).want(201) }

func (c client) acquire(name string) types.Lease {
	c.h.t.Helper()
	return decoded[types.Lease](c.do("POST", "/v1/pointers/"+name+"/leases", map[string]any{"holder": "worker"}).want(201))
}

func (c client) stage(l types.Lease, files ...types.StageFile) []types.StagedFile {
	c.h.t.Helper()
	return decoded[types.StageResponse](c.do("POST", leasePath(l)+"/files", types.StageRequest{Token: l.Token, Files: files}).want(201)).Files
}

// upload sends bytes through the service.
func (c client) upload(f types.StagedFile, content []byte) types.Artifact {
	c.h.t.Helper()
	return decoded[types.Artifact](c.do("PUT", contentPath(f), content).want(200))
}

func (c client) publish(l types.Lease) string {
	c.h.t.Helper()
	in := types.PublishRequest{OperationId: uuid.New(), Token: l.Token}
	return decoded[types.Published](c.do("POST", leasePath(l)+"/publish", in).want(200)).Version
}

// publishFiles makes a new version of a pointer.
func (c client) publishFiles(name string, files map[string]string) string {
	c.h.t.Helper()
	l := c.acquire(name)
	var paths []string
	for path := range files {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		staged := c.stage(l, stageFile(path, []byte(files[path])))[0]
		if staged.State != "stored" {
			c.upload(staged, []byte(files[path]))
		}
	}
	return c.publish(l)
}

func (c client) resolve(name string) types.ResolvedVersion {
	c.h.t.Helper()
	return decoded[types.ResolvedVersion](c.do("GET", "/v1/pointers/"+name, nil).want(200))
}

func leasePath(l types.Lease) string        { return "/v1/leases/" + l.LeaseId.String() }
func contentPath(f types.StagedFile) string { return artifactPath(f) + "/content" }
func artifactPath(f types.StagedFile) string {
	return "/v1/artifacts/" + f.ArtifactId.String()
}

func stageFile(path string, content []byte) types.StageFile {
	return types.StageFile{Path: path, Digest: artifacts.DigestOf(content).String(), Size: int64(len(content)), MediaType: new("text/plain")}
}

// objects are the keys in the bucket, other than the probes of the store.
func (h *harness) objects() []string {
	h.t.Helper()
	var keys []string
	for o, err := range h.store.List(h.t.Context(), h.layout.ArtifactsPrefix()) {
		if err != nil {
			h.t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute: ", what)
		}
	}
}
