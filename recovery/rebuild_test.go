package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// A database is restored to an old state. What it lost is listed, refused until the epoch is raised,
// and comes back in order as new generations, with everything that belongs to it.
func TestLostVersionsComeBack(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		for _, name := range []string{"p", "gone", "kept"} {
			s.pointer(name, pointer.SettingsChange{})
			s.version(name, name+" one")
		}
		s.drain()
		restore := s.backup()

		second := s.version("p", "p two", "p two b")
		third := s.version("p", "p three")
		if err := s.catalogue.Pin(t.Context(), "p", second.lease.Token, true); err != nil {
			t.Fatal(err)
		}
		s.pointer("new", pointer.SettingsChange{Labels: map[string]string{"team": "x"}})
		fresh := s.version("new", "new one")
		shown, err := s.catalogue.Resolve(t.Context(), "gone")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.catalogue.Retire(t.Context(), "gone", shown.Token); err != nil {
			t.Fatal(err)
		}
		s.drain()
		restore()
		s.shows("p", "p one")

		if _, err := s.tryRebuild(s.store, recovery.RebuildOptions{}); !errors.Is(err, pointer.ErrEpochNotRaised) {
			t.Fatalf("in the lost history's own epoch: %v", err)
		}
		s.raise()
		for _, dry := range []bool{true, true, false} {
			r := s.rebuild(recovery.RebuildOptions{DryRun: dry, Deep: true})
			want := recovery.LostRestorable
			if !dry {
				want = recovery.LostRestored
			}
			if r.Lost != 3 || r.Settings != 3 || r.Records != 6 || r.Skipped != 0 || r.LostBytes != 26 {
				t.Fatalf("%+v", r)
			}
			if l := r.of(t, second.lease.ID); l.Status != want || l.Files != 2 || l.Bytes != 12 || l.Token != second.lease.Token || l.OperationID != second.req.OperationID {
				t.Errorf("%+v", l)
			}
			if l := r.of(t, third.lease.ID); l.Status != want || l.Shown == dry || l.Restored.IsZero() != dry {
				t.Errorf("%+v", l)
			}
		}
		v := s.shows("p", "p three")
		if v.Token != (pointer.Token{Epoch: 2, Generation: 3}) || v.Holder != "worker" || *v.SourceRevision != 4 || !strings.Contains(string(v.Metadata), `"p"`) {
			t.Errorf("%+v", v)
		}
		s.shows("kept", "kept one")
		s.shows("gone")
		if v := s.shows("new", "new one"); v.Token != (pointer.Token{Epoch: 2, Generation: 1}) {
			t.Errorf("%+v", v)
		}
		if set, err := s.catalogue.Settings(t.Context(), "new"); err != nil || set.Labels["team"] != "x" {
			t.Errorf("%+v, %v", set, err)
		}
		if n := s.number(`SELECT count(*) FROM artifactd.generation WHERE pinned AND recovered_from = $1`, second.lease.ID); n != 1 {
			t.Error("the pin is lost")
		}
		s.clean()
		// Again: nothing is lost any more, and nothing changes.
		if r := s.rebuild(recovery.RebuildOptions{}); r.Lost != 0 || r.Settings != 0 || r.Restored != 0 {
			t.Errorf("again: %+v", r)
		}
		// Once the new generations have records, the lost ones' go.
		s.drain()
		s.collect()
		for _, key := range s.keys("versions/") {
			if strings.Contains(key, third.lease.ID.String()) || strings.Contains(key, fresh.lease.ID.String()) {
				t.Errorf("the lost record %s is still there", key)
			}
		}
		if r := s.rebuild(recovery.RebuildOptions{}); r.Records != 6 || r.Lost != 0 {
			t.Errorf("with the new records: %+v", r)
		}

		// The workers of the lost history: a repeated publish is told where it is now, another one is
		// refused for good.
		got, err := s.catalogue.Publish(t.Context(), third.req)
		if err != nil || got[0].Version != v.Token {
			t.Errorf("the lost publish, repeated: %v, %v", got, err)
		}
		other := third.req
		other.OperationID = uuid.New()
		var refused *pointer.RefusedError
		if _, err := s.catalogue.Publish(t.Context(), other); !errors.As(err, &refused) || refused.Reason() != pointer.ReasonEpochSuperseded {
			t.Errorf("the lost lease: %v", err)
		}
		mismatch := third.req
		mismatch.Leases = []pointer.PublishLease{{LeaseID: uuid.New(), Token: third.lease.Token}}
		if _, err := s.catalogue.Publish(t.Context(), mismatch); !errors.Is(err, pointer.ErrOperationMismatch) {
			t.Errorf("another lease under the lost operation's id: %v", err)
		}
	})
}

