package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

func decode[T any](t *testing.T, r result) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, r.stdout)
	}
	return v
}

// TestProgram is one instance and everything a person does with it.
func TestProgram(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	t.Run("publish and get", func(t *testing.T) { publishAndGet(t, d) })
	t.Run("folders", func(t *testing.T) { folders(t, d) })
	t.Run("what came", func(t *testing.T) { whatCame(t, d) })
	t.Run("trees", func(t *testing.T) { trees(t, d) })
	t.Run("quietly", func(t *testing.T) { quietly(t, d) })
	t.Run("bad trees", func(t *testing.T) { badTrees(t, d) })
	t.Run("destinations", func(t *testing.T) { destinations(t, d) })
	t.Run("exit codes", func(t *testing.T) { exitCodes(t, d) })
	t.Run("stale worker", func(t *testing.T) { staleWorker(t, d) })
	t.Run("operation ids", func(t *testing.T) { operationIDs(t, d) })
	t.Run("rollback and retire", func(t *testing.T) { rollbackAndRetire(t, d) })
	t.Run("waits for a lease", func(t *testing.T) { leaseWaits(t, d) })
	t.Run("full disk", func(t *testing.T) { fullDisk(t, d) })
	t.Run("access tokens", func(t *testing.T) { accessTokens(t, d) })
}

func publishAndGet(t *testing.T, d *instance) {
	dir := t.TempDir()
	content := strings.Repeat("0123456789abcdef", 1<<16)
	file := writeFile(t, filepath.Join(dir, "report.bin"), []byte(content))
	d.run(exitDone, "pointer", "create", "a.report", "--keep-versions", "2", "--label", "team=x")
	r := d.run(exitDone, "publish", "a.report", file, "--metadata", "commit=4f2a9c1", "--metadata", `{"run": 7}`, "--source-revision", "0", "--holder", "me", "-o", "json")
	if r.stderr != "artifactd: sent 1.0 MiB; 0 B were there already\n" || !strings.Contains(r.stdout, `"uploaded_bytes": 1048576`) {
		t.Errorf("stderr %q, stdout %s", r.stderr, r.stdout)
	}
	if p := decode[types.Published](t, r); p.Version != "1.1" || p.Outcome != "published" {
		t.Errorf("published %+v", p)
	}
	v := decode[types.ResolvedVersion](t, d.run(exitDone, "resolve", "a.report", "-o", "json"))
	if v.Holder != "me" || v.SourceRevision == nil || *v.SourceRevision != 0 || v.Metadata == nil || len(v.Files) != 1 || v.Files[0].Path != "report.bin" {
		t.Errorf("resolved %+v", v)
	}
	var metadata map[string]any
	if err := json.Unmarshal(*v.Metadata, &metadata); err != nil || metadata["commit"] != "4f2a9c1" || metadata["run"] != float64(7) {
		t.Errorf("metadata %s, %v", *v.Metadata, err)
	}
	copied := filepath.Join(dir, "copy")
	d.run(exitDone, "get", "a.report", "-O", copied)
	if readFile(t, copied) != content {
		t.Error("other bytes came back")
	}
	if r := d.run(exitDone, "get", "a.report", "report.bin", "-O", "-"); r.stdout != content {
		t.Error("other bytes on standard output")
	}
	for _, args := range [][]string{{"pointer", "ls", "a."}, {"pointer", "show", "a.report"}, {"history", "a.report"}} {
		if r := d.run(exitDone, args...); !strings.Contains(r.stdout, "1.1") || r.stderr != "" {
			t.Errorf("%v printed %q and %q", args, r.stdout, r.stderr)
		}
	}
	if r := d.run(exitDone, "health"); strings.TrimSpace(r.stdout) != "ready" {
		t.Errorf("health printed %q", r.stdout)
	}
}

