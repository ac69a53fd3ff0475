package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

func listInput(bucket, prefix string) *s3.ListObjectsV2Input {
	return &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix}
}

func stop(t *testing.T, pg *devstack.Postgres) {
	t.Helper()
	if err := pg.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// refusedAsOld checks that a lease of a lost history publishes nothing.
func refusedAsOld(t *testing.T, w worker, l pointer.Lease) {
	t.Helper()
	_, err := w.Publish(context.Background(), publication(l))
	var refused *pointer.RefusedError
	if !errors.As(err, &refused) || refused.Reason() != pointer.ReasonEpochSuperseded {
		t.Errorf("the old worker's publish: %v, want it refused as %s", err, pointer.ReasonEpochSuperseded)
	}
}

// everythingWaits checks what is answered while a loss waits for a person.
func everythingWaits(t *testing.T, r *replica, shown pointer.Token) {
	t.Helper()
	var a answer
	within(t, "writes are refused for what is lost", func() bool {
		a = r.refuses("history-changed")
		return strings.Contains(a.Detail, "are lost") && strings.Contains(a.Detail, "artifactd recover") && a.OperatorRequired
	}, &a)
	within(t, "readiness says so too", func() bool {
		a = r.call("GET", "/readyz", "")
		return a.status == http.StatusOK && a.Status == "read-only" && strings.Contains(a.Detail, "are lost")
	}, &a)
	operation := uuid.NewString()
	for _, call := range [][3]string{
		{"POST", "/v1/pointers/p/leases", `{"holder":"x"}`},
		{"POST", "/v1/operations/" + operation + "/settle", `{"pointer":"p"}`},
		{"GET", "/v1/operations/" + operation, ""},
		{"POST", "/v1/gc/runs", "{}"},
	} {
		a := r.call(call[0], call[1], call[2])
		if a.status != http.StatusServiceUnavailable || a.Code != "history-changed" {
			t.Errorf("%s %s: %s", call[0], call[1], a)
		}
		// Nobody is to wait for what a person has to decide.
		if !a.OperatorRequired || a.retryAfter != "" {
			t.Errorf("%s %s: an operator is required: %v, Retry-After %q", call[0], call[1], a.OperatorRequired, a.retryAfter)
		}
	}
	if a := r.call("GET", "/v1/pointers/p", ""); a.status != http.StatusOK || !strings.Contains(a.body, `"`+shown.String()+`"`) {
		t.Errorf("reading while writes wait: %s, want version %s", a, shown)
	}
	if a := r.call("GET", "/metrics", ""); !strings.Contains(a.body, "artifactd_history_changed 1") {
		t.Error("no metric tells of it")
	}
}

// TestScheduleD1: base backup, a thousand more publishes, restore; and D4, the collector after it.
func TestScheduleD1RestoreOfABaseBackup(t *testing.T) {
	in := newInstallation(t, testenv.Postgres(t, devstack.PostgresOptions{}))
	pg := in.db.Postgres
	r := in.replica()
	r.writes()
	r.pointer("p")
	shown := in.worker().publish("p", 3)
	backup := testenv.BaseBackup(t, pg)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			name := fmt.Sprint("q", i)
			w := in.worker()
			if _, _, err := w.PutPointer(context.Background(), name, pointer.SettingsChange{}); err != nil {
				t.Error(err)
				return
			}
			w.publish(name, 250)
		})
	}
	wg.Wait()
	w := in.worker()
	w.publish("p", 5)
	old := w.ready("p") // goes on until after the restore
	lost := in.count()
	r.end()
	stop(t, pg)

	in.goOn(testenv.Postgres(t, backup))
	r = in.replica()
	everythingWaits(t, r, shown)
	report := in.inspect()
	if report.State != "history lost" || report.KnownDecisions != lost || report.LostDecisions < 3000 {
		t.Errorf("recover shows %+v, and %d decisions were made", report, lost)
	}
	// What the store lost meanwhile is to be seen before anything is decided.
	if v, err := in.operator().Verifier.Run(context.Background(), gc.VerifyOptions{Parallel: 4}); err != nil || v.Missing != 3 {
		t.Errorf("verify found %+v, %v; the objects of 3 artifacts are not there", v, err)
	}

	in.raise()
	r.writes()
	refusedAsOld(t, in.worker(), old)
	fresh := in.worker().ready("p")
	if fresh.Token.Epoch != 2 || fresh.Token.Compare(old.Token) <= 0 {
		t.Errorf("the new token is %s, and %s was issued before", fresh.Token, old.Token)
	}
	// D4: off until an operator resumes it.
	if a := r.ask("POST", "/v1/gc/runs", "{}"); a.Code != "history-changed" || !a.OperatorRequired || a.retryAfter != "" {
		t.Errorf("collection before it is resumed: %s, Retry-After %q", a, a.retryAfter)
	}
	if resumed, err := in.operator().History.Resume(context.Background(), recovery.DefaultQuarantine); err != nil || !resumed {
		t.Errorf("resumed %v, %v", resumed, err)
	}
	if a := r.ask("POST", "/v1/gc/runs", "{}"); a.status != http.StatusOK {
		t.Errorf("collection after it was resumed: %s", a)
	}
}

