package pointer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestRollbackSharesTheOldManifest(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	w.published(a, w.ready(a, "p", "one"))
	w.published(a, w.ready(a, "p", "two"))
	ask := RollbackRequest{Pointer: "p", To: Token{1, 1}, Current: Token{1, 1}, OperationID: uuid.New(), Holder: "op"}
	_, err := a.Rollback(t.Context(), ask)
	refusedFor(t, err, ReasonSuperseded)

	ask.OperationID, ask.Current = uuid.New(), Token{1, 2}
	for range 2 { // the second time is the recorded answer
		v, err := a.Rollback(t.Context(), ask)
		if err != nil || v.Version != (Token{1, 3}) {
			t.Fatalf("rolled back to %v, %v", v, err)
		}
	}
	v, err := a.Resolve(t.Context(), "p")
	if err != nil || v.Token != (Token{1, 3}) || v.Files[0].Digest != artifacts.DigestOf([]byte("fileone")) {
		t.Errorf("shows %+v, %v", v, err)
	}
	ask.To = Token{1, 2}
	if _, err := a.Rollback(t.Context(), ask); !errors.Is(err, ErrOperationMismatch) {
		t.Errorf("another rollback under the same id: %v", err)
	}
	l := w.acquire(a, "p", "A")
	ask.OperationID, ask.Current = uuid.New(), Token{1, 3}
	var held *LeaseHeldError
	if _, err := a.Rollback(t.Context(), ask); !errors.As(err, &held) || held.CurrentToken != l.Token {
		t.Errorf("while a lease is live: %v", err)
	}
	if _, err := a.Operation(t.Context(), ask.OperationID); !errors.Is(err, ErrOperationNotFound) {
		t.Errorf("a held lease was recorded as an outcome: %v", err)
	}
}

func TestStageAdoptsWithoutUploading(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q")
	a := w.worker()
	l1 := w.acquire(a, "p", "one")
	first := w.stored(a, l1, "", "same", "changes")
	w.published(a, l1)

	// From the current version.
	l2 := w.acquire(a, "p", "two")
	got := w.stage(a, l2, "", "same", "renamed/too")
	if !got[0].Artifact.Stored || got[0].Artifact.ID != first[0].Artifact.ID {
		t.Errorf("an unchanged file was not adopted: %+v", got[0].Artifact)
	}
	if got[1].Artifact.Stored {
		t.Error("bytes that nobody uploaded are called stored")
	}
	// From a dead generation within the grace.
	if err := a.MarkStored(t.Context(), got[1].Artifact.ID, VerifiedByRead); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), l2.ID); err != nil {
		t.Fatal(err)
	}
	l3 := w.acquire(a, "p", "three")
	again := w.stage(a, l3, "", "renamed/too")
	if !again[0].Artifact.Stored || again[0].Artifact.ID != got[1].Artifact.ID {
		t.Errorf("the dead generation's upload was not adopted: %+v", again[0].Artifact)
	}
	// Not across pointers, and not a missing object.
	lq := w.acquire(a, "q", "other")
	if w.stage(a, lq, "", "same")[0].Artifact.Stored {
		t.Error("adopted across pointers")
	}
	w.exec(`UPDATE artifactd.artifact SET missing_at = clock_timestamp() WHERE artifact_id = $1`, first[0].Artifact.ID)
	if w.stage(a, l3, "", "same")[0].Artifact.Stored {
		t.Error("adopted an artifact whose object is missing")
	}
}

