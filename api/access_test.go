package api

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// target is everything that calls can be about.
type target struct {
	name                       string
	version                    string
	token                      string
	lease, artifact, operation uuid.UUID
}

// call is one way to call an operation.
type call struct {
	method, path string
	body         any
}

// calls has a valid request for every operation of the document.
var calls = map[string]func(t target) call{
	"ListPointers":   func(target) call { return call{"GET", "/v1/pointers", nil} },
	"PutPointer":     func(t target) call { return call{"PUT", "/v1/pointers/" + t.name, map[string]any{"keep_versions": 9}} },
	"ResolvePointer": func(t target) call { return call{"GET", "/v1/pointers/" + t.name, nil} },
	"HeadPointer":    func(t target) call { return call{"HEAD", "/v1/pointers/" + t.name, nil} },
	"RetirePointer": func(t target) call {
		return call{"DELETE", "/v1/pointers/" + t.name + "?current_token=" + t.version, nil}
	},
	"GetPointerSettings": func(t target) call { return call{"GET", "/v1/pointers/" + t.name + "/settings", nil} },
	"GetPointerLease":    func(t target) call { return call{"GET", "/v1/pointers/" + t.name + "/lease", nil} },
	"ListVersions":       func(t target) call { return call{"GET", "/v1/pointers/" + t.name + "/versions", nil} },
	"GetVersion":         func(t target) call { return call{"GET", "/v1/pointers/" + t.name + "/versions/" + t.version, nil} },
	"PinVersion": func(t target) call {
		return call{"PUT", "/v1/pointers/" + t.name + "/versions/" + t.version + "/pin", nil}
	},
	"UnpinVersion": func(t target) call {
		return call{"DELETE", "/v1/pointers/" + t.name + "/versions/" + t.version + "/pin", nil}
	},
	"ListVersionFiles": func(t target) call {
		return call{"GET", "/v1/pointers/" + t.name + "/versions/" + t.version + "/files", nil}
	},
	"RedirectToFile":  func(t target) call { return call{"GET", "/v1/pointers/" + t.name + "/files/f", nil} },
	"HeadCurrentFile": func(t target) call { return call{"HEAD", "/v1/pointers/" + t.name + "/files/f", nil} },
	"GetFile": func(t target) call {
		return call{"GET", "/v1/pointers/" + t.name + "/versions/" + t.version + "/files/f", nil}
	},
	"HeadFile": func(t target) call {
		return call{"HEAD", "/v1/pointers/" + t.name + "/versions/" + t.version + "/files/f", nil}
	},
	"ResolveMany": func(t target) call { return call{"POST", "/v1/resolve", types.ResolveRequest{Names: []string{t.name}}} },
	"AcquireLease": func(t target) call {
		return call{"POST", "/v1/pointers/" + t.name + "/leases", types.AcquireRequest{Holder: "A"}}
	},
	"Rollback": func(t target) call {
		return call{"POST", "/v1/pointers/" + t.name + "/rollback", types.RollbackRequest{To: t.version, CurrentToken: t.version, OperationId: uuid.New()}}
	},
	"BreakLease": func(t target) call {
		return call{"POST", "/v1/pointers/" + t.name + "/break-lease", types.BreakLeaseRequest{Token: t.token}}
	},
	"GetLease":     func(t target) call { return call{"GET", "/v1/leases/" + t.lease.String(), nil} },
	"ReleaseLease": func(t target) call { return call{"DELETE", "/v1/leases/" + t.lease.String(), nil} },
	"RenewLease": func(t target) call {
		return call{"POST", "/v1/leases/" + t.lease.String() + "/renew", types.RenewRequest{Token: t.token}}
	},
	"ListStagedFiles": func(t target) call { return call{"GET", "/v1/leases/" + t.lease.String() + "/files", nil} },
	"StageFiles": func(t target) call {
		return call{"POST", "/v1/leases/" + t.lease.String() + "/files", types.StageRequest{Token: t.token, Files: []types.StageFile{stageFile("g", nil)}}}
	},
	"PutLeaseContent": func(t target) call {
		return call{"PUT", "/v1/leases/" + t.lease.String() + "/content", archiveWith(t.artifact, []byte("new"))}
	},
	"CompleteLease": func(t target) call {
		return call{"POST", "/v1/leases/" + t.lease.String() + "/complete", types.CompleteManyRequest{ArtifactIds: []uuid.UUID{t.artifact}}}
	},
	"PublishLease": func(t target) call {
		return call{"POST", "/v1/leases/" + t.lease.String() + "/publish", types.PublishRequest{OperationId: t.operation, Token: t.token}}
	},
	"PublishMany": func(t target) call {
		return call{"POST", "/v1/publish", types.PublishManyRequest{OperationId: t.operation, Leases: []types.PublishLeaseItem{{LeaseId: t.lease, Token: t.token}}}}
	},
	"PutArtifactContent": func(t target) call {
		return call{"PUT", "/v1/artifacts/" + t.artifact.String() + "/content", []byte("new")}
	},
	"RequestParts": func(t target) call {
		return call{"POST", "/v1/artifacts/" + t.artifact.String() + "/parts", types.PartsRequest{Parts: []types.Part{}}}
	},
	"PutArtifactPart": func(t target) call {
		return call{"PUT", "/v1/artifacts/" + t.artifact.String() + "/parts/1", []byte("new")}
	},
	"CompleteArtifact":   func(t target) call { return call{"POST", "/v1/artifacts/" + t.artifact.String() + "/complete", nil} },
	"GetOperation":       func(t target) call { return call{"GET", "/v1/operations/" + t.operation.String(), nil} },
	"SettleOperation":    func(t target) call { return call{"POST", "/v1/operations/" + t.operation.String() + "/settle", nil} },
	"ListGcRuns":         func(target) call { return call{"GET", "/v1/gc/runs", nil} },
	"RunGc":              func(target) call { return call{"POST", "/v1/gc/runs", nil} },
	"GetGcRun":           func(t target) call { return call{"GET", "/v1/gc/runs/" + t.operation.String(), nil} },
	"ListGcPlans":        func(target) call { return call{"GET", "/v1/gc/plans", nil} },
	"GetGcPlan":          func(t target) call { return call{"GET", "/v1/gc/plans/" + t.operation.String(), nil} },
	"ListGcPlanItems":    func(t target) call { return call{"GET", "/v1/gc/plans/" + t.operation.String() + "/items", nil} },
	"ExplainKey":         func(target) call { return call{"GET", "/v1/gc/explain?key=x", nil} },
	"GetHealth":          func(target) call { return call{"GET", "/healthz", nil} },
	"GetReadiness":       func(target) call { return call{"GET", "/readyz", nil} },
	"GetMetrics":         func(target) call { return call{"GET", "/metrics", nil} },
	"GetOpenapiDocument": func(target) call { return call{"GET", "/openapi.yaml", nil} },
}

