package recovery_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// Everything that a pointer shows and is set to has its record, which says what a reader needs
// without the database.
func TestOutboxWritesRecords(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		public := true
		s.pointer("acme.daily", pointer.SettingsChange{Public: &public, Labels: map[string]string{"team": "x"}})
		s.pointer("acme.daily", pointer.SettingsChange{Public: &public}) // changes nothing, so it has no record
		v := s.version("acme.daily", "one", "two")
		rolled, err := s.catalogue.Rollback(t.Context(), pointer.RollbackRequest{Pointer: "acme.daily", To: v.lease.Token, Current: v.lease.Token,
			OperationID: uuid.New(), Holder: "operator"})
		if err != nil {
			t.Fatal(err)
		}
		operation := uuid.New()
		if _, err := s.catalogue.Settle(t.Context(), operation, "acme.daily"); err != nil {
			t.Fatal(err)
		}
		s.drain()

		versions := s.keys("versions/")
		if len(versions) != 2 || !strings.HasSuffix(versions[0], "versions/acme.daily/0000000001.000000000000001."+v.lease.ID.String()) {
			t.Fatalf("records of versions: %q", versions)
		}
		lines := unzip(t, s.read(versions[0]))
		var head struct {
			Format, Pointer, Token, Holder string
			OperationID                    uuid.UUID `json:"operation_id"`
			GenerationID                   uuid.UUID `json:"generation_id"`
			ManifestDigest                 string    `json:"manifest_digest"`
			FileCount                      int       `json:"file_count"`
			SourceRevision                 int64     `json:"source_revision"`
			Metadata                       map[string]string
		}
		if err := json.Unmarshal([]byte(lines[0]), &head); err != nil {
			t.Fatal(err)
		}
		if head.Format != "artifactd-version/1" || head.Pointer != "acme.daily" || head.Token != "1.1" || head.Holder != "worker" ||
			head.OperationID != v.req.OperationID || head.GenerationID != v.lease.ID || head.FileCount != 2 || head.SourceRevision != 11 ||
			head.Metadata["of"] != "acme.daily" || len(lines) != 3 || !strings.Contains(lines[2], artifacts.DigestOf([]byte("two")).String()) {
			t.Errorf("the record says %q", lines)
		}
		if !strings.Contains(versions[1], rolled.Version.String()[2:]+".") || !strings.Contains(unzip(t, s.read(versions[1]))[0], `"rollback_of":"`+v.lease.ID.String()) {
			t.Errorf("the rollback's record: %s", versions[1])
		}
		if got := s.keys("operations/"); len(got) != 1 || !strings.HasSuffix(got[0], "operations/"+operation.String()+"/acme.daily") {
			t.Errorf("records of aborted operations: %q", got)
		}
		if got := s.keys("pointers/"); len(got) != 1 || !strings.Contains(string(s.read(got[0])), `"team": "x"`) && !strings.Contains(string(s.read(got[0])), `"team":"x"`) {
			t.Errorf("records of settings: %q", got)
		}
	})
}

func unzip(t *testing.T, b []byte) []string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// Only the newest settings of a pointer keep their record.
func TestOldSettingsRecordsGo(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	for keep := range 3 {
		s.pointer("p", pointer.SettingsChange{KeepVersions: &keep})
		s.drain()
	}
	if n := len(s.keys("pointers/")); n != 3 {
		t.Fatalf("%d records before collection", n)
	}
	s.collect()
	keys := s.keys("pointers/")
	if len(keys) != 1 || !strings.Contains(keys[0], ".000000000000003.") {
		t.Errorf("left are %q", keys)
	}
}

func (s *site) collect() gc.Report {
	s.t.Helper()
	c, err := gc.New(s.service, s.store, gc.Options{LandingGrace: time.Nanosecond})
	if err != nil {
		s.t.Fatal(err)
	}
	report, err := c.RunOnce(s.t.Context(), gc.RunOptions{ResumeGrace: new(time.Duration)})
	if err != nil {
		s.t.Fatal(err)
	}
	return report
}

