package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/testenv"
)

// block is one fenced block of shell commands in the README.
type block struct {
	section string
	text    string
}

var fence = regexp.MustCompile("(?ms)^## ([^\n]+)\n|^```sh\n(.*?)^```\n")

func readmeBlocks(t *testing.T) []block {
	t.Helper()
	var blocks []block
	section := ""
	for _, m := range fence.FindAllStringSubmatch(readFile(t, "../../README.md"), -1) {
		if m[1] != "" {
			section = m[1]
			continue
		}
		blocks = append(blocks, block{section, m[2]})
	}
	return blocks
}

// inSection joins the blocks of a section, which must be there.
func inSection(t *testing.T, blocks []block, section string) string {
	t.Helper()
	var all strings.Builder
	for _, b := range blocks {
		if b.section == section {
			all.WriteString(b.text)
		}
	}
	if all.Len() == 0 {
		t.Fatalf("the README has no commands under %q", section)
	}
	return all.String()
}

// shell runs commands as a person would type them, ending at the first that fails.
func shell(t *testing.T, dir, commands string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestReadmeIsCovered: a new section with commands needs a test here.
func TestReadmeIsCovered(t *testing.T) {
	known := map[string]bool{"Try it": true, "A tour in three minutes": true, "Test it": true, "Run it for real": true, "Access": true}
	for _, b := range readmeBlocks(t) {
		if !known[b.section] {
			t.Errorf("no test runs the commands under %q", b.section)
		}
	}
}

// TestReadme runs what the README says. All of it builds the program in the checkout: one after the
// other, beside other tests.
func TestReadme(t *testing.T) {
	t.Parallel()
	t.Run("tour", readmeTour)
	t.Run("for real", readmeForReal)
	t.Run("access", readmeAccess)
}

// readmeTour starts `make dev` as the README says, and takes the tour in a second shell.
func readmeTour(t *testing.T) {
	blocks := readmeBlocks(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// The tour speaks of the checkout's folder; its own data must not touch the developer's.
	if err := os.Symlink(filepath.Join(root, ".cache"), filepath.Join(dir, ".cache")); err != nil {
		t.Fatal(err)
	}
	startMakeDev(t, root, inSection(t, blocks, "Try it"), filepath.Join(dir, ".artifactd"))
	// Whoever liked it takes it again, on the same data.
	for range 2 {
		seesTheTour(t, shell(t, dir, inSection(t, blocks, "A tour in three minutes")))
	}
}

// seesTheTour checks what the tour is there to show.
func seesTheTour(t *testing.T, out string) {
	t.Helper()
	for _, want := range []string{"status 409", `"reason":"superseded"`, "worker B", "superseded"} {
		if !strings.Contains(strings.ReplaceAll(out, `": "`, `":"`), want) {
			t.Errorf("the tour does not show %q", want)
		}
	}
	if !regexp.MustCompile(`(?m)^objects deleted +1$`).MatchString(out) {
		t.Errorf("the refused bytes were not collected")
	}
	if t.Failed() {
		t.Log(out)
	}
}

// startMakeDev runs the README's command in the checkout and waits for client.env.
func startMakeDev(t *testing.T, root, command, data string) {
	t.Helper()
	var out buffer
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, &out, &out
	cmd.Env = append(os.Environ(), "DEV_FLAGS=--data "+data+" --listen 127.0.0.1:0 --gc-interval 0")
	// Ctrl-C in a terminal reaches the whole group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // it may have ended
		select {
		case <-ended:
		case <-time.After(3 * time.Minute):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			t.Errorf("make dev did not end on Ctrl-C: %s", out.String())
		}
	})
	deadline := time.Now().Add(10 * time.Minute)
	for {
		if _, err := os.Stat(filepath.Join(data, clientEnvName)); err == nil {
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("make dev ended: %v\n%s", err, out.String())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("make dev is not ready: %s", out.String())
		}
	}
}

// TestReadmeMakeTargets: running them here would run this test again, so make is asked what it would do.
func TestReadmeMakeTargets(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(inSection(t, readmeBlocks(t), "Test it")), "\n")
	for _, line := range lines {
		target, ok := strings.CutPrefix(line, "make ")
		if !ok {
			t.Errorf("%q is not run by any test", line)
			continue
		}
		shell(t, "../..", "make -n "+target)
	}
}

