package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/internal/testenv"
)

// moodyStore is a proxy before a real store, which refuses while it has a mood.
type moodyStore struct {
	forward *httputil.ReverseProxy
	mood    atomic.Pointer[mood]
}

// mood is a refusal of the requests of one method; of all when that is empty.
type mood struct {
	method string
	status int
	code   string
}

func (m *moodyStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mood := m.mood.Load()
	if mood == nil || mood.method != "" && mood.method != r.Method {
		m.forward.ServeHTTP(w, r)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // else the sender may see a broken connection first
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(mood.status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", mood.code)
}

// withMoods is a harness whose store is reached through a proxy.
func withMoods(t *testing.T) (*harness, *moodyStore) {
	t.Helper()
	b := testenv.Bucket(t, testenv.Versitygw)
	to, err := url.Parse(b.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	m := &moodyStore{forward: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		host := r.In.Host // it is signed
		r.SetURL(to)
		r.Out.Host = host
	}}}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	store, err := s3store.New(t.Context(), s3store.Config{
		Endpoint: server.URL, Region: b.Region, Bucket: b.Name, PathStyle: true, MaxAttempts: 1, Prefix: "test/",
		AccessKeyID: b.AccessKeyID, SecretAccessKey: b.SecretAccessKey,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	h := newHarness(t, setup{tune: func(o *Options) { o.Store = store }})
	h.store = store
	return h, m
}

// A store that has no room, and one for which the credentials expired in the middle: the answer says
// so, nothing is stored or published that was not proved, and once that is mended the same upload
// goes on.
func TestStoreThatRefuses(t *testing.T) {
	t.Parallel()
	h, store := withMoods(t)
	h.admin.create("p")
	l := h.admin.acquire("p")
	files := h.admin.stage(l, stageFile("a", []byte("through the service")), stageFile("b", []byte("straight")))
	a, b := files[0], files[1]
	for _, c := range []struct {
		mood  mood
		words string
	}{
		{mood{http.MethodPut, 507, "XMinioStorageFull"}, "no space left"},
		{mood{http.MethodPut, 403, "QuotaExceeded"}, "no space left"},
		{mood{"", 400, "ExpiredToken"}, "has not expired"},
		{mood{"", 403, "InvalidAccessKeyId"}, "check the access key"},
	} {
		store.mood.Store(&c.mood)
		if p := h.admin.do("PUT", contentPath(a), []byte("through the service")).problem(503, "unavailable"); !strings.Contains(p.Detail, c.words) {
			t.Errorf("%s: %q, want %q", c.mood.code, p.Detail, c.words)
		}
		if resp := sendPresigned(t, *b.Upload, []byte("straight")); resp.StatusCode != c.mood.status {
			t.Errorf("%s: the store answered %s", c.mood.code, resp.Status)
		}
		// A full store still says that the object is not there; one that refuses says nothing.
		if codes := h.admin.completeMany(l, b.ArtifactId); c.mood.method != "" && codes[0] != "not-uploaded" {
			t.Errorf("%s: completing is answered %q", c.mood.code, codes[0])
		}
		h.admin.do("POST", leasePath(l)+"/publish", types.PublishRequest{OperationId: uuid.New(), Token: l.Token}).problem(409, "publish-refused")
		h.admin.do("GET", "/v1/pointers/p", nil).problem(404, "nothing-published")
	}
	store.mood.Store(nil)
	if n := len(h.objects()); n != 0 {
		t.Errorf("%d objects were stored", n)
	}
	h.admin.upload(a, []byte("through the service"))
	sendPresigned(t, *b.Upload, []byte("straight"))
	if codes := h.admin.completeMany(l, b.ArtifactId); codes[0] != "" {
		t.Errorf("completing is answered %q", codes[0])
	}
	h.admin.publish(l)
}
