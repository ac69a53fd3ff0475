package gc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// anyShare lets a pass delete all that is due.
var anyShare = gc.ReconcileOptions{MaxShare: 1}

// marked is a site whose bucket is marked, as a service that started leaves it.
func marked(t *testing.T, server testenv.Server) *site {
	t.Helper()
	s := newSite(t, server)
	s.claim()
	return s
}

func (s *site) claim() {
	s.t.Helper()
	if err := gc.ClaimBucket(s.t.Context(), s.pool, s.store, s.layout); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) put(key, body string, metadata map[string]string) {
	s.t.Helper()
	u := artifacts.Upload{Key: key, Digest: artifacts.DigestOf([]byte(body)), Size: int64(len(body)), Metadata: metadata}
	if err := s.store.Put(s.t.Context(), u, strings.NewReader(body)); err != nil {
		s.t.Fatal(err)
	}
}

// orphan puts an object under an artifact's key that no row knows.
func (s *site) orphan(body string, metadata map[string]string) string {
	s.t.Helper()
	key := s.layout.ArtifactKey(artifacts.DigestOf([]byte(body)), uuid.New())
	s.put(key, body, metadata)
	return key
}

func (s *site) pass(o gc.ReconcileOptions) gc.ReconcileReport {
	s.t.Helper()
	report, err := newReconciler(s.t, s.pool, s.store, s.layout).RunOnce(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	return report
}

func newReconciler(t *testing.T, pool *pgxpool.Pool, store gc.ReconcileStore, layout artifacts.Layout) *gc.Reconciler {
	t.Helper()
	r, err := gc.NewReconciler(pool, store, layout, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *site) there(key string) bool {
	s.t.Helper()
	_, err := s.store.Head(s.t.Context(), key)
	if err != nil && !errors.Is(err, artifacts.ErrNotFound) {
		s.t.Fatal(err)
	}
	return err == nil
}

func (s *site) number(sql string) (n int) {
	s.t.Helper()
	if err := s.owner.QueryRow(s.t.Context(), sql).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

const ledgerSize = `SELECT count(*) FROM artifactd.deletion`

// An unknown object is deleted by the second pass that sees it, and not before the grace is over;
// everything else stays.
func TestReconcileDeletesWhatTwoPassesSaw(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := marked(t, server)
		s.pointer("p", 5, 86400)
		s.version("p", "one", "two")
		s.upload(s.acquire("p"), "in work")
		lost := s.orphan("lost", map[string]string{"artifactd-pointer": "p", "artifactd-token": "1.1"})
		if r := s.pass(anyShare); r.Listed != 4 || r.Unknown != 1 || r.Due != 0 || r.Moved != 0 || s.number(ledgerSize) != 0 {
			t.Fatalf("first pass: %+v", r)
		}
		if r := s.pass(gc.ReconcileOptions{MaxShare: 1, Grace: time.Hour}); r.Unknown != 1 || r.Due != 0 || r.Moved != 0 {
			t.Fatalf("second pass, within the grace: %+v", r)
		}
		if r := s.pass(gc.ReconcileOptions{MaxShare: 1, DryRun: true}); r.Due != 1 || r.Moved != 0 || s.number(ledgerSize) != 0 {
			t.Fatalf("dry run: %+v", r)
		}
		s.exec(`UPDATE artifactd.orphan SET first_seen_at = first_seen_at - interval '1 hour'`)
		if r := s.pass(gc.ReconcileOptions{MaxShare: 1, Grace: time.Hour}); r.Due != 1 || r.Moved != 1 || s.number(ledgerSize) != 1 {
			t.Fatalf("beyond the grace: %+v", r)
		}
		if report := s.collect(); report.ByReason["unknown"] != (gc.Count{Objects: 1, Bytes: 4}) || s.there(lost) {
			t.Errorf("collected: %+v", report)
		}
		s.check()
		if n := s.number(`SELECT count(*) FROM artifactd.orphan`); n != 0 {
			t.Errorf("%d orphans are left in the table", n)
		}
	})
}

// What vanished between two passes starts over when it comes back: late uploads come and go.
func TestReconcileForgetsWhatVanished(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	key := s.orphan("now and then", nil)
	s.pass(anyShare)
	if _, err := s.store.Delete(t.Context(), []string{key}); err != nil {
		t.Fatal(err)
	}
	s.pass(anyShare)
	if n := s.number(`SELECT count(*) FROM artifactd.orphan`); n != 0 {
		t.Errorf("%d orphans are remembered", n)
	}
	s.put(key, "now and then", nil)
	if r := s.pass(anyShare); r.Unknown != 1 || r.Due != 0 {
		t.Errorf("%+v", r)
	}
}

// A pass that would delete more than its share deletes nothing.
func TestReconcileShareLimit(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	s.version("p", "1", "2", "3", "4", "5", "6", "7", "8")
	for i := range 3 {
		s.orphan(fmt.Sprint("lost", i), nil)
	}
	s.pass(anyShare)
	r, err := newReconciler(s.t, s.pool, s.store, s.layout).RunOnce(t.Context(), gc.ReconcileOptions{MaxShare: 0.1})
	if !errors.Is(err, gc.ErrShareLimit) || r.Due != 3 || r.Limit != 2 || r.Moved != 0 || s.number(ledgerSize) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	// The database holds every caller to it.
	s.exec(`UPDATE artifactd.reconcile_pass SET ended_at = NULL WHERE pass_id = (SELECT max(pass_id) FROM artifactd.reconcile_pass)`)
	s.exec(`SELECT artifactd.condemn_orphans((SELECT max(pass_id) FROM artifactd.reconcile_pass), array_agg(object_key), array_agg(upload_id),
		array_agg(''::text), array_agg(''::text)) FROM artifactd.orphan`)
	if n := s.number(ledgerSize); n != 0 {
		t.Errorf("%d keys went beyond the share", n)
	}
	s.exec(`UPDATE artifactd.reconcile_pass SET ended_at = clock_timestamp() WHERE ended_at IS NULL`)
	if r := s.pass(gc.ReconcileOptions{MaxShare: 0.3}); r.Moved != 3 {
		t.Errorf("%+v", r)
	}
	s.collect()
	s.check()
}

// Only a bucket that says it is this installation's is reconciled, or served.
func TestReconcileNeedsTheMarker(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		lost := s.orphan("lost", nil)
		run := func() error {
			_, err := newReconciler(s.t, s.pool, s.store, s.layout).RunOnce(t.Context(), anyShare)
			return err
		}
		if err := run(); !errors.Is(err, gc.ErrUnmarkedBucket) || !strings.Contains(err.Error(), "artifactd/installation") {
			t.Errorf("without a marker: %v", err)
		}
		s.claim()
		s.claim() // every later start
		if err := run(); err != nil {
			t.Fatal(err)
		}
		// The same bucket, seen from another installation's database.
		other := newSiteOn(t, s)
		for range 2 {
			_, err := newReconciler(s.t, other.pool, s.store, s.layout).RunOnce(t.Context(), anyShare)
			if !errors.Is(err, gc.ErrForeignBucket) {
				t.Errorf("reconcile of another's bucket: %v", err)
			}
		}
		if err := gc.ClaimBucket(t.Context(), other.pool, s.store, s.layout); !errors.Is(err, gc.ErrForeignBucket) {
			t.Errorf("claim of another's bucket: %v", err)
		}
		other.collect()
		if n := other.number(`SELECT (SELECT count(*) FROM artifactd.orphan) + (SELECT count(*) FROM artifactd.deletion)`); n != 0 || !s.there(lost) {
			t.Errorf("%d traces of another's objects", n)
		}
	})
}