// What the database has published since is newer than anything it lost.
func TestNewerVersionsStayCurrent(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	s.pointer("again", pointer.SettingsChange{})
	s.drain()
	restore := s.backup()
	lost := s.version("p", "lost")
	s.version("again", "lost")
	s.drain()
	restore()
	s.raise()
	s.version("p", "newer")
	s.version("again", "newer")
	newer, err := s.catalogue.Resolve(t.Context(), "again")
	if err != nil {
		t.Fatal(err)
	}
	// Retired and made again: what was lost before that is not shown by itself.
	if err := s.catalogue.Retire(t.Context(), "again", newer.Token); err != nil {
		t.Fatal(err)
	}
	s.pointer("again", pointer.SettingsChange{})
	r := s.rebuild(recovery.RebuildOptions{})
	if l := r.of(t, lost.lease.ID); l.Status != recovery.LostRestored || l.Shown || l.Restored != (pointer.Token{Epoch: 2, Generation: 2}) {
		t.Errorf("%+v", l)
	}
	s.shows("p", "newer")
	s.shows("again")
	// It is a version like any other: an operator may go back to it.
	_, err = s.catalogue.Rollback(t.Context(), pointer.RollbackRequest{Pointer: "p", To: pointer.Token{Epoch: 2, Generation: 2},
		Current: pointer.Token{Epoch: 2, Generation: 1}, OperationID: uuid.New(), Holder: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	s.shows("p", "lost")
	s.clean()
}

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

// Records that cannot be trusted are said to be so; the others come back.
func TestDamagedAndForeignRecords(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	names := []string{"cut", "flipped", "swapped", "nothing", "foreign", "good"}
	for _, name := range names {
		s.pointer(name, pointer.SettingsChange{})
	}
	s.drain()
	restore := s.backup()
	lost := map[string]published{}
	for _, name := range names {
		lost[name] = s.version(name, name+" body")
	}
	s.drain()
	key := func(name string) string { return s.keys("versions/" + name + "/")[0] }
	cut := s.read(key("cut"))
	s.replace(key("cut"), cut[:len(cut)-20])
	lines := unzip(t, s.read(key("flipped")))
	s.replace(key("flipped"), zip(t, strings.Replace(strings.Join(lines, "\n"), artifacts.DigestOf([]byte("flipped body")).String(), artifacts.DigestOf([]byte("x")).String(), 1)))
	s.replace(key("swapped"), s.read(key("good")))
	s.replace(key("nothing"), nil)
	lines = unzip(t, s.read(key("foreign")))
	var installation uuid.UUID
	if err := s.owner.QueryRow(t.Context(), `SELECT installation_id FROM artifactd.installation`).Scan(&installation); err != nil {
		t.Fatal(err)
	}
	s.replace(key("foreign"), zip(t, strings.Replace(strings.Join(lines, "\n"), installation.String(), uuid.NewString(), 1)))
	s.replace(s.layout.Prefix+"versions/readme.txt", []byte("not ours"))
	restore()
	s.raise()

	r := s.rebuild(recovery.RebuildOptions{})
	for _, name := range names {
		want := recovery.LostDamaged
		switch name {
		case "foreign":
			want = recovery.LostForeign
		case "good":
			want = recovery.LostRestored
		}
		if v := r.of(t, lost[name].lease.ID); v.Status != want {
			t.Errorf("%s: %+v", name, v)
		}
		if name != "good" {
			s.shows(name)
		}
	}
	if r.Lost != 6 || r.Restored != 1 || r.Foreign != 1 {
		t.Errorf("%+v", r)
	}
	s.shows("good", "good body")
	s.clean()
}

// Only what is proved to be there comes back, and a version comes back whole or not at all.
func TestMissingObjects(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		names := []string{"missing", "shorter", "wrong", "deleting"}
		for _, name := range names {
			s.pointer(name, pointer.SettingsChange{})
		}
		s.drain()
		restore := s.backup()
		lost, objects := map[string]published{}, map[string]string{}
		for _, name := range names {
			lost[name] = s.version(name, name+" is there", name+" is not")
			v, err := s.catalogue.Resolve(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			objects[name] = s.layout.ArtifactKey(v.Files[1].Digest, v.Files[1].ArtifactID)
		}
		s.drain()
		s.delete(objects["missing"])
		s.replace(objects["shorter"], []byte("short"))
		s.replace(objects["wrong"], []byte("WRONG is not"))
		restore()
		s.raise()
		s.exec(`INSERT INTO artifactd.deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
			VALUES ($1, 1, 'unknown', true, now(), now(), now() + interval '1 hour')`, objects["deleting"])
		before := s.keys("artifacts/")
		for _, dry := range []bool{true, false, false} {
			r := s.rebuild(recovery.RebuildOptions{DryRun: dry, Deep: true})
			for _, name := range names {
				want := recovery.LostIncomplete
				if name == "deleting" {
					if want = recovery.LostDeleting; dry {
						want = recovery.LostRestorable
					}
				}
				if v := r.of(t, lost[name].lease.ID); v.Status != want {
					t.Errorf("dry %v: %s: %+v", dry, name, v)
				}
			}
			if r.Restored != 0 {
				t.Errorf("%+v", r)
			}
		}
		for _, name := range names {
			s.shows(name)
		}
		if n := s.number(`SELECT count(*) FROM artifactd.artifact`); n != 0 {
			t.Errorf("%d artifacts are left of what could not come back", n)
		}
		if after := s.keys("artifacts/"); len(after) != len(before) {
			t.Errorf("%d objects, %d before", len(after), len(before))
		}
		s.clean()
	})
}

// Two operators at once, and a third one again: each version comes back once, in order.
func TestTwoOperators(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		s.pointer(name, pointer.SettingsChange{})
	}
	s.drain()
	restore := s.backup()
	for i := range 8 {
		for _, name := range names {
			s.version(name, fmt.Sprint(name, i), "the same in all")
		}
	}
	s.drain()
	restore()
	s.raise()
	var operators sync.WaitGroup
	for range 2 {
		operators.Go(func() {
			if _, err := recovery.NewRebuild(s.owners, s.store, s.layout, recovery.RebuildOptions{}).Run(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	operators.Wait()
	if r := s.rebuild(recovery.RebuildOptions{}); r.Lost != 0 {
		t.Errorf("again: %+v", r)
	}
	for _, name := range names {
		if v := s.shows(name, name+"7", "the same in all"); v.Token != (pointer.Token{Epoch: 2, Generation: 8}) {
			t.Errorf("%s shows %s", name, v.Token)
		}
	}
	if n := s.number(`SELECT count(*) FROM artifactd.generation WHERE recovered_generation <> generation`); n != 0 {
		t.Errorf("%d generations are out of order", n)
	}
	s.clean()
}

// brokenStore answers some questions about objects, and then none any more.
type brokenStore struct {
	recovery.RebuildStore
	mu    sync.Mutex
	heads int // questions left that it answers
}

var errBroken = errors.New("broken")

func (b *brokenStore) Head(ctx context.Context, key string) (artifacts.Object, error) {
	if b.fails(&b.heads) {
		return artifacts.Object{}, errBroken
	}
	return b.RebuildStore.Head(ctx, key)
}

func (b *brokenStore) fails(left *int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	*left--
	return *left < 0
}

// An operator's program dies at any point; the next run goes on, and collectors in between take
// nothing away.
func TestRebuildGoesOn(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.keepNone("p")
	s.pointer("q", pointer.SettingsChange{})
	s.drain()
	restore := s.backup()
	for i := range 4 {
		s.version("q", fmt.Sprint("q", i), "shared")
	}
	s.version("p", "p")
	s.drain()
	restore()
	s.raise()
	broken := 0
	for n := 0; ; n++ {
		_, err := s.tryRebuild(&brokenStore{RebuildStore: s.store, heads: n}, recovery.RebuildOptions{})
		s.collect()
		if err == nil {
			break
		}
		if !errors.Is(err, errBroken) {
			t.Fatal(err)
		}
		if broken++; broken > 50 {
			t.Fatal("it never ends")
		}
	}
	if broken < 3 {
		t.Fatalf("it broke %d times", broken)
	}
	if v := s.shows("q", "q3", "shared"); v.Token != (pointer.Token{Epoch: 2, Generation: 4}) {
		t.Errorf("q shows %s", v.Token)
	}
	s.shows("p", "p")
	s.clean()
}

// Nobody's live lease is taken away.
func TestRestoreLeavesLeasesAlone(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	s.drain()
	restore := s.backup()
	lost := s.version("p", "lost")
	s.drain()
	restore()
	s.raise()
	l := s.acquire("p")
	if v := s.rebuild(recovery.RebuildOptions{}); v.of(t, lost.lease.ID).Status != recovery.LostLeaseHeld {
		t.Errorf("%+v", v)
	}
	s.upload(l, "live")
	if _, err := s.catalogue.Publish(t.Context(), pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}}); err != nil {
		t.Fatal(err)
	}
	if v := s.rebuild(recovery.RebuildOptions{}); v.of(t, lost.lease.ID).Status != recovery.LostRestored {
		t.Errorf("%+v", v)
	}
	s.shows("p", "live")
	s.clean()
}

// Chosen pointers only.
func TestRebuildOfChosenPointers(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	restore := s.backup()
	for _, name := range []string{"a", "a.b", "c"} {
		s.pointer(name, pointer.SettingsChange{})
		s.version(name, name)
	}
	s.drain()
	restore()
	s.raise()
	if r := s.rebuild(recovery.RebuildOptions{Pointers: []string{"c", "a"}}); r.Restored != 2 || r.Settings != 2 {
		t.Errorf("%+v", r)
	}
	s.shows("a", "a")
	s.shows("c", "c")
	if _, err := s.catalogue.Resolve(t.Context(), "a.b"); !errors.Is(err, pointer.ErrPointerNotFound) {
		t.Errorf("a.b: %v", err)
	}
	s.clean()
}

// The service's role may bring nothing back.
func TestOnlyTheOwnerRestores(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	restore := s.backup()
	s.pointer("p", pointer.SettingsChange{})
	s.version("p", "lost")
	s.drain()
	restore()
	s.raise()
	_, err := recovery.NewRebuild(s.catalogue, s.store, s.layout, recovery.RebuildOptions{}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "only the owner") {
		t.Errorf("as the service: %v", err)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.pointer`); n != 0 {
		t.Error("the service's role has brought something back")
	}
}

// A bucket of another installation, or of nobody, is refused.
func TestRebuildRefusesForeignBuckets(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	marker := s.layout.Prefix + "installation"
	s.replace(marker, []byte(uuid.NewString()))
	if _, err := s.tryRebuild(s.store, recovery.RebuildOptions{}); !errors.Is(err, recovery.ErrForeignBucket) {
		t.Errorf("%v", err)
	}
	if _, err := recovery.NewRebuild(s.owners, s.store, s.layout, recovery.RebuildOptions{}).Adopt(t.Context()); !errors.Is(err, recovery.ErrForeignBucket) {
		t.Errorf("adopted by a database with pointers: %v", err)
	}
	s.delete(marker)
	if _, err := s.tryRebuild(s.store, recovery.RebuildOptions{}); !errors.Is(err, recovery.ErrNoMarker) {
		t.Errorf("%v", err)
	}
}

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

// Whatever the program believes, the database gives out no token of an epoch that has lost some.
func TestDatabaseRefusesTheLostEpoch(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	file := pointer.File{Path: "f", Digest: artifacts.DigestOf([]byte("x")), Size: 1, ArtifactID: uuid.New(), MediaType: "text/plain"}
	v := pointer.VersionRecord{Key: "x", GenerationID: uuid.New(), Pointer: "p", Token: pointer.Token{Epoch: 1, Generation: 9}, OperationID: uuid.New(),
		PublishedAt: time.Now(), Holder: "h", FileCount: 1}
	if status, detail, err := s.owners.RestoreFiles(t.Context(), v, []pointer.File{file}); err != nil || status != pointer.RestoreOK {
		t.Fatal(status, detail, err)
	}
	finish := func() (pointer.RestoreStatus, error) {
		status, _, _, _, err := s.owners.FinishRestore(t.Context(), v, false)
		return status, err
	}
	if _, err := finish(); !errors.Is(err, pointer.ErrEpochNotRaised) {
		t.Errorf("in the lost epoch: %v", err)
	}
	s.raise()
	// Neither does it take a manifest that is not proved, or is another one.
	if status, err := finish(); err != nil || status != pointer.RestoreIncomplete {
		t.Errorf("nothing is proved: %v, %v", status, err)
	}
	if err := s.owners.RestoreProved(t.Context(), []uuid.UUID{file.ArtifactID}, []string{pointer.VerifiedByStore}); err != nil {
		t.Fatal(err)
	}
	if status, err := finish(); err != nil || status != pointer.RestoreIncomplete {
		t.Errorf("another manifest: %v, %v", status, err)
	}
	v.ManifestDigest = artifacts.DigestOf([]byte("f\x00" + string(file.Digest[:]) + "\x001\x00text/plain\n"))
	if status, err := finish(); err != nil || status != pointer.RestoreRestored {
		t.Errorf("%v, %v", status, err)
	}
	// A snapshot of the settings from the current epoch, which this database does not know, is as bad.
	_, err := s.owners.RestorePointer(t.Context(), pointer.PointerSnapshot{Pointer: "p", Epoch: 2, Revision: 99, Settings: pointer.Settings{Labels: map[string]string{}}})
	if !errors.Is(err, pointer.ErrEpochNotRaised) {
		t.Errorf("settings of the database's own epoch: %v", err)
	}
}
