package recovery_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// Reconciliation condemns an object that nobody knows at the moment in which the version that needs
// it is brought back. Whoever is first, the other one sees it: an object is never both.
func TestReconcileBesideRestore(t *testing.T) {
	for _, first := range []string{"restore", "reconcile"} {
		t.Run(first+" first", func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", pointer.SettingsChange{})
			id, digest := uuid.New(), artifacts.DigestOf([]byte("lost"))
			key := s.layout.ArtifactKey(digest, id)
			var pass int
			for range 2 {
				s.exec(`SELECT artifactd.end_reconcile($1, 'done')`, pass) // the one before, if any
				pass = s.number(`SELECT pass_id FROM artifactd.begin_reconcile('artifactd/', 0, 1, false, 3600, NULL)`)
				s.exec(`SELECT artifactd.note_unknown($1, ARRAY[$2], ARRAY[''], ARRAY[4::bigint])`, pass, key)
			}
			s.exec(`SELECT artifactd.end_listing($1, 1)`, pass)

			const condemn = `SELECT fate FROM artifactd.condemn_orphans($1, ARRAY[$2], ARRAY[''], ARRAY[''], ARRAY[''])`
			const restore = `SELECT status FROM artifactd.restore_files($1, 'p', $1, now(), ARRAY['f'], ARRAY[$2::uuid], ARRAY[$3::bytea], ARRAY[4::bigint], ARRAY['x'])`
			condemnArgs, restoreArgs := []any{pass, key}, []any{uuid.New(), id, digest[:]}
			one, two, oneArgs, twoArgs := restore, condemn, restoreArgs, condemnArgs
			want := "known"
			if first == "reconcile" {
				one, two, oneArgs, twoArgs, want = condemn, restore, condemnArgs, restoreArgs, "deleting"
			}
			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			var status string
			if err := tx.QueryRow(t.Context(), one, oneArgs...).Scan(&status); err != nil || (status != "ok" && status != "ledger") {
				t.Fatal(status, err)
			}
			done := make(chan string, 1)
			go func() {
				var status string
				if err := s.owner.QueryRow(context.Background(), two, twoArgs...).Scan(&status); err != nil {
					status = err.Error()
				}
				done <- status
			}()
			// The second one waits for the first, or is through before it commits.
			s.await("the second one", func() bool {
				return len(done) > 0 || s.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := <-done; got != want {
				t.Errorf("the second one says %q, not %q", got, want)
			}
			if n := s.number(`SELECT (SELECT count(*) FROM artifactd.artifact) + (SELECT count(*) FROM artifactd.deletion)`); n != 1 {
				t.Errorf("the object is known in %d places", n)
			}
		})
	}
}