// newSiteOn is another installation that was given the same bucket.
func newSiteOn(t *testing.T, s *site) *site {
	t.Helper()
	db := testenv.Database(t)
	pool := openPool(t, db)
	catalogue, err := pointer.New(pool, pointer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := &site{t: t, catalogue: catalogue, store: s.store, pool: pool, layout: s.layout, owner: db.Connect(t)}
	// All databases of the tests are copies of one.
	other.exec(`SET session_replication_role = replica`)
	other.exec(`UPDATE artifactd.installation SET installation_id = gen_random_uuid()`)
	if err := catalogue.ClaimKeyPrefix(t.Context(), s.layout.Prefix); err != nil {
		t.Fatal(err)
	}
	return other
}

// meddling is a store beside which something happens.
type meddling struct {
	gc.ReconcileStore
	onFirstListed func()
	onHead        func(key string)
	listFault     error
	cutAfter      int // objects, before listFault
}

func (m *meddling) List(ctx context.Context, prefix string) iter.Seq2[artifacts.Object, error] {
	return func(yield func(artifacts.Object, error) bool) {
		n := 0
		for o, err := range m.ReconcileStore.List(ctx, prefix) {
			if n == 0 && m.onFirstListed != nil {
				m.onFirstListed()
			}
			if m.listFault != nil && n == m.cutAfter {
				yield(artifacts.Object{}, m.listFault)
				return
			}
			n++
			if !yield(o, err) {
				return
			}
		}
	}
}

func (m *meddling) Head(ctx context.Context, key string) (artifacts.Object, error) {
	if m.onHead != nil {
		m.onHead(key)
	}
	return m.ReconcileStore.Head(ctx, key)
}

// Objects that are uploaded while passes run survive, and are published.
func TestReconcileBesideUploads(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	lost := s.orphan("lost", nil)
	for i := range 4 {
		l := s.acquire("p")
		store := &meddling{ReconcileStore: s.store, onFirstListed: func() { s.upload(l, fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i)) }}
		if i > 1 { // by now there is nothing that the list could begin with but versions
			s.orphan(fmt.Sprint("lost too", i), nil)
		}
		if _, err := newReconciler(s.t, s.pool, store, s.layout).RunOnce(t.Context(), anyShare); err != nil {
			t.Fatal(err)
		}
		s.publish(l)
	}
	s.pass(anyShare)
	s.collect()
	s.check()
	if s.there(lost) {
		t.Error("the unknown object is still there")
	}
}

