package daemon_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// gate is an S3 server in front of another: while it is shut, deletions wait; while it is broken,
// everything is answered 503.
type gate struct {
	*httptest.Server
	broken  atomic.Bool
	refused atomic.Int64 // requests that were answered 503

	mu      sync.Mutex
	shut    chan struct{} // nil while open
	waiting chan struct{} // closed when a deletion waits
}

func newGate(t *testing.T, endpoint string) *gate {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.broken.Load() {
			g.refused.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.Method == http.MethodDelete || r.Method == http.MethodPost && r.URL.Query().Has("delete") {
			g.pass(r.Context())
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		g.open()
		g.Close()
	})
	return g
}

func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	shut := g.shut
	if shut != nil && g.waiting != nil {
		close(g.waiting)
		g.waiting = nil
	}
	g.mu.Unlock()
	if shut == nil {
		return
	}
	select {
	case <-shut:
	case <-ctx.Done():
	}
}

// close shuts the gate; what it returns is closed when somebody waits there.
func (g *gate) close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	waiting := make(chan struct{})
	g.shut, g.waiting = make(chan struct{}), waiting
	return waiting
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// publishOver leaves one displaced version beyond its retention behind a shown one.
func publishOver(t *testing.T, c *client.Client, name string) {
	t.Helper()
	if _, err := c.PutPointer(t.Context(), name, types.PutPointerRequest{KeepVersions: new(int32(0)), KeepSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"old " + name, "new " + name} {
		if _, err := c.PublishFiles(t.Context(), name, []client.Source{file(t, content)}, client.AcquireOptions{Holder: "test"}, client.Publication{}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// A collection that lasts is told of while it lasts, goes on when nobody waits for it any more, and
// can be watched to its end.
func TestCollectionThatLastsIsWatched(t *testing.T) {
	c, db := config(t)
	store := newGate(t, c.S3.Endpoint)
	c.S3.Endpoint, c.GC.Interval, c.GC.ReconcileInterval = store.URL, 0, 0
	_, admin := credentials(t, db.ServiceURL, start(t, c).url)
	publishOver(t, admin, "p")
	waiting := store.close()

	// The caller hangs up while the store is at work.
	ctx, hangUp := context.WithCancel(t.Context())
	told := make(chan struct{})
	go func() {
		<-told
		<-waiting
		hangUp()
	}()
	var watched types.GcRun
	var once sync.Once
	run, err := admin.Collect(ctx, types.GcRequest{WaitSeconds: new(0.0)}, func(r types.GcRun) {
		watched = r
		once.Do(func() { close(told) })
	})
	if !errors.Is(err, context.Canceled) || run.State != "running" || run.RunId == uuid.Nil || watched.RunId != run.RunId {
		t.Fatalf("%+v, %v", run, err)
	}
	// Whoever has the id sees it running, and one who waits waits no longer than asked.
	if r, err := admin.CollectRun(t.Context(), run.RunId); err != nil || r.State != "running" || r.FinishedAt != nil {
		t.Errorf("while it lasts: %+v, %v", r, err)
	}
	runs, err := admin.CollectRuns(t.Context(), 10)
	if err != nil || len(runs) != 1 || runs[0].State != "running" {
		t.Errorf("%+v, %v", runs, err)
	}
	store.open()
	deadline := time.Now().Add(time.Minute)
	for r := run; r.State == "running"; {
		if r, err = admin.CollectRun(t.Context(), run.RunId); err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", r, err)
		}
		run = r
	}
	if run.State != "done" || run.DeletedObjects != 1 || run.Error != nil || run.FinishedAt == nil {
		t.Errorf("in the end: %+v", run)
	}
	if _, err := admin.CollectRun(t.Context(), uuid.New()); !errors.Is(err, client.ErrRunNotFound) {
		t.Errorf("a run that never was: %v", err)
	}
}

// Plans over HTTP: made, shown, paged, run, refused.
func TestPlansOverHTTP(t *testing.T) {
	c, db := config(t)
	c.GC.Interval, c.GC.ReconcileInterval = 0, 0
	_, admin := credentials(t, db.ServiceURL, start(t, c).url)
	publishOver(t, admin, "p")
	publishOver(t, admin, "q")
	dry, err := admin.Collect(t.Context(), types.GcRequest{DryRun: new(true)}, nil)
	if err != nil || dry.PlanId == nil || dry.DeletedObjects != 2 || dry.ByReason["displaced"] != 2 || dry.BytesByReason["displaced"] != 10 {
		t.Fatalf("%+v, %v", dry, err)
	}
	plan, err := admin.CollectPlan(t.Context(), *dry.PlanId)
	if err != nil || len(plan.Goes) != 1 || len(plan.Stays) != 1 || plan.Stays[0].Reason != "current" || plan.Stays[0].Generations != 2 {
		t.Fatalf("%+v, %v", plan, err)
	}
	one, err := admin.Collect(t.Context(), types.GcRequest{DryRun: new(true), Pointer: new("q")}, nil)
	if err != nil || one.DeletedObjects != 1 {
		t.Fatalf("%+v, %v", one, err)
	}
	run, err := admin.Collect(t.Context(), types.GcRequest{PlanId: one.PlanId}, nil)
	if err != nil || run.DeletedObjects != 1 || *run.PlanId != *one.PlanId || len(run.Kept) != 0 {
		t.Fatalf("%+v, %v", run, err)
	}
	fates := map[string]string{}
	for i, err := range admin.CollectPlanItems(t.Context(), *one.PlanId) {
		if err != nil {
			t.Fatal(err)
		}
		fates[*i.Version] = i.Reason + " " + value(i.Outcome)
	}
	if len(fates) != 2 || fates["1.1"] != "displaced collected" || fates["1.2"] != "current " {
		t.Errorf("%v", fates)
	}
	conn := db.Connect(t)
	if _, err := conn.Exec(t.Context(), `UPDATE artifactd.gc_plan SET expires_at = clock_timestamp() WHERE plan_id = $1`, *dry.PlanId); err != nil {
		t.Fatal(err)
	}
	for _, refused := range []struct {
		in   types.GcRequest
		want client.Code
	}{
		{types.GcRequest{PlanId: dry.PlanId}, client.ErrPlanExpired},
		{types.GcRequest{PlanId: new(uuid.New())}, client.ErrPlanNotFound},
		{types.GcRequest{PlanId: one.PlanId, DryRun: new(true)}, client.ErrInvalidRequest},
		{types.GcRequest{Pointer: new("p")}, client.ErrInvalidRequest},
		{types.GcRequest{Pointer: new("never"), DryRun: new(true)}, client.ErrPointerNotFound},
		{types.GcRequest{Pointer: new("no/name"), DryRun: new(true)}, client.ErrInvalidRequest},
		{types.GcRequest{WaitSeconds: new(-1.0)}, client.ErrInvalidRequest},
	} {
		var p *client.Problem
		if _, err := admin.Collect(t.Context(), refused.in, nil); !errors.Is(err, refused.want) || !errors.As(err, &p) || p.Detail == "" {
			t.Errorf("%+v: %v, want %s", refused.in, err, refused.want)
		}
	}
	// The artifact, and perhaps the record of its version, which comes when it was written and leaves
	// when it was deleted.
	var keys []string
	if err := conn.QueryRow(t.Context(), `SELECT array_agg(object_key) FROM artifactd.deletion`).Scan(&keys); err != nil {
		t.Fatal(err)
	}
	if len(keys) == 0 {
		t.Error("the ledger is empty")
	}
	for _, key := range keys {
		if e, err := admin.Explain(t.Context(), key); err != nil || e.Verdict != "ledger" || e.Reason != "record" && (e.InStore || value(e.Attempts) != 1) {
			t.Errorf("%+v, %v", e, err)
		}
	}
	if _, err := admin.Explain(t.Context(), "elsewhere/x"); !errors.Is(err, client.ErrInvalidRequest) || !strings.Contains(err.Error(), "never touches") {
		t.Errorf("%v", err)
	}
}

func value[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}

// The store answers 503 for a while, in the middle of everything that collects by itself: it goes on
// by itself when the store is back, and says in the metrics what it did.
func TestCollectionOutlivesTheStore(t *testing.T) {
	c, db := config(t)
	store := newGate(t, c.S3.Endpoint)
	c.S3.Endpoint, c.GC.Interval, c.GC.ReconcileInterval, c.GC.ReconcileGrace = store.URL, 100*time.Millisecond, time.Second, time.Millisecond
	service := start(t, c)
	token, admin := credentials(t, db.ServiceURL, service.url)
	if _, err := admin.PutPointer(t.Context(), "p", types.PutPointerRequest{KeepVersions: new(int32(0)), KeepSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	publish := func(content string) {
		t.Helper()
		if _, err := admin.PublishFiles(t.Context(), "p", []client.Source{file(t, content)}, client.AcquireOptions{Holder: "test"}, client.Publication{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	publish("old") // asks the store, once, what it can do, and deletes what it asked with
	waiting := store.close()
	publish("new")
	<-waiting // a collector has claimed the key, and is at the store
	store.broken.Store(true)
	store.open()
	count := func(sql string) (n int) {
		t.Helper()
		conn := db.Connect(t)
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not within two minutes", what)
			}
		}
	}
	refused := store.refused.Load()
	until("the outage is met", func() bool { return store.refused.Load() > refused+20 })
	until("the service is ready although the store is down", func() bool {
		resp, err := http.Get(service.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	store.broken.Store(false)
	publishOver(t, admin, "q")
	// The claim of the failed attempt runs out in its own time.
	conn := db.Connect(t)
	until("all is collected", func() bool {
		if _, err := conn.Exec(t.Context(), `UPDATE artifactd.deletion SET not_before = least(not_before, clock_timestamp() + interval '1 second'), final_after = clock_timestamp() - interval '1 second'`); err != nil {
			t.Fatal(err)
		}
		return count(`SELECT count(*) FROM artifactd.deletion`)+count(`SELECT count(*) FROM artifactd.generation WHERE displaced_at IS NOT NULL AND collected_at IS NULL`) == 0
	})
	until("a pass is done", func() bool {
		return count(`SELECT count(*) FROM artifactd.reconcile_pass WHERE outcome = 'done' AND listed = 2`) > 0
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	until("the metrics tell", func() bool {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`artifactd_gc_deleted_objects_total{reason="displaced"} 2`, "artifactd_gc_ledger_keys 0", "artifactd_gc_marked_total 2",
			`artifactd_reconcile_passes_total{result="ok"}`, "artifactd_reconcile_listed_objects 2", "artifactd_gc_last_success_timestamp_seconds 1"} {
			if !strings.Contains(string(text), want) {
				t.Logf("not yet %s", want)
				return false
			}
		}
		return true
	})
}
