package devstack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentEnv makes the test binary a parent that starts a whole stack in the named folder, prints
// its process ids and waits to be killed.
const parentEnv = "DEVSTACK_TEST_PARENT"

func TestMain(m *testing.M) {
	if RunChild() {
		return
	}
	if dir := os.Getenv(parentEnv); dir != "" {
		runParent(dir)
	}
	os.Exit(m.Run())
}

type parentReport struct{ Postgres, S3, Supervised int }

func runParent(dir string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	pg, err := StartPostgres(ctx, PostgresOptions{DataDir: filepath.Join(dir, "postgres"), FsyncOff: true})
	if err != nil {
		fail(err)
	}
	s3, err := StartS3(ctx, S3Options{DataDir: filepath.Join(dir, "s3")})
	if err != nil {
		fail(err)
	}
	pidFile := filepath.Join(dir, "supervised.pid")
	_, err = StartProcess(ctx, ProcessSpec{
		Path: "/bin/sh", Args: []string{"-c", `echo $$ > "$1" && exec sleep 1000`, "sh", pidFile},
		Env: os.Environ(), Dir: dir, Log: filepath.Join(dir, "supervised.log"), supervise: true,
	})
	if err != nil {
		fail(err)
	}
	supervised := 0
	for supervised == 0 {
		time.Sleep(pollInterval)
		if b, err := os.ReadFile(pidFile); err == nil {
			_, _ = fmt.Sscan(string(b), &supervised)
		}
	}
	b, err := json.Marshal(parentReport{Postgres: pg.Pid(), S3: s3.Pid(), Supervised: supervised})
	if err != nil {
		fail(err)
	}
	fmt.Println(string(b))
	select {}
}

// startParent runs runParent in a process of its own.
func startParent(t *testing.T, dir string) (*exec.Cmd, parentReport) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), parentEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the parent ended without a report: %v", err)
	}
	var r parentReport
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatal(err)
	}
	return cmd, r
}

// running reports whether a process is there and not a zombie: after its parent was killed,
// whoever inherits it may reap it late.
func running(t *testing.T, pid int) bool {
	t.Helper()
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return false
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
	if err != nil {
		return false
	}
	return !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// shortTempDir is a temporary folder with a short path; t.TempDir's contains the test's name.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devstack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}

func stopWithin(t *testing.T, stop func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}