// keepNone is a pointer whose displaced versions are garbage at once.
func (s *site) keepNone(name string) {
	var none int
	var seconds int64
	s.pointer(name, pointer.SettingsChange{KeepVersions: &none, KeepSeconds: &seconds})
}

// A collected version's record goes with it, and counts as no artifact. Nothing takes it for
// garbage before.
func TestCollectedVersionsRecordGoes(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.keepNone("p")
	old := s.version("p", "old one", "old two")
	s.drain()
	s.version("p", "new")
	s.drain()
	for range 2 {
		r, err := gc.NewReconciler(s.service, s.store, s.layout, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.RunOnce(t.Context(), gc.ReconcileOptions{MaxShare: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.keys("versions/")); n != 2 {
		t.Fatalf("%d records before the collection", n)
	}
	report := s.collect()
	if report.Deleted.Objects != 2 || report.ByReason["displaced"].Objects != 2 || len(report.ByReason) != 1 {
		t.Errorf("collected %+v", report)
	}
	keys := s.keys("versions/")
	if len(keys) != 1 || strings.Contains(keys[0], old.lease.ID.String()) {
		t.Errorf("records left: %q", keys)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.deletion WHERE reason = 'record'`); n != 0 {
		t.Errorf("%d records are left in the ledger", n)
	}
}

// A version that is collected before its record was written needs none. If a worker has claimed it,
// its upload may still land: the key stays in the ledger for as long.
func TestCollectedBeforeItsRecord(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.keepNone("p")
	s.keepNone("q")
	s.drain()
	s.version("p", "claimed")
	if rows, err := s.catalogue.ClaimOutbox(t.Context(), 10, time.Hour); err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	s.version("q", "not claimed")
	s.version("p", "next")
	s.version("q", "next")
	s.collect()
	s.drain()
	if n := len(s.keys("versions/")); n != 2 {
		t.Errorf("%d records", n)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.deletion WHERE reason = 'record' AND final_after > clock_timestamp() + interval '50 minutes'
		AND object_key LIKE 'artifactd/versions/p/%'`); n != 1 {
		t.Errorf("%d keys of records wait for an upload to land", n)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.deletion WHERE reason = 'record'`); n != 1 {
		t.Errorf("%d keys of records are in the ledger", n)
	}
}

// faultyStore fails at puts, before or after the store has acted.
type faultyStore struct {
	recovery.OutboxStore

	mu    sync.Mutex
	fails func(n int, key string) (before, after error) // of the nth put, from 1
	puts  []string
}

func (f *faultyStore) Put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	f.mu.Lock()
	f.puts = append(f.puts, u.Key)
	var before, after error
	if f.fails != nil {
		before, after = f.fails(len(f.puts), u.Key)
	}
	f.mu.Unlock()
	if before != nil {
		return before
	}
	return errors.Join(f.OutboxStore.Put(ctx, u, body), after)
}

// Whatever step a worker ends at, the next one ends with every record in the bucket, once.
func TestOutboxCrashes(t *testing.T) {
	broken := errors.New("broken")
	for name, crash := range map[string]func(*testing.T, *site){
		"after the claim": func(t *testing.T, s *site) {
			if rows, err := s.catalogue.ClaimOutbox(t.Context(), 100, time.Hour); err != nil || len(rows) != 5 {
				t.Fatal(rows, err)
			}
		},
		"nothing was stored": func(t *testing.T, s *site) {
			store := &faultyStore{OutboxStore: s.store, fails: func(int, string) (error, error) { return broken, nil }}
			r, err := s.outbox(store, recovery.OutboxOptions{}).RunOnce(t.Context())
			if err != nil || r.Failed != 5 || !errors.Is(r.Fault, broken) {
				t.Fatal(r, err)
			}
		},
		"stored, and not told": func(t *testing.T, s *site) {
			store := &faultyStore{OutboxStore: s.store, fails: func(int, string) (error, error) { return nil, broken }}
			r, err := s.outbox(store, recovery.OutboxOptions{}).RunOnce(t.Context())
			if err != nil || r.Failed != 5 {
				t.Fatal(r, err)
			}
		},
		"after one record": func(t *testing.T, s *site) {
			ctx, cancel := context.WithCancel(t.Context())
			store := &faultyStore{OutboxStore: s.store, fails: func(n int, _ string) (error, error) {
				if n == 2 {
					cancel()
				}
				return nil, nil
			}}
			if r, err := s.outbox(store, recovery.OutboxOptions{Parallel: 1}).RunOnce(ctx); err != nil || r.Written != 1 {
				t.Fatal(r, err)
			}
		},
		"stored, and the database is not told": func(t *testing.T, s *site) {
			// The connections break when the last record is stored: finish fails.
			store := &faultyStore{OutboxStore: s.store}
			store.fails = func(n int, _ string) (error, error) {
				if n == 5 {
					s.service.Close()
				}
				return nil, nil
			}
			if _, err := s.outbox(store, recovery.OutboxOptions{Parallel: 1}).RunOnce(t.Context()); err == nil {
				t.Fatal("finishing on a closed pool succeeded")
			}
			s.disconnect()
			s.connect()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", pointer.SettingsChange{})
			for i := range 3 {
				s.version("p", fmt.Sprint("body ", i))
			}
			if _, err := s.catalogue.Settle(t.Context(), uuid.New(), "p"); err != nil {
				t.Fatal(err)
			}
			crash(t, s)
			s.exec(`UPDATE artifactd.outbox SET not_before = clock_timestamp()`) // the claim runs out
			s.drain()
			if v, p, o := s.keys("versions/"), s.keys("pointers/"), s.keys("operations/"); len(v) != 3 || len(p) != 1 || len(o) != 1 {
				t.Errorf("records: %q %q %q", v, p, o)
			}
			// Every one can be read: nothing of what the first worker left is broken.
			s.exec(`UPDATE artifactd.installation SET epoch = 2`)
			if r := s.rebuild(recovery.RebuildOptions{}); r.Records != 3 || r.Lost != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// While the store is down, publishing goes on; the records wait, a metric says so, and they are
// written when the store is back.
func TestOutboxStoreDown(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	proxy := testenv.NewProxy(t, s.bucket.Endpoint)
	registry := prometheus.NewRegistry()
	worker := s.outbox(s.open("http://"+proxy.Addr()), recovery.OutboxOptions{Interval: 10 * time.Millisecond, ClaimFor: 2 * time.Second, Registry: registry})
	proxy.Set(testenv.Fault{Reset: true})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { worker.Loop(ctx) })
	defer running.Wait()
	defer cancel()

	s.pointer("p", pointer.SettingsChange{})
	for i := range 5 {
		s.version("p", fmt.Sprint("body ", i))
	}
	s.await("a failed attempt", func() bool { return s.number(`SELECT count(*) FROM artifactd.outbox WHERE last_error IS NOT NULL`) > 0 })
	s.await("the metric to show what waits", func() bool { return gauge(t, registry, "artifactd_outbox_records") > 0 })
	if n := len(s.keys("versions/")); n != 0 {
		t.Fatalf("%d records through a store that is down", n)
	}
	proxy.Set(testenv.Fault{})
	s.await("the records", func() bool { return s.number(waitingSQL) == 0 })
	if n := len(s.keys("versions/")); n != 5 {
		t.Errorf("%d records", n)
	}
	s.await("the metric to fall", func() bool { return gauge(t, registry, "artifactd_outbox_records") == 0 })
}

// stuckStore keeps puts until it is told to go on, or until they are given up.
type stuckStore struct {
	recovery.OutboxStore
	entered chan struct{}
	goOn    chan struct{}
}

func (s *stuckStore) Put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	s.entered <- struct{}{}
	select {
	case <-s.goOn:
		return s.OutboxStore.Put(ctx, u, body)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A worker that is still at it keeps its claim, however long a record takes; without it nobody waits
// long for a worker that is no more.
func TestOutboxClaimIsRenewed(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	s.drain()
	s.version("p", "body")
	store := &stuckStore{s.store, make(chan struct{}, 1), make(chan struct{})}
	report := make(chan recovery.OutboxReport, 1)
	go func() {
		r, _ := s.outbox(store, recovery.OutboxOptions{ClaimFor: 3 * time.Second}).RunOnce(context.Background())
		report <- r
	}()
	<-store.entered
	const claimedUntil = `SELECT (extract(epoch FROM not_before) * 1000)::bigint FROM artifactd.outbox`
	first := s.number(claimedUntil)
	s.await("the claim to be renewed beyond its first end", func() bool { return s.number(claimedUntil) > first+3_000 })
	if rows, err := s.catalogue.ClaimOutbox(t.Context(), 10, time.Hour); err != nil || len(rows) != 0 {
		t.Errorf("a second worker gets what the first one is at: %+v, %v", rows, err)
	}
	close(store.goOn)
	if r := <-report; r.Written != 1 || r.Failed != 0 {
		t.Errorf("%+v", r)
	}
	if n := s.number(waitingSQL); n != 0 {
		t.Errorf("%d records wait", n)
	}
}

// Whose rows another worker has meanwhile, or whose version was collected, gives up at the end of its
// own claim: the key it writes to waits no longer for it.
func TestOutboxClaimThatIsNotRenewedEnds(t *testing.T) {
	for name, taken := range map[string]string{
		"another worker": `UPDATE artifactd.outbox SET attempts = attempts + 1, not_before = clock_timestamp() + interval '1 hour'`,
		"nobody":         `DELETE FROM artifactd.outbox`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", pointer.SettingsChange{})
			s.drain()
			s.version("p", "body")
			store := &stuckStore{s.store, make(chan struct{}, 1), nil}
			done := make(chan error, 1)
			go func() {
				r, err := s.outbox(store, recovery.OutboxOptions{ClaimFor: time.Second}).RunOnce(context.Background())
				done <- errors.Join(err, r.Fault)
			}()
			<-store.entered
			s.exec(taken)
			if err := <-done; err == nil || !strings.Contains(err.Error(), "claim") {
				t.Errorf("a worker whose rows %s has: %v", name, err)
			}
			if n := s.number(`SELECT count(*) FROM artifactd.outbox WHERE attempts <> 2`); n != 0 {
				t.Errorf("%d rows are not the other worker's", n)
			}
		})
	}
}

// await waits for a condition.
func (s *site) await(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// Two workers share the work: no record is written twice.
func TestOutboxTwoWorkers(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	for i := range 8 {
		name := fmt.Sprint("p", i)
		s.pointer(name, pointer.SettingsChange{})
		for j := range 5 {
			s.version(name, fmt.Sprint(i, " ", j))
		}
	}
	waiting := s.number(waitingSQL)
	store := &faultyStore{OutboxStore: s.store}
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			if err := s.outbox(store, recovery.OutboxOptions{Batch: 3}).Drain(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	seen := map[string]bool{}
	for _, key := range store.puts {
		if seen[key] {
			t.Errorf("%s was written twice", key)
		}
		seen[key] = true
	}
	if len(seen) != waiting || s.number(waitingSQL) != 0 {
		t.Errorf("%d records of %d were written, %d wait", len(seen), waiting, s.number(waitingSQL))
	}
}

// Nothing is written into a bucket that is not this installation's.
func TestOutboxLeavesForeignBucketsAlone(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	s.replace(s.layout.Prefix+"installation", []byte(uuid.NewString()))
	worker := s.outbox(s.store, recovery.OutboxOptions{Claim: func(ctx context.Context) error { return gc.ClaimBucket(ctx, s.service, s.store, s.layout) }})
	if _, err := worker.RunOnce(t.Context()); !errors.Is(err, gc.ErrForeignBucket) {
		t.Errorf("%v", err)
	}
	if n := len(s.keys("pointers/")); n != 0 || s.number(waitingSQL) != 1 {
		t.Errorf("%d records in a foreign bucket", n)
	}
}