// A key that gets its row between the listing and the decision is looked at again.
func TestReconcileLooksAgainBeforeItCondemns(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	body := "found again"
	d, id := artifacts.DigestOf([]byte(body)), uuid.New()
	key := s.layout.ArtifactKey(d, id)
	s.put(key, body, nil)
	s.pass(anyShare)
	store := &meddling{ReconcileStore: s.store, onHead: func(string) {
		s.exec(`INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until)
			VALUES ($1, 1, $1, $2, $3, 'x', now(), now())`, id, d[:], len(body))
	}}
	r, err := newReconciler(s.t, s.pool, store, s.layout).RunOnce(t.Context(), anyShare)
	if err != nil || r.Due != 1 || r.Known != 1 || r.Moved != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	s.collect()
	s.check()
}

// Objects of a history that the database does not know are kept and reported.
func TestReconcileKeepsOtherHistories(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	s.version("p", "one")
	kept := []string{
		s.orphan("newer epoch", map[string]string{"artifactd-pointer": "p", "artifactd-token": "2.1"}),
		s.orphan("never issued", map[string]string{"artifactd-pointer": "p", "artifactd-token": "1.2"}),
		s.orphan("lost pointer", map[string]string{"artifactd-pointer": "q", "artifactd-token": "1.1"}),
		s.orphan("strange", map[string]string{"artifactd-token": "x"}),
	}
	ours := s.orphan("ours", map[string]string{"artifactd-pointer": "p", "artifactd-token": "1.1"})
	s.pass(anyShare)
	for range 2 {
		if r := s.pass(anyShare); r.Quarantined != int64(len(kept)) || r.FirstQuarantined == "" {
			t.Errorf("%+v", r)
		}
		s.collect()
	}
	for _, key := range kept {
		if !s.there(key) {
			t.Errorf("%s was deleted", key)
		}
	}
	if s.there(ours) {
		t.Error("the unknown object of a known generation is still there")
	}
}

