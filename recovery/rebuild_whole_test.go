package recovery_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// The whole catalogue is built anew from the bucket alone, into an empty database.
func TestWholeCatalogueFromTheBucket(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.arm()
	want := map[string]string{}
	for i := range 20 {
		name := fmt.Sprintf("p%02d", i)
		keep := i
		s.pointer(name, pointer.SettingsChange{KeepVersions: &keep, Labels: map[string]string{"n": name}})
		for j := range 10 {
			want[name] = fmt.Sprint(name, " ", j)
			s.version(name, want[name], "the same in every version of "+name)
		}
	}
	aborted := uuid.New()
	if _, err := s.catalogue.Settle(t.Context(), aborted, "p00"); err != nil {
		t.Fatal(err)
	}
	retired := s.shows("p19", want["p19"], "the same in every version of p19")
	if err := s.catalogue.Retire(t.Context(), "p19", retired.Token); err != nil {
		t.Fatal(err)
	}
	s.drain()

	s.disconnect()
	s.db = testenv.Database(t)
	s.connect()
	s.exec(`UPDATE artifactd.installation SET installation_id = gen_random_uuid()`) // tests' databases are copies of one
	if _, err := s.tryRebuild(s.store, recovery.RebuildOptions{}); !errors.Is(err, recovery.ErrForeignBucket) {
		t.Fatalf("without adopting: %v", err)
	}
	if r := s.rebuild(recovery.RebuildOptions{DryRun: true}); r.Lost != 200 || r.Settings != 20 {
		t.Fatalf("dry: %+v", r)
	}
	for _, first := range []bool{true, false} {
		adopted, err := recovery.NewRebuild(s.owners, s.store, s.layout, recovery.RebuildOptions{}).Adopt(t.Context())
		if err != nil || adopted != first {
			t.Fatal(adopted, err)
		}
	}
	// Before its epoch is raised, above everything in the bucket, it decides nothing.
	if _, err := s.tryRebuild(s.store, recovery.RebuildOptions{}); !errors.Is(err, pointer.ErrHistoryChanged) {
		t.Fatalf("before the epoch is raised: %v", err)
	}
	epoch := s.recover()
	if epoch < 2 {
		t.Fatalf("it is in epoch %d", epoch)
	}
	r := s.rebuild(recovery.RebuildOptions{})
	if r.Restored != 200 || r.Settings != 20 || r.Aborted != 1 || r.Skipped != 0 {
		t.Fatalf("%+v", r)
	}
	t.Logf("200 versions in %v", r.FinishedAt.Sub(r.StartedAt).Round(time.Millisecond))
	for name, body := range want {
		set, err := s.catalogue.Settings(t.Context(), name)
		if err != nil || fmt.Sprintf("p%02d", set.KeepVersions) != name || set.Labels["n"] != name || (set.RetiredAt != nil) != (name == "p19") {
			t.Errorf("%+v, %v", set, err)
		}
		if name == "p19" {
			s.shows(name)
			continue
		}
		if v := s.shows(name, body, "the same in every version of "+name); v.Token != (pointer.Token{Epoch: epoch, Generation: 10}) {
			t.Errorf("%s shows %s", name, v.Token)
		}
	}
	if o, err := s.catalogue.Settle(t.Context(), aborted, "p00"); err != nil || o.Kind != "aborted" {
		t.Errorf("the aborted operation: %+v, %v", o, err)
	}
	s.clean()
	// And once more, from the records that this one writes.
	s.drain()
	if r := s.rebuild(recovery.RebuildOptions{}); r.Lost != 0 || r.Settings != 0 {
		t.Errorf("again: %+v", r)
	}
	s.exec(`UPDATE artifactd.installation SET collection_held_at = NULL`) // an operator lets it go on
	s.collect()
	if n := len(s.keys("versions/")); n != 200 {
		t.Errorf("%d records of 200 versions", n)
	}
}
