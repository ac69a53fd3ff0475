package gc_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
)

// An artifact loses its last two names at once: one because its path is staged again, the other
// because the generation that uploaded it is collected. Neither may leave it to the other.
func TestAttackLastTwoNamesGoAtOnce(t *testing.T) {
	for _, first := range []string{"stager", "collector"} {
		t.Run(first+" first", func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", 0, 0)
			dead := s.acquire("p")
			old := s.upload(dead, "shared")
			if err := s.catalogue.Release(t.Context(), dead.ID); err != nil {
				t.Fatal(err)
			}
			live := s.acquire("p")
			if staged := s.upload(live, "shared"); staged[0].Artifact.ID != old[0].Artifact.ID {
				t.Fatal("the dead generation's upload was not adopted")
			}
			s.exec(`SELECT artifactd.collect_mark(p.pointer_id, ARRAY[$1::uuid], 0) FROM artifactd.pointer p`, dead.ID)

			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			d := artifacts.DigestOf([]byte("other"))
			stageSQL := `SELECT count(*) FROM artifactd.stage($1, $2, $3, ARRAY['f0'], ARRAY[$4::bytea], ARRAY[5::bigint], ARRAY['text/plain'], ARRAY[$5::uuid], 60, 3600, 1000)`
			stageArgs := []any{live.ID, live.Token.Epoch, live.Token.Generation, d[:], uuid.New()}
			filesSQL := `SELECT artifactd.collect_files(1000, 0)`
			if first == "stager" {
				if _, err := tx.Exec(t.Context(), stageSQL, stageArgs...); err != nil {
					t.Fatal(err)
				}
				go func() { _, err := s.pool.Exec(context.Background(), filesSQL); done <- err }()
			} else {
				if _, err := tx.Exec(t.Context(), filesSQL); err != nil {
					t.Fatal(err)
				}
				go func() { _, err := s.pool.Exec(context.Background(), stageSQL, stageArgs...); done <- err }()
			}
			// The second one either waits for the first or is through before it commits. Asked over another
			// connection: a transaction goes on seeing the sessions that it saw first.
			watcher, err := s.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer watcher.Release()
			for waiting := true; waiting; {
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					done <- nil
					waiting = false
				default:
					var blocked int
					if err := watcher.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&blocked); err != nil {
						t.Fatal(err)
					}
					waiting = blocked == 0
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			s.collect()
			if err := s.catalogue.Release(t.Context(), live.ID); err != nil {
				t.Fatal(err)
			}
			s.collect()
			s.check()
			if n := len(s.keys("")); n != 0 {
				t.Errorf("%d objects that nobody will ever collect", n)
			}
		})
	}
}

// A pointer whose row somebody holds keeps nobody from collecting the others.
func TestAttackHeldPointerDoesNotStopCollection(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("held", 0, 0)
	s.pointer("p", 0, 0)
	for _, name := range []string{"held", "p"} {
		s.version(name, name+"one")
		s.version(name, name+"two")
	}
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM artifactd.pointer WHERE name = 'held' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	report, err := s.collector(s.store).RunOnce(t.Context(), gc.RunOptions{})
	if err != nil || report.Deleted.Objects != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.collect()
	s.check()
}
