package recovery_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// An operator lets collection go on before the lost versions are back. Their files belong, in the
// restored database, to a version that the next publication displaces, to one displaced long ago, to a
// dead lease, or to nobody; for as long as the quarantine all of them stay.
func TestWhoResumesTooEarlyLosesNothing(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.arm()
	s.keepNone("p")
	old := s.version("p", "oldest")
	s.version("p", "shown")
	leased := s.acquire("p")
	s.upload(leased, "half done")
	restore := s.backup()

	publish := func(l pointer.Lease) {
		t.Helper()
		if _, err := s.catalogue.Publish(t.Context(), pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}}); err != nil {
			t.Fatal(err)
		}
	}
	lost := []uuid.UUID{leased.ID}
	publish(leased)
	adopting := s.version("p", "half done", "its own") // adopts from the one before
	_, err := s.catalogue.Rollback(t.Context(), pointer.RollbackRequest{Pointer: "p", To: old.lease.Token, Current: adopting.lease.Token,
		OperationID: uuid.New(), Holder: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	var rollback uuid.UUID
	if err := s.owner.QueryRow(t.Context(), `SELECT current_id FROM artifactd.pointer WHERE name = 'p'`).Scan(&rollback); err != nil {
		t.Fatal(err)
	}
	lost = append(lost, adopting.lease.ID, rollback)
	s.drain()
	restore()
	s.recover()

	resume := func(quarantine time.Duration) bool {
		t.Helper()
		held, err := recovery.NewOperator(s.history(s.owner)).Resume(t.Context(), quarantine)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	if !resume(time.Hour) {
		t.Error("collection was not held after the restore")
	}
	s.version("p", "new")
	before := len(s.keys("artifacts/"))
	if r := s.collect(); r.Marked != 0 {
		t.Errorf("in the quarantine %d generations are taken for garbage", r.Marked)
	}
	reconcile := func() (moved int64) {
		t.Helper()
		r, err := gc.NewReconciler(s.service, s.store, s.layout, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			report, err := r.RunOnce(t.Context(), gc.ReconcileOptions{Grace: time.Nanosecond, MaxShare: 1})
			if err != nil {
				t.Fatal(err)
			}
			moved += report.Moved
		}
		return moved
	}
	if n := reconcile(); n != 0 {
		t.Errorf("in the quarantine %d unknown objects are condemned", n)
	}
	s.collect()
	if n := len(s.keys("artifacts/")); n != before {
		t.Errorf("%d objects became %d", before, n)
	}
	collector, err := gc.New(s.service, s.store, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := collector.Plan(t.Context(), gc.PlanOptions{Pointer: "p", ResumeGrace: new(time.Duration)})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Goes) != 0 {
		t.Errorf("a plan takes %+v", plan.Goes)
	}
	kept := map[string]int64{}
	for _, c := range plan.Stays {
		kept[c.Reason] = c.Generations
	}
	if kept["quarantined"] != 3 || kept["current"] != 1 {
		t.Errorf("a plan leaves %v", kept)
	}

	back := s.rebuild(recovery.RebuildOptions{})
	for _, id := range lost {
		if v := back.of(t, id); v.Status != recovery.LostRestored {
			t.Errorf("%s: %s %s", id, v.Status, v.Detail)
		}
	}
	s.clean()
	// The last word counts, and then all of this is garbage like any other.
	if resume(0) {
		t.Error("collection was held though it had gone on")
	}
	s.collect()
	if n := len(s.keys("artifacts/")); n != 1 {
		t.Errorf("%d objects are left of one version with one file", n)
	}
}