func TestStagingAgain(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	first := w.stage(a, l, "", "f", "g")
	same := w.stage(a, l, "", "f")
	if same[0].Artifact.ID != first[0].Artifact.ID {
		t.Error("the same digest got another artifact")
	}
	if !same[0].Artifact.WritableTil.After(first[0].Artifact.WritableTil) {
		t.Error("a fresh upload does not live longer than the first one")
	}
	other := w.stored(a, l, "other", "f")
	if other[0].Artifact.ID == first[0].Artifact.ID {
		t.Error("other bytes under the same artifact")
	}
	if n := w.count(`SELECT file_count FROM artifactd.generation`); n != 2 {
		t.Errorf("%d files, want 2", n)
	}
	if n := w.count(`SELECT count(*) FROM artifactd.artifact WHERE unnamed_at IS NOT NULL`); n != 1 {
		t.Errorf("%d replaced artifacts wait for collection, want 1", n)
	}
	files, next, err := a.Staged(t.Context(), l.ID, Page{Limit: 1})
	if err != nil || len(files) != 1 || files[0].Path != "f" || !files[0].Artifact.Stored || next == "" {
		t.Fatalf("first page: %+v %q %v", files, next, err)
	}
	files, next, err = a.Staged(t.Context(), l.ID, Page{Limit: 1, Cursor: next})
	if err != nil || len(files) != 1 || files[0].Path != "g" || files[0].Artifact.Stored || next != "" {
		t.Errorf("second page: %+v %q %v", files, next, err)
	}
}

