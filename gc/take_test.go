package gc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

const (
	markAllSQL    = `SELECT artifactd.collect_mark(pointer_id, generation_ids, 0) FROM artifactd.collect_due(1000)`
	takeFilesSQL  = `SELECT claimed_keys, claimed_sizes, claimed_uploads, claimed_stored, claimed_reasons, claimed_at FROM artifactd.collect_files(1000, 0, p_claim_seconds => 300)`
	takeUnusedSQL = `SELECT claimed_keys, claimed_sizes, claimed_uploads, claimed_stored, claimed_reasons, claimed_at FROM artifactd.collect_unnamed(1000, 0, p_claim_seconds => 300)`
)

// took is what a step that claims tells.
type took struct {
	keys, uploads, reasons []string
	sizes                  []int64
	stored                 []bool
	at                     *time.Time
}

func (s *site) take(sql string) took {
	s.t.Helper()
	var k took
	if err := s.pool.QueryRow(s.t.Context(), sql).Scan(&k.keys, &k.sizes, &k.uploads, &k.stored, &k.reasons, &k.at); err != nil {
		s.t.Fatal(err)
	}
	return k
}

func (s *site) count(sql string, args ...any) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), sql, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// Keys that a collector takes into the ledger are its own for the time of a claim, whether their files
// or only their path is gone; and they leave it by a deletion that is later than their last upload.
func TestTakenKeysAreClaimed(t *testing.T) {
	for name, test := range map[string]struct {
		garbage func(s *site)
		sql     string
		reason  string
	}{
		"of a displaced version": {func(s *site) {
			s.version("p", "one", "two2")
			s.version("p", "kept")
		}, takeFilesSQL, "displaced"},
		"of paths staged again": {func(s *site) {
			l := s.acquire("p")
			s.upload(l, "one", "two2")
			s.upload(l, "kept", "kept too")
			s.publish(l)
		}, takeUnusedSQL, "replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", 0, 0)
			test.garbage(s)
			s.exec(markAllSQL)
			before := time.Now()
			k := s.take(test.sql)
			if len(k.keys) != 2 || k.sizes[0]+k.sizes[1] != 7 || k.uploads[0] != "" || !k.stored[0] || k.reasons[1] != test.reason || k.at == nil {
				t.Fatalf("%+v, want two keys of 3 and 4 bytes", k)
			}
			if k.at.Sub(before).Abs() > time.Minute {
				t.Errorf("claimed at %s, at %s", k.at, before)
			}
			if n := s.count(`SELECT count(*) FROM artifactd.claim_deletions(1000, 0) WHERE object_key = ANY ($1)`, k.keys); n != 0 {
				t.Errorf("another collector got %d of them too", n)
			}
			if report := s.collect(); report.Deleted.Objects != 0 {
				t.Errorf("another collector deleted them too: %+v", report)
			}
			// The collector is gone: its claim runs out, and another one goes on.
			s.exec(`UPDATE artifactd.deletion SET not_before = clock_timestamp()`)
			if report := s.collect(); report.Deleted.Objects != 2 {
				t.Errorf("after the claim: %+v", report)
			}
			s.check()

			finish := func(why string, want int) {
				t.Helper()
				if n := s.count(`SELECT left_ledger FROM artifactd.finish_deletions($1, $2, $3)`, k.keys, make([]string, len(k.keys)), *k.at); n != want {
					t.Errorf("%s: %d keys left the ledger, want %d", why, n, want)
				}
			}
			finish("an upload may land yet", 0)
			s.exec(`UPDATE artifactd.deletion SET final_after = $1`, *k.at)
			finish("an upload may have landed at that moment", 0)
			s.exec(`UPDATE artifactd.deletion SET final_after = $1::timestamptz - interval '1 microsecond' WHERE object_key = $2`, *k.at, k.keys[0])
			finish("the last upload to one of them is over", 1)
			s.exec(`UPDATE artifactd.deletion SET final_after = $1::timestamptz - interval '1 microsecond'`, *k.at)
			finish("to the other one, too", 1)
		})
	}
}

// An upload in parts that was never completed is told, too: whoever has claimed it aborts it.
func TestTakenKeyHasItsUpload(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	l := s.acquire("p")
	s.upload(l, "one")
	s.exec(`UPDATE artifactd.artifact SET upload_id = 'in parts'`)
	if err := s.catalogue.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	s.exec(`SELECT artifactd.collect_mark(p.pointer_id, ARRAY[$1::uuid], 0) FROM artifactd.pointer p`, l.ID)
	if k := s.take(takeFilesSQL); len(k.uploads) != 1 || k.uploads[0] != "in parts" || k.reasons[0] != "released" {
		t.Errorf("%+v", k)
	}
}

// Small generations go together, a hundred at a time, and those between them whose manifest another
// one shares by themselves, when the last of them goes.
func TestManyGenerationsAtOnce(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	const versions = 130
	var shared, last pointer.Lease
	for i := range versions {
		last = s.version("p", fmt.Sprint("v", i))
		if i == versions/2 {
			shared = last
		}
	}
	if _, err := s.catalogue.Rollback(t.Context(), pointer.RollbackRequest{Pointer: "p", To: shared.Token, Current: last.Token, OperationID: uuid.New(), Holder: "op"}); err != nil {
		t.Fatal(err)
	}
	s.exec(markAllSQL) // all but the one that is shown, and with it the share that it shows
	calls, buried := 0, 0
	for worked := true; worked; calls++ {
		var artifacts int
		if err := s.pool.QueryRow(t.Context(), `SELECT status = 'worked', artifacts FROM artifactd.collect_files(1000, 0)`).Scan(&worked, &artifacts); err != nil {
			t.Fatal(err)
		}
		buried += artifacts
	}
	if buried != versions-1 || calls > 10 {
		t.Errorf("%d artifacts went in %d calls, want all %d but what the rollback shows, in a few", buried, calls, versions)
	}
	if n := s.count(`SELECT count(*) FROM artifactd.generation WHERE collecting_at IS NOT NULL AND collected_at IS NULL`); n != 0 {
		t.Errorf("%d generations are not done", n)
	}
	s.collect()
	s.check()
	s.version("p", "the end")
	if report := s.collect(); report.ByReason["displaced"].Objects != 1 {
		t.Errorf("%+v, want the shared manifest's artifact", report)
	}
	s.check()
}

// Whoever publishes through any replica is seen by a collection, for a while.
func TestPublishersAreSeen(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	if gc.BesidePublishers(t.Context(), s.pool) {
		t.Error("nobody has published yet")
	}
	s.version("p", "one")
	s.exec(`SET session_replication_role = replica`)
	s.exec(`UPDATE artifactd.operation SET recorded_at = clock_timestamp()`)
	if !gc.BesidePublishers(t.Context(), s.pool) {
		t.Error("a publication was not seen")
	}
	s.exec(`UPDATE artifactd.operation SET recorded_at = clock_timestamp() - interval '1 minute'`)
	if gc.BesidePublishers(t.Context(), s.pool) {
		t.Error("a publication of a minute ago still counts")
	}
}
