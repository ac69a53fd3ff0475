package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

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
