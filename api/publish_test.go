package api

import (
	"bytes"
	"crypto/rand"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// The whole way of a file: presigned, proved, published, resolved, read both ways.
func TestPublishThroughTheStore(t *testing.T) {
	t.Parallel()
	testenv.EachServer(t, func(t *testing.T, s3 testenv.Server) {
		t.Parallel()
		h := newHarness(t, setup{s3: s3})
		h.admin.create("acme.reports.daily")
		l := h.admin.acquire("acme.reports.daily")
		content := make([]byte, 300<<10)
		_, _ = rand.Read(content)
		staged := h.admin.stage(l, stageFile("charts/März 1+2%.bin", content), stageFile("empty", nil))
		if staged[0].Upload == nil || staged[0].State != "pending" {
			t.Fatalf("a new file is to be uploaded: %+v", staged[0])
		}
		h.admin.do("POST", artifactPath(staged[0])+"/complete", nil).problem(409, "not-uploaded")
		for i, body := range [][]byte{content, nil} {
			if resp := sendPresigned(t, *staged[i].Upload, body); resp.StatusCode != http.StatusOK {
				t.Fatalf("presigned PUT: %s", resp.Status)
			}
			a := decoded[types.Artifact](h.admin.do("POST", artifactPath(staged[i])+"/complete", map[string]any{}).want(200))
			if a.State != "stored" || a.Verified == nil || (*a.Verified != pointer.VerifiedByStore && *a.Verified != pointer.VerifiedByRead) {
				t.Errorf("not proved by the store: %+v", a)
			}
		}
		// Completing again is completing once.
		h.admin.do("POST", artifactPath(staged[0])+"/complete", nil).want(200)
		version := h.admin.publish(l)

		r := h.admin.resolve("acme.reports.daily")
		if r.Version != version || version != l.Token || len(r.Files) != 2 || r.FileCount != 2 || r.FilesTruncated || r.Holder != "worker" {
			t.Fatalf("resolved %+v", r)
		}
		if want := "/v1/pointers/acme.reports.daily/versions/" + version + "/files/charts/M%C3%A4rz%201+2%25.bin"; r.Files[0].Url != want {
			t.Errorf("url %s, want %s", r.Files[0].Url, want)
		}
		if a := h.admin.do("GET", r.Files[0].Url+"?via=proxy", nil).want(200); !bytes.Equal(a.body, content) {
			t.Error("read through the service: other bytes")
		}
		redirected := h.admin.do("GET", r.Files[0].Url+"?via=redirect", nil).want(307)
		resp, err := http.Get(redirected.header.Get("Location"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(b, content) {
			t.Errorf("read from the store: other bytes, %v", err)
		}
		if ct, cd := resp.Header.Get("Content-Type"), resp.Header.Get("Content-Disposition"); ct != "text/plain" || cd == "" {
			t.Errorf("read from the store: Content-Type %q, Content-Disposition %q", ct, cd)
		}
	})
}

// H1 over HTTP: the stale worker is refused, and asked again it is refused again.
func TestStalePublishIsRefused(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	stale := h.admin.acquire("p")
	h.admin.upload(h.admin.stage(stale, stageFile("f", []byte("A's")))[0], []byte("A's"))
	held := h.admin.do("POST", "/v1/pointers/p/leases", map[string]any{"holder": "B"})
	p := held.problem(423, "lease-held")
	after, err := strconv.ParseFloat(held.header.Get("Retry-After"), 64) // whole seconds, rounded up
	if p.Holder == nil || *p.Holder != "worker" || *p.CurrentToken != stale.Token || *p.ExpiresInSeconds <= 0 || err != nil || math.Abs(after-*p.ExpiresInSeconds-0.5) > 0.51 {
		t.Errorf("held: %s, Retry-After %q", held.body, held.header.Get("Retry-After"))
	}
	// Waiting in line ends with the lease as soon as the old one has expired.
	if _, err := h.db.Connect(t).Exec(t.Context(), `UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp() + interval '1 second'`); err != nil {
		t.Fatal(err)
	}
	next := decoded[types.Lease](h.admin.do("POST", "/v1/pointers/p/leases", map[string]any{"holder": "B", "wait_seconds": 30}).want(201))
	in := types.PublishRequest{OperationId: uuid.New(), Token: stale.Token}
	for range 2 {
		p := h.admin.do("POST", leasePath(stale)+"/publish", in).problem(409, "publish-refused")
		if *p.Reason != "superseded" || *p.OperationId != in.OperationId.String() || *p.Token != stale.Token || p.CurrentToken != nil || len(p.Refusals) != 1 {
			t.Errorf("refusal: %+v", p)
		}
	}
	lost := h.admin.do("POST", leasePath(stale)+"/renew", types.RenewRequest{Token: stale.Token}).problem(409, "lease-lost")
	if *lost.Reason != "superseded" {
		t.Errorf("renew: %+v", lost)
	}
	h.admin.do("POST", leasePath(stale)+"/files", types.StageRequest{Token: stale.Token, Files: []types.StageFile{stageFile("g", nil)}}).problem(409, "lease-lost")
	h.admin.do("GET", "/v1/pointers/p", nil).problem(404, "nothing-published")
	h.admin.upload(h.admin.stage(next, stageFile("f", []byte("B's")))[0], []byte("B's"))
	version := h.admin.publish(next)
	p = h.admin.do("POST", leasePath(stale)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: stale.Token}).problem(409, "publish-refused")
	if *p.CurrentToken != version {
		t.Errorf("current_token: %+v", p)
	}
	op := decoded[types.Operation](h.admin.do("GET", "/v1/operations/"+in.OperationId.String(), nil).want(200))
	if op.Outcome != "refused" || *op.Reason != "superseded" {
		t.Errorf("recorded: %+v", op)
	}
}

func TestPublishOutcomes(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: l.Token}).problem(409, "publish-refused")
	f := h.admin.stage(l, stageFile("f", []byte("x")))[0]
	p := h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: l.Token}).problem(409, "publish-refused")
	if *p.Reason != "incomplete" {
		t.Errorf("a file is missing: %+v", p)
	}
	h.admin.upload(f, []byte("x"))
	p = h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: l.Token, FileCount: new(int32(2))}).problem(409, "publish-refused")
	if *p.Reason != "incomplete" {
		t.Errorf("another number of files: %+v", p)
	}
	metadata := types.Metadata(`{"n": 12345678901234567890, "a": [true, null]}`)
	in := types.PublishRequest{OperationId: uuid.New(), Token: l.Token, FileCount: new(int32(1)), SourceRevision: new(int64(9007199254740993)), Metadata: &metadata}
	for range 2 {
		got := decoded[types.Published](h.admin.do("POST", leasePath(l)+"/publish", in).want(200))
		if got.Outcome != "published" || got.Version != l.Token || got.OperationId != in.OperationId {
			t.Errorf("published: %+v", got)
		}
	}
	r := h.admin.resolve("p")
	if *r.SourceRevision != 9007199254740993 || r.Metadata == nil || !bytes.Contains(*r.Metadata, []byte("12345678901234567890")) {
		t.Errorf("resolved %+v, metadata %s", r, *r.Metadata)
	}
	other := in
	other.SourceRevision = nil
	h.admin.do("POST", leasePath(l)+"/publish", other).problem(422, "operation-mismatch")
	p = h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: l.Token}).problem(409, "publish-refused")
	if *p.Reason != "already-published" {
		t.Errorf("second publish: %+v", p)
	}
	op := decoded[types.Operation](h.admin.do("POST", "/v1/operations/"+in.OperationId.String()+"/settle", nil).want(200))
	if op.Outcome != "published" || *op.Version != l.Token || len(op.Versions) != 1 {
		t.Errorf("settled: %+v", op)
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	h.admin.upload(h.admin.stage(l, stageFile("f", []byte("x")))[0], []byte("x"))
	id := uuid.New()
	path := "/v1/operations/" + id.String()
	h.admin.do("GET", path, nil).problem(404, "operation-not-found")
	h.admin.do("POST", path+"/settle", nil).invalid("pointer")
	for range 2 {
		if op := decoded[types.Operation](h.admin.do("POST", path+"/settle", map[string]any{"pointer": "p"}).want(200)); op.Outcome != "aborted" {
			t.Errorf("settled: %+v", op)
		}
	}
	p := h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: id, Token: l.Token}).problem(409, "publish-refused")
	if *p.Reason != "aborted" || *p.Token != l.Token {
		t.Errorf("late publish: %+v", p)
	}
	h.admin.do("GET", "/v1/pointers/p", nil).problem(404, "nothing-published")
}