func TestManyFilesAreSealedBeforeTheFlip(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	const batches = 3
	for b := range batches {
		paths := make([]string, 700)
		for i := range paths {
			paths[i] = fmt.Sprintf("dir%d/%04d", b, i)
		}
		w.stage(a, l, "", paths...)
	}
	_, err := a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonIncomplete)
	w.exec(`UPDATE artifactd.artifact SET stored_at = clock_timestamp(), verified = 'transfer'`)
	w.published(a, l)
	v, err := a.Resolve(t.Context(), "p")
	if err != nil || v.FileCount != 2100 || len(v.Files) != MaxInlineFiles || !v.FilesTruncated {
		t.Fatalf("resolved %d files, %d of them inline, truncated %v, %v", v.FileCount, len(v.Files), v.FilesTruncated, err)
	}
	seen, cursor := 0, ""
	for {
		files, next, err := a.Files(t.Context(), "p", v.Token, "dir1/", Page{Limit: 300, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		seen += len(files)
		if cursor = next; cursor == "" {
			break
		}
	}
	if seen != 700 {
		t.Errorf("%d files under dir1/, want 700", seen)
	}
}

func TestRenewNeitherShortensNorOutlivesItsBound(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l, err := a.Acquire(t.Context(), AcquireRequest{Pointer: "p", Holder: "A", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	shorter, err := a.Renew(t.Context(), l.ID, l.Token, time.Minute)
	if err != nil || shorter.ExpiresAt.Before(l.ExpiresAt) || shorter.ExpiresIn < 59*time.Minute {
		t.Errorf("a shorter renewal: %+v, %v", shorter, err)
	}
	w.exec(`UPDATE artifactd.generation SET acquired_at = clock_timestamp() - interval '7 days' + interval '90 minutes'`)
	last, err := a.Renew(t.Context(), l.ID, l.Token, 24*time.Hour)
	if err != nil || last.ExpiresIn > 90*time.Minute || last.ExpiresIn < 89*time.Minute {
		t.Errorf("a renewal near seven days: %+v, %v", last, err)
	}
}

func TestALeaseNeverHasMoreLeftThanItsTTL(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	// As after a clock that was stepped back by an hour.
	w.exec(`UPDATE artifactd.pointer SET lease_expires_at = lease_expires_at + interval '1 hour'`)
	var held *LeaseHeldError
	if _, err := a.Acquire(t.Context(), AcquireRequest{Pointer: "p", Holder: "B"}); !errors.As(err, &held) || held.ExpiresIn > l.TTL {
		t.Errorf("told %v", err)
	}
	if left := time.Until(w.expiry("p")); left > l.TTL+time.Second {
		t.Errorf("the row still gives the lease %s", left)
	}
}

func TestWaitingInLine(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a, b := w.worker(), w.worker()
	first := w.acquire(a, "p", "first")
	const waiters = 5
	got := make(chan Lease, waiters)
	for i := range waiters {
		c := []*Catalogue{a, b}[i%2]
		go func() {
			l, err := c.Acquire(t.Context(), AcquireRequest{Pointer: "p", Holder: fmt.Sprint(i), Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
	}
	last := first
	for range waiters {
		if err := a.Release(t.Context(), last.ID); err != nil {
			t.Fatal(err)
		}
		last = <-got
		if last.ID == uuid.Nil {
			t.Fatal("a waiter failed")
		}
	}
	if last.Token != (Token{1, waiters + 1}) {
		t.Errorf("the last of %d waiters has %s", waiters, last.Token)
	}
	var held *LeaseHeldError
	if _, err := b.Acquire(t.Context(), AcquireRequest{Pointer: "p", Holder: "late", Wait: 50 * time.Millisecond}); !errors.As(err, &held) {
		t.Errorf("a wait that ran out: %v", err)
	}
}

// Waiters of a busy replica do not hand the lease to each other past one who waits elsewhere.
func TestLineIsFair(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	busy, quiet := w.worker(), w.worker()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var handed atomic.Int64
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				l, err := busy.Acquire(ctx, AcquireRequest{Pointer: "p", Holder: "busy", Wait: time.Minute})
				if err != nil {
					continue
				}
				handed.Add(1)
				<-time.After(200 * time.Millisecond) // the work that the lease is for
				_ = busy.Release(context.WithoutCancel(ctx), l.ID)
			}
		})
	}
	w.await("the busy replica hands the lease around", func() bool { return handed.Load() > 1 })
	for range 3 {
		before := handed.Load()
		l, err := quiet.Acquire(t.Context(), AcquireRequest{Pointer: "p", Holder: "quiet", Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		// The 3 who came before it, and those served before its request had arrived at all, or while a
		// busy machine kept it from saying in time that it still waits. Without a line they are hundreds.
		if passed := handed.Load() - before; passed > 30 {
			t.Errorf("%d others were served before one who waited on another replica", passed)
		}
		if err := quiet.Release(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// One who asks again for the lease that it holds does not wait behind those who wait for it.
func TestRepeatedAcquireDoesNotWaitForItself(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	req := AcquireRequest{Pointer: "p", Holder: "A", OperationID: uuid.New(), Wait: time.Minute}
	l, err := a.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := a.Acquire(context.Background(), AcquireRequest{Pointer: "p", Holder: "B", Wait: time.Minute})
		waiting <- err
	}()
	w.await("B waits", func() bool { return w.count(`SELECT count(*) FROM artifactd.waiter`) == 1 })
	again, err := a.Acquire(t.Context(), req)
	if err != nil || again.ID != l.ID {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := a.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if n := w.count(`SELECT count(*) FROM artifactd.waiter`); n != 0 {
		t.Errorf("%d still in line", n)
	}
}

func TestBreakLease(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	lostFor(t, a.BreakLease(t.Context(), "p", Token{1, 7}), ReasonTokenMismatch)
	for range 2 {
		if err := a.BreakLease(t.Context(), "p", l.Token); err != nil {
			t.Fatal(err)
		}
	}
	_, err := a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonBroken)
	w.fate(l, StateBroken)
}

func TestHistoryTellsEveryFate(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	w.published(a, w.ready(a, "p", "one"))
	if err := a.Release(t.Context(), w.acquire(a, "p", "two").ID); err != nil {
		t.Fatal(err)
	}
	w.acquire(a, "p", "three")
	w.expire("p")
	list, next, err := a.Versions(t.Context(), "p", Page{Limit: 2})
	if err != nil || len(list) != 2 || next == "" {
		t.Fatalf("%+v %q %v", list, next, err)
	}
	if list[0].State != StateExpired || list[1].State != StateReleased {
		t.Errorf("fates %s, %s", list[0].State, list[1].State)
	}
	list, next, err = a.Versions(t.Context(), "p", Page{Limit: 2, Cursor: next})
	if err != nil || len(list) != 1 || next != "" || !list[0].Current || list[0].State != StatePublished {
		t.Errorf("second page: %+v %q %v", list, next, err)
	}
	if _, _, err := a.Versions(t.Context(), "nobody", Page{}); !errors.Is(err, ErrPointerNotFound) {
		t.Errorf("history of an unknown pointer: %v", err)
	}
}

func TestResolveManyNamesAndWaiting(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "empty")
	a, b := w.worker(), w.worker()
	w.published(a, w.ready(a, "p", "one"))
	versions, errs, err := a.ResolveMany(t.Context(), []string{"p", "empty", "nobody"}, func(string, bool) bool { return true })
	if err != nil || versions[0].Token != (Token{1, 1}) || !errors.Is(errs[1], ErrNothingPublished) || !errors.Is(errs[2], ErrPointerNotFound) {
		t.Fatalf("%v %v %v", versions, errs, err)
	}
	for _, c := range []*Catalogue{a, b} { // one wakes at once, the other sees it in the table
		seen := make(chan *Version, 1)
		was, err := c.Head(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			v, err := c.ResolveNewer(t.Context(), "p", was, time.Minute)
			if err != nil {
				t.Error(err)
			}
			seen <- v
		}()
		l := w.ready(a, "p", "next")
		w.published(a, l)
		if v := <-seen; v == nil || v.Token != l.Token {
			t.Errorf("waited and saw %v, want %s", v, l.Token)
		}
	}
	v, err := a.ResolveNewer(t.Context(), "p", Token{1, 3}, 10*time.Millisecond)
	if err != nil || v.Token != (Token{1, 3}) {
		t.Errorf("a wait that ran out: %v, %v", v, err)
	}
}

func TestAccessTokens(t *testing.T) {
	w := newWorld(t)
	a, b := w.worker(), w.worker()
	rec, secret, err := a.CreateToken(t.Context(), "ci", []Scope{ScopePublish}, []string{"team-a.*"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	caller, err := b.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		scope Scope
		name  string
		may   bool
	}{
		{ScopeRead, "team-a.x", true}, {ScopePublish, "team-a.x.y", true}, {ScopeAdmin, "team-a.x", false},
		{ScopeRead, "team-b.x", false}, {ScopePublish, "team-a", false}, {ScopePublish, "team-ab.x", false},
	} {
		if caller.May(c.scope, c.name) != c.may {
			t.Errorf("may %s %s: %v", c.scope, c.name, !c.may)
		}
	}
	if n := w.count(`SELECT count(*) FROM artifactd.access_token WHERE position($1 in access_token::text) > 0`, secret[5:20]); n != 0 {
		t.Error("the secret is readable in the table")
	}
	if err := a.RevokeToken(t.Context(), rec.ID); err != nil {
		t.Fatal(err)
	}
	w.await("the revocation has reached the other replica", func() bool {
		_, err := b.Authenticate(t.Context(), secret)
		return errors.Is(err, ErrUnauthenticated)
	})
	past := time.Now().Add(-time.Minute)
	_, expired, err := a.CreateToken(t.Context(), "old", []Scope{ScopeRead}, []string{"*"}, &past)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{expired, "", "artd_", secret[:len(secret)-1] + "0", "artd_" + secret} {
		if _, err := a.Authenticate(t.Context(), s); !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestEpochRaisedKillsEveryLease(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	w.exec(`UPDATE artifactd.installation SET epoch = epoch + 1`)
	_, err := a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonEpochSuperseded)
	_, err = a.Renew(t.Context(), l.ID, l.Token, 0)
	lostFor(t, err, ReasonEpochSuperseded)
	_, err = a.Publish(t.Context(), PublishRequest{OperationID: uuid.New(), Leases: []PublishLease{{LeaseID: uuid.New(), Token: Token{1, 1}}}})
	refusedFor(t, err, ReasonEpochSuperseded) // a lease that this history never knew
	next := w.ready(a, "p", "B")
	if next.Token != (Token{2, 2}) {
		t.Errorf("the first token of the new epoch is %s, want 2.2", next.Token)
	}
	w.published(a, next)
	w.shows("p", "2.2")
	w.fate(l, StateSuperseded)
}

func TestReleasedLeaseCannotAct(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	for range 2 {
		if err := a.Release(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
	_, err := a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonReleased)
	_, err = a.Renew(t.Context(), l.ID, l.Token, 0)
	lostFor(t, err, ReasonReleased)
	w.shows("p", "")
	w.fate(l, StateReleased)
}

func TestStagingAgainBreaksTheSeal(t *testing.T) {
	w := newWorld(t)
	w.pointer("new", "replaced")
	a := w.worker()
	for name, path := range map[string]string{"new": "not stored", "replaced": "file"} {
		l := w.ready(a, name, "A")
		if err := a.seal(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
		w.stage(a, l, "other bytes", path)
		_, err := a.Publish(t.Context(), publish(l))
		refusedFor(t, err, ReasonIncomplete)
		w.shows(name, "")
	}
}

// A file that two leases name loses both names at once: one to the collector, the other because its
// path is staged again with other bytes. One of the two sees that it was the last.
func TestReplacementBesideTheCollector(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	dead := w.acquire(a, "p", "A")
	w.stored(a, dead, "", "f")
	if err := a.Release(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	l := w.acquire(a, "p", "B")
	if staged := w.stage(a, l, "", "f"); !staged[0].Artifact.Stored {
		t.Fatal("the file was not adopted")
	}
	w.exec(`SELECT artifactd.collect_mark(pointer_id, ARRAY[$1::uuid], 0) FROM artifactd.pointer`, dead.ID)
	collector, err := w.db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if tag, err := collector.Exec(t.Context(), `SELECT FROM artifactd.collect_files(10, 0) WHERE finished`); err != nil || tag.RowsAffected() != 1 {
		t.Fatal("nothing was collected: ", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := a.Stage(context.Background(), l.ID, l.Token, []StageFile{{Path: "f", Digest: artifacts.DigestOf([]byte("other")), Size: 5}})
		done <- err
	}()
	over := false
	w.await("the replacement is done or waits", func() bool {
		select {
		case err = <-done:
			over = true
			return true
		default:
			return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		}
	})
	if commitErr := collector.Commit(t.Context()); commitErr != nil {
		t.Fatal(commitErr)
	}
	if !over {
		err = <-done
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := w.count(`SELECT count(*) FROM artifactd.artifact a WHERE unnamed_at IS NULL
			AND NOT EXISTS (SELECT 1 FROM artifactd.manifest_file m WHERE m.artifact_id = a.artifact_id)`); n != 0 {
		t.Errorf("%d artifacts have no name, and no collector will look for them", n)
	}
}

// An adopter that arrives while the collector's deletion of the artifact is under way finds the
// row gone and uploads; it does not fail.
func TestAdoptionThatLosesToTheCollector(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	old := w.stored(a, l, "", "f")
	if err := a.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	next := w.acquire(a, "p", "B")
	tx, err := w.db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`DELETE FROM artifactd.manifest_file`, `DELETE FROM artifactd.artifact`} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan []StagedFile, 1)
	go func() {
		staged, err := a.Stage(t.Context(), next.ID, next.Token, []StageFile{{Path: "f", Digest: artifacts.DigestOf([]byte("f")), Size: 1}})
		if err != nil {
			t.Error(err)
		}
		got <- staged
	}()
	w.awaitBlocked(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	staged := <-got
	if len(staged) != 1 || staged[0].Artifact.Stored || staged[0].Artifact.ID == old[0].Artifact.ID {
		t.Errorf("staged %+v", staged)
	}
}

// An adopter that waits for somebody who finds the artifact's object missing does not adopt it.
func TestAdoptionThatLosesToVerify(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	old := w.stored(a, l, "", "f")
	if err := a.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	next := w.acquire(a, "p", "B")
	tx, err := w.db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `UPDATE artifactd.artifact SET missing_at = clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	got := make(chan []StagedFile, 1)
	go func() {
		staged, err := a.Stage(t.Context(), next.ID, next.Token, []StageFile{{Path: "f", Digest: artifacts.DigestOf([]byte("f")), Size: 1}})
		if err != nil {
			t.Error(err)
		}
		got <- staged
	}()
	w.awaitBlocked(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	staged := <-got
	if len(staged) != 1 || staged[0].Artifact.Stored || staged[0].Artifact.ID == old[0].Artifact.ID {
		t.Errorf("staged %+v", staged)
	}
}

// A look-up that arrives while statements are under way is answered by a later one: theirs may
// have been carried out before a publish that was acknowledged before the look-up.
func TestResolveNeverJoinsAStatementUnderWay(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	b, proxy := w.throughProxy(Options{})
	look := func() (Token, error) { return b.Head(context.Background(), "p") }
	// One look-up for each statement: the next comes when the one before has been taken up, which it is
	// although the statements hang.
	hang := func() <-chan error {
		answers := make(chan error, headsParallel)
		for i := range headsParallel {
			go func() { _, err := look(); answers <- err }()
			w.await("the look-up is taken up", func() bool {
				b.heads.mu.Lock()
				defer b.heads.mu.Unlock()
				return len(b.heads.waiting) == 0 && b.heads.running == i+1
			})
		}
		return answers
	}
	drain := func(answers <-chan error) {
		for range headsParallel {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
	}
	// As many connections exist, and have the statement prepared.
	var warm []*pgxpool.Conn
	for range headsParallel {
		conn, err := b.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		warm = append(warm, conn)
		if _, err := conn.Exec(t.Context(), headsSQL, []string{"p"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range warm {
		conn.Release()
	}
	w.exec(`CREATE TABLE mark AS SELECT clock_timestamp() AS at`)
	early := make(<-chan error)
	for held, tries := false, 0; !held; tries++ {
		if tries == 5 {
			var seen string
			if err := w.owner.QueryRow(t.Context(), `SELECT string_agg(format('%s %s %s %s', pid, state, query_start - at, left(query, 60)), E'\n')
				FROM pg_stat_activity, mark WHERE datname = current_database()`).Scan(&seen); err != nil {
				t.Error(err)
			}
			t.Fatalf("the answers of the statements could not be held:\n%s", seen)
		}
		w.exec(`UPDATE mark SET at = clock_timestamp()`)
		w.await("nobody looks any more", func() bool {
			b.heads.mu.Lock()
			defer b.heads.mu.Unlock()
			return b.heads.running == 0
		})
		proxy.Set(testenv.Fault{HoldToClient: true})
		early = hang()
		// A connection that is new to its statement asks for its description first, and gets no answer
		// to that. When it got one, it is no longer new, and this can be tried again.
		for began := time.Now(); !held && time.Since(began) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
			held = w.count(`SELECT count(*) FROM pg_stat_activity, mark WHERE datname = current_database() AND state = 'idle'
				AND query LIKE '%pg_is_in_recovery%' AND query_start > mark.at AND pid <> pg_backend_pid()`) >= headsParallel
		}
		if !held {
			proxy.Set(testenv.Fault{})
			drain(early)
		}
	}
	l := w.ready(a, "p", "A")
	w.published(a, l)
	late := make(chan Token, 1)
	go func() {
		got, err := look()
		if err != nil {
			t.Error(err)
		}
		late <- got
	}()
	w.await("the late look-up waits", func() bool {
		b.heads.mu.Lock()
		defer b.heads.mu.Unlock()
		return len(b.heads.waiting) == 1
	})
	proxy.Set(testenv.Fault{})
	drain(early)
	if got := <-late; got != l.Token {
		t.Errorf("resolved %s after %s was acknowledged", got, l.Token)
	}
}

func TestCompletingAnAdoptedFile(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	w.stored(a, l, "", "f")
	w.published(a, l)
	next := w.acquire(a, "p", "B")
	adopted := w.stage(a, next, "", "f")[0].Artifact
	if err := a.MarkStored(t.Context(), adopted.ID, VerifiedByStore); err != nil {
		t.Errorf("a worker completes a file that it adopted: %v", err)
	}
	if err := a.Release(t.Context(), next.ID); err != nil {
		t.Fatal(err)
	}
	lostFor(t, a.MarkStored(t.Context(), adopted.ID, VerifiedByStore), ReasonAlreadyPublished)
}

func TestWatchersAreForgotten(t *testing.T) {
	c := newChanges()
	one, stopOne := c.watch("p")
	_, stopTwo := c.watch("p")
	stopTwo()
	c.announce("p")
	<-one
	_, stopThree := c.watch("p")
	stopOne() // of a channel that is closed already: leaves the new one alone
	if len(c.waiting) != 1 {
		t.Fatalf("%d names watched, want 1", len(c.waiting))
	}
	stopThree()
	if len(c.waiting) != 0 {
		t.Errorf("%d names watched after everybody left", len(c.waiting))
	}
}

func TestUploadsInPartsAreResumed(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	f := w.stage(a, l, "", "large")[0].Artifact
	opened, err := a.OpenUpload(t.Context(), f, "upload-1")
	if err != nil || opened.UploadID != "upload-1" || !opened.WritableTil.After(f.WritableTil) {
		t.Fatalf("%+v, %v", opened, err)
	}
	if again, err := a.OpenUpload(t.Context(), f, "upload-2"); err != nil || again.UploadID != "upload-1" {
		t.Errorf("a second upload of one artifact: %+v, %v", again, err)
	}
	if err := a.Release(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.OpenUpload(t.Context(), f, ""); err == nil {
		t.Error("URLs of parts after the lease's end")
	}
	// The next generation goes on where the dead one stopped.
	next := w.acquire(a, "p", "B")
	got := w.stage(a, next, "", "large")[0].Artifact
	if got.ID != f.ID || got.UploadID != "upload-1" || got.Stored {
		t.Fatalf("staged %+v, want the open upload of %s", got, f.ID)
	}
	if _, err := a.OpenUpload(t.Context(), got, ""); err != nil {
		t.Errorf("the adopter's URLs: %v", err)
	}
	if err := a.CloseUpload(t.Context(), f.ID, "upload-1"); err != nil {
		t.Fatal(err)
	}
	if again, err := a.OpenUpload(t.Context(), f, "upload-3"); err != nil || again.UploadID != "upload-3" {
		t.Errorf("after the store lost the upload: %+v, %v", again, err)
	}
	if err := a.MarkStored(t.Context(), f.ID, VerifiedByRead); err != nil {
		t.Fatal(err)
	}
	w.published(a, next)
}

func TestRejectedUploadIsStagedAnew(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	f := w.stage(a, l, "", "f")[0].Artifact
	if err := a.RejectUpload(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	_, err := a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonIncomplete)
	if again := w.stored(a, l, "", "f")[0].Artifact; again.ID == f.ID {
		t.Error("the rejected artifact, whose key is taken, was staged again")
	}
	w.published(a, l)
	if n := w.count(`SELECT count(*) FROM artifactd.artifact WHERE unnamed_at IS NOT NULL`); n != 1 {
		t.Errorf("%d artifacts wait for collection, want the rejected one", n)
	}
}
