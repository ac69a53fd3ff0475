package gc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/pointer/pointertest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// site is one installation: a database, a bucket, and everybody's way to them.
type site struct {
	t         *testing.T
	catalogue *pointer.Catalogue
	store     *s3store.Store
	pool      *pgxpool.Pool
	layout    artifacts.Layout
	owner     *pgx.Conn
}

func newSite(t *testing.T, server testenv.Server) *site {
	t.Helper()
	t.Parallel()
	db := testenv.Database(t)
	pool := openPool(t, db)
	catalogue, err := pointer.New(pool, pointer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	layout := artifacts.Layout{Prefix: "artifactd/"}
	if err := catalogue.ClaimKeyPrefix(t.Context(), layout.Prefix); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, testenv.Bucket(t, server), layout)
	return &site{t: t, catalogue: catalogue, store: store, pool: pool, layout: layout, owner: db.Connect(t)}
}

func openPool(t *testing.T, db *testenv.DB) *pgxpool.Pool {
	t.Helper()
	cfg, err := pointer.PoolConfig(db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func openStore(t *testing.T, b testenv.BucketConfig, layout artifacts.Layout) *s3store.Store {
	t.Helper()
	store, err := s3store.New(t.Context(), s3store.Config{Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Name, Prefix: layout.Prefix,
		AccessKeyID: b.AccessKeyID, SecretAccessKey: b.SecretAccessKey, PathStyle: true})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func (s *site) collector(store gc.Store) *gc.Collector {
	s.t.Helper()
	c, err := gc.New(s.pool, store, gc.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// collect runs the collector once, with no resume grace.
func (s *site) collect() gc.Report {
	s.t.Helper()
	report, err := s.collector(s.store).RunOnce(s.t.Context(), gc.RunOptions{ResumeGrace: new(time.Duration)})
	if err != nil {
		s.t.Fatal(err)
	}
	return report
}

func (s *site) pointer(name string, keepVersions int, keepSeconds int64) {
	s.t.Helper()
	_, _, err := s.catalogue.PutPointer(s.t.Context(), name, pointer.SettingsChange{KeepVersions: &keepVersions, KeepSeconds: &keepSeconds})
	if err != nil {
		s.t.Fatal(err)
	}
}

// upload stages and really uploads a file for each body: see [pointertest.Upload].
func (s *site) upload(l pointer.Lease, bodies ...string) []pointer.StagedFile {
	s.t.Helper()
	return pointertest.Upload(s.t, s.catalogue, s.store, s.layout, l, bodies...)
}

func (s *site) acquire(name string) pointer.Lease {
	s.t.Helper()
	l, err := s.catalogue.Acquire(s.t.Context(), pointer.AcquireRequest{Pointer: name, Holder: "test"})
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

func (s *site) publish(l pointer.Lease) {
	s.t.Helper()
	_, err := s.catalogue.Publish(s.t.Context(), pointer.PublishRequest{OperationID: uuid.New(),
		Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) version(name string, bodies ...string) pointer.Lease {
	s.t.Helper()
	l := s.acquire(name)
	s.upload(l, bodies...)
	s.publish(l)
	return l
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.owner.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) keys(prefix string) []string {
	s.t.Helper()
	var keys []string
	for o, err := range s.store.List(s.t.Context(), prefix) {
		if err != nil {
			s.t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// check verifies the whole end state: every live artifact row has its object and nothing else is
// in the bucket; every readable version's files read back with their digest.
func (s *site) check() {
	s.t.Helper()
	rows, err := s.owner.Query(s.t.Context(), `SELECT digest, artifact_id FROM artifactd.artifact WHERE stored_at IS NOT NULL`)
	if err != nil {
		s.t.Fatal(err)
	}
	live := map[string]artifacts.Digest{}
	var digest artifacts.Digest
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&digest, &id}, func() error {
		live[s.layout.ArtifactKey(digest, id)] = digest
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	there := map[string]bool{}
	for _, key := range s.keys(s.layout.ArtifactsPrefix()) {
		there[key] = true
		if _, ok := live[key]; !ok {
			s.t.Errorf("%s is in the bucket and no row knows it", key)
		}
	}
	for key, want := range live {
		if !there[key] {
			s.t.Errorf("%s has a row and no object", key)
			continue
		}
		r, _, err := s.store.Get(s.t.Context(), key, artifacts.WholeObject)
		if err != nil {
			s.t.Error(err)
			continue
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(r); err != nil || artifacts.DigestOf(b.Bytes()) != want {
			s.t.Errorf("%s does not read back as its digest says (%v)", key, err)
		}
		_ = r.Close()
	}
}

func TestRefusedBytesAreCollected(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		s.pointer("p", 5, 86400)
		stale := s.acquire("p")
		s.upload(stale, "stale bytes")
		s.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp()`)
		next := s.acquire("p")
		s.upload(next, "good bytes")
		s.publish(next)

		// The successor has published, so nobody waits for the resume grace.
		report, err := s.collector(s.store).RunOnce(t.Context(), gc.RunOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := gc.Count{Objects: 1, Bytes: int64(len("stale bytes"))}
		if report.Deleted != want || report.ByReason["superseded"] != want {
			t.Errorf("report %+v, want %+v for superseded", report, want)
		}
		s.check()
		if n := len(s.keys("")); n != 1 {
			t.Errorf("%d objects in the bucket, want the one published", n)
		}
	})
}

func TestResumeGraceHoldsUntilSomethingIsPublished(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	l := s.acquire("p")
	s.upload(l, "to be resumed")
	if err := s.catalogue.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		report, err := s.collector(s.store).RunOnce(t.Context(), gc.RunOptions{})
		if err != nil || report.Deleted.Objects != 0 {
			t.Fatalf("within the grace: %+v, %v", report, err)
		}
	}
	again := s.acquire("p")
	if staged := s.upload(again, "to be resumed"); staged[0].Artifact.LeaseID != l.ID {
		t.Error("the released generation's upload was not adopted")
	}
	s.publish(again)
	if report := s.collect(); report.Deleted.Objects != 0 {
		t.Errorf("collected bytes that the published version adopted: %+v", report)
	}
	s.check()
}

func TestRetention(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 1, 0)
	first := s.version("p", "one", "shared")
	s.version("p", "two", "shared")
	if report := s.collect(); report.Deleted.Objects != 0 {
		t.Fatalf("the one displaced version is within keep_versions: %+v", report)
	}
	if err := s.catalogue.Pin(t.Context(), "p", first.Token, true); err != nil {
		t.Fatal(err)
	}
	s.version("p", "three", "shared")
	s.version("p", "four", "shared")
	s.exec(`UPDATE artifactd.generation SET collect_at = clock_timestamp() WHERE pinned`) // a look finds the pin
	report := s.collect()
	if report.ByReason["displaced"].Objects != 1 { // "two"; "one" is pinned, "shared" is shown
		t.Fatalf("%+v", report)
	}
	if _, err := s.catalogue.Version(t.Context(), "p", pointer.Token{Epoch: 1, Generation: 2}); !errors.Is(err, pointer.ErrVersionNotFound) {
		t.Errorf("a collected version: %v", err)
	}
	if _, err := s.catalogue.Version(t.Context(), "p", first.Token); err != nil {
		t.Errorf("a pinned version: %v", err)
	}
	s.check()
	if err := s.catalogue.Pin(t.Context(), "p", first.Token, false); err != nil {
		t.Fatal(err)
	}
	if report := s.collect(); report.ByReason["displaced"].Objects != 1 {
		t.Errorf("after the pin went: %+v", report)
	}
	// keep_seconds alone holds, too; a change of settings is seen.
	s.pointer("p", 0, 3600)
	if report := s.collect(); report.Deleted.Objects != 0 {
		t.Errorf("within keep_seconds: %+v", report)
	}
	s.pointer("p", 0, 0)
	if report := s.collect(); report.ByReason["displaced"].Objects != 1 {
		t.Errorf("beyond both: %+v", report)
	}
	s.check()
}

func TestRolledBackManifestStays(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	s.version("p", "one")
	two := s.acquire("p")
	s.upload(two, "two")
	s.publish(two)
	_, err := s.catalogue.Rollback(t.Context(), pointer.RollbackRequest{Pointer: "p", To: pointer.Token{Epoch: 1, Generation: 1},
		Current: two.Token, OperationID: uuid.New(), Holder: "op"})
	if err != nil {
		t.Fatal(err)
	}
	if report := s.collect(); report.ByReason["displaced"].Objects != 1 { // two's
		t.Errorf("%+v", report)
	}
	s.check()
	v, err := s.catalogue.Resolve(t.Context(), "p")
	if err != nil || v.Token.Generation != 3 || v.Files[0].Digest != artifacts.DigestOf([]byte("one")) {
		t.Errorf("%+v, %v", v, err)
	}
	s.version("p", "four") // displaces the rollback: now nothing shares the first manifest
	if report := s.collect(); report.ByReason["displaced"].Objects != 1 {
		t.Errorf("%+v", report)
	}
	s.check()
}

func TestReplacedFilesAreCollected(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	l := s.acquire("p")
	s.upload(l, "first thoughts")
	s.upload(l, "second thoughts")
	if report := s.collect(); report.ByReason["replaced"].Objects != 1 {
		t.Errorf("%+v", report)
	}
	s.publish(l)
	s.check()
}

func TestScheduleG2CollectingIsFinal(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	one := s.version("p", "one")
	two := s.version("p", "two")
	dead := s.acquire("p")
	s.upload(dead, "dead")
	if err := s.catalogue.Release(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	// The collector is paused after its decision: the mark is committed, nothing else is done.
	s.exec(`SELECT artifactd.collect_mark(p.pointer_id, array_agg(g.generation_id), 0)
		FROM artifactd.pointer p JOIN artifactd.generation g USING (pointer_id) GROUP BY p.pointer_id`)
	ctx := t.Context()
	if err := s.catalogue.Pin(ctx, "p", one.Token, true); !errors.Is(err, pointer.ErrVersionNotFound) {
		t.Errorf("pin: %v", err)
	}
	_, err := s.catalogue.Rollback(ctx, pointer.RollbackRequest{Pointer: "p", To: one.Token, Current: two.Token, OperationID: uuid.New(), Holder: "op"})
	if !errors.Is(err, pointer.ErrVersionNotFound) {
		t.Errorf("rollback: %v", err)
	}
	if _, err := s.catalogue.File(ctx, "p", one.Token, "f000"); !errors.Is(err, pointer.ErrVersionNotFound) {
		t.Errorf("read: %v", err)
	}
	l := s.acquire("p")
	staged, err := s.catalogue.Stage(ctx, l.ID, l.Token, []pointer.StageFile{
		{Path: "x", Digest: artifacts.DigestOf([]byte("one")), Size: 3}, {Path: "y", Digest: artifacts.DigestOf([]byte("dead")), Size: 4}})
	if err != nil || staged[0].Artifact.Stored || staged[1].Artifact.Stored {
		t.Errorf("adopted from a collecting generation: %+v, %v", staged, err)
	}
	s.collect()
	s.check()
}

func TestScheduleG3AdoptedFromADisplacedVersion(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	s.version("p", "keep me")
	a := s.acquire("p")
	staged, err := s.catalogue.Stage(t.Context(), a.ID, a.Token, []pointer.StageFile{{Path: "x", Digest: artifacts.DigestOf([]byte("keep me")), Size: 7}})
	if err != nil || !staged[0].Artifact.Stored {
		t.Fatalf("%+v, %v", staged, err)
	}
	// The version that it came from goes while the lease is at work.
	if err := s.catalogue.Retire(t.Context(), "p", pointer.Token{Epoch: 1, Generation: 1}); err != nil {
		t.Fatal(err)
	}
	s.pointer("p", 0, 0)
	s.collect()
	b := s.acquire("p")
	_, err = s.catalogue.Stage(t.Context(), b.ID, b.Token, []pointer.StageFile{{Path: "x", Digest: artifacts.DigestOf([]byte("keep me")), Size: 7}})
	if err != nil {
		t.Fatal(err)
	}
	s.check()
}

func TestScheduleG3AdopterKeepsTheFile(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	first := s.version("p", "keep me")
	// A rollback to the old version displaces it while A's manifest names its artifact.
	a := s.acquire("p")
	s.upload(a, "keep me", "and this")
	s.publish(a)
	s.collect() // collects the first version, whose file A's version names
	s.check()
	v, err := s.catalogue.Resolve(t.Context(), "p")
	if err != nil || v.FileCount != 2 {
		t.Fatalf("%+v, %v", v, err)
	}
	if _, err := s.catalogue.Version(t.Context(), "p", first.Token); !errors.Is(err, pointer.ErrVersionNotFound) {
		t.Errorf("the first version: %v", err)
	}
}

// The collector's step and an adopter meet at the artifact's row, in both orders.
func TestScheduleG3RaceForOneArtifact(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	l := s.acquire("p")
	s.upload(l, "bytes")
	if err := s.catalogue.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	// The adopter comes first and has not committed when the collector arrives.
	b := s.acquire("p")
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := artifacts.DigestOf([]byte("bytes"))
	var stored bool
	err = tx.QueryRow(t.Context(), `SELECT stored FROM artifactd.stage($1, 1, 2, ARRAY['x'], ARRAY[$2::bytea], ARRAY[5::bigint], ARRAY['text/plain'], ARRAY[$3::uuid], 60, 3600, 1000)`,
		b.ID, d[:], uuid.New()).Scan(&stored)
	if err != nil || !stored {
		t.Fatalf("stored %v, %v", stored, err)
	}
	done := make(chan gc.Report, 1)
	go func() {
		report, err := s.collector(s.store).RunOnce(context.Background(), gc.RunOptions{ResumeGrace: new(time.Duration)})
		if err != nil {
			t.Error(err)
		}
		done <- report
	}()
	for blocked := 0; blocked == 0; {
		if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&blocked); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if report := <-done; report.Deleted.Objects != 0 {
		t.Errorf("collected what was adopted: %+v", report)
	}
	s.publish(b)
	s.check()
}

// flaky is a store whose deletions fail in a chosen way before they work.
type flaky struct {
	gc.Store
	mu    sync.Mutex
	fails int
	how   func(context.Context, gc.Store, []string) ([]artifacts.Deleted, error)
}

func (f *flaky) Delete(ctx context.Context, keys []string) ([]artifacts.Deleted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		return f.how(ctx, f.Store, keys)
	}
	return f.Store.Delete(ctx, keys)
}

func TestScheduleG5StoreFailsHalfWay(t *testing.T) {
	faults := map[string]func(context.Context, gc.Store, []string) ([]artifacts.Deleted, error){
		"answers 500 without deleting": func(context.Context, gc.Store, []string) ([]artifacts.Deleted, error) {
			return nil, artifacts.ErrStoreUnavailable
		},
		"deletes, then answers 500": func(ctx context.Context, s gc.Store, keys []string) ([]artifacts.Deleted, error) {
			if _, err := s.Delete(ctx, keys); err != nil {
				return nil, err
			}
			return nil, artifacts.ErrStoreUnavailable
		},
		"refuses one key": func(ctx context.Context, s gc.Store, keys []string) ([]artifacts.Deleted, error) {
			fates, err := s.Delete(ctx, keys[1:])
			return append([]artifacts.Deleted{{Key: keys[0], Err: artifacts.ErrStoreUnavailable}}, fates...), err
		},
	}
	for name, how := range faults {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", 0, 0)
			s.version("p", "one", "two", "three")
			s.version("p", "four")
			store := &flaky{Store: s.store, fails: 2, how: how}
			for range store.fails { // once while uploads may still land, once when a deletion is final
				report, err := s.collector(store).RunOnce(t.Context(), gc.RunOptions{})
				if err != nil || !report.Partial() || report.FirstError == "" {
					t.Fatalf("%+v, %v", report, err)
				}
				if report.LedgerSize == 0 {
					t.Error("a key whose deletion failed has left the ledger")
				}
				s.exec(`UPDATE artifactd.deletion SET not_before = clock_timestamp(), final_after = clock_timestamp() - interval '1 second'`)
			}
			report, err := s.collector(store).RunOnce(t.Context(), gc.RunOptions{})
			if err != nil || report.Partial() {
				t.Fatalf("%+v, %v", report, err)
			}
			s.check()
		})
	}
}

func TestScheduleG4CollectorStopsAfterAnyStep(t *testing.T) {
	steps := []string{
		`SELECT artifactd.collect_mark(pointer_id, generation_ids, 0) FROM artifactd.collect_due(100)`,
		`SELECT artifactd.collect_files(1, 0)`,
		`SELECT artifactd.collect_files(1, 0)`,
		`SELECT artifactd.collect_files(1, 0, p_claim_seconds => 0)`,
		`SELECT artifactd.collect_files(1000, 0)`,
		`SELECT artifactd.claim_deletions(2, 0)`,
	}
	for n := range len(steps) + 1 {
		t.Run(fmt.Sprintf("after step %d", n), func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", 0, 0)
			s.version("p", "one", "two", "three")
			s.version("p", "three", "four")
			for _, step := range steps[:n] {
				s.exec(step)
			}
			if report := s.collect(); report.Deleted.Objects != 2 {
				t.Errorf("%+v, want 2 deleted", report)
			}
			s.check()
		})
	}
}

func TestScheduleG6SeveralCollectors(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	const pointers = 6
	for i := range pointers {
		name := fmt.Sprintf("p%d", i)
		s.pointer(name, 0, 0)
		for v := range 4 {
			s.version(name, fmt.Sprint("v", v), "shared")
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total int64
	for range 3 {
		c := s.collector(s.store)
		wg.Go(func() {
			report, err := c.RunOnce(context.Background(), gc.RunOptions{})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			total += report.Deleted.Objects
		})
	}
	wg.Wait()
	total += s.collect().Deleted.Objects // what one of them skipped for another's sake
	if total != pointers*3 {
		t.Errorf("%d objects deleted, want %d", total, pointers*3)
	}
	s.check()
}

func TestDryRunTellsWhatARunDoes(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	s.version("p", "one", "kept")
	s.version("p", "two!", "kept")
	l := s.acquire("p")
	s.upload(l, "abandoned")
	if err := s.catalogue.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	c := s.collector(s.store)
	run := gc.RunOptions{DryRun: true, ResumeGrace: new(time.Duration)}
	plan, err := c.RunOnce(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	before := len(s.keys(""))
	run.DryRun = false
	report, err := c.RunOnce(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Deleted != report.Deleted || plan.ByReason["displaced"] != report.ByReason["displaced"] || plan.ByReason["released"] != report.ByReason["released"] {
		t.Errorf("planned %+v, did %+v", plan, report)
	}
	if after := len(s.keys("")); before-after != int(plan.Deleted.Objects) || plan.Deleted.Objects != 2 {
		t.Errorf("%d objects went, planned %d", before-after, plan.Deleted.Objects)
	}
	runs, err := c.Runs(t.Context(), 10)
	if err != nil || len(runs) != 1 || runs[0].RunID != report.RunID {
		t.Errorf("recorded runs: %+v, %v", runs, err)
	}
}

func TestScheduleS4LateUploadIsDeletedInTheEnd(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		s.pointer("p", 0, 0)
		l := s.acquire("p")
		body := "late"
		staged, err := s.catalogue.Stage(t.Context(), l.ID, l.Token, []pointer.StageFile{{Path: "x", Digest: artifacts.DigestOf([]byte(body)), Size: int64(len(body))}})
		if err != nil {
			t.Fatal(err)
		}
		a := staged[0].Artifact
		req, err := s.store.SignPut(t.Context(), artifacts.Upload{Key: s.layout.ArtifactKey(a.Digest, a.ID), Digest: a.Digest, Size: a.Size}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.catalogue.Release(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
		if report := s.collect(); report.LedgerSize != 1 {
			t.Fatalf("the key left the ledger while its URL still works: %+v", report)
		}
		put, err := http.NewRequestWithContext(t.Context(), req.Method, req.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		put.Header = req.Header.Clone()
		res, err := http.DefaultClient.Do(put)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", res, err)
		}
		_ = res.Body.Close()
		if n := len(s.keys("")); n != 1 {
			t.Fatalf("%d objects after the late upload, want 1", n)
		}
		s.exec(`UPDATE artifactd.deletion SET final_after = clock_timestamp() - interval '1 second', not_before = clock_timestamp()`)
		if report := s.collect(); report.LedgerSize != 0 {
			t.Errorf("%+v", report)
		}
		if keys := s.keys(""); len(keys) != 0 {
			t.Errorf("left over: %v", keys)
		}
	})
}

func TestScheduleG7ForeignObjectsStay(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	foreign := []string{"other/thing", "artifactd/artifacts/readme.txt", "artifactd2/x y+ü"}
	for _, key := range foreign {
		if err := s.store.Put(t.Context(), artifacts.Upload{Key: key, Digest: artifacts.DigestOf([]byte("x")), Size: 1}, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	s.pointer("p", 0, 0)
	s.version("p", "one")
	s.version("p", "two")
	s.collect()
	for _, key := range foreign {
		if _, err := s.store.Head(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestLiveLeaseIsLeftAlone(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	l := s.acquire("p")
	s.upload(l, "in work")
	s.exec(`UPDATE artifactd.generation SET collect_at = clock_timestamp()`)
	if report := s.collect(); report.Expired != 0 || report.Marked != 0 {
		t.Errorf("%+v", report)
	}
	s.publish(l)
	s.check()
}

func TestScheduleG8RetainedObjectsAreReported(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	s.version("p", "one", "two")
	s.version("p", "three")
	store := &flaky{Store: s.store, fails: 1, how: func(ctx context.Context, s gc.Store, keys []string) ([]artifacts.Deleted, error) {
		fates, err := s.Delete(ctx, keys[1:])
		return append([]artifacts.Deleted{{Key: keys[0], Err: artifacts.ErrRetained}}, fates...), err
	}}
	report, err := s.collector(store).RunOnce(t.Context(), gc.RunOptions{})
	if err != nil || report.Partial() || report.Retained != 1 || report.Deleted.Objects != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestAbandonedPartsAreCollected(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		s.pointer("p", 0, 0)
		l := s.acquire("p")
		part := bytes.Repeat([]byte("x"), 5<<20)
		staged, err := s.catalogue.Stage(t.Context(), l.ID, l.Token, []pointer.StageFile{{Path: "large", Digest: artifacts.DigestOf(part), Size: 100 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		a := staged[0].Artifact
		up := artifacts.Upload{Key: s.layout.ArtifactKey(a.Digest, a.ID), Digest: a.Digest, Size: a.Size}
		id, err := s.store.CreateMultipart(t.Context(), up)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.catalogue.OpenUpload(t.Context(), a, id); err != nil {
			t.Fatal(err)
		}
		m := artifacts.Multipart{Key: up.Key, UploadID: id}
		if err := s.store.PutPart(t.Context(), m, artifacts.Part{Number: 1, Size: int64(len(part)), SHA256: artifacts.DigestOf(part)}, bytes.NewReader(part)); err != nil {
			t.Fatal(err)
		}
		if err := s.catalogue.Release(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
		s.collect()
		if parts, err := s.store.ListParts(t.Context(), m); !errors.Is(err, artifacts.ErrUploadGone) {
			t.Errorf("%d parts are left, %v", len(parts), err)
		}
	})
}

func TestOnlyWhatWasThereIsReported(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	l := s.acquire("p")
	never, unproved := "never uploaded", "uploaded, never completed"
	staged, err := s.catalogue.Stage(t.Context(), l.ID, l.Token, []pointer.StageFile{
		{Path: "a", Digest: artifacts.DigestOf([]byte(never)), Size: int64(len(never))},
		{Path: "b", Digest: artifacts.DigestOf([]byte(unproved)), Size: int64(len(unproved))}})
	if err != nil {
		t.Fatal(err)
	}
	b := staged[1].Artifact
	u := artifacts.Upload{Key: s.layout.ArtifactKey(b.Digest, b.ID), Digest: b.Digest, Size: b.Size}
	if err := s.store.Put(t.Context(), u, strings.NewReader(unproved)); err != nil {
		t.Fatal(err)
	}
	if list, _, err := s.catalogue.Versions(t.Context(), "p", pointer.Page{}); err != nil || list[0].TotalBytes != int64(len(never)+len(unproved)) {
		t.Errorf("history while files are staged: %+v, %v", list, err)
	}
	if err := s.catalogue.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	if report := s.collect(); report.Deleted != (gc.Count{Objects: 1, Bytes: int64(len(unproved))}) || report.LedgerSize != 2 {
		t.Errorf("%+v, want the one object that was there, and both keys in the ledger", report)
	}
	s.check()
}