// archiveWith is an archive with one artifact in it.
func archiveWith(id uuid.UUID, content []byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: id.String(), Size: int64(len(content)), Mode: 0o600, Typeflag: tar.TypeReg})
	if err == nil {
		_, err = w.Write(content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err) // of our own few bytes, into memory
	}
	return b.Bytes()
}

func (c client) call(t target, operation string) answer {
	c.h.t.Helper()
	in := calls[operation](t)
	// A valid digest, which one of the operations needs.
	return c.do(in.method, in.path, in.body, contentDigest, digestOf([]byte("new")))
}

// occupy makes a pointer with a version, a live lease and a staged file, and a recorded operation.
func (h *harness) occupy(name string) target {
	h.t.Helper()
	h.admin.create(name)
	version := h.admin.publishFiles(name, map[string]string{"f": "1"})
	in := types.AcquireRequest{Holder: "somebody", OperationId: new(uuid.New())}
	l := decoded[types.Lease](h.admin.do("POST", "/v1/pointers/"+name+"/leases", in).want(201))
	f := h.admin.stage(l, stageFile("g", []byte("new")))[0]
	return target{name: name, version: version, token: l.Token, lease: l.LeaseId, artifact: f.ArtifactId, operation: *in.OperationId}
}

// nowhere has the same tokens and nothing behind them.
func (t target) nowhere(name string) target {
	return target{name: name, version: t.version, token: t.token, lease: uuid.New(), artifact: uuid.New(), operation: uuid.New()}
}

// scrub takes out of an answer what the caller has put into its request.
func (a answer) scrub(t target) string {
	text := fmt.Sprint(a.status, " ", a.header.Get("WWW-Authenticate"), a.header.Get("Retry-After"), a.header.Get("Location"), a.header.Get("ETag"), " ", string(a.body))
	return strings.NewReplacer(t.name, "NAME", t.lease.String(), "LEASE", t.artifact.String(), "ARTIFACT", t.operation.String(), "OPERATION").Replace(text)
}