// A listing that is cut short deletes nothing, whatever it had shown.
func TestScheduleG5ListingCutShort(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	s.version("p", "one", "two", "three")
	lost := s.orphan("lost", nil)
	s.pass(anyShare)
	for cut := range 4 {
		store := &meddling{ReconcileStore: s.store, listFault: artifacts.ErrStoreUnavailable, cutAfter: cut}
		r, err := newReconciler(s.t, s.pool, store, s.layout).RunOnce(t.Context(), anyShare)
		if !errors.Is(err, artifacts.ErrStoreUnavailable) || r.Moved != 0 || s.number(ledgerSize) != 0 {
			t.Fatalf("cut after %d: %+v, %v", cut, r, err)
		}
	}
	// Nor may anybody else go on with such a pass.
	s.exec(`UPDATE artifactd.reconcile_pass SET ended_at = NULL WHERE pass_id = (SELECT max(pass_id) FROM artifactd.reconcile_pass)`)
	_, err := s.pool.Exec(t.Context(), `SELECT artifactd.condemn_orphans((SELECT max(pass_id) FROM artifactd.reconcile_pass), ARRAY[$1], ARRAY[''], ARRAY[''], ARRAY[''])`, lost)
	if err == nil || !strings.Contains(err.Error(), "not complete") {
		t.Errorf("condemning without a complete listing: %v", err)
	}
	s.exec(`UPDATE artifactd.reconcile_pass SET ended_at = clock_timestamp() WHERE ended_at IS NULL`)
	// A store that does not say what an object is keeps it.
	dumb := &meddling{ReconcileStore: unreadable{s.store}}
	if r, err := newReconciler(s.t, s.pool, dumb, s.layout).RunOnce(t.Context(), anyShare); !errors.Is(err, artifacts.ErrStoreUnavailable) || r.Moved != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if r := s.pass(anyShare); r.Moved != 1 {
		t.Errorf("%+v", r)
	}
	s.collect()
	s.check()
}

// unreadable is a store that lists and does not answer for single objects.
type unreadable struct{ gc.ReconcileStore }

func (unreadable) Head(context.Context, string) (artifacts.Object, error) {
	return artifacts.Object{}, artifacts.ErrStoreUnavailable
}

