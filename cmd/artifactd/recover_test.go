package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/recovery"
)

// What an operator sees and does after the database has lost something.
func TestRecoverCommand(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	file := writeFile(t, filepath.Join(t.TempDir(), "report.txt"), []byte("a report"))
	d.run(exitDone, "pointer", "create", "a.report")
	d.run(exitDone, "publish", "a.report", file)
	if r := decode[recovery.Report](t, d.run(exitDone, "recover", "-o", "json")); r.NeedsRaise || r.State != "unchanged" || r.Decisions == 0 {
		t.Errorf("%+v", r)
	}
	// The service has seen all of it; then the tables know of less.
	url := d.env()["ARTIFACTD_DATABASE_URL"]
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	var replicas, counted int64
	awaitWitness(t, d)
	if err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM artifactd.replica), (SELECT sum(n)::bigint FROM artifactd.counter)`).Scan(&replicas, &counted); err != nil || replicas != 1 {
		t.Fatalf("%d replicas, %v", replicas, err)
	}
	if _, err := conn.Exec(t.Context(), `UPDATE artifactd.counter SET n = n - 1 WHERE slot = (SELECT min(slot) FROM artifactd.counter WHERE n > 0)`); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(3 * time.Minute)
	for noted := false; !noted; { // by the service, beside this command
		noted = decode[recovery.Report](t, d.run(exitPartial, "recover", "-o", "json")).ChangedAt != nil
		if time.Now().After(deadline) {
			t.Fatal("the service does not notice")
		}
	}
	d.run(exitUnavailable, "pointer", "create", "probe")
	d.run(exitDone, "resolve", "a.report")
	unanswered := d.run(exitPartial, "recover", "-o", "json")
	if r := decode[recovery.Report](t, unanswered); !r.NeedsRaise || r.LostDecisions != 1 || r.KnownDecisions != counted {
		t.Errorf("%d were counted; %+v", counted, r)
	}
	if !strings.Contains(unanswered.stderr, "[y/N]") {
		t.Errorf("it did not ask: %s", unanswered.stderr)
	}
	// The objects are there, and the rows of the one file are not lost.
	if r := decode[inspection](t, unanswered); r.Unknown == nil || r.Unknown.Listed != 1 || r.Unknown.Objects != 0 {
		t.Errorf("%+v", r.Unknown)
	}
	if r := decode[inspection](t, d.run(exitPartial, "recover", "-o", "json", "--skip-objects")); r.Unknown != nil {
		t.Errorf("it looked all the same: %+v", r.Unknown)
	}
	if r := d.run(exitDone, "recover", "--yes"); !strings.Contains(r.stderr, "is in epoch 2") || !strings.Contains(r.stdout, "unknown to the database") || !strings.Contains(r.stderr, "collection stays off") {
		t.Errorf("%s", r.stderr)
	}
	deadline = time.Now().Add(3 * time.Minute)
	for r := (result{code: -1}); r.code != exitDone; r = run(t, nil, "publish", "a.report", file, "--data", d.data) {
		if time.Now().After(deadline) {
			t.Fatalf("writes do not go on: %+v", r)
		}
	}
	d.run(exitUnavailable, "gc", "run")
	if r := d.run(exitDone, "recover", "--resume-collection"); !strings.Contains(r.stderr, "collection goes on") || !strings.Contains(r.stderr, "is kept for another 24h") {
		t.Errorf("%s", r.stderr)
	}
	d.run(exitDone, "gc", "run")
	if r := d.run(exitDone, "recover"); !strings.Contains(r.stdout, "kept for lost versions until") {
		t.Errorf("%s", r.stdout)
	}
	if r := d.run(exitDone, "recover", "--quarantine", "0"); !strings.Contains(r.stderr, "nothing is kept for lost versions any more") {
		t.Errorf("%s", r.stderr)
	}
	if r := decode[recovery.Report](t, d.run(exitDone, "recover", "-o", "json")); r.QuarantineUntil != nil {
		t.Errorf("the quarantine that was ended is told: %s", r.QuarantineUntil)
	}
	if r := d.run(exitUsage, "recover", "--quarantine", "-1h"); !strings.Contains(r.stderr, "must not be negative") {
		t.Errorf("%s", r.stderr)
	}
}

// awaitWitness waits until the bucket bears witness of everything that was decided.
func awaitWitness(t *testing.T, d *instance) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		r := decode[recovery.Report](t, d.run(exitDone, "recover", "-o", "json"))
		if r.Witnessed == r.Decisions {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the witness tells of %d of %d decisions", r.Witnessed, r.Decisions)
		}
	}
}
