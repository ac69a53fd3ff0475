package pointer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
)

func TestScheduleH1StalePublishIsRefused(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a, b := w.worker(), w.worker()
	la := w.ready(a, "p", "A")
	w.expire("p")
	lb := w.ready(b, "p", "B")

	_, err := a.Publish(t.Context(), publish(la))
	refusedFor(t, err, ReasonSuperseded)
	w.shows("p", "")

	w.published(b, lb)
	w.shows("p", "1.2")
	v, err := a.Resolve(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if v.Holder != "B" || v.Token != lb.Token || len(v.Files) != 1 || v.Files[0].Digest != artifacts.DigestOf([]byte("fileB")) {
		t.Errorf("the version is not B's: %+v", v)
	}
	w.fate(la, StateSuperseded)
	w.fate(lb, StatePublished)
}

func TestScheduleH2StaleReleaseLeavesTheSuccessor(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a, b := w.worker(), w.worker()
	la := w.acquire(a, "p", "A")
	w.expire("p")
	lb := w.acquire(b, "p", "B")
	before := w.expiry("p")

	if err := a.Release(t.Context(), la.ID); err != nil {
		t.Fatal(err)
	}
	w.fate(lb, StateLeased)
	if !w.expiry("p").Equal(before) {
		t.Error("the successor's expiry has changed")
	}
	if l, err := b.Renew(t.Context(), lb.ID, lb.Token, 0); err != nil || l.State != StateLeased {
		t.Errorf("B's lease after A's release: %+v, %v", l, err)
	}
}

func TestScheduleH3ExpiryOnceRecordedIsFinal(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	la := w.ready(a, "p", "A")
	w.expire("p")
	_, err := a.Publish(t.Context(), publish(la))
	refusedFor(t, err, ReasonExpired)
	w.fate(la, StateExpired)

	// The clock steps back: seen from the row, the expiry lies ahead again.
	w.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp() + interval '30 seconds' WHERE name = 'p'`)
	_, err = a.Publish(t.Context(), publish(la))
	refusedFor(t, err, ReasonExpired)
	_, err = a.Renew(t.Context(), la.ID, la.Token, 0)
	lostFor(t, err, ReasonExpired)
	_, err = a.Stage(t.Context(), la.ID, la.Token, []StageFile{{Path: "x"}})
	lostFor(t, err, ReasonExpired)
	w.shows("p", "")
}

func TestScheduleH3EveryObserverRecordsTheExpiry(t *testing.T) {
	observe := map[string]func(*Catalogue, Lease) error{
		"renew":   func(c *Catalogue, l Lease) error { _, err := c.Renew(t.Context(), l.ID, l.Token, 0); return err },
		"publish": func(c *Catalogue, l Lease) error { _, err := c.Publish(t.Context(), publish(l)); return err },
		"stage": func(c *Catalogue, l Lease) error {
			_, err := c.Stage(t.Context(), l.ID, l.Token, []StageFile{{Path: "x"}})
			return err
		},
		"release": func(c *Catalogue, l Lease) error { return c.Release(t.Context(), l.ID) },
	}
	for name, f := range observe {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pointer("p")
			a := w.worker()
			l := w.ready(a, "p", "A")
			w.expire("p")
			if err := f(a, l); err == nil && name != "release" {
				t.Error("an expired lease could still act")
			}
			w.fate(l, StateExpired)
		})
	}
}

func TestScheduleH4SecondPublishOfOneLease(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	w.published(a, l)
	_, err := a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonAlreadyPublished)
	w.shows("p", "1.1")
}

func TestScheduleH5PublishThatWaitsPastItsExpiry(t *testing.T) {
	end := map[string]func(pgx.Tx) error{
		"blocker commits a change": func(tx pgx.Tx) error {
			if _, err := tx.Exec(context.Background(), `UPDATE artifactd.pointer SET updated_at = clock_timestamp() WHERE name = 'p'`); err != nil {
				return err
			}
			return tx.Commit(context.Background())
		},
		"blocker commits":    func(tx pgx.Tx) error { return tx.Commit(context.Background()) },
		"blocker rolls back": func(tx pgx.Tx) error { return tx.Rollback(context.Background()) },
	}
	for name, finish := range end {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pointer("p")
			a := w.worker()
			l := w.ready(a, "p", "A")
			w.shorten("p", 2*time.Second) // for the publish to come to the lock
			blocker := w.hold("p")
			answer := make(chan error, 1)
			go func() {
				_, err := a.Publish(context.Background(), publish(l))
				answer <- err
			}()
			w.awaitBlocked(1)
			w.awaitExpiry("p")
			if err := finish(blocker); err != nil {
				t.Fatal(err)
			}
			refusedFor(t, <-answer, ReasonExpired)
			w.shows("p", "")
			w.fate(l, StateExpired)
		})
	}
}

func TestScheduleH6PublishInAnOldTransaction(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	conn := w.db.ConnectService(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	w.expire("p")
	args, err := publishArgs(new(publish(l)))
	if err != nil {
		t.Fatal(err)
	}
	var status string
	var answer []byte
	if err := tx.QueryRow(t.Context(), publishSQL, append(args, false, InlineSealFiles)...).Scan(&status, &answer); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = publishAnswer(uuid.Nil, status, answer)
	refusedFor(t, err, ReasonExpired)
	w.shows("p", "")
}

func TestDecisionsNeedReadCommitted(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	conn := w.db.ConnectService(t)
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	args, err := publishArgs(new(publish(l)))
	if err != nil {
		t.Fatal(err)
	}
	var status string
	var answer []byte
	if err := tx.QueryRow(t.Context(), publishSQL, append(args, false, InlineSealFiles)...).Scan(&status, &answer); err == nil {
		t.Errorf("publish under repeatable read answered %s", status)
	}
	_ = tx.Rollback(t.Context())
	w.shows("p", "")
}

func TestScheduleH7UncommittedPublishAgainstAcquire(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(map[bool]string{true: "commit", false: "rollback"}[commit], func(t *testing.T) {
			w := newWorld(t)
			w.pointer("p")
			a, b := w.worker(), w.worker()
			l := w.ready(a, "p", "A")
			conn := w.db.ConnectService(t)
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			args, err := publishArgs(new(publish(l)))
			if err != nil {
				t.Fatal(err)
			}
			// Long enough for this one statement on the busiest machine, and waited out below.
			w.shorten("p", 8*time.Second)
			var status string
			var answer []byte
			if err := tx.QueryRow(t.Context(), publishSQL, append(args, false, InlineSealFiles)...).Scan(&status, &answer); err != nil || status != "published" {
				t.Fatalf("%s, %v", status, err)
			}
			acquired := make(chan Lease, 1)
			go func() {
				lease, err := b.Acquire(context.Background(), AcquireRequest{Pointer: "p", Holder: "B"})
				if err != nil {
					t.Error(err)
				}
				acquired <- lease
			}()
			w.awaitBlocked(1)
			w.awaitExpiry("p")
			want := ""
			if commit {
				want = "1.1"
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			lb := <-acquired
			if lb.Token != (Token{1, 2}) {
				t.Errorf("B got %s, want 1.2", lb.Token)
			}
			w.shows("p", want)
			_, err = a.Publish(t.Context(), publish(l))
			if commit {
				refusedFor(t, err, ReasonAlreadyPublished)
			} else {
				refusedFor(t, err, ReasonSuperseded)
			}
		})
	}
}

func TestScheduleH8LateRenew(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q")
	a, b := w.worker(), w.worker()

	lp := w.acquire(a, "p", "A")
	w.expire("p")
	_, err := a.Renew(t.Context(), lp.ID, lp.Token, time.Minute)
	lostFor(t, err, ReasonExpired)

	lq := w.acquire(a, "q", "A")
	w.expire("q")
	w.acquire(b, "q", "B")
	before := w.expiry("q")
	_, err = a.Renew(t.Context(), lq.ID, lq.Token, time.Minute)
	lostFor(t, err, ReasonSuperseded)
	if !w.expiry("q").Equal(before) {
		t.Error("the successor's expiry has changed")
	}
}

func TestScheduleH9ManyAcquirersOneWinner(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	first := w.worker()
	w.acquire(first, "p", "first")
	blocker := w.hold("p")
	const acquirers = 50
	workers := make([]*Catalogue, 10)
	for i := range workers {
		workers[i] = w.worker()
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []Lease
	held := 0
	for i := range acquirers {
		wg.Go(func() {
			l, err := workers[i%len(workers)].Acquire(context.Background(), AcquireRequest{Pointer: "p", Holder: "many"})
			mu.Lock()
			defer mu.Unlock()
			var refusal *LeaseHeldError
			switch {
			case err == nil:
				won = append(won, l)
			case errors.As(err, &refusal):
				held++
			default:
				t.Error(err)
			}
		})
	}
	w.awaitBlocked(acquirers)
	if _, err := blocker.Exec(t.Context(), `UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp() WHERE name = 'p'`); err != nil {
		t.Fatal(err)
	}
	if err := blocker.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if len(won) != 1 || held != acquirers-1 {
		t.Fatalf("%d won and %d were told it is held, of %d", len(won), held, acquirers)
	}
	if won[0].Token != (Token{1, 2}) || w.count(`SELECT generation FROM artifactd.pointer`) != 2 {
		t.Errorf("the winner's token is %s, want 1.2, once", won[0].Token)
	}
}

func TestScheduleH10AcquireAgainWithTheSameOperation(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a, b := w.worker(), w.worker()
	req := AcquireRequest{Pointer: "p", Holder: "A", OperationID: uuid.New()}
	first, err := a.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Acquire(t.Context(), req) // the answer was lost; a retry reaches another replica
	if err != nil {
		t.Fatal(err)
	}
	if again.ID != first.ID || again.Token != first.Token || w.count(`SELECT generation FROM artifactd.pointer`) != 1 {
		t.Errorf("the retry got %s %s, want %s %s", again.ID, again.Token, first.ID, first.Token)
	}
	other := req
	other.Holder = "somebody else"
	if _, err := a.Acquire(t.Context(), other); !errors.Is(err, ErrOperationMismatch) {
		t.Errorf("another request with the same id: %v", err)
	}
	w.expire("p")
	_, err = a.Acquire(t.Context(), req)
	lostFor(t, err, ReasonExpired)
	if n := w.count(`SELECT count(*) FROM artifactd.generation`); n != 1 {
		t.Errorf("%d generations after the retries, want 1", n)
	}
	out, err := a.Operation(t.Context(), req.OperationID)
	if err != nil || out.Kind != "acquired" || out.Lease.ID != first.ID {
		t.Errorf("recorded outcome: %+v, %v", out, err)
	}
}

func TestHeldLeaseIsNoOutcome(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	la := w.acquire(a, "p", "A")
	req := AcquireRequest{Pointer: "p", Holder: "B", OperationID: uuid.New()}
	var held *LeaseHeldError
	if _, err := a.Acquire(t.Context(), req); !errors.As(err, &held) || held.Holder != "A" || held.CurrentToken != la.Token {
		t.Fatalf("got %v", err)
	}
	if err := a.Release(t.Context(), la.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Acquire(t.Context(), req); err != nil {
		t.Errorf("the same operation once the lease is free: %v", err)
	}
}

func TestScheduleH13StaleSource(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	rev := func(l Lease, r int64) error {
		req := publish(l)
		req.Leases[0].SourceRevision = &r
		_, err := a.Publish(t.Context(), req)
		return err
	}
	if err := rev(w.ready(a, "p", "one"), 10); err != nil {
		t.Fatal(err)
	}
	l := w.ready(a, "p", "two")
	refusedFor(t, rev(l, 9), ReasonSourceStale)
	w.shows("p", "1.1")
	if err := rev(l, 10); err != nil {
		t.Errorf("the same revision again, by the same lease: %v", err)
	}
	w.published(a, w.ready(a, "p", "three")) // without a revision: the mark stays
	l = w.ready(a, "p", "four")
	refusedFor(t, rev(l, 9), ReasonSourceStale)
	w.shows("p", "1.3")
}

func TestScheduleH14SeveralPointersAllOrNone(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q")
	a, b := w.worker(), w.worker()
	both := func(x, y Lease) PublishRequest {
		return PublishRequest{OperationID: uuid.New(), Leases: []PublishLease{{LeaseID: x.ID, Token: x.Token}, {LeaseID: y.ID, Token: y.Token}}}
	}
	lp, lq := w.ready(a, "p", "A"), w.ready(a, "q", "A")
	w.expire("q")
	_, err := a.Publish(t.Context(), both(lp, lq))
	refusedFor(t, err, ReasonExpired)
	var refused *RefusedError
	errors.As(err, &refused)
	if len(refused.Refusals) != 1 || refused.Refusals[0].Pointer != "q" {
		t.Errorf("refusals %+v, want q's alone", refused.Refusals)
	}
	w.shows("p", "")
	w.shows("q", "")
	w.fate(lp, StateLeased)

	// Opposite orders do not deadlock: both wait behind one blocker, then both go through.
	lq = w.ready(b, "q", "B")
	blocker := w.hold("p")
	answers := make(chan error, 2)
	go func() { _, err := a.Publish(context.Background(), both(lp, lq)); answers <- err }()
	go func() { _, err := b.Publish(context.Background(), both(lq, lp)); answers <- err }()
	w.awaitBlocked(2)
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	errs := []error{<-answers, <-answers}
	if errs[0] != nil {
		errs[0], errs[1] = errs[1], errs[0]
	}
	if errs[0] != nil {
		t.Fatalf("neither published: %v, %v", errs[0], errs[1])
	}
	refusedFor(t, errs[1], ReasonAlreadyPublished)
	w.shows("p", "1.1")
	w.shows("q", "1.2")
}

func TestScheduleH15TokensOnlyRise(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	last := Token{}
	rises := func(l Lease) Lease {
		t.Helper()
		if l.Token.Compare(last) <= 0 {
			t.Fatalf("token %s after %s", l.Token, last)
		}
		last = l.Token
		return l
	}
	if err := a.Release(t.Context(), rises(w.acquire(a, "p", "A")).ID); err != nil {
		t.Fatal(err)
	}
	w.published(a, rises(w.ready(a, "p", "A")))
	rises(w.acquire(a, "p", "A"))
	if err := a.Retire(t.Context(), "p", Token{}); err == nil {
		t.Fatal("retired without naming what is shown")
	}
	refusedFor(t, a.Retire(t.Context(), "p", Token{1, 1}), ReasonSuperseded)
	w.shows("p", "1.2")
	if err := a.Retire(t.Context(), "p", Token{1, 2}); err != nil {
		t.Fatal(err)
	}
	w.shows("p", "")
	if _, err := a.Acquire(t.Context(), AcquireRequest{Pointer: "p", Holder: "A"}); !errors.Is(err, ErrPointerRetired) {
		t.Errorf("acquire of a retired pointer: %v", err)
	}
	if _, err := a.Resolve(t.Context(), "p"); !errors.Is(err, ErrPointerRetired) {
		t.Errorf("resolve of a retired pointer: %v", err)
	}
	w.pointer("p")
	rises(w.acquire(a, "p", "A"))
}