func folders(t *testing.T, d *instance) {
	site := t.TempDir()
	want := map[string]string{"index.html": "<p>", "a/b/c d.txt": "deep", "empty": ""}
	for path, content := range want {
		writeFile(t, filepath.Join(site, path), []byte(content))
	}
	d.run(exitDone, "pointer", "create", "a.site")
	d.run(exitDone, "publish", "a.site", site)
	out := filepath.Join(t.TempDir(), "out")
	d.run(exitDone, "get", "a.site", "-O", out)
	for path, content := range want {
		if got := readFile(t, filepath.Join(out, path)); got != content {
			t.Errorf("%s: %q", path, got)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(out, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	d.run(exitDone, "get", "a.site", "a/b/c d.txt", "-O", out+"/flat/")
	if got := readFile(t, filepath.Join(out, "flat", "c d.txt")); got != "deep" {
		t.Errorf("got %q", got)
	}
	d.run(exitUsage, "get", "a.site", "-O", "-")
	d.run(exitNotFound, "get", "a.site", "no/such")
	// A link is not followed out of the folder, nor left out in silence.
	if err := os.Symlink("/etc/hostname", filepath.Join(site, "link")); err != nil {
		t.Fatal(err)
	}
	if r := d.run(exitUsage, "publish", "a.site", site); !strings.Contains(r.stderr, "link is a symbolic link; with --follow-symlinks") {
		t.Errorf("stderr %q", r.stderr)
	}
	// Two files of one name.
	one, two := writeFile(t, filepath.Join(t.TempDir(), "x"), nil), writeFile(t, filepath.Join(t.TempDir(), "x"), nil)
	d.run(exitUsage, "publish", "a.site", one, two)
	d.run(exitUsage, "publish", "a.site", t.TempDir())
	d.run(exitFailed, "publish", "a.site", filepath.Join(site, "missing"))
	// A folder in the way of a link leads nowhere else.
	trap, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(trap, "a")); err != nil {
		t.Fatal(err)
	}
	d.run(exitFailed, "get", "a.site", "-O", trap)
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("written outside: %v", left)
	}
}

// whatCame: a program is told what it got, and a person, or whoever gets the bytes themselves, nothing.
func whatCame(t *testing.T, d *instance) {
	tree, out := t.TempDir(), t.TempDir()
	for path, content := range map[string]string{"a": "12345", "b/c": "123"} {
		writeFile(t, filepath.Join(tree, path), []byte(content))
	}
	d.run(exitDone, "pointer", "create", "a.came")
	d.run(exitDone, "publish", "a.came", tree)
	writeFile(t, filepath.Join(out, "a"), []byte("12345"))
	writeFile(t, filepath.Join(out, "stale"), nil)
	one := 1
	for _, tc := range []struct {
		want received
		args []string
	}{
		{received{FileCount: 2, FetchedBytes: 3, PresentBytes: 5}, []string{"-O", out}},
		{received{FileCount: 2, PresentBytes: 8, RemovedFiles: &one}, []string{"-O", out, "--delete", "-q"}},
		{received{FileCount: 1, FetchedBytes: 3}, []string{"b/c", "-O", filepath.Join(out, "c")}},
	} {
		tc.want.Pointer, tc.want.Version = "a.came", "1.1"
		r := d.run(exitDone, append([]string{"get", "a.came", "-o", "json"}, tc.args...)...)
		if got := decode[received](t, r); !reflect.DeepEqual(got, tc.want) || r.stderr != "" {
			t.Errorf("%v: %+v, want %+v; stderr %q", tc.args, got, tc.want, r.stderr)
		}
		if r := d.run(exitDone, append([]string{"get", "a.came"}, tc.args...)...); r.stdout != "" {
			t.Errorf("%v printed %q", tc.args, r.stdout)
		}
	}
	if r := d.run(exitDone, "get", "a.came", "a", "-O", "-", "-o", "json"); r.stdout != "12345" {
		t.Errorf("the bytes were mixed with %q", r.stdout)
	}
}

func destinations(t *testing.T, d *instance) {
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "file"), []byte("new"))
	d.run(exitDone, "pointer", "create", "a.dest")
	d.run(exitDone, "publish", "a.dest", file)
	// A file keeps its mode, a link stays a link.
	target := writeFile(t, filepath.Join(dir, "target"), []byte("old"))
	if err := os.Chmod(target, 0o751); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	d.run(exitDone, "get", "a.dest", "-O", link)
	info, err := os.Stat(target)
	if err != nil || info.Mode().Perm() != 0o751 || readFile(t, target) != "new" {
		t.Errorf("target: %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
	// A link to a file that is not there yet stays one too.
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink("made", dangling); err != nil {
		t.Fatal(err)
	}
	d.run(exitDone, "get", "a.dest", "-O", dangling)
	if info, err := os.Lstat(dangling); err != nil || info.Mode()&os.ModeSymlink == 0 || readFile(t, filepath.Join(dir, "made")) != "new" {
		t.Errorf("the link: %v, %v", info.Mode(), err)
	}
	// Standard output is not replaced, whatever it is called and wherever it leads.
	for _, name := range []string{"-", "/dev/stdout", "/dev/fd/1"} {
		if r := d.run(exitDone, "get", "a.dest", "-O", name); r.stdout != "new" {
			t.Errorf("-O %s: %q on standard output", name, r.stdout)
		}
	}
	// The folder that cannot be written is named, not a file that nobody has heard of.
	for _, out := range []string{"/proc/x", target + "/x", target + "/x/"} {
		if r := d.run(exitFailed, "get", "a.dest", "-O", out); !strings.Contains(r.stderr, "files cannot be put into "+filepath.Dir(out)) || strings.Contains(r.stderr, "artifactd-") {
			t.Errorf("-O %s: %q", out, r.stderr)
		}
	}
	// A pipe is written to, not replaced.
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		b, _ := os.ReadFile(pipe)
		read <- string(b)
	}()
	d.run(exitDone, "get", "a.dest", "-O", pipe)
	if got := <-read; got != "new" {
		t.Errorf("the pipe got %q", got)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is gone: %v", err)
	}
}

