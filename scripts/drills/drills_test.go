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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// build makes artifactd as people run it, without the race detector, where `make build` puts it.
var build = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("make", "-C", "../..", "build").CombinedOutput()
})

func program(t *testing.T) string {
	t.Helper()
	if out, err := build(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	name, err := filepath.Abs("../../.cache/bin/artifactd")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// drillTimeout is what the slowest drill may take on the busiest machine.
const drillTimeout = 8 * time.Minute

// command is a drill that is ready to run.
func command(t *testing.T, script string, env ...string) *exec.Cmd {
	t.Helper()
	artifactd := program(t)
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

// TestDrills runs them all at once: they wait most of the time, for leases and looks at the bucket.
func TestDrills(t *testing.T) {
	scripts := scripts(t)
	if len(scripts) < 6 {
		t.Fatalf("only %v are here", scripts)
	}
	printed, failed := make([]string, len(scripts)), make([]error, len(scripts))
	var running sync.WaitGroup
	for i, script := range scripts {
		var env []string
		if script != "rebuild.sh" { // one uses the store of `artifactd dev`, as a drill without a store does
			env = on(t)
		}
		command := command(t, script, env...)
		running.Go(func() {
			out, err := command.CombinedOutput()
			printed[i], failed[i] = string(out), err
		})
	}
	running.Wait()
	for i, script := range scripts {
		out := printed[i]
		if failed[i] != nil || !strings.Contains(out, "done: everything was as docs/recovery.md says") {
			t.Errorf("%s: %v, and it printed:\n%s", script, failed[i], out)
		}
		if left := folderOf(t, out); exists(left) {
			t.Errorf("%s left %s behind", script, left)
		}
	}
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

// A drill that finds something else than the page promises says so and ends with 1, and ends its
// servers: here the program is one that never publishes.
func TestADrillFails(t *testing.T) {
	artifactd := program(t)
	broken := filepath.Join(t.TempDir(), "artifactd")
	script := "#!/bin/sh\n[ \"$1\" = publish ] && exit 0\nexec '" + artifactd + "' \"$@\"\n"
	if err := os.WriteFile(broken, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, "copied-back.sh", append(on(t), "DRILL_ARTIFACTD="+broken)...)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "FAILED: ") {
		t.Errorf("%v, and it printed:\n%s", err, out)
	}
	if left := folderOf(t, string(out)); exists(left) {
		t.Errorf("it left %s behind", left)
	}
}
