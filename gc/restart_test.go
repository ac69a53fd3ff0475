package gc_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// Postgres is killed under a collector and a reconciler that loop, at each of the places where they
// have just asked something of the store, and started again: they go on by themselves, and in the end
// nothing is lost and nothing left over.
func TestLoopsOutlivePostgres(t *testing.T) {
	for _, at := range []string{"a deletion", "a listing", "a look at an orphan"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			options := devstack.PostgresOptions{DataDir: t.TempDir(), FsyncOff: true}
			pg := testenv.Postgres(t, options)
			db := testenv.DatabaseOn(t, pg)
			pool := openPool(t, db)
			catalogue, err := pointer.New(pool, pointer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			layout := artifacts.Layout{Prefix: "artifactd/"}
			if err := catalogue.ClaimKeyPrefix(t.Context(), layout.Prefix); err != nil {
				t.Fatal(err)
			}
			s := &site{t: t, catalogue: catalogue, store: openStore(t, testenv.Bucket(t, testenv.Versitygw), layout), pool: pool, layout: layout, owner: db.Connect(t)}
			s.claim()
			s.pointer("p", 0, 0)
			s.version("p", "one", "shared")
			s.version("p", "two", "shared")
			lost := s.orphan("lost", nil)
			s.pass(anyShare)
			s.exec(`UPDATE artifactd.reconcile_pass SET started_at = started_at - interval '1 hour'`)

			var once sync.Once
			crashed := false // read after the loops have ended
			crash := func() {
				once.Do(func() {
					if err := pg.Kill(); err != nil {
						t.Error(err)
					}
					testenv.Postgres(t, options)
					crashed = true
				})
			}
			deleting := &flaky{Store: s.store}
			looking := &meddling{ReconcileStore: s.store}
			switch at {
			case "a deletion":
				deleting.fails, deleting.how = 1, func(ctx context.Context, store gc.Store, keys []string) ([]artifacts.Deleted, error) {
					fates, err := store.Delete(ctx, keys)
					crash()
					return fates, err
				}
			case "a listing":
				looking.onFirstListed = crash
			default:
				looking.onHead = func(string) { crash() }
			}
			ctx, cancel := context.WithCancel(t.Context())
			var loops sync.WaitGroup
			loops.Go(func() { s.collector(deleting).Loop(ctx, 50*time.Millisecond) })
			r := newReconciler(t, s.pool, looking, s.layout)
			r.SetLease(5 * time.Second)
			loops.Go(func() { r.Loop(ctx, time.Second, anyShare, slog.New(slog.DiscardHandler)) })
			stop := func() { cancel(); loops.Wait() }
			defer stop()

			for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the loops do not get on within five minutes")
				}
				if s.hurry() {
					break
				}
			}
			stop()
			if !crashed {
				t.Error("Postgres was never killed")
			}
			conn, err := pgx.Connect(t.Context(), db.URL)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			s.owner = conn
			s.check()
			if s.there(lost) {
				t.Error("the unknown object is still there")
			}
			v, err := s.catalogue.Resolve(t.Context(), "p")
			if err != nil || v.FileCount != 2 {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

// hurry makes what only time would make due be due now, and reports whether nothing is left to do.
// It asks over connections of its own, as long as there is a server.
func (s *site) hurry() bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.owner.Config().ConnString())
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, `UPDATE artifactd.deletion SET final_after = clock_timestamp() - interval '1 second',
		not_before = least(not_before, clock_timestamp() + interval '1 second')`)
	if err != nil {
		return false
	}
	// A pass that failed is tried again after an hour.
	if _, err := conn.Exec(ctx, `UPDATE artifactd.reconcile_pass SET started_at = started_at - interval '1 hour' WHERE outcome = 'failed'`); err != nil {
		return false
	}
	left := 1
	err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM artifactd.deletion) + (SELECT count(*) FROM artifactd.orphan)
		+ (SELECT count(*) FROM artifactd.generation WHERE displaced_at IS NOT NULL AND collected_at IS NULL)`).Scan(&left)
	return err == nil && left == 0
}
