package recovery_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// What was answered otherwise since stays as it was answered: aborted, refused, or published anew.
func TestSettledOperationsDoNotComeBack(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	for _, name := range []string{"aborted", "refused", "anew"} {
		s.pointer(name, pointer.SettingsChange{})
	}
	s.drain()
	restore := s.backup()
	lost := map[string]published{}
	for _, name := range []string{"aborted", "refused", "anew"} {
		lost[name] = s.version(name, "lost")
	}
	s.drain()
	restore()
	s.raise()
	if o, err := s.catalogue.Settle(t.Context(), lost["aborted"].req.OperationID, "aborted"); err != nil || o.Kind != "aborted" {
		t.Fatal(o, err)
	}
	var refusal *pointer.RefusedError
	if _, err := s.catalogue.Publish(t.Context(), lost["refused"].req); !errors.As(err, &refusal) {
		t.Fatal(err)
	}
	l := s.acquire("anew")
	s.upload(l, "anew")
	if _, err := s.catalogue.Publish(t.Context(), pointer.PublishRequest{OperationID: lost["anew"].req.OperationID,
		Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}}); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false, false} {
		r := s.rebuild(recovery.RebuildOptions{DryRun: dry})
		if r.Lost != 3 || r.Skipped != 3 || r.Restored != 0 {
			t.Fatalf("%+v", r)
		}
		for name, outcome := range map[string]string{"aborted": "aborted", "refused": "refused", "anew": "published"} {
			if v := r.of(t, lost[name].lease.ID); v.Status != recovery.LostSettled || !strings.Contains(v.Detail, outcome) {
				t.Errorf("%s: %+v", name, v)
			}
		}
	}
	s.shows("aborted")
	s.shows("refused")
	s.shows("anew", "anew")
	s.clean()
}

// Whether an operation is settled or its version brought back, decides who comes first; the other one
// finds it.
func TestSettleAndRestoreRace(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	s.drain()
	restore := s.backup()
	lost := s.version("p", "lost")
	s.drain()
	restore()
	s.raise()

	// The settling transaction has written its tombstone and is not committed.
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT artifactd.settle($1, 'p')`, lost.req.OperationID); err != nil {
		t.Fatal(err)
	}
	done := make(chan rebuilt, 1)
	go func() {
		var r rebuilt
		r.RebuildReport, _ = recovery.NewRebuild(s.owners, s.store, s.layout, recovery.RebuildOptions{
			Version: func(v recovery.LostVersion) { r.versions = append(r.versions, v) }}).Run(context.Background())
		done <- r
	}()
	s.await("the restore to wait for it", func() bool {
		return s.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := <-done
	if v := r.of(t, lost.lease.ID); v.Status != recovery.LostSettled {
		t.Errorf("%+v", v)
	}
	s.shows("p")
	s.clean()
}

// A publish of several pointers and a rollback come back with their operations: repeated, they are told
// where the versions are now.
func TestOperationsComeBack(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	for _, name := range []string{"a", "b"} {
		s.pointer(name, pointer.SettingsChange{})
		s.version(name, name+" one")
	}
	s.drain()
	restore := s.backup()
	both := pointer.PublishRequest{OperationID: uuid.New()}
	for _, name := range []string{"a", "b"} {
		l := s.acquire(name)
		s.upload(l, name+" two")
		both.Leases = append(both.Leases, pointer.PublishLease{LeaseID: l.ID, Token: l.Token})
	}
	if _, err := s.catalogue.Publish(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	back := pointer.RollbackRequest{Pointer: "b", To: pointer.Token{Epoch: 1, Generation: 1}, Current: pointer.Token{Epoch: 1, Generation: 2},
		OperationID: uuid.New(), Holder: "operator"}
	if _, err := s.catalogue.Rollback(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	s.drain()
	restore()
	s.raise()
	if r := s.rebuild(recovery.RebuildOptions{Pointers: []string{"b"}}); r.Restored != 2 {
		t.Fatalf("%+v", r)
	}
	if r := s.rebuild(recovery.RebuildOptions{}); r.Restored != 1 || r.Skipped != 0 {
		t.Fatalf("%+v", r)
	}
	s.shows("a", "a two")
	s.shows("b", "b one")
	got, err := s.catalogue.Publish(t.Context(), both)
	if err != nil || len(got) != 2 || got[0].Version != (pointer.Token{Epoch: 2, Generation: 2}) || got[1].Version != got[0].Version {
		t.Errorf("the publish, repeated: %v, %v", got, err)
	}
	rolled, err := s.catalogue.Rollback(t.Context(), back)
	if err != nil || rolled.Version != (pointer.Token{Epoch: 2, Generation: 3}) {
		t.Errorf("the rollback, repeated: %v, %v", rolled, err)
	}
	if o, err := s.catalogue.Settle(t.Context(), both.OperationID, "a"); err != nil || o.Kind != "published" || len(o.Versions) != 2 {
		t.Errorf("settled: %+v, %v", o, err)
	}
	s.clean()
}
