package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestDevEndsInOrderAndComesBack(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	d := startDev(t, data)
	env := d.env()
	info, err := os.Stat(filepath.Join(data, clientEnvName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("client.env: %v, %v", info.Mode(), err)
	}
	for _, name := range []string{"URL", "TOKEN", "DATABASE_URL", "S3_ENDPOINT", "S3_BUCKET", "S3_PREFIX", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY"} {
		if v := env["ARTIFACTD_"+name]; v == "" || strings.ContainsAny(v, "& ;'\"$`\\|<>()") {
			t.Errorf("ARTIFACTD_%s is %q, which a shell cannot take as it is", name, v)
		}
	}
	if says := d.stderr.String(); strings.Count(says, "\n  ") != 3 || !strings.Contains(says, "pointer create demo") || !strings.Contains(says, "--data "+data) {
		t.Errorf("three commands to try next: %q", says)
	}
	conn, err := pgx.Connect(t.Context(), env["ARTIFACTD_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("kept"))
	d.run(exitDone, "pointer", "create", "x")
	d.run(exitDone, "publish", "x", file)
	if code := d.stop(); code != exitDone {
		t.Errorf("Ctrl-C ended it with %d: %s", code, d.stderr.String())
	}
	if _, err := os.Stat(filepath.Join(data, clientEnvName)); err == nil {
		t.Error("client.env is still there")
	}
	d = startDev(t, data)
	if r := d.run(exitDone, "get", "x", "-O", "-"); r.stdout != "kept" {
		t.Errorf("after the restart: %q", r.stdout)
	}
	if d.env()["ARTIFACTD_TOKEN"] != env["ARTIFACTD_TOKEN"] {
		t.Error("the access token of the first run is forgotten")
	}
}

func TestDevSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	d := startDev(t, data)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	notAFolder := writeFile(t, filepath.Join(t.TempDir(), "file"), nil)
	for _, test := range []struct{ data, listen, says string }{
		{data, "127.0.0.1:0", "another artifactd dev is running"},
		{filepath.Join(t.TempDir(), "data"), busy.Addr().String(), "--listen"},
		{notAFolder, "127.0.0.1:0", notAFolder},
	} {
		r := run(t, nil, "dev", "--data", test.data, "--listen", test.listen)
		if r.code != exitFailed || !strings.Contains(r.stderr, test.says) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%+v: exit code %d, %q", test, r.code, r.stderr)
		}
	}
	d.run(exitDone, "pointer", "ls") // the first one is unharmed
}

// TestDevEndsWithItsServers: a server that dies takes everything along, with a reason.
func TestDevEndsWithItsServers(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	conn, err := pgx.Connect(t.Context(), d.env()["ARTIFACTD_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := conn.QueryRow(t.Context(), `SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context()) // it is about to die anyway
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-d.done:
		d.done <- code
		if code != exitUnavailable || !strings.Contains(d.stderr.String(), "Postgres has ended; its log is") || !strings.Contains(d.stderr.String(), "start again with") {
			t.Errorf("exit code %d: %s", code, d.stderr.String())
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("dev goes on without its database")
	}
	if _, err := os.Stat(filepath.Join(d.data, clientEnvName)); err == nil {
		t.Error("client.env is still there")
	}
}
