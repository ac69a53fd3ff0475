package api

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// tooMany wants a 429 that says when to come back.
func (a answer) tooMany() {
	a.t.Helper()
	a.problem(http.StatusTooManyRequests, "too-many-requests")
	if a.header.Get("Retry-After") == "" {
		a.t.Errorf("%s: no Retry-After", a.call)
	}
}

// untilTooMany repeats a call until it is one too many, and returns how often it was answered before.
func untilTooMany(t *testing.T, do func() answer) int {
	t.Helper()
	for n := range 1000 {
		if a := do(); a.status == http.StatusTooManyRequests {
			a.tooMany()
			return n
		}
	}
	t.Fatal("nothing was too much in 1000 requests")
	return 0
}

// A caller that sends too much is told so, and nobody else notices.
func TestRateOfOneCaller(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Limits = Limits{CallerRate: 0.01, AddressRate: 0.02} }})
	busy, other := h.as([]pointer.Scope{pointer.ScopeRead}, "*"), h.as([]pointer.Scope{pointer.ScopeRead}, "*")
	workload := h.workload("w", pointer.ScopeRead, "*")
	list := func(c client) func() answer { return func() answer { return c.do("GET", "/v1/pointers", nil) } }
	for name, c := range map[string]client{"token": busy, "workload": workload} {
		if n := untilTooMany(t, list(c)); n != 1 { // the burst of a rate this small is one
			t.Errorf("%s: %d requests were answered", name, n)
		}
	}
	list(other)().want(200)
	if n := untilTooMany(t, func() answer { return h.anonymous().do("GET", "/openapi.yaml", nil) }); n != 1 {
		t.Errorf("without a token %d requests were answered", n)
	}
	// Reading what is public counts like asking for what needs no credential at all.
	h.anonymous().do("GET", "/v1/pointers/open", nil).tooMany()
	for range 5 {
		h.anonymous().do("GET", "/healthz", nil).want(200)
	}
	if n := strings.Count(h.log.String(), "too-many-requests"); n < 3 {
		t.Errorf("%d lines in the log", n)
	}
}

// Whoever guesses is stopped without the database, and callers at the same address who are known go on.
func TestRateOfFailures(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Limits = Limits{FailureRate: 0.01} }})
	h.admin.create("p")
	newcomer, workload := h.as([]pointer.Scope{pointer.ScopeRead}, "*"), h.workload("w", pointer.ScopeRead, "*")
	workload.do("GET", "/v1/pointers", nil).want(200)
	if n := untilTooMany(t, func() answer { return client{h: h, secret: "artd_wrong"}.do("GET", "/v1/pointers", nil) }); n != 1 {
		t.Errorf("%d guesses were answered", n)
	}
	client{h: h, secret: h.issuer.Sign(nil)}.do("GET", "/v1/pointers", nil).tooMany()
	newcomer.do("GET", "/v1/pointers", nil).tooMany() // it may be a guess
	h.anonymous().do("GET", "/v1/pointers", nil).tooMany()
	h.admin.do("GET", "/v1/pointers/p/settings", nil).want(200)
	workload.do("GET", "/v1/pointers", nil).want(200)
	h.anonymous().do("GET", "/healthz", nil).want(200)
}

// One caller's requests that wait for the database are bounded; those that wait for a version are
// counted apart.
func TestConcurrencyOfOneCaller(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Limits = Limits{Concurrency: 2} }})
	h.admin.create("p")
	tx, err := h.db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE artifactd.pointer IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() { h.admin.do("GET", "/v1/pointers/p/settings", nil).want(200) })
	}
	bucket := h.bucketOf(h.admin)
	eventually(t, "two requests are under way", func() bool { return bucket.working.Load() == 2 })
	h.admin.do("GET", "/v1/pointers/p/settings", nil).tooMany()
	running.Go(func() { h.admin.do("GET", "/v1/pointers/p", nil).problem(404, "nothing-published") })
	eventually(t, "one waits besides", func() bool { return bucket.waiting.Load() == 1 })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	running.Wait()
	eventually(t, "all are counted out", func() bool { return bucket.working.Load() == 0 && bucket.waiting.Load() == 0 })
	h.admin.do("GET", "/v1/pointers/p/settings", nil).want(200)
	h.admin.do("GET", "/v1/unknown", nil).problem(404, "not-found")
}