func exitCodes(t *testing.T, d *instance) {
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	d.run(exitDone, "pointer", "create", "a.codes")
	for _, test := range []struct {
		want int
		says string
		args []string
	}{
		{exitUsage, "unknown command", []string{"frobnicate"}},
		{exitUsage, `unknown command "frobnicate" for "artifactd lease"`, []string{"lease", "frobnicate", "x"}},
		{exitUsage, "unknown flag", []string{"resolve", "x", "--frobnicate"}},
		{exitUsage, "accepts 1 arg", []string{"resolve"}},
		{exitUsage, "--output", []string{"resolve", "x", "-o", "xml"}},
		{exitUsage, "name", []string{"resolve", "bad name!"}},
		{exitUsage, "UUID", []string{"publish", "a.codes", file, "--operation-id", "7"}},
		{exitUsage, "key=value", []string{"publish", "a.codes", file, "--metadata", "x"}},
		{exitUsage, "--database-url", []string{"migrate"}},
		{exitUsage, "--s3-bucket", []string{"serve"}},
		{exitNotAllowed, "access token", []string{"resolve", "a.codes", "--token", "artd_wrong"}},
		{exitNotFound, "there is no pointer \"a.nothing\"; see `artifactd pointer ls`; `artifactd pointer create`", []string{"resolve", "a.nothing"}},
		{exitNotFound, "nothing is published under \"a.codes\"; publish something", []string{"resolve", "a.codes"}},
		{exitNotFound, "there is no pointer \"a.nothing\";", []string{"pointer", "show", "a.nothing"}},
		{exitNotFound, "there is no pointer \"a.nothing\";", []string{"publish", "a.nothing", file}},
		{exitNotFound, "there is no pointer \"a.nothing\";", []string{"gc", "plan", "a.nothing"}},
		{exitUsage, "artifactd: --keep-versions: ", []string{"pointer", "create", "a.codes", "--keep-versions", "-1"}},
		{exitUsage, "artifactd: --keep-seconds: ", []string{"pointer", "create", "a.codes", "--keep-seconds", "-1"}},
		{exitUsage, "artifactd: --holder: ", []string{"publish", "a.codes", file, "--holder", strings.Repeat("x", 201)}},
		{exitUsage, "artifactd: VERSION: ", []string{"rollback", "a.codes", "newest", "--current", "1.1"}},
		{exitUsage, "artifactd: TOKEN: ", []string{"lease", "break", "a.codes", "newest"}},
		{exitUnavailable, "is the service running", []string{"resolve", "a.codes", "--url", "http://127.0.0.1:1"}},
	} {
		args := append([]string{"--data", d.data}, test.args...)
		r := run(t, nil, args...)
		if r.code != test.want || !strings.Contains(r.stderr, test.says) {
			t.Errorf("%v: exit code %d, want %d; stderr %q", test.args, r.code, test.want, r.stderr)
		}
		if r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "artifactd: ") {
			t.Errorf("%v: stdout %q, stderr %q is not one line", test.args, r.stdout, r.stderr)
		}
	}
}