// TestScheduleD2: a standby is promoted that lacks acknowledged publishes, while replicas and a worker
// go on. Generation numbers are given out again.
func TestScheduleD2PromotionThatLosesPublishes(t *testing.T) {
	primary := testenv.Postgres(t, devstack.PostgresOptions{})
	in := newInstallation(t, primary)
	first := in.replica()
	first.writes()
	first.pointer("p")
	w := in.worker()
	shown := w.publish("p", 3)
	standby, options := testenv.Standby(t, primary, "standby1")
	in.config.DatabaseURL = in.db.EitherURL(primary, standby)
	replicas := []*replica{in.replica(), in.replica(), in.replica()}
	first.end()
	replicas[0].writes()
	stop(t, standby)
	old := w.ready("p")
	if _, err := w.Publish(context.Background(), publication(old)); err != nil {
		t.Fatal(err)
	}
	held := w.ready("p") // 1.5, which the standby never saw
	in.witnessed()
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	promoted := testenv.Postgres(t, options)
	in.db = in.db.On(promoted)
	if _, err := in.db.Connect(t).Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		everythingWaits(t, r, shown)
	}
	in.raise()
	for _, r := range replicas {
		r.writes()
	}
	w = in.worker()
	w.publish("p", 1) // generation 4 once more, of another epoch
	fresh := w.ready("p")
	if fresh.Token.Generation != held.Token.Generation || fresh.Token.Epoch != 2 {
		t.Errorf("the new lease is %s, the lost one was %s", fresh.Token, held.Token)
	}
	refusedAsOld(t, w, held)
	refusedAsOld(t, w, old)
	if n := in.number(`SELECT count(*) FROM artifactd.history`); n != 2 {
		t.Errorf("the database knows %d epochs", n)
	}
}

// A clean promotion raises the epoch by itself, once, and lets writes go on.
func TestCleanPromotionRaisesTheEpochOnce(t *testing.T) {
	primary := testenv.Postgres(t, devstack.PostgresOptions{})
	in := newInstallation(t, primary)
	first := in.replica()
	first.writes()
	first.pointer("p")
	standby, _ := testenv.Standby(t, primary, "standby1")
	in.config.DatabaseURL = in.db.EitherURL(primary, standby)
	replicas := []*replica{in.replica(), in.replica(), in.replica()}
	first.end()
	replicas[0].writes()
	w := in.worker()
	w.publish("p", 3)
	held := w.ready("p")
	// Everything has arrived at the standby, and what it missed would be told by nobody else.
	in.witnessed()
	owner := in.db.Connect(t)
	within(t, "the standby has everything", func() bool {
		var same bool
		if err := owner.QueryRow(t.Context(), `SELECT coalesce(bool_and(replay_lsn = pg_current_wal_lsn()), false) FROM pg_stat_replication`).Scan(&same); err != nil {
			t.Fatal(err)
		}
		return same
	}, nil)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	in.db = in.db.On(standby)
	owner = in.db.Connect(t)
	promotedAt := time.Now()
	if _, err := owner.Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		r.writes()
	}
	t.Logf("with T = %s writes went on %s after the promotion", quick.Confirm, time.Since(promotedAt).Round(10*time.Millisecond))
	w = in.worker()
	refusedAsOld(t, w, held)
	if fresh := w.ready("p"); fresh.Token != (pointer.Token{Epoch: 2, Generation: 5}) {
		t.Errorf("the new lease is %s", fresh.Token)
	}
	if n := in.number(`SELECT count(*) FROM artifactd.history`); n != 2 {
		t.Errorf("the database knows %d epochs", n)
	}
	if keys := in.keys("epochs/"); len(keys) != 2 {
		t.Errorf("the bucket holds %v", keys)
	}
	if a := replicas[1].ask("POST", "/v1/gc/runs", "{}"); a.Code != "history-changed" {
		t.Errorf("collection before an operator has seen it: %s", a)
	}
}

