package api

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

func TestPointerSettings(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.do("GET", "/v1/pointers/p/settings", nil).problem(404, "pointer-not-found")
	h.admin.do("GET", "/v1/pointers/p", nil).problem(404, "pointer-not-found")
	h.admin.do("GET", "/v1/pointers/p/versions", nil).problem(404, "pointer-not-found")
	h.admin.do("GET", "/v1/pointers/p/lease", nil).problem(404, "pointer-not-found")
	h.admin.do("POST", "/v1/pointers/p/leases", types.AcquireRequest{Holder: "A"}).problem(404, "pointer-not-found")
	made := h.admin.do("PUT", "/v1/pointers/p", map[string]any{"labels": map[string]string{"team": "x"}}).want(201)
	s := decoded[types.PointerSettings](made)
	if s.KeepVersions != 5 || s.KeepSeconds != 86400 || s.Public || s.Labels["team"] != "x" || made.header.Get("Location") != "/v1/pointers/p" {
		t.Errorf("created: %s", made.body)
	}
	s = decoded[types.PointerSettings](h.admin.do("PUT", "/v1/pointers/p", map[string]any{"keep_versions": 0, "public": true}).want(200))
	if s.KeepVersions != 0 || s.KeepSeconds != 86400 || !s.Public || s.Labels["team"] != "x" {
		t.Errorf("changed: %+v", s)
	}
	s = decoded[types.PointerSettings](h.admin.do("PUT", "/v1/pointers/p", map[string]any{"labels": map[string]string{}}).want(200))
	if len(s.Labels) != 0 || s.KeepVersions != 0 {
		t.Errorf("labels cleared: %+v", s)
	}
	if got := decoded[types.PointerSettings](h.admin.do("GET", "/v1/pointers/p/settings", nil).want(200)); got.Name != "p" || !got.Public {
		t.Errorf("read: %+v", got)
	}
}

func TestListPointers(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	for _, name := range []string{"team-a.x", "team-a.y", "team-b.x", "other"} {
		h.admin.create(name)
	}
	h.admin.do("PUT", "/v1/pointers/team-b.open", map[string]any{"public": true}).want(201)
	h.admin.publishFiles("team-a.x", map[string]string{"f": "1"})
	l := h.admin.acquire("team-b.open")
	reader := h.as([]pointer.Scope{pointer.ScopeRead}, "team-a.*")
	var names []string
	for cursor := ""; ; {
		page := decoded[types.PointerPage](reader.do("GET", "/v1/pointers?limit=1"+cursor, nil).want(200))
		for _, item := range page.Items {
			names = append(names, item.Name)
			if item.Name == "team-b.open" && (!item.Lease.Live || item.Lease.Holder != nil || item.Lease.Token != nil) {
				t.Errorf("the lease of somebody else's public pointer: %+v", item.Lease)
			}
			if item.Name == "team-a.x" && (item.CurrentVersion == nil || *item.CurrentVersion != "1.1") {
				t.Errorf("current version: %+v", item)
			}
		}
		if page.NextCursor == nil {
			break
		}
		cursor = "&cursor=" + url.QueryEscape(*page.NextCursor)
	}
	if got := strings.Join(names, " "); got != "team-a.x team-a.y team-b.open" {
		t.Errorf("a reader of team-a.* sees %q", got)
	}
	page := decoded[types.PointerPage](h.admin.do("GET", "/v1/pointers?prefix=team-b.", nil).want(200))
	if len(page.Items) != 2 || *page.Items[0].Lease.Token != l.Token {
		t.Errorf("below team-b.: %+v", page)
	}
	h.admin.do("GET", "/v1/pointers?cursor=%25%25", nil).invalid("cursor")
	h.admin.do("GET", "/v1/pointers?cursor="+base64.RawURLEncoding.EncodeToString([]byte("a\x00\xff")), nil).invalid("cursor")
	h.admin.do("GET", "/v1/pointers?limit=0", nil).invalid("limit")
	h.admin.do("GET", "/v1/pointers?limit=1001", nil).invalid("limit")
	h.admin.do("GET", "/v1/pointers?limit=x", nil).invalid("limit")
	h.admin.do("GET", "/v1/pointers?prefix=%00", nil).invalid("prefix")
	h.admin.do("GET", "/v1/pointers?prefix=%zz", nil).invalid("query")
}