// clientOf is a client of the instance.
func (d *instance) client() *client.Client {
	d.t.Helper()
	env := d.env()
	c, err := client.New(env["ARTIFACTD_URL"], env["ARTIFACTD_TOKEN"], client.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(c.Close)
	return c
}

// staleWorker is schedule H1 through the client and the command line: a worker whose lease ran out
// is refused, and its bytes are collected.
func staleWorker(t *testing.T, d *instance) {
	c := d.client()
	d.run(exitDone, "pointer", "create", "a.stale")
	lease, err := c.Acquire(t.Context(), "a.stale", client.AcquireOptions{Holder: "A", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	late := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("late"))
	src, err := client.FileSource(t.Context(), late, "f", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.UploadAll(t.Context(), lease, []client.Source{src}, nil); err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("in time"))
	if r := d.run(exitLeaseHeld, "publish", "a.stale", file); !strings.Contains(r.stderr, `"A"`) && !strings.Contains(r.stderr, "A holds") {
		t.Errorf("the holder is not named: %q", r.stderr)
	}
	if r := d.run(exitDone, "lease", "show", "a.stale"); !strings.Contains(r.stdout, lease.Token) {
		t.Errorf("lease show printed %q", r.stdout)
	}
	d.run(exitDone, "lease", "break", "a.stale")
	d.run(exitDone, "publish", "a.stale", file, "--wait", "1m")
	_, err = c.Publish(t.Context(), lease, client.Publication{})
	var p *client.Problem
	if !asProblem(err, &p) || p.Code != client.ErrPublishRefused || outcomeOf(err).code != exitLeaseLost {
		t.Fatalf("the stale publish: %v", err)
	}
	if r := d.run(exitDone, "get", "a.stale", "-O", "-"); r.stdout != "in time" {
		t.Errorf("readers see %q", r.stdout)
	}
	r := decode[types.GcRun](t, d.run(exitDone, "gc", "run", "-o", "json"))
	if r.DeletedObjects != 1 || r.DeletedBytes != 4 {
		t.Errorf("collected %+v", r)
	}
}

func asProblem(err error, p **client.Problem) bool {
	got, ok := err.(*client.Problem)
	*p = got
	return ok
}

func operationIDs(t *testing.T, d *instance) {
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "f"), []byte("x"))
	d.run(exitDone, "pointer", "create", "a.op")
	id := uuid.NewString()
	first := decode[types.Published](t, d.run(exitDone, "publish", "a.op", file, "--operation-id", id, "-o", "json"))
	r := d.run(exitDone, "publish", "a.op", file, "--operation-id", id, "-o", "json")
	again := decode[types.Published](t, r)
	if r.stderr != "" {
		t.Errorf("stderr %q", r.stderr)
	}
	// Whoever gives the id with another request has to see that it was not this that was published.
	other, more := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("y")), writeFile(t, filepath.Join(dir, "g"), nil)
	for _, tc := range []struct {
		says string
		args []string
	}{
		{`a.op 1.1 with other files: "f" differs; nothing was changed; take a new --operation-id`, []string{other}},
		{`a.op 1.1 with other files: it has no "g"; nothing`, []string{file, more}},
		{`a.op 1.1 with other files: it has "f", too, and 1 more; nothing`, []string{more}},
		{"a.op 1.1 with other metadata; nothing", []string{file, "--metadata", "a=b"}},
		{"a.op 1.1 with another source revision; nothing", []string{file, "--source-revision", "0"}},
	} {
		r := d.run(exitLeaseLost, append(append([]string{"publish", "a.op"}, tc.args...), "--operation-id", id)...)
		if !strings.HasPrefix(r.stderr, "artifactd: operation-mismatch: operation "+id+" published ") || !strings.Contains(r.stderr, tc.says) || strings.Count(r.stderr, "\n") != 1 || r.stdout != "" {
			t.Errorf("stdout %q, stderr %q", r.stdout, r.stderr)
		}
	}
	if first != again {
		t.Errorf("first %+v, again %+v", first, again)
	}
	if r := d.run(exitDone, "history", "a.op", "-o", "json"); strings.Count(r.stdout, `"version"`) != 1 {
		t.Errorf("history %s", r.stdout)
	}
	d.run(exitDone, "pointer", "create", "a.op2")
	if r := d.run(exitLeaseLost, "publish", "a.op2", file, "--operation-id", id); !strings.Contains(r.stderr, "published something else than a.op2; nothing was changed") {
		t.Errorf("stderr %q", r.stderr)
	}
	// A refusal is recorded too.
	id = uuid.NewString()
	d.run(exitDone, "publish", "a.op", file, "--source-revision", "5")
	for range 2 {
		if r := d.run(exitLeaseLost, "publish", "a.op", file, "--source-revision", "4", "--operation-id", id); !strings.Contains(r.stderr, "source-stale") {
			t.Errorf("stderr %q", r.stderr)
		}
	}
	// All that a publish can say, said again.
	id = uuid.NewString()
	whole := []string{"publish", "a.op", dir, "--source-revision", "6", "--metadata", `{"n": 1.50, "s": "<"}`, "--operation-id", id, "-o", "json"}
	one := decode[types.Published](t, d.run(exitDone, whole...))
	whole[6] = `{"s":"\u003c","n":1.50}`
	if r := d.run(exitDone, whole...); decode[types.Published](t, r) != one || r.stderr != "" {
		t.Errorf("first %+v, again %s, stderr %q", one, r.stdout, r.stderr)
	}
	for _, args := range [][]string{{"publish", "a.op", file}, {"run", "a.op", "--file", file}} {
		args = append(args, "--source-revision", "4", "--data", d.data)
		if args[0] == "run" {
			args = append(args, "--", "true")
		}
		r := run(t, []string{"PATH=" + os.Getenv("PATH")}, args...)
		if r.code != exitLeaseLost || !strings.Contains(r.stderr, "nothing was published (source-stale)") || strings.Contains(r.stderr, "alive") || strings.Contains(r.stderr, "operation") {
			t.Errorf("%v: exit code %d, stderr %q", args, r.code, r.stderr)
		}
	}
	// The lease of a failed publish was given back, and nobody is told that it is alive.
	if r := d.run(exitDone, "lease", "show", "a.op", "-o", "json"); decode[types.LeaseStatus](t, r).Live {
		t.Errorf("lease %s", r.stdout)
	}
}