func TestPublishMany(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	var leases []types.PublishLeaseItem
	for _, name := range []string{"a", "b", "c"} {
		h.admin.create(name)
		l := h.admin.acquire(name)
		h.admin.upload(h.admin.stage(l, stageFile("f", []byte(name)))[0], []byte(name))
		leases = append(leases, types.PublishLeaseItem{LeaseId: l.LeaseId, Token: l.Token})
	}
	dead := leases
	h.admin.do("POST", "/v1/pointers/b/break-lease", types.BreakLeaseRequest{Token: dead[1].Token}).want(204)
	p := h.admin.do("POST", "/v1/publish", types.PublishManyRequest{OperationId: uuid.New(), Leases: leases}).problem(409, "publish-refused")
	if *p.Reason != "broken" || len(p.Refusals) != 1 || p.Refusals[0].Pointer != "b" || p.Refusals[0].Reason != "broken" {
		t.Errorf("refused: %+v", p)
	}
	for _, name := range []string{"a", "b", "c"} {
		h.admin.do("GET", "/v1/pointers/"+name, nil).problem(404, "nothing-published")
	}
	got := decoded[types.PublishedMany](h.admin.do("POST", "/v1/publish", types.PublishManyRequest{
		OperationId: uuid.New(), Leases: []types.PublishLeaseItem{leases[0], leases[2]},
	}).want(200))
	if len(got.Versions) != 2 || got.Versions[0].Pointer != "a" || got.Versions[1].Pointer != "c" || got.Outcome != "published" {
		t.Errorf("published: %+v", got)
	}
	p = h.admin.do("POST", "/v1/publish", types.PublishManyRequest{OperationId: uuid.New(), Leases: []types.PublishLeaseItem{leases[0], leases[0]}}).problem(400, "invalid-request")
	if p.Field == nil || !strings.HasPrefix(*p.Field, "leases") {
		t.Errorf("the same lease twice: %+v", p)
	}
	h.admin.do("POST", "/v1/publish", map[string]any{"operation_id": uuid.New(), "leases": []any{}}).invalid("leases")
	bad := types.PublishLeaseItem{LeaseId: leases[0].LeaseId, Token: "1"}
	h.admin.do("POST", "/v1/publish", types.PublishManyRequest{OperationId: uuid.New(), Leases: []types.PublishLeaseItem{leases[2], bad}}).invalid("leases[1].token")
}

