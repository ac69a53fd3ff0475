package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// acknowledged is a publish that somebody was told of.
type acknowledged struct {
	pointer, body string
	lease         pointer.Lease
}

// publishes publishes versions whose one file has real bytes in the bucket.
func (in *installation) publishes(from, to int) (list []acknowledged) {
	in.t.Helper()
	layout := artifacts.Layout{Prefix: in.config.S3.Prefix}
	store, err := s3store.New(in.t.Context(), s3store.Config{Endpoint: in.bucket.Endpoint, Region: in.bucket.Region, Bucket: in.bucket.Name,
		Prefix: layout.Prefix, AccessKeyID: in.bucket.AccessKeyID, SecretAccessKey: in.bucket.SecretAccessKey, PathStyle: true})
	if err != nil {
		in.t.Fatal(err)
	}
	w := in.worker()
	for i := from; i < to; i++ {
		a := acknowledged{pointer: fmt.Sprintf("r%d", i%4), body: fmt.Sprintf("body %d", i)}
		if _, _, err := w.PutPointer(in.t.Context(), a.pointer, pointer.SettingsChange{}); err != nil {
			in.t.Fatal(err)
		}
		if a.lease, err = w.Acquire(in.t.Context(), pointer.AcquireRequest{Pointer: a.pointer, Holder: "worker"}); err != nil {
			in.t.Fatal(err)
		}
		staged, err := w.Stage(in.t.Context(), a.lease.ID, a.lease.Token, []pointer.StageFile{{Path: "file", Digest: artifacts.DigestOf([]byte(a.body)), Size: int64(len(a.body))}})
		if err != nil {
			in.t.Fatal(err)
		}
		f := staged[0].Artifact
		u := artifacts.Upload{Key: layout.ArtifactKey(f.Digest, f.ID), Digest: f.Digest, Size: f.Size}
		if err := store.Put(in.t.Context(), u, strings.NewReader(a.body)); err != nil {
			in.t.Fatal(err)
		}
		if err := w.MarkStored(in.t.Context(), f.ID, pointer.VerifiedOnTransfer); err != nil {
			in.t.Fatal(err)
		}
		if _, err := w.Publish(in.t.Context(), publication(a.lease)); err != nil {
			in.t.Fatal(err)
		}
		list = append(list, a)
	}
	return list
}

// recorded waits until the bucket has a record of everything.
func (in *installation) recorded() {
	in.t.Helper()
	owner := in.db.Connect(in.t)
	within(in.t, "the bucket has every record", func() bool {
		var waiting int
		if err := owner.QueryRow(in.t.Context(), `SELECT count(*) FROM artifactd.outbox`).Scan(&waiting); err != nil {
			in.t.Fatal(err)
		}
		return waiting == 0
	}, nil)
}

// owners is what an operator has who may bring versions back.
func (in *installation) owners() *daemon.Maintenance {
	in.t.Helper()
	c := in.config
	c.DatabaseURL = in.db.URL
	m, err := daemon.OpenMaintenance(context.Background(), c)
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(m.Close)
	return m
}

// TestScheduleD1LostPublishesComeBack and D2: of what was acknowledged before the database lost part of
// its history, everything that the outbox had written is there or is listed as lost, and comes back.
func TestScheduleD1LostPublishesComeBack(t *testing.T) {
	in := newInstallation(t, testenv.Postgres(t, devstack.PostgresOptions{}))
	r := in.replica()
	r.writes()
	all := in.publishes(0, 8)
	backup := testenv.BaseBackup(t, in.db.Postgres)
	all = append(all, in.publishes(8, 40)...)
	in.recorded()
	r.end()
	late := in.publishes(40, 44) // after the last worker: the outbox's lag
	stop(t, in.db.Postgres)
	in.goOn(testenv.Postgres(t, backup))
	r = in.replica()
	r.refuses("history-changed")
	in.comeBack(r, all, late)
}

// TestScheduleD2LostPublishesComeBack: the same by the promotion of a standby that lags.
func TestScheduleD2LostPublishesComeBack(t *testing.T) {
	primary := testenv.Postgres(t, devstack.PostgresOptions{})
	in := newInstallation(t, primary)
	first := in.replica()
	first.writes()
	all := in.publishes(0, 8)
	standby, options := testenv.Standby(t, primary, "standby1")
	stop(t, standby)
	all = append(all, in.publishes(8, 40)...)
	in.recorded()
	first.end()
	late := in.publishes(40, 44)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	promoted := testenv.Postgres(t, options)
	in.goOn(promoted)
	if _, err := in.db.Connect(t).Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	r := in.replica()
	r.refuses("history-changed")
	in.comeBack(r, all, late)
}

func (in *installation) comeBack(r *replica, all, late []acknowledged) {
	t := in.t
	t.Helper()
	lost := map[uuid.UUID]recovery.LostVersion{}
	look := func(o recovery.RebuildOptions) recovery.RebuildReport {
		t.Helper()
		clear(lost)
		o.Version = func(v recovery.LostVersion) { lost[v.GenerationID] = v }
		report, err := in.owners().Rebuild(o).Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	look(recovery.RebuildOptions{DryRun: true})
	known, owner := 0, in.db.Connect(t)
	for _, a := range all {
		var there bool
		if err := owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM artifactd.generation WHERE generation_id = $1 AND state = 'published')`, a.lease.ID).Scan(&there); err != nil {
			t.Fatal(err)
		}
		if there {
			known++
		} else if v, ok := lost[a.lease.ID]; !ok || v.Files != 1 || v.Bytes != int64(len(a.body)) {
			t.Errorf("%s %s was acknowledged, is not there and is not listed as lost: %+v", a.pointer, a.lease.Token, v)
		}
	}
	if known == 0 || known == len(all) {
		t.Fatalf("%d of %d publishes are known: the database lost nothing, or everything", known, len(all))
	}
	for _, a := range late {
		if _, ok := lost[a.lease.ID]; ok {
			t.Errorf("%s was published after the last worker and has a record", a.lease.Token)
		}
	}
	in.raise()
	if report := look(recovery.RebuildOptions{}); int(report.Restored) != len(all)-known || report.Skipped != 0 {
		t.Fatalf("%+v", report)
	}
	for _, v := range lost {
		if v.Restored.Epoch != 2 {
			t.Errorf("%s came back as %s", v.Token, v.Restored)
		}
		// The history tells which it was.
		if a := r.call("GET", "/v1/pointers/"+v.Pointer+"/versions?limit=1000", ""); !strings.Contains(a.body, fmt.Sprintf(`"recovered_from":%q`, v.Token.String())) {
			t.Errorf("the history of %s does not tell what came back as %s: %s", v.Pointer, v.Restored, a)
		}
	}
	r.writes()
	shown := map[string]string{}
	for _, a := range all {
		shown[a.pointer] = a.body
	}
	for name, body := range shown {
		if got := r.file(name, "file"); got != body {
			t.Errorf("%s shows %q, not %q", name, got, body)
		}
	}
	if v, err := in.owners().Verifier.Run(context.Background(), gc.VerifyOptions{Deep: true}); err != nil || v.Wrong() != 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	// The old workers stay out, and what they published is told as where it is now.
	refusedAsOld(t, in.worker(), all[len(all)-1].lease)
}

// file reads a file of what a pointer shows.
func (r *replica) file(name, path string) string {
	r.in.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), "GET", r.url+"/v1/pointers/"+name+"/files/"+path, nil)
	if err != nil {
		r.in.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.in.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.in.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.in.t.Fatalf("%s %s: %s %s %v", name, path, resp.Status, b, err)
	}
	return string(b)
}