func rollbackAndRetire(t *testing.T, d *instance) {
	dir := t.TempDir()
	d.run(exitDone, "pointer", "create", "a.back")
	for i := range 2 {
		d.run(exitDone, "publish", "a.back", writeFile(t, filepath.Join(dir, "f"), fmt.Append(nil, i+1)))
	}
	d.run(exitNotFound, "rollback", "a.back", "1.9")
	d.run(exitLeaseLost, "rollback", "a.back", "1.1", "--current", "1.1")
	d.run(exitDone, "rollback", "a.back", "1.1")
	if r := d.run(exitDone, "get", "a.back", "-O", "-"); r.stdout != "1" {
		t.Errorf("after the rollback readers see %q", r.stdout)
	}
	if r := d.run(exitDone, "history", "a.back"); !strings.Contains(r.stdout, "rollback of 1.1") {
		t.Errorf("history %s", r.stdout)
	}
	d.run(exitLeaseLost, "pointer", "retire", "a.back", "--current", "1.1")
	d.run(exitDone, "pointer", "retire", "a.back")
	d.run(exitNotFound, "resolve", "a.back")
	d.run(exitDone, "pointer", "create", "a.back")
	p := decode[types.Published](t, d.run(exitDone, "publish", "a.back", filepath.Join(dir, "f"), "-o", "json"))
	if p.Version != "1.4" {
		t.Errorf("numbers went on at %s", p.Version)
	}
}

