package testenv

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/internal/devstack"
)

// BaseBackup copies a running server with pg_basebackup. What it returns starts as a server of its
// own, on the same timeline, unless it is made to recover from an archive first.
func BaseBackup(t testing.TB, pg *devstack.Postgres, args ...string) devstack.PostgresOptions {
	t.Helper()
	dir, err := process.folder("backup")
	if err != nil {
		t.Fatal(err)
	}
	backup := exec.CommandContext(t.Context(), filepath.Join(pg.BinDir(), "pg_basebackup"), append([]string{
		"--pgdata", filepath.Join(dir, "data"), "--checkpoint=fast", "--no-sync", "--wal-method=stream"}, args...)...)
	backup.Env = append(os.Environ(), "PGHOST="+filepath.Dir(pg.Socket()), "PGUSER=postgres")
	if out, err := backup.CombinedOutput(); err != nil {
		t.Fatalf("testenv: base backup: %v\n%s", err, out)
	}
	return devstack.PostgresOptions{DataDir: dir, FsyncOff: true}
}

// Archive is a folder that a server's WAL goes to.
type Archive struct{ dir string }

// NewArchive makes one.
func NewArchive(t testing.TB) Archive {
	t.Helper()
	dir, err := process.folder("archive")
	if err != nil {
		t.Fatal(err)
	}
	// The server may run as another account.
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return Archive{dir}
}

// Settings are those of a server that archives into it.
func (a Archive) Settings() map[string]string {
	return map[string]string{"archive_mode": "on", "archive_command": "cp %p '" + a.dir + "/%f'"}
}

// Recover makes a base backup recover from the archive when it is started: up to the target, as
// Postgres's recovery_target_… settings name it, and onto a timeline of its own.
func (a Archive) Recover(t testing.TB, o devstack.PostgresOptions, target map[string]string) devstack.PostgresOptions {
	t.Helper()
	if err := os.WriteFile(filepath.Join(o.DataDir, "data", "recovery.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o.Settings = map[string]string{"restore_command": "cp '" + a.dir + "/%f' %p", "recovery_target_action": "promote"}
	for name, value := range target {
		o.Settings[name] = value
	}
	return o
}

// CopyCluster copies the folder of a server that is stopped, byte for byte.
func CopyCluster(t testing.TB, o devstack.PostgresOptions) devstack.PostgresOptions {
	t.Helper()
	dir, err := process.folder("copy")
	if err != nil {
		t.Fatal(err)
	}
	copyFolder(t, filepath.Join(o.DataDir, "data"), filepath.Join(dir, "data"))
	o.DataDir = dir
	return o
}

// PutBack replaces the folder of a server that is stopped by a copy of it.
func PutBack(t testing.TB, backup, o devstack.PostgresOptions) {
	t.Helper()
	data := filepath.Join(o.DataDir, "data")
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	copyFolder(t, filepath.Join(backup.DataDir, "data"), data)
}

func copyFolder(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("testenv: copy a cluster: %v\n%s", err, out)
	}
}

// On is the same database as it is on another server, a restored or promoted one.
func (db *DB) On(pg *devstack.Postgres) *DB { return newDB(pg, db.Name) }

// EitherURL is the database's URL for the service's role on whichever of the servers is the primary.
func (db *DB) EitherURL(servers ...*devstack.Postgres) string {
	var hosts, ports []string
	for _, s := range servers {
		hosts, ports = append(hosts, filepath.Dir(s.Socket())), append(ports, "5432")
	}
	u := url.URL{Scheme: "postgres", User: url.User(serviceLogin), Path: "/" + db.Name, RawQuery: url.Values{
		"host": {strings.Join(hosts, ",")}, "port": {strings.Join(ports, ",")}, "target_session_attrs": {"read-write"},
	}.Encode()}
	return u.String()
}
