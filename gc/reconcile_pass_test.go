package gc_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// While a pass is under way nobody begins another; when it has ended, anybody may.
func TestReconcileOnePassAtATime(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	lost := s.orphan("lost", nil)
	other := newReconciler(t, s.pool, s.store, s.layout)
	tried := 0
	store := &meddling{ReconcileStore: s.store, onFirstListed: func() {
		tried++
		r, err := other.RunOnce(t.Context(), anyShare)
		if !errors.Is(err, gc.ErrPassRunning) || r.Listed != 0 || !strings.Contains(err.Error(), "taken over after") {
			t.Errorf("a second pass: %+v, %v", r, err)
		}
	}}
	r, err := newReconciler(t, s.pool, store, s.layout).RunOnce(t.Context(), anyShare)
	if err != nil || tried != 1 || r.Unknown != 1 || r.Moved != 0 {
		t.Fatalf("%+v, %v, %d tries", r, err, tried)
	}
	// Nor does a pass that failed keep others waiting.
	cut := &meddling{ReconcileStore: s.store, listFault: errors.New("cut")}
	if _, err := newReconciler(t, s.pool, cut, s.layout).RunOnce(t.Context(), anyShare); err == nil {
		t.Fatal("the listing was not cut")
	}
	if r, err := other.RunOnce(t.Context(), anyShare); err != nil || r.Moved != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	s.collect()
	if s.there(lost) {
		t.Error("the unknown object is still there")
	}
}