// D6: a token limited to team-a.* learns nothing about team-b.*, whatever it calls: what exists and
// what does not look the same.
func TestScopesHideWhatTheyDoNotCover(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	theirs := h.occupy("team-b.x")
	nothing := theirs.nowhere("team-b.y")
	callers := map[string]client{
		"nobody":               h.anonymous(),
		"a reader of team-a":   h.as([]pointer.Scope{pointer.ScopeRead}, "team-a.*"),
		"a publisher":          h.as([]pointer.Scope{pointer.ScopePublish}, "team-a.*", "team-b"),
		"an administrator":     h.as([]pointer.Scope{pointer.ScopeRead, pointer.ScopeAdmin}, "team-a.*"),
		"a reader of an exact": h.as([]pointer.Scope{pointer.ScopeAdmin}, "team-b.x2"),
		"a workload":           h.workload("team-a", pointer.ScopePublish, "team-a.*"),
		"a stranger":           {h: h, secret: h.issuer.Sign(h.issuer.Claims(testAudience, "nobody", nil))},
	}
	before := h.state("team-b.x")
	for who, c := range callers {
		for _, operation := range slices.Sorted(maps.Keys(calls)) {
			got, want := c.call(theirs, operation), c.call(nothing, operation)
			if operation == "GetMetrics" {
				continue // it changes with every call, and names no pointer
			}
			if got.scrub(theirs) != want.scrub(nothing) {
				t.Errorf("%s, %s: tells what exists:\n%s\n%s", who, operation, got.scrub(theirs), want.scrub(nothing))
			}
			allowed := []int{401, 403, 404}
			switch operation {
			case "ListPointers", "ResolveMany", "GetHealth", "GetReadiness", "GetOpenapiDocument":
				allowed = append(allowed, 200)
			case "SettleOperation":
				allowed = append(allowed, 400)
			}
			if !slices.Contains(allowed, got.status) {
				t.Errorf("%s, %s: %d %s", who, operation, got.status, got.body)
			}
			if operation != "ResolveMany" && strings.HasPrefix(calls[operation](theirs).path, "/v1/pointers/") {
				want := 403
				if c.secret == "" || who == "a stranger" {
					want = 401
				}
				if got.status != want {
					t.Errorf("%s, %s: %d, want %d", who, operation, got.status, want)
				}
			}
			for _, secret := range []string{theirs.name, "somebody", "1.2"} {
				if strings.Contains(strings.ReplaceAll(got.scrub(theirs), "team-b.x scope", ""), secret) && operation != "GetOpenapiDocument" {
					t.Errorf("%s, %s: the answer has %q: %s", who, operation, secret, got.body)
				}
			}
		}
	}
	if after := h.state("team-b.x"); after != before {
		t.Errorf("changed by callers who may not:\n%s\n%s", before, after)
	}
	// Settling under a name of one's own does not reveal somebody else's operation either.
	a := callers["a publisher"]
	a.do("POST", "/v1/operations/"+theirs.operation.String()+"/settle", map[string]any{"pointer": "team-b.x"}).problem(403, "forbidden")
	a.do("POST", "/v1/operations/"+theirs.operation.String()+"/settle", map[string]any{"pointer": "team-a.x"}).problem(404, "operation-not-found")
}

// state is what an administrator sees of a pointer, without what changes by itself.
func (h *harness) state(name string) string {
	h.t.Helper()
	var b strings.Builder
	for _, path := range []string{"", "/settings", "/versions"} {
		b.Write(h.admin.do("GET", "/v1/pointers/"+name+path, nil).want(200).body)
	}
	return b.String()
}

