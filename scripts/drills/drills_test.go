// Package drills tests the scripts beside it: each is a procedure of docs/recovery.md, on real Postgres
// servers, a real S3 server and the program itself.
package drills

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// built is artifactd as people run it, without the race detector; a copy that nobody else writes.
func built(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "artifactd")
	if out, err := exec.Command("go", "build", "-race=false", "-o", name, "../../cmd/artifactd").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return name
}

// drillTimeout is what the slowest drill may take on the busiest machine.
const drillTimeout = 15 * time.Minute

// command is a drill that is ready to run.
func command(t *testing.T, artifactd, script string, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), drillTimeout)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "sh", "./"+script)
	cmd.Env = append(append(os.Environ(), "DRILL_ARTIFACTD="+artifactd, "ARTIFACTD_S3_BUCKET="), env...)
	// The whole group is told to end, so that the script comes to its trap, which ends the servers.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	return cmd
}

// on is the environment of a drill that shares the tests' S3 server.
func on(t *testing.T) []string {
	b := testenv.Bucket(t, testenv.Versitygw)
	return []string{"ARTIFACTD_S3_ENDPOINT=" + b.Endpoint, "ARTIFACTD_S3_REGION=" + b.Region, "ARTIFACTD_S3_BUCKET=" + b.Name, "ARTIFACTD_S3_PATH_STYLE=true",
		"ARTIFACTD_S3_ACCESS_KEY_ID=" + b.AccessKeyID, "ARTIFACTD_S3_SECRET_ACCESS_KEY=" + b.SecretAccessKey}
}

// TestDrills runs several at once: they wait half of the time, for leases and looks at the bucket. And
// one more, whose program never publishes: a drill that finds something else than the page promises says
// so and ends with 1, and ends its servers all the same.
func TestDrills(t *testing.T) {
	scripts, artifactd := scripts(t), built(t)
	if len(scripts) < 6 {
		t.Fatalf("only %v are here", scripts)
	}
	drills := []*exec.Cmd{command(t, unpublishing(t, artifactd), "copied-back.sh", on(t)...)}
	for _, script := range scripts {
		var env []string
		if script != "rebuild.sh" { // one uses the store of `artifactd dev`, as a drill without a store does
			env = on(t)
		}
		drills = append(drills, command(t, artifactd, script, env...))
	}
	printed, failed := make([]string, len(drills)), make([]error, len(drills))
	var running errgroup.Group
	running.SetLimit(4)
	for i, drill := range drills {
		running.Go(func() error {
			out, err := drill.CombinedOutput()
			printed[i], failed[i] = string(out), err
			return nil
		})
	}
	if err := running.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, drill := range drills {
		out, script := printed[i], drill.Args[1]
		done := strings.Contains(out, "done: everything was as docs/recovery.md says")
		if i == 0 {
			if drill.ProcessState.ExitCode() != 1 || !strings.Contains(out, "FAILED: ") || done {
				t.Errorf("with a program that never publishes: %v, and it printed:\n%s", failed[i], out)
			}
		} else if failed[i] != nil || !done {
			t.Errorf("%s: %v, and it printed:\n%s", script, failed[i], out)
		}
		if left := folderOf(t, out); exists(left) {
			t.Errorf("%s left %s behind", script, left)
		}
	}
}

// unpublishing is a program that says that it published, and did not.
func unpublishing(t *testing.T, artifactd string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "artifactd")
	script := "#!/bin/sh\n[ \"$1\" = publish ] && exit 0\nexec '" + artifactd + "' \"$@\"\n"
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// scripts are the drills, without the file that they share.
func scripts(t *testing.T) (names []string) {
	t.Helper()
	all, err := filepath.Glob("*.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if name != "lib.sh" {
			names = append(names, name)
		}
	}
	return names
}

var folder = regexp.MustCompile(`the folder is (\S+)`)

func folderOf(t *testing.T, out string) string {
	t.Helper()
	m := folder.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("it does not say where its folder is:\n%s", out)
	}
	return m[1]
}

// TestDocsReferToEachDrill: the page and the scripts tell of each other.
func TestDocsReferToEachDrill(t *testing.T) {
	page, err := os.ReadFile("../../docs/recovery.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts(t) {
		if !strings.Contains(string(page), "scripts/drills/"+script) {
			t.Errorf("docs/recovery.md does not refer to %s", script)
		}
	}
	for _, m := range regexp.MustCompile(`scripts/drills/([a-z-]+\.sh)`).FindAllStringSubmatch(string(page), -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("docs/recovery.md refers to %s, which is not here", m[1])
		}
	}
}
