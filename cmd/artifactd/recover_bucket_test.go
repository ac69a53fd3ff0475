package main

import (
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/recovery"
)

// What an operator types: an empty database becomes the installation of the bucket again.
func TestRecoverFromBucketCommand(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	d.run(exitDone, "pointer", "create", "a.report", "--label", "team=x")
	for _, body := range []string{"first", "second"} {
		d.run(exitDone, "publish", "a.report", writeFile(t, filepath.Join(t.TempDir(), "report.txt"), []byte(body)))
	}
	awaitRecords(t, d.env()["ARTIFACTD_DATABASE_URL"])
	// Nothing is lost, whether it is asked with or without the service's own database.
	r := d.run(exitDone, "recover", "--from-bucket", "--dry-run")
	if !strings.Contains(r.stdout, "lost") || strings.Contains(r.stdout, "restorable") {
		t.Errorf("%s", r.stdout)
	}
	// The service's role may not even look, and is not told of noughts.
	service := strings.Replace(d.env()["ARTIFACTD_DATABASE_URL"], "postgres@", devLogin+"@", 1)
	r = d.run(exitFailed, "recover", "--from-bucket", "--dry-run", "--database-url", service)
	if !strings.Contains(r.stderr, "only the owner of the tables") || strings.Contains(r.stdout, "records in the bucket") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	for _, args := range [][]string{{"--all"}, {"--from-bucket", "--all", "--pointer", "x"}, {"--dry-run"}} {
		d.run(exitUsage, append([]string{"recover"}, args...)...)
	}

	// Another database of the same server, empty but for the schema.
	url := ownDatabase(t, d.env()["ARTIFACTD_DATABASE_URL"], "rebuilt")
	d.run(exitDone, "migrate", "--database-url", url)
	listed := d.run(exitDone, "recover", "--database-url", url, "--from-bucket", "--dry-run", "-o", "json")
	if l := decode[lostReport](t, listed); l.Lost != 2 || l.Restorable != 2 || len(l.Versions) != 2 || l.Settings != 1 {
		t.Fatalf("%s", listed.stdout)
	}
	if r := d.run(exitPartial, "recover", "--database-url", url, "--from-bucket", "--all"); !strings.Contains(r.stderr, "[y/N]") {
		t.Errorf("it did not ask: %s", r.stderr)
	}
	r = d.run(exitDone, "recover", "--database-url", url, "--from-bucket", "--all", "--yes", "--resume-collection")
	if strings.Count(r.stdout, string(recovery.LostRestored)) < 2 {
		t.Errorf("%s", r.stdout)
	}
	if v := decode[verification](t, d.run(exitDone, "verify", "--database-url", url, "--deep", "-o", "json")); v.Checked != 2 || v.Wrong() != 0 {
		t.Errorf("%+v", v)
	}
	again := d.run(exitDone, "recover", "--database-url", url, "--from-bucket", "--dry-run", "-o", "json")
	if !strings.Contains(again.stdout, `"lost": 0`) && !strings.Contains(again.stdout, `"lost":0`) {
		t.Errorf("%s", again.stdout)
	}
}

// awaitRecords waits until the bucket has every record.
func awaitRecords(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var waiting int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM artifactd.outbox`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		if waiting == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d records are not written", waiting)
		}
	}
}

// ownDatabase makes another database on the server of one, and gives its URL.
func ownDatabase(t *testing.T, of, name string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}
