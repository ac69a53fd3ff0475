package recovery_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// A restored database says that files are stored which were collected after the backup. Before an
// operator has had a look nobody builds on them, and afterwards only on those that are there.
func TestNothingCollectedIsAdoptedAfterARestore(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.arm()
	s.keepNone("p")
	s.version("p", "shown", "kept")
	half := s.acquire("p")
	s.upload(half, "half done")
	if err := s.catalogue.Release(t.Context(), half.ID); err != nil {
		t.Fatal(err)
	}
	restore := s.backup()
	s.version("p", "newer", "kept")
	s.collect()
	if n := len(s.keys("artifacts/")); n != 2 { // "newer", and "kept", which it has adopted
		t.Fatalf("%d objects are left after the collection", n)
	}
	restore()
	s.recover()
	publish := func(bodies ...string) {
		t.Helper()
		l := s.acquire("p")
		s.upload(l, bodies...)
		_, err := s.catalogue.Publish(t.Context(), pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}})
		if err != nil {
			t.Fatal(err)
		}
		s.shows("p", bodies...)
	}
	publish("half done", "shown", "kept")
	// What the new epoch has uploaded is adopted.
	before := len(s.keys("artifacts/"))
	publish("half done", "shown", "kept")
	if n := len(s.keys("artifacts/")); n != before {
		t.Errorf("%d objects became %d", before, n)
	}
	if _, err := gc.NewVerifier(s.owner, s.store, s.layout).Run(t.Context(), gc.VerifyOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.artifact WHERE missing_at IS NOT NULL`); n != 2 {
		t.Errorf("verify marks %d artifacts as missing", n)
	}
}

// A rollback in the new epoch shares a manifest of the old one, and proves nothing of its objects.
func TestARollbackAfterARestoreIsNotAdoptedFrom(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.arm()
	s.pointer("p", pointer.SettingsChange{})
	old := s.version("p", "old")
	current := s.version("p", "current")
	restore := s.backup()
	restore()
	s.recover()
	for _, key := range s.keys("artifacts/") {
		s.delete(key) // as collection may have, in the history that is lost
	}
	_, err := s.catalogue.Rollback(t.Context(), pointer.RollbackRequest{Pointer: "p", To: old.lease.Token, Current: current.lease.Token,
		OperationID: uuid.New(), Holder: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	l := s.acquire("p")
	s.upload(l, "old")
	if _, err := s.catalogue.Publish(t.Context(), pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}}); err != nil {
		t.Fatal(err)
	}
	s.shows("p", "old")
}