// fullDisk: whoever sees a command fail because its answer could not be written is told that it was done.
func fullDisk(t *testing.T, d *instance) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	d.run(exitDone, "pointer", "create", "a.full")
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	fails := func(says string, args ...string) string {
		t.Helper()
		var stderr buffer
		p := Program{Args: append([]string{"--data", d.data}, args...), Stdin: strings.NewReader(""), Stdout: full, Stderr: &stderr, Environ: []string{"PATH=" + os.Getenv("PATH")}}
		if code := p.Run(t.Context()); code != exitFailed || !strings.Contains(stderr.String(), says) || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%v: exit code %d, stderr %q", args, code, stderr.String())
		}
		return stderr.String()
	}
	for _, format := range []string{"table", "json"} {
		fails("published a.full", "publish", "a.full", file, "-o", format)
	}
	fails("published a.full 1.3, but", "rollback", "a.full", "1.1")
	fails("published a.full 1.4, but", "run", "a.full", "--file", file, "--", "true")
	fails("version 1.4 of a.full is in place, but", "get", "a.full", "-O", file, "-o", "json")
	says := fails("access token", "token", "create", "lost", "--pattern", "*")
	_, command, _ := strings.Cut(says, "`artifactd ")
	command, _, _ = strings.Cut(command, "`")
	d.run(exitDone, strings.Fields(command)...)
	if r := d.run(exitDone, "token", "ls", "-o", "json"); !strings.Contains(r.stdout, `"lost"`) || !strings.Contains(r.stdout, `"revoked_at"`) {
		t.Errorf("access tokens: %s", r.stdout)
	}
}

func accessTokens(t *testing.T, d *instance) {
	d.run(exitDone, "pointer", "create", "b.x")
	made := decode[accessToken](t, d.run(exitDone, "token", "create", "reader", "--pattern", "a.*", "--expires-in", "1h", "-o", "json"))
	d.run(exitDone, "pointer", "ls", "a.", "--token", made.Secret)
	d.run(exitNotAllowed, "pointer", "create", "a.new", "--token", made.Secret)
	d.run(exitNotAllowed, "resolve", "b.x", "--token", made.Secret)
	secret := strings.TrimSpace(d.run(exitDone, "token", "create", "other", "--scope", "publish", "--pattern", "b.x").stdout)
	d.run(exitNotFound, "resolve", "b.x", "--token", secret)
	if r := d.run(exitDone, "token", "ls"); !strings.Contains(r.stdout, "reader") || strings.Contains(r.stdout, made.Secret) {
		t.Errorf("token ls printed %s", r.stdout)
	}
	d.run(exitDone, "token", "revoke", made.ID.String())
	d.run(exitNotFound, "token", "revoke", uuid.NewString())
	d.run(exitUsage, "token", "revoke", "7")
	d.run(exitUsage, "token", "create", "x", "--pattern", "a*b")
	for _, several := range []string{"a.*\nb.*", "a.*,", "a.*, b.*", `"a.*"`} {
		d.run(exitUsage, "token", "create", "x", "--pattern", several)
	}
	both := decode[accessToken](t, d.run(exitDone, "token", "create", "both", "--scope", "read,publish", "--pattern", "a.*,b.x", "--pattern", "c", "-o", "json"))
	if fmt.Sprint(both.Scopes, both.Patterns) != "[read publish] [a.* b.x c]" {
		t.Errorf("made %+v", both)
	}
	d.run(exitDone, "token", "revoke", both.ID.String())
	d.run(exitUsage, "token", "create", "x", "--pattern", "*", "--scope", "root")
	// A replica may believe in a token for moments after its end.
	deadline := time.Now().Add(time.Minute)
	for run(t, nil, "pointer", "ls", "--data", d.data, "--token", made.Secret).code != exitNotAllowed {
		if time.Now().After(deadline) {
			t.Fatal("a revoked token still works")
		}
		time.Sleep(100 * time.Millisecond)
	}
}