func TestAcquireAgainWithTheSameOperation(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	in := types.AcquireRequest{Holder: "A", OperationId: new(uuid.New()), TtlSeconds: new(1.5)}
	a := h.admin.do("POST", "/v1/pointers/p/leases", in).want(201)
	first := decoded[types.Lease](a)
	if a.header.Get("Location") != leasePath(first) || first.TtlSeconds != 1.5 || first.ExpiresInSeconds <= 0 || first.State != "leased" || first.Pointer != "p" {
		t.Errorf("lease %s, Location %q", a.body, a.header.Get("Location"))
	}
	again := decoded[types.Lease](h.admin.do("POST", "/v1/pointers/p/leases", in).want(201))
	if again.LeaseId != first.LeaseId || again.Token != first.Token {
		t.Errorf("another lease: %+v", again)
	}
	h.admin.do("POST", "/v1/pointers/p/leases", types.AcquireRequest{Holder: "B", OperationId: in.OperationId}).problem(422, "operation-mismatch")
	renewed := decoded[types.Lease](h.admin.do("POST", leasePath(first)+"/renew", types.RenewRequest{Token: first.Token, TtlSeconds: new(90.0)}).want(200))
	if !renewed.ExpiresAt.After(first.ExpiresAt) {
		t.Errorf("renewed: %+v", renewed)
	}
	state := decoded[types.LeaseStatus](h.admin.do("GET", "/v1/pointers/p/lease", nil).want(200))
	if !state.Live || *state.Holder != "A" || *state.Token != first.Token {
		t.Errorf("state: %+v", state)
	}
	h.admin.do("DELETE", leasePath(first), nil).want(204)
	h.admin.do("DELETE", leasePath(first), nil).want(204)
	if got := decoded[types.Lease](h.admin.do("GET", leasePath(first), nil).want(200)); got.State != "released" || got.ExpiresInSeconds != 0 {
		t.Errorf("released: %+v", got)
	}
	if p := h.admin.do("POST", "/v1/pointers/p/leases", in).problem(409, "lease-lost"); *p.Reason != "released" {
		t.Errorf("a dead lease's operation: %+v", p)
	}
	if state := decoded[types.LeaseStatus](h.admin.do("GET", "/v1/pointers/p/lease", nil).want(200)); state.Live || state.Holder != nil {
		t.Errorf("state: %+v", state)
	}
	next := h.admin.acquire("p")
	if next.Generation != first.Generation+1 {
		t.Errorf("generation %d after %d", next.Generation, first.Generation)
	}
	op := decoded[types.Operation](h.admin.do("GET", "/v1/operations/"+in.OperationId.String(), nil).want(200))
	if op.Outcome != "acquired" || op.Lease == nil || op.Lease.LeaseId != first.LeaseId {
		t.Errorf("recorded: %+v", op)
	}
}

