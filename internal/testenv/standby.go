package testenv

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/artifactd/artifactd/internal/devstack"
)

// Standby starts a streaming standby of primary, by a base backup, for this test alone. It calls
// itself name to its primary, as synchronous_standby_names knows it. It is stopped when the test
// ends; a test may stop it before, and start it again on its DataDir.
func Standby(t testing.TB, primary *devstack.Postgres, name string) (*devstack.Postgres, devstack.PostgresOptions) {
	t.Helper()
	dir, err := process.folder("standby")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Dir(primary.Socket())
	backup := exec.CommandContext(t.Context(), filepath.Join(primary.BinDir(), "pg_basebackup"), "--pgdata", filepath.Join(dir, "data"),
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname", "host="+socket+" user=postgres application_name="+name)
	if out, err := backup.CombinedOutput(); err != nil {
		t.Fatalf("testenv: base backup: %v\n%s", err, out)
	}
	o := devstack.PostgresOptions{DataDir: dir, FsyncOff: true, Settings: map[string]string{"hot_standby": "on"}}
	return Postgres(t, o), o
}
