package devstack

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Root on a kernel without user namespaces runs Postgres as the account of its package. Anybody
// else runs it as himself.
func TestPackageAccount(t *testing.T) {
	if os.Geteuid() != 0 {
		if id, err := postgresIdentity(context.Background(), installation{}, t.TempDir()); err != nil || id != (identity{}) {
			t.Errorf("an ordinary user runs Postgres as %+v, %v", id, err)
		}
		return
	}
	ctx := context.Background()
	in, err := findPostgres(ctx, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(shortTempDir(t))
	id, err := asPackageAccount(ctx, string(dir), errNoNamespaces)
	if err != nil {
		t.Fatal(err)
	}
	if err := makeCluster(ctx, in, id, dir, true); err != nil {
		t.Fatal(err)
	}
	socketDir, err := makeSocketDir("", dir, id)
	if err != nil {
		t.Fatal(err)
	}
	pg := &Postgres{folder: dir, socketDir: socketDir, lock: &Lock{}}
	if err := pg.start(ctx, in, id, PostgresOptions{FsyncOff: true}); err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, pg.URL("postgres"), "SELECT current_user"); got != superuser {
		t.Errorf("current_user = %s", got)
	}
	stopWithin(t, pg.proc.Stop)
}

func TestUnreachableFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root gives folders away
	}
	private := filepath.Join(shortTempDir(t), "private") // below a folder of mode 0700
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := asPackageAccount(context.Background(), private, errNoNamespaces); err == nil || !strings.Contains(err.Error(), "choose a folder") {
		t.Errorf("a folder that the account cannot reach: %v", err)
	}
}