// 1,001 keys are more than a page of a listing, a batch, or a request of deletions.
func TestScheduleG5MoreThanAPage(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := marked(t, server)
		s.pointer("p", 5, 86400)
		s.version("p", "one")
		if r := s.pass(anyShare); r.Listed != 1 || r.Unknown != 0 || r.Uploads != 0 {
			t.Errorf("%+v", r)
		}
		const orphans = 1_001
		var wg sync.WaitGroup
		work := make(chan int)
		for range 16 {
			wg.Go(func() {
				for i := range work {
					s.orphan(fmt.Sprint("lost", i), nil)
				}
			})
		}
		for i := range orphans {
			work <- i
		}
		close(work)
		wg.Wait()
		if r := s.pass(anyShare); r.Listed != orphans+1 || r.Unknown != orphans {
			t.Fatalf("%+v", r)
		}
		if r := s.pass(anyShare); r.Moved != orphans {
			t.Fatalf("%+v", r)
		}
		if report := s.collect(); report.Deleted.Objects != orphans || report.LedgerSize != 0 {
			t.Errorf("%+v", report)
		}
		s.check()
		if r := s.pass(anyShare); r.Listed != 1 || r.Unknown != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// Two collectors and reconcile at once end where one after the other would.
func TestScheduleG6EverybodyAtOnce(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	for i := range 20 {
		s.orphan(fmt.Sprint("lost", i), nil)
	}
	s.pass(anyShare)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(once func() error) {
		wg.Go(func() {
			for {
				if err := once(); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 2 {
		c, r := s.collector(s.store), newReconciler(s.t, s.pool, s.store, s.layout)
		loop(func() error {
			_, err := c.RunOnce(context.Background(), gc.RunOptions{ResumeGrace: new(time.Duration)})
			return err
		})
		loop(func() error {
			_, err := r.RunOnce(context.Background(), anyShare)
			if errors.Is(err, gc.ErrPassRunning) {
				return nil // the other one is at it
			}
			return err
		})
	}
	for i := range 20 {
		s.version("p", "shared", fmt.Sprint("of ", i))
	}
	close(stop)
	wg.Wait()
	s.collect()
	s.pass(anyShare)
	s.collect()
	s.check()
	if n := s.number(`SELECT (SELECT count(*) FROM artifactd.orphan) + (SELECT count(*) FROM artifactd.deletion WHERE deleted_at IS NULL)`); n != 0 {
		t.Errorf("%d orphans or undeleted keys are left", n)
	}
	if n := len(s.keys(s.layout.ArtifactsPrefix())); n != 2 {
		t.Errorf("%d objects, want the two of the last version", n)
	}
}

// Neither foreign prefixes, nor odd keys under our own, nor foreign uploads are touched. Unknown
// uploads to our keys are aborted, and nothing but them: not the object under the same key.
func TestScheduleG7ReconcileLeavesForeignKeys(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := marked(t, server)
		s.pointer("p", 5, 86400)
		l := s.acquire("p")
		live := s.upload(l, "live")[0].Artifact
		s.publish(l)
		hex, id := strings.Repeat("ab", 32), uuid.New().String()
		foreign := []string{"other/thing", "artifactd2/artifacts/" + hex + "/" + id, "artifactd/readme", "artifactd/artifacts/readme.txt",
			"artifactd/artifacts/x y+ü&%41", "artifactd/artifacts/" + strings.ToUpper(hex) + "/" + id, "artifactd/artifacts/" + hex + "/" + strings.ToUpper(id),
			"artifactd/artifacts/" + hex + "/" + id + "/more"}
		if server == testenv.MinIO { // a folder and a file of one name cannot be in a folder on a disk
			foreign = append(foreign, "artifactd/artifacts/"+hex+"/"+strings.ReplaceAll(id, "-", ""))
		}
		begin := func(key string) artifacts.Multipart {
			upload, err := s.store.CreateMultipart(t.Context(), artifacts.Upload{Key: key, Digest: live.Digest, Size: 100 << 20})
			if err != nil {
				t.Fatal(err)
			}
			return artifacts.Multipart{Key: key, UploadID: upload}
		}
		for _, key := range foreign {
			s.put(key, "x", nil)
		}
		stay := []artifacts.Multipart{begin("other/upload"), begin("artifactd/artifacts/odd"), begin("artifactd2/artifacts/" + hex + "/" + id)}
		go1, go2 := begin(s.layout.ArtifactKey(live.Digest, uuid.New())), begin(s.layout.ArtifactKey(live.Digest, live.ID))
		known := s.openUpload()
		if r := s.pass(anyShare); r.Uploads != 3 || r.UnknownUploads != 2 || r.Aborted != 0 || r.Foreign < 5 {
			t.Errorf("first pass: %+v", r)
		}
		if r := s.pass(anyShare); r.Aborted != 2 || r.Moved != 0 {
			t.Errorf("second pass: %+v", r)
		}
		s.collect()
		for _, key := range append(foreign, "artifactd/installation") {
			if !s.there(key) {
				t.Errorf("%s was deleted", key)
			}
		}
		for _, m := range append(stay, known) {
			if _, err := s.store.ListParts(t.Context(), m); err != nil {
				t.Errorf("the upload to %s: %v", m.Key, err)
			}
		}
		for _, m := range []artifacts.Multipart{go1, go2} {
			if _, err := s.store.ListParts(t.Context(), m); !errors.Is(err, artifacts.ErrUploadGone) {
				t.Errorf("the unknown upload to %s: %v", m.Key, err)
			}
		}
		if !s.there(s.layout.ArtifactKey(live.Digest, live.ID)) {
			t.Error("the live object under the key of an unknown upload is gone")
		}
		if n := s.number(`SELECT count(*) FROM artifactd.orphan`); n != 0 {
			t.Errorf("%d orphans are left in the table", n)
		}
	})
}

// openUpload begins an upload in parts as the service does.
func (s *site) openUpload() artifacts.Multipart {
	s.t.Helper()
	l := s.acquire("p")
	d := artifacts.DigestOf([]byte("large"))
	staged, err := s.catalogue.Stage(s.t.Context(), l.ID, l.Token, []pointer.StageFile{{Path: "large", Digest: d, Size: 100 << 20}})
	if err != nil {
		s.t.Fatal(err)
	}
	a := staged[0].Artifact
	m := artifacts.Multipart{Key: s.layout.ArtifactKey(a.Digest, a.ID)}
	if m.UploadID, err = s.store.CreateMultipart(s.t.Context(), artifacts.Upload{Key: m.Key, Digest: d, Size: a.Size}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.catalogue.OpenUpload(s.t.Context(), a, m.UploadID); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// Versions of an unknown object go, too.
func TestReconcileVersionedBucket(t *testing.T) {
	s := marked(t, testenv.MinIO)
	b := testenv.Bucket(t, testenv.MinIO, testenv.Versioned())
	s.store = openStore(t, b, s.layout)
	s.claim()
	key := s.orphan("lost", nil)
	s.pass(anyShare)
	s.pass(anyShare)
	s.collect()
	out, err := b.Client().ListObjectVersions(t.Context(), &s3.ListObjectVersionsInput{Bucket: &b.Name, Prefix: &key})
	if err != nil || len(out.Versions)+len(out.DeleteMarkers) != 0 {
		t.Errorf("%d versions and %d markers are left, %v", len(out.Versions), len(out.DeleteMarkers), err)
	}
}

// A prefix below another installation's is refused; one whose name only begins like it is not. The
// other way round, what lies below a prefix is left alone.
func TestPrefixesThatLieInEachOther(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	s.version("p", "one")
	claim := func(prefix string) error {
		other := newSiteOn(t, &site{t: t, store: s.store, layout: artifacts.Layout{Prefix: prefix}})
		return gc.ClaimBucket(t.Context(), other.pool, s.store, other.layout)
	}
	for _, prefix := range []string{"artifactd/staging/", "artifactd/artifacts/x/"} {
		if err := claim(prefix); !errors.Is(err, gc.ErrForeignBucket) || !strings.Contains(err.Error(), prefix) {
			t.Errorf("below another's prefix: %v", err)
		}
	}
	if err := claim("artifactd-2/"); err != nil {
		t.Errorf("a prefix that only begins like another's: %v", err)
	}
	if err := claim(""); err != nil { // nothing tells a later one above from what lies below it
		t.Errorf("the whole bucket: %v", err)
	}
	upper := newSiteOn(t, &site{t: t, store: s.store, layout: artifacts.Layout{}})
	upper.exec(`UPDATE artifactd.installation SET installation_id = $1::uuid`, s.read("installation"))
	for range 2 {
		if r, err := newReconciler(t, upper.pool, s.store, upper.layout).RunOnce(t.Context(), anyShare); err != nil || r.Unknown != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	s.check()
}

func (s *site) read(key string) string {
	s.t.Helper()
	body, _, err := s.store.Get(s.t.Context(), key, artifacts.WholeObject)
	if err != nil {
		s.t.Fatal(err)
	}
	defer body.Close()
	var b strings.Builder
	if _, err := io.Copy(&b, body); err != nil {
		s.t.Fatal(err)
	}
	return b.String()
}