// readmeForReal runs the commands for servers of one's own on a database and a bucket of the
// test's. Those for Docker are held against compose.yaml.
func readmeForReal(t *testing.T) {
	var real strings.Builder
	for line := range strings.Lines(inSection(t, readmeBlocks(t), "Run it for real")) {
		rest, ok := strings.CutPrefix(line, "docker compose ")
		switch {
		case !ok:
			real.WriteString(line)
		case strings.HasPrefix(rest, "run --rm serve "):
			words := strings.Fields(rest)[3:]
			if cmd, _, err := (&Program{Stderr: &bytes.Buffer{}}).command().Find(words); err != nil || !cmd.Runnable() {
				t.Errorf("%q: no such command", line)
			}
		case !strings.HasPrefix(rest, "up "):
			t.Errorf("%q is not run by any test", line)
		}
	}
	db, bucket := testenv.Database(t), testenv.Bucket(t, testenv.Versitygw)
	owner := db.URL
	dir := t.TempDir()
	if err := daemon.EnsureLogin(t.Context(), owner, devLogin); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	shell(t, root, "make build")
	// The service is ended as Ctrl-C does once it serves, and must end in order.
	script := "exec 2>stderr\ntrap 'cat stderr' EXIT\n" + real.String() +
		"for _ in {1..3000}; do grep -q 'serving on' stderr && break; kill -0 %1; sleep 0.1; done\nkill %1\nwait %1\n"
	out := shell(t, dir, script, "PATH="+filepath.Join(root, ".cache", "bin")+":"+os.Getenv("PATH"), "OWNER_URL="+owner, "SERVICE_URL="+db.ServiceURL,
		"ARTIFACTD_ALLOW_UNSAFE_DURABILITY=true", // the test server does not sync
		"ARTIFACTD_S3_ENDPOINT="+bucket.Endpoint, "ARTIFACTD_S3_BUCKET="+bucket.Name, "ARTIFACTD_S3_PATH_STYLE=true",
		"ARTIFACTD_S3_ACCESS_KEY_ID="+bucket.AccessKeyID, "ARTIFACTD_S3_SECRET_ACCESS_KEY="+bucket.SecretAccessKey)
	if !regexp.MustCompile(`(?m)^artd_\w+$`).MatchString(out) || !strings.Contains(out, "up to date") || !strings.Contains(out, "serving on") {
		t.Errorf("printed %s", out)
	}
}

// readmeAccess runs the commands of the section on access, against a service of their own.
func readmeAccess(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	shell(t, root, "make build")
	port := freePort(t)
	var script strings.Builder
	script.WriteString("exec 2>stderr\ntrap 'cat stderr' EXIT\n")
	for _, b := range readmeBlocks(t) {
		if b.section != "Access" {
			continue
		}
		script.WriteString(strings.ReplaceAll(b.text, "8443", port))
		if strings.Contains(b.text, "artifactd serve") {
			script.WriteString("for _ in {1..3000}; do grep -q 'serving on' stderr && break; kill -0 %1; sleep 0.1; done\n")
		}
	}
	script.WriteString("kill %1\nwait %1\n")
	db, bucket := testenv.Database(t), testenv.Bucket(t, testenv.Versitygw)
	out := shell(t, t.TempDir(), script.String(), "PATH="+filepath.Join(root, ".cache", "bin")+":"+os.Getenv("PATH"), "ARTIFACTD_DATABASE_URL="+db.ServiceURL,
		"ARTIFACTD_ALLOW_UNSAFE_DURABILITY=true", // the test server does not sync
		"ARTIFACTD_S3_ENDPOINT="+bucket.Endpoint, "ARTIFACTD_S3_BUCKET="+bucket.Name, "ARTIFACTD_S3_PATH_STYLE=true",
		"ARTIFACTD_S3_ACCESS_KEY_ID="+bucket.AccessKeyID, "ARTIFACTD_S3_SECRET_ACCESS_KEY="+bucket.SecretAccessKey)
	for _, want := range []string{"ci-reports", "ready", "acme.reports.daily", "audit: administered", "operation=PutPointer"} {
		if !strings.Contains(out, want) {
			t.Errorf("printed no %q: %s", want, out)
		}
	}
}

// freePort is a port that nobody listened on a moment ago. It is below those that systems give out by
// themselves, so that nobody gets it in the meantime.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(10_000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}
