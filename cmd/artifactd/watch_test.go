package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactd/artifactd/api/types"
)

// awaitLines waits for n lines of output.
func awaitLines(t *testing.T, b *buffer, n int) []string {
	t.Helper()
	for range 12000 {
		if lines := strings.SplitAfter(b.String(), "\n"); len(lines) > n {
			return lines[:n]
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not %d lines: %q", n, b.String())
	return nil
}

// watches: a line for each version, also for those that came while nobody watched; Ctrl-C ends it.
func (w *runWorld) watches(t *testing.T) {
	name := w.create("run.watch")
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "f"), []byte("x"))
	watch := func(args ...string) (*exec.Cmd, *buffer) {
		var out buffer
		cmd := exec.Command(w.program, append([]string{"watch", name, "--data", w.data}, args...)...)
		cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = dir, &out, os.Stderr, []string{"PATH=" + os.Getenv("PATH")}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test failed
		return cmd, &out
	}
	end := func(cmd *exec.Cmd) {
		t.Helper()
		_ = cmd.Process.Signal(syscall.SIGINT) // its end is looked at
		if err := cmd.Wait(); err != nil {
			t.Errorf("interrupted: %v", err)
		}
	}
	cmd, out := watch("-o", "json")
	w.run(exitDone, "publish", name, file, "--holder", "one")
	if v := decode[types.ResolvedVersion](t, result{stdout: awaitLines(t, out, 1)[0]}); v.Version != "1.1" || v.Holder != "one" {
		t.Errorf("saw %+v", v)
	}
	w.run(exitDone, "publish", name, file)
	awaitLines(t, out, 2)
	end(cmd)
	for range 2 {
		w.run(exitDone, "publish", name, file, "--holder", "two")
	}
	cmd, out = watch("--after", "1.2", "--exec", `cat >$ARTIFACTD_VERSION.json; echo "$ARTIFACTD_POINTER $ARTIFACTD_VERSION"; test $ARTIFACTD_VERSION = 1.4`)
	lines := awaitLines(t, out, 4)
	if lines[0] != name+" 1.3\n" || !strings.HasPrefix(lines[1], "1.3  ") || lines[2] != name+" 1.4\n" || !strings.HasPrefix(lines[3], "1.4  ") || !strings.HasSuffix(lines[3], "two\n") {
		t.Errorf("saw %q", lines)
	}
	end(cmd)
	if v := decode[types.ResolvedVersion](t, result{stdout: readFile(t, filepath.Join(dir, "1.4.json"))}); v.Version != "1.4" {
		t.Errorf("the command was given %+v", v)
	}
	// What runs for a version ends with the watch, however that ends, and so does what it started.
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		pids := filepath.Join(t.TempDir(), "pids")
		cmd, _ = watch("--exec", `sleep 999 & echo $$ $! >`+pids+`; sleep 999; echo late`)
		group := awaitPids(t, pids, 2)[0]
		_ = cmd.Process.Signal(sig) // its end is looked at
		if err := cmd.Wait(); sig == syscall.SIGINT && err != nil {
			t.Errorf("interrupted: %v", err)
		}
		groupIsEmpty(t, group, time.Minute)
	}
	w.run(exitNotFound, "watch", "run.no-such")
	w.run(exitUsage, "watch", name, "--after", "x")
}