func TestStaging(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	first := h.admin.stage(l, stageFile("a", []byte("1")), stageFile("b", []byte("2")))
	again := h.admin.stage(l, stageFile("a", []byte("1")), stageFile("b", []byte("3")))
	if again[0].ArtifactId != first[0].ArtifactId || again[0].Upload == nil {
		t.Error("staged again with the same digest: not the same artifact with a fresh upload")
	}
	if again[1].ArtifactId == first[1].ArtifactId {
		t.Error("staged again with another digest: still the old artifact")
	}
	page := decoded[types.StagedPage](h.admin.do("GET", leasePath(l)+"/files?limit=1", nil).want(200))
	if len(page.Items) != 1 || page.Items[0].Path != "a" || page.NextCursor == nil || page.Items[0].Upload != nil {
		t.Fatalf("first page: %+v", page)
	}
	page = decoded[types.StagedPage](h.admin.do("GET", leasePath(l)+"/files?limit=1&cursor="+*page.NextCursor, nil).want(200))
	if len(page.Items) != 1 || page.Items[0].Path != "b" || page.NextCursor != nil {
		t.Errorf("last page: %+v", page)
	}
	h.admin.upload(again[0], []byte("1"))
	h.admin.upload(again[1], []byte("3"))
	h.admin.publish(l)
	// The next generation adopts what the current version holds.
	next := h.admin.acquire("p")
	adopted := h.admin.stage(next, stageFile("elsewhere", []byte("1")))[0]
	if adopted.State != "stored" || adopted.Upload != nil {
		t.Errorf("not adopted: %+v", adopted)
	}
	if u := h.admin.stage(next, stageFile("new", []byte("4")))[0].Upload; u == nil || u.Kind != "single" || time.Until(u.ExpiresAt) <= 0 {
		t.Errorf("upload: %+v", u)
	}
}