func TestHistoryPinRollbackRetire(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	first := h.admin.publishFiles("p", map[string]string{"f": "1"})
	second := h.admin.publishFiles("p", map[string]string{"f": "2"})
	h.admin.do("DELETE", leasePath(h.admin.acquire("p")), nil).want(204)
	page := decoded[types.GenerationPage](h.admin.do("GET", "/v1/pointers/p/versions?limit=2", nil).want(200))
	if len(page.Items) != 2 || page.Items[0].State != "released" || page.Items[1].Version != second || !page.Items[1].Current || page.NextCursor == nil {
		t.Fatalf("history: %+v", page)
	}
	page = decoded[types.GenerationPage](h.admin.do("GET", "/v1/pointers/p/versions?cursor="+*page.NextCursor, nil).want(200))
	if len(page.Items) != 1 || page.Items[0].Version != first || page.Items[0].DisplacedAt == nil || page.Items[0].FileCount != 1 || page.NextCursor != nil {
		t.Errorf("oldest: %+v", page)
	}
	v := decoded[types.ResolvedVersion](h.admin.do("GET", "/v1/pointers/p/versions/"+first, nil).want(200))
	if v.Version != first || len(v.Files) != 1 {
		t.Errorf("one version: %+v", v)
	}
	h.admin.do("GET", "/v1/pointers/p/versions/1.3", nil).problem(404, "version-not-found")
	h.admin.do("GET", "/v1/pointers/p/versions/9.9", nil).problem(404, "version-not-found")
	h.admin.do("GET", "/v1/pointers/q/versions/1.1", nil).problem(404, "pointer-not-found")

	for range 2 {
		h.admin.do("PUT", "/v1/pointers/p/versions/"+first+"/pin", nil).want(204)
	}
	page = decoded[types.GenerationPage](h.admin.do("GET", "/v1/pointers/p/versions", nil).want(200))
	if !page.Items[2].Pinned {
		t.Error("not pinned")
	}
	h.admin.do("DELETE", "/v1/pointers/p/versions/"+first+"/pin", nil).want(204)
	h.admin.do("PUT", "/v1/pointers/p/versions/9.9/pin", nil).problem(404, "version-not-found")

	in := types.RollbackRequest{To: first, CurrentToken: first, OperationId: uuid.New()}
	p := h.admin.do("POST", "/v1/pointers/p/rollback", in).problem(409, "publish-refused")
	if *p.Reason != "superseded" || *p.CurrentToken != second {
		t.Errorf("rollback from a version that is not current: %+v", p)
	}
	in = types.RollbackRequest{To: first, CurrentToken: second, OperationId: uuid.New()}
	l := h.admin.acquire("p")
	h.admin.do("POST", "/v1/pointers/p/rollback", in).problem(423, "lease-held")
	h.admin.do("DELETE", leasePath(l), nil).want(204)
	for range 2 {
		if got := decoded[types.Published](h.admin.do("POST", "/v1/pointers/p/rollback", in).want(200)); got.Version != "1.5" {
			t.Errorf("rolled back: %+v", got)
		}
	}
	if r := h.admin.resolve("p"); r.Version != "1.5" || h.admin.do("GET", r.Files[0].Url, nil).want(200).body[0] != '1' {
		t.Errorf("resolved after the rollback: %+v", r)
	}
	in.OperationId, in.CurrentToken, in.To = uuid.New(), "1.5", "7.7"
	h.admin.do("POST", "/v1/pointers/p/rollback", in).problem(404, "version-not-found")

	h.admin.do("DELETE", "/v1/pointers/p", nil).invalid("current_token")
	if p := h.admin.do("DELETE", "/v1/pointers/p?current_token="+second, nil).problem(409, "publish-refused"); *p.Reason != "superseded" || *p.CurrentToken != "1.5" {
		t.Errorf("retire another version: %+v", p)
	}
	h.admin.do("DELETE", "/v1/pointers/p?current_token=1.5", nil).want(204)
	h.admin.do("GET", "/v1/pointers/p", nil).problem(410, "pointer-retired")
	h.admin.do("POST", "/v1/pointers/p/leases", types.AcquireRequest{Holder: "A"}).problem(410, "pointer-retired")
	h.admin.do("PUT", "/v1/pointers/p", nil).want(201)
	if l := h.admin.acquire("p"); l.Generation != 6 {
		t.Errorf("after retirement: generation %d", l.Generation)
	}
	h.admin.do("DELETE", "/v1/pointers/unknown", nil).problem(404, "pointer-not-found")
	h.admin.do("POST", "/v1/pointers/p/break-lease", types.BreakLeaseRequest{Token: "1.2"}).problem(409, "lease-lost")
}