// TestScheduleD3: the data folder is copied back while timeline and system identifier stay the same.
func TestScheduleD3DataFolderCopiedBack(t *testing.T) {
	options := testenv.BaseBackup(t, testenv.Postgres(t, devstack.PostgresOptions{})) // a folder that can be named
	pg := testenv.Postgres(t, options)
	in := newInstallation(t, pg)
	r := in.replica()
	r.writes()
	r.pointer("p")
	shown := in.worker().publish("p", 2)
	r.end()
	stop(t, pg)
	backup := testenv.CopyCluster(t, options)

	in.goOn(testenv.Postgres(t, options))
	r = in.replica()
	r.writes()
	w := in.worker()
	w.publish("p", 2)
	held := w.ready("p")
	r.end()
	stop(t, in.db.Postgres)
	testenv.PutBack(t, backup, options)

	in.goOn(testenv.Postgres(t, options))
	r = in.replica()
	everythingWaits(t, r, shown)
	if n := in.number(`SELECT count(*) FROM artifactd.installation i, pg_control_system() c
		WHERE i.system_identifier = c.system_identifier AND i.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)`); n != 1 {
		t.Error("timeline or system identifier changed: this is not the schedule")
	}
	in.raise()
	r.writes()
	refusedAsOld(t, in.worker(), held)
}

// A restore to a moment, from an archive, is on a timeline of its own.
func TestRestoreToAMomentFromAnArchive(t *testing.T) {
	archive := testenv.NewArchive(t)
	pg := testenv.Postgres(t, devstack.PostgresOptions{Settings: archive.Settings()})
	in := newInstallation(t, pg)
	r := in.replica()
	r.writes()
	r.pointer("p")
	w := in.worker()
	w.publish("p", 1)
	backup := testenv.BaseBackup(t, pg)
	shown := w.publish("p", 2)
	owner := in.db.Connect(t)
	if _, err := owner.Exec(t.Context(), `SELECT pg_create_restore_point('here')`); err != nil {
		t.Fatal(err)
	}
	w.publish("p", 3)
	held := w.ready("p")
	if _, err := owner.Exec(t.Context(), `SELECT pg_switch_wal()`); err != nil {
		t.Fatal(err)
	}
	r.end()
	stop(t, pg) // which archives what is left

	in.goOn(testenv.Postgres(t, archive.Recover(t, backup, map[string]string{"recovery_target_name": "here"})))
	within(t, "the restore is over", func() bool { return in.number(`SELECT pg_is_in_recovery()::int`) == 0 }, nil)
	r = in.replica()
	everythingWaits(t, r, shown)
	in.raise()
	r.writes()
	refusedAsOld(t, in.worker(), held)
}

// After a plain restart of the server nothing is missing: the same epoch goes on.
func TestRestartOfTheServerIsReleased(t *testing.T) {
	options := testenv.BaseBackup(t, testenv.Postgres(t, devstack.PostgresOptions{}))
	in := newInstallation(t, testenv.Postgres(t, options))
	replicas := []*replica{in.replica(), in.replica()}
	replicas[0].writes()
	replicas[0].pointer("p")
	held := in.worker().ready("p")
	stop(t, in.db.Postgres)
	in.goOn(testenv.Postgres(t, options))
	for _, r := range replicas {
		r.writes()
	}
	if _, err := in.worker().Publish(context.Background(), publication(held)); err != nil {
		t.Errorf("the lease from before the restart: %v", err)
	}
	if n := in.number(`SELECT epoch FROM artifactd.installation`); n != 1 {
		t.Errorf("the epoch is %d", n)
	}
}

// Two operators recover at once: one epoch, which both are told.
func TestTwoOperatorsRecoverAtOnce(t *testing.T) {
	options := testenv.BaseBackup(t, testenv.Postgres(t, devstack.PostgresOptions{}))
	pg := testenv.Postgres(t, options)
	in := newInstallation(t, pg)
	r := in.replica()
	r.writes()
	r.end()
	stop(t, pg)
	backup := testenv.CopyCluster(t, options)
	in.goOn(testenv.Postgres(t, options))
	r = in.replica()
	r.writes()
	if _, _, err := in.worker().PutPointer(context.Background(), "p", pointer.SettingsChange{}); err != nil {
		t.Fatal(err)
	}
	r.end()
	stop(t, in.db.Postgres)
	testenv.PutBack(t, backup, options)
	in.goOn(testenv.Postgres(t, options))

	var raised [2]pointer.EpochID
	var wg sync.WaitGroup
	for i := range raised {
		m := in.operator()
		report, err := m.History.Inspect(t.Context())
		if err != nil || !report.NeedsRaise {
			t.Fatalf("%+v, %v", report, err)
		}
		wg.Go(func() {
			var err error
			if raised[i], err = m.History.Raise(context.Background(), report); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if raised[0] != raised[1] || raised[0].Number != 2 {
		t.Errorf("they raised %v", raised)
	}
	if keys := in.keys("epochs/"); len(keys) != 2 {
		t.Errorf("the bucket holds %v", keys)
	}
	in.replica().writes()
}