// What one caller's bodies take of the memory is bounded, however many requests they come in.
func TestBodiesOfOneCaller(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	const each = 4 << 20 // what a call to stage may have
	b := h.bucketOf(h.admin)
	var running sync.WaitGroup
	var ends []*io.PipeWriter
	for range maxBodies / each {
		r, w := io.Pipe()
		ends = append(ends, w)
		req := h.admin.request("POST", leasePath(l)+"/files", r)
		req.ContentLength = each
		running.Go(func() {
			if resp, err := direct.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	eventually(t, "all their bytes are counted", func() bool { return b.bodies.Load() == maxBodies })
	h.admin.do("POST", leasePath(l)+"/renew", types.RenewRequest{Token: l.Token}).tooMany()
	h.as([]pointer.Scope{pointer.ScopeAdmin}, "*").do("POST", leasePath(l)+"/renew", types.RenewRequest{Token: l.Token}).want(200)
	h.admin.do("GET", "/v1/pointers/p/settings", nil).want(200) // it has no body
	for _, w := range ends {
		_ = w.CloseWithError(io.ErrUnexpectedEOF)
	}
	running.Wait()
	eventually(t, "none is counted any more", func() bool { return b.bodies.Load() == 0 })
	h.admin.do("POST", leasePath(l)+"/renew", types.RenewRequest{Token: l.Token}).want(200)
}

// bucketOf is the bucket of a client that has sent a request.
func (h *harness) bucketOf(c client) *bucket {
	h.t.Helper()
	found, err := h.catalogue.Authenticate(context.Background(), c.secret)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.server.limits.callers.of(found.ID)
}

// The table of callers does not grow with their number.
func TestBucketsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBuckets[netip.Addr](1, 5, 1)
	a := netip.MustParseAddr("10.0.0.0")
	for range 3 * maxBuckets {
		b.of(a).take()
		a = a.Next()
	}
	if got := b.entries.Len(); got != maxBuckets {
		t.Errorf("%d buckets", got)
	}
	if first := b.of(a); first != b.of(a) {
		t.Error("an address has two buckets")
	}
}

// Where a request comes from is what its connection says, unless that is a proxy's that is trusted.
func TestAddressOfARequest(t *testing.T) {
	t.Parallel()
	e := echo.New()
	for _, c := range []struct {
		proxies                 []string
		remote, forwarded, want string
	}{
		{nil, "192.0.2.1:1", "203.0.113.9", "192.0.2.1"},
		{nil, "127.0.0.1:1", "203.0.113.9", "127.0.0.1"}, // near is no reason to be trusted
		{[]string{"10.0.0.0/8"}, "10.1.2.3:1", "203.0.113.9", "203.0.113.9"},
		{[]string{"10.0.0.0/8"}, "10.1.2.3:1", "6.6.6.6, 203.0.113.9, 10.9.9.9", "203.0.113.9"},
		{[]string{"10.0.0.0/8"}, "192.0.2.1:1", "203.0.113.9", "192.0.2.1"},
		{[]string{"10.0.0.0/8"}, "127.0.0.1:1", "203.0.113.9", "127.0.0.1"},
		{[]string{"fd00::/8"}, "[fd00::1]:1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"},
		{nil, "[2001:db8:1:2:3:4:5:6]:1", "", "2001:db8:1:2::"},
		{nil, "[::ffff:192.0.2.1]:1", "", "192.0.2.1"},
	} {
		var proxies []netip.Prefix
		for _, p := range c.proxies {
			proxies = append(proxies, netip.MustParsePrefix(p))
		}
		e.IPExtractor = clientAddress(proxies)
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.remote
		r.Header.Set("X-Forwarded-For", c.forwarded)
		if got := newLimits(Limits{}).address(e.NewContext(r, nil)); got.String() != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// Every refusal and every administrator's act leaves a line: who, what, from where, and never a secret.
func TestAudit(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	publisher := h.as([]pointer.Scope{pointer.ScopePublish}, "team-a.*")
	workload := h.workload("repo:acme/x", pointer.ScopeRead, "*")
	guess := client{h: h, secret: "artd_" + strings.Repeat("7", 38)}
	expired := client{h: h, secret: h.issuer.Sign(h.issuer.Claims(testAudience, "repo:acme/late", map[string]any{"exp": 1}))}
	h.admin.create("team-a.x")
	version := h.admin.publishFiles("team-a.x", map[string]string{"f": "1"})
	lease := publisher.acquire("team-a.x")
	staged := publisher.stage(lease, stageFile("f", []byte("2")))

	operation := uuid.New()

	line := func(parts ...string) {
		t.Helper()
		for _, l := range strings.Split(h.log.String(), "\n") {
			all := strings.Contains(l, "audit: ")
			for _, part := range parts {
				all = all && strings.Contains(l, part)
			}
			if all {
				return
			}
		}
		t.Errorf("no line has all of %q", parts)
	}
	guess.do("GET", "/v1/pointers", nil).want(401)
	line("refused", "remote=127.0.0.1", "operation=ListPointers", "code=unauthenticated", "caller=anonymous")
	expired.do("GET", "/v1/pointers", nil).want(401)
	line("refused", "code=unauthenticated", "it is expired", "repo:acme/late")
	publisher.do("PUT", "/v1/pointers/team-b.x", nil).want(403)
	line("refused", "operation=PutPointer", "path=/v1/pointers/team-b.x", "code=forbidden", "caller=test", "caller_id=")
	workload.do("PUT", "/v1/pointers/team-b.x", nil).want(403)
	line("refused", "code=forbidden", "caller=repo:acme/x", "issuer="+h.issuer.URL())
	publisher.do("POST", leasePath(lease)+"/publish", types.PublishRequest{OperationId: operation, Token: lease.Token}).want(409)
	line("refused", "code=publish-refused", "reason=incomplete", "operation_id=", "caller=test")

	// What is said not to exist is refused all the same.
	stranger := h.as([]pointer.Scope{pointer.ScopePublish}, "team-b.*")
	content := target{name: "team-a.x", lease: lease.LeaseId, token: lease.Token, operation: operation, artifact: staged[0].ArtifactId}
	for _, id := range []string{
		"GetLease", "ReleaseLease", "RenewLease", "ListStagedFiles", "StageFiles", "PutLeaseContent", "CompleteLease", "PublishMany",
		"PutArtifactContent", "RequestParts", "PutArtifactPart", "CompleteArtifact", "GetOperation", "SettleOperation",
	} {
		if a := stranger.call(content, id); a.status != 404 && id != "SettleOperation" {
			t.Errorf("%s: %d %s", id, a.status, a.body)
		}
		line("refused", "operation="+id+" ", "hidden_pointer=team-a.x", "caller=test")
	}
	stranger.do("POST", "/v1/resolve", types.ResolveRequest{Names: []string{"team-b.x", "team-a.x", "team-a.y"}}).want(200)
	line("refused", "operation=ResolveMany", "code=forbidden", "pointers=2", "first_pointer=team-a.x")

	h.admin.do("POST", "/v1/pointers/team-a.x/break-lease", types.BreakLeaseRequest{Token: lease.Token}).want(204)
	line("administered", "operation=BreakLease", "path=/v1/pointers/team-a.x/break-lease", "status=204", "remote=127.0.0.1", "caller=test")
	publisher.do("POST", leasePath(lease)+"/renew", types.RenewRequest{Token: lease.Token}).want(409)
	line("refused", "operation=RenewLease", "code=lease-lost", "reason=broken")
	h.admin.do("PUT", "/v1/pointers/team-a.x/versions/"+version+"/pin", nil).want(204)
	line("administered", "operation=PinVersion", "status=204")
	h.admin.do("POST", "/v1/gc/runs", map[string]any{"dry_run": true}).want(200)
	line("administered", "operation=RunGc", "status=200")
	h.admin.do("DELETE", "/v1/pointers/team-a.x?current_token="+version, nil).want(204)
	line("administered", "operation=RetirePointer", "status=204")
	line("administered", "operation=PutPointer", "status=201")

	log := h.log.String()
	for _, secret := range []string{guess.secret, publisher.secret, h.admin.secret, workload.secret, expired.secret} {
		for _, part := range strings.Split(secret, ".") {
			if strings.Contains(log, part) {
				t.Errorf("the log has %s", part)
			}
		}
	}
}

// Lines of refusals are bounded, and tell how many were left out.
func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	reader := h.as([]pointer.Scope{pointer.ScopeRead}, "a")
	lines := h.bucketOf(reader).refusals
	lines.SetBurst(3)
	lines.SetLimit(0)
	for range 10 {
		reader.do("GET", "/v1/pointers/b", nil).want(403)
	}
	if n := strings.Count(h.log.String(), "audit: refused"); n != 3 {
		t.Errorf("%d lines for 10 refusals", n)
	}
	lines.SetLimit(rate.Inf)
	reader.do("GET", "/v1/pointers/b", nil).want(403)
	if !strings.Contains(h.log.String(), "more_since_last_line=7") {
		t.Error("what was left out is not told")
	}
}

// An administrator's act that ended in an error may have happened.
func TestAuditOfActsThatFailed(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Collector = panickingCollector{} }})
	h.admin.do("POST", "/v1/gc/runs", nil).want(500)
	h.admin.do("POST", "/v1/pointers/p/break-lease", types.BreakLeaseRequest{Token: "1.1"}).want(404)
	log := h.log.String()
	if !strings.Contains(log, `"audit: administered" remote=127.0.0.1 method=POST path=/v1/gc/runs operation=RunGc caller=test`) || !strings.Contains(log, "status=500 code=internal") {
		t.Errorf("the failed act is not told:\n%s", log)
	}
	if strings.Contains(log, "operation=BreakLease") {
		t.Errorf("what was not done is told as done:\n%s", log)
	}
}