// Every operation against every kind of caller: what the document says it needs is what it needs.
func TestAccessOfEveryOperation(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	operations, err := loadOperations(document)
	if err != nil {
		t.Fatal(err)
	}
	reader := h.as([]pointer.Scope{pointer.ScopeRead}, "team-a.*")
	publisher := h.as([]pointer.Scope{pointer.ScopePublish}, "team-a.*")
	admin := h.as([]pointer.Scope{pointer.ScopeAdmin}, "team-a.*")
	expired := h.issuer.Claims(testAudience, "team-a", map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})
	callers := []struct {
		client
		rank int
	}{
		{h.anonymous(), 0}, {reader, 1}, {publisher, 2}, {admin, 3},
		{client{h: h, secret: "artd_" + strings.Repeat("0", 38)}, 0},
		{client{h: h, secret: h.issuer.Sign(expired)}, 0},
		{h.revoked("team-a.*"), 0},
		{h.expired("team-a.*"), 0},
		{h.workload("reader", pointer.ScopeRead, "team-a.*"), 1},
		{h.workload("publisher", pointer.ScopePublish, "team-a.*"), 2},
		{h.workload("admin", pointer.ScopeAdmin, "team-a.*"), 3},
	}
	ours := h.occupy("team-a.x")
	for id, op := range operations {
		needs := map[access]int{accessPublic: 0, accessToken: 1, accessReadPublic: 1, accessRead: 1, accessPublish: 2, accessAdmin: 3}[op.access]
		for _, who := range callers {
			c, rank := who.client, who.rank
			target := ours
			if rank >= needs {
				target = ours.nowhere("team-a.unknown") // allowed: does not change what the others find
			}
			got := c.call(target, id)
			refused := got.status == 401 || got.status == 403 || (rank > 0 && target == ours && got.status == 404)
			switch {
			case rank == 0 && c.secret != "" && needs > 0:
				// A credential that is no good is refused even where none is needed.
				got.want(401)
			case op.access == accessReadPublic && id == "ResolveMany":
				got.want(200)
			case strings.HasPrefix(op.route.Path, "/v1/gc/"):
				if !refused {
					t.Errorf("%s by caller %d: %d, although its admin scope does not reach everything", id, rank, got.status)
				}
			case refused && rank >= needs:
				t.Errorf("%s by caller %d: %d %s", id, rank, got.status, got.body)
			case !refused && rank < needs:
				t.Errorf("%s by caller %d: %d %s", id, rank, got.status, got.body)
			}
		}
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	settings := "/v1/pointers/p/settings"
	a := h.anonymous().do("GET", settings, nil)
	a.problem(401, "unauthenticated")
	if a.header.Get("WWW-Authenticate") != `Bearer realm="artifactd"` {
		t.Errorf("WWW-Authenticate %q", a.header.Get("WWW-Authenticate"))
	}
	secret := h.admin.secret
	for _, authorization := range []string{
		secret, "Bearer", "Bearer ", "Basic " + secret, "Bearer " + secret + "x", "Bearer " + secret[:len(secret)-1],
		"Bearer " + strings.ToUpper(secret), "Bearer artd_" + strings.Repeat("0", 38), "Bearer " + secret + " " + secret,
		"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.", "Bearer \x00",
	} {
		r := h.anonymous().request("GET", settings, nil)
		r.Header["Authorization"] = []string{strings.ReplaceAll(authorization, "\x00", "%00")}
		h.anonymous().send(r).problem(401, "unauthenticated")
	}
	h.admin.do("GET", settings, nil, "Authorization", "Bearer "+secret).problem(401, "unauthenticated") // two of them
	h.anonymous().do("GET", settings, nil, "Authorization", "bearer "+secret).want(200)
	if log := h.log.String(); strings.Contains(log, secret) {
		t.Error("a secret is in the log")
	}
	// A token that is no good is refused even where none is needed.
	h.admin.do("PUT", "/v1/pointers/open", map[string]any{"public": true}).want(201)
	h.anonymous().do("GET", "/v1/pointers/open", nil, "Authorization", "Bearer artd_x").problem(401, "unauthenticated")

	token, short, err := h.catalogue.CreateToken(t.Context(), "short", []pointer.Scope{pointer.ScopeRead}, []string{"*"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := client{h: h, secret: short}
	c.do("GET", settings, nil).want(200)
	if err := h.catalogue.RevokeToken(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the revoked token is refused", func() bool { return c.do("GET", settings, nil).status == 401 })
}

func TestPublicPointers(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.do("PUT", "/v1/pointers/open", map[string]any{"public": true}).want(201)
	h.admin.create("closed")
	version := h.admin.publishFiles("open", map[string]string{"f": "1"})
	h.admin.publishFiles("closed", map[string]string{"f": "1"})
	stranger := h.as([]pointer.Scope{pointer.ScopeRead}, "other.*")
	for _, c := range []client{h.anonymous(), stranger} {
		r := c.resolve("open")
		if r.Version != version {
			t.Errorf("resolved %+v", r)
		}
		if a := c.do("GET", r.Files[0].Url, nil).want(200); !strings.HasPrefix(a.header.Get("Cache-Control"), "public,") {
			t.Errorf("Cache-Control %q", a.header.Get("Cache-Control"))
		}
		c.do("GET", "/v1/pointers/open/files/f", nil).want(307)
		c.do("GET", "/v1/pointers/open/versions/"+version+"/files", nil).want(200)
		c.do("GET", "/v1/pointers/open/versions/"+version, nil).want(200)
		items := decoded[types.ResolveResponse](c.do("POST", "/v1/resolve", types.ResolveRequest{Names: []string{"open", "closed", "unknown"}}).want(200)).Items
		if items[0].Version == nil || *items[1].Code != "forbidden" || *items[2].Code != "forbidden" {
			t.Errorf("resolved: %+v", items)
		}
		for _, path := range []string{"/settings", "/lease", "/versions"} {
			if a := c.do("GET", "/v1/pointers/open"+path, nil); a.status != 401 && a.status != 403 {
				t.Errorf("%s: %d", path, a.status)
			}
		}
		if a := c.do("POST", "/v1/pointers/open/leases", types.AcquireRequest{Holder: "A"}); a.status != 401 && a.status != 403 {
			t.Errorf("acquire: %d", a.status)
		}
	}
	h.anonymous().do("GET", "/v1/pointers/closed", nil).problem(401, "unauthenticated")
	stranger.do("GET", "/v1/pointers/closed", nil).problem(403, "forbidden")
	h.admin.do("PUT", "/v1/pointers/open", map[string]any{"public": false}).want(200)
	h.anonymous().do("GET", "/v1/pointers/open", nil).problem(401, "unauthenticated")
}