// A holder that stands still, or is dead, is taken over by the database's clock. When it wakes up it
// can do nothing any more, whatever it knows.
func TestReconcileTakesOver(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	s.version("p", "one")
	s.orphan("lost", nil)
	s.pass(anyShare)
	next := newReconciler(t, s.pool, s.store, s.layout)
	store := &meddling{ReconcileStore: s.store, onHead: func(string) {
		// The listing is complete and the orphan about to be condemned; then time passes.
		s.exec(`UPDATE artifactd.reconcile_pass SET live_until = clock_timestamp() - interval '1 second' WHERE ended_at IS NULL`)
		if r, err := next.RunOnce(t.Context(), gc.ReconcileOptions{MaxShare: 1, DryRun: true}); err != nil || r.Due != 1 {
			t.Errorf("the one who took over: %+v, %v", r, err)
		}
	}}
	r, err := newReconciler(t, s.pool, store, s.layout).RunOnce(t.Context(), anyShare)
	if !errors.Is(err, gc.ErrPassLost) || errors.Is(err, pointer.ErrHistoryChanged) || r.Moved != 0 || s.number(ledgerSize) != 0 {
		t.Errorf("the one who was taken over: %+v, %v", r, err)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.reconcile_pass WHERE outcome = 'lost'`); n != 1 {
		t.Errorf("%d passes are written down as lost, want 1", n)
	}
	if r := s.pass(anyShare); r.Moved != 1 {
		t.Errorf("%+v", r)
	}
}

// While collection is held after a change of the history, nothing is condemned or deleted, and the
// answer says who lets it go on.
func TestNothingGoesWhileCollectionIsHeld(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	lost := s.orphan("lost", nil)
	s.pass(anyShare)
	s.exec(`UPDATE artifactd.installation SET collection_held_at = clock_timestamp()`)
	_, err := newReconciler(t, s.pool, s.store, s.layout).RunOnce(t.Context(), anyShare)
	if !errors.Is(err, pointer.ErrHistoryChanged) || errors.Is(err, gc.ErrPassLost) || !strings.Contains(err.Error(), "artifactd recover") {
		t.Errorf("reconciliation while collection is held: %v", err)
	}
	if _, err := s.collector(s.store).RunOnce(t.Context(), gc.RunOptions{}); !errors.Is(err, pointer.ErrHistoryChanged) {
		t.Errorf("collection while it is held: %v", err)
	}
	if !s.there(lost) {
		t.Error("an object is gone while collection was held")
	}
	s.exec(`UPDATE artifactd.installation SET collection_held_at = NULL`)
	if r := s.pass(anyShare); r.Moved != 1 {
		t.Errorf("when collection goes on: %+v", r)
	}
}

// A pass that is busy with the store alone keeps its lease: its beats reach the database.
func TestReconcileKeepsItsLease(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.orphan("lost", nil)
	store := &meddling{ReconcileStore: s.store, onFirstListed: func() {
		s.exec(`CREATE TABLE artifactd.renewed AS SELECT live_until FROM artifactd.reconcile_pass WHERE ended_at IS NULL`)
		s.eventually("the lease is renewed", `SELECT count(*) FROM artifactd.reconcile_pass v, artifactd.renewed r WHERE v.live_until > r.live_until AND ended_at IS NULL`)
	}}
	r := newReconciler(t, s.pool, store, s.layout)
	r.SetLease(12 * time.Second)
	if _, err := r.RunOnce(t.Context(), anyShare); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until a count is not zero.
func (s *site) eventually(what, sql string) {
	s.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); s.number(sql) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not within three minutes", what)
		}
	}
}

// Several replicas share one schedule, and a restart does not begin it anew.
func TestReconcileLoopsShareOneSchedule(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	const replicas = 3
	run := func(interval time.Duration, until string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range replicas {
			r, err := gc.NewReconciler(s.pool, s.store, s.layout, prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { r.Loop(ctx, interval, anyShare, slog.New(slog.DiscardHandler)) })
		}
		s.eventually("the loops work", until)
		cancel()
		wg.Wait()
	}
	// Due every second: passes come one after the other, and never two in one second.
	run(time.Second, `SELECT count(*) / 4 FROM artifactd.reconcile_pass WHERE outcome = 'done'`)
	if n := s.number(`SELECT count(*) FROM (SELECT started_at - lag(ended_at) OVER (ORDER BY pass_id) AS gap,
			started_at - lag(started_at) OVER (ORDER BY pass_id) AS distance FROM artifactd.reconcile_pass) g
		WHERE gap < interval '0' OR distance < interval '1 second'`); n != 0 {
		t.Errorf("%d passes overlapped, or came too early", n)
	}
	// Due every two hours: a failed one is tried again after one, a done one is not.
	s.exec(`DELETE FROM artifactd.reconcile_pass`)
	s.exec(`INSERT INTO artifactd.reconcile_pass (started_at, grace_seconds, max_share, dry_run, lease_seconds, live_until, ended_at, outcome)
		VALUES (clock_timestamp() - interval '61 minutes', 0, 1, false, 1, clock_timestamp(), clock_timestamp(), 'done')`)
	r := newReconciler(t, s.pool, s.store, s.layout)
	if ran, err := r.RunDue(t.Context(), 2*time.Hour, anyShare); err != nil || ran {
		t.Errorf("61 minutes after a pass of two hours: ran %v, %v", ran, err)
	}
	s.exec(`UPDATE artifactd.reconcile_pass SET outcome = 'failed'`)
	if ran, err := r.RunDue(t.Context(), 2*time.Hour, anyShare); err != nil || !ran {
		t.Errorf("61 minutes after a failed pass: ran %v, %v", ran, err)
	}
	if ran, err := r.RunDue(t.Context(), 2*time.Hour, anyShare); err != nil || ran {
		t.Errorf("after the pass: ran %v, %v", ran, err)
	}
}

// A pass may begin and end while another replica stands between its look at what is due and its own
// beginning: it sees that one, and does not begin.
func TestReconcileSeesAPassThatWasFaster(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	begin := `SELECT status FROM artifactd.begin_reconcile((SELECT key_prefix FROM artifactd.installation), 0, 1, false, 60, 3600)`
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var status string
	if err := tx.QueryRow(t.Context(), begin).Scan(&status); err != nil || status != "begun" {
		t.Fatalf("the first: %q, %v", status, err)
	}
	second := make(chan string, 1)
	go func() {
		var status string
		if err := s.pool.QueryRow(context.Background(), begin).Scan(&status); err != nil {
			status = err.Error()
		}
		second <- status
	}()
	for blocked := 0; blocked == 0; {
		if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&blocked); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), `SELECT artifactd.end_reconcile((SELECT max(pass_id) FROM artifactd.reconcile_pass), 'done')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status := <-second; status != "not-due" {
		t.Errorf("the second, which is not due for an hour: %s", status)
	}
}

// Who is stopped while a pass begins ends it: nobody has to wait until its lease has run out.
func TestReconcileStoppedAtItsBeginning(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended('artifactd reconcile', 0))`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r := newReconciler(t, s.pool, s.store, s.layout)
	go func() {
		_, err := r.RunOnce(ctx, anyShare)
		done <- err
	}()
	const waiting = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	s.eventually("it begins", waiting)
	stop()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	s.eventually("it has begun", `SELECT count(*) FROM artifactd.reconcile_pass`)
	if n := s.number(`SELECT count(*) FROM artifactd.reconcile_pass WHERE ended_at IS NULL`); n != 0 {
		t.Errorf("%d passes are left alive", n)
	}
}

func TestReconcileRefusesBadOptions(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	r := newReconciler(t, s.pool, s.store, s.layout)
	for _, o := range []gc.ReconcileOptions{{Grace: -1, MaxShare: 1}, {MaxShare: 1.01}, {MaxShare: -0.1}} {
		if _, err := r.RunOnce(t.Context(), o); !errors.Is(err, gc.ErrBadOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, sql := range []string{`SELECT artifactd.begin_reconcile('artifactd/', -1, 1, false, 60, NULL)`, `SELECT artifactd.begin_reconcile('artifactd/', 1, 2, false, 60, NULL)`,
		`SELECT artifactd.begin_reconcile('artifact', 1, 1, false, 60, NULL)`, `SELECT artifactd.begin_reconcile('artifactd/', 1, 1, false, 0, NULL)`} {
		if _, err := s.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s was accepted", sql)
		}
	}
}
