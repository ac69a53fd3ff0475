package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/client"
)

// objects counts what the instance's bucket holds.
func (d *instance) objects() int {
	d.t.Helper()
	env := d.env()
	prefix := env["ARTIFACTD_S3_PREFIX"]
	store, err := s3store.New(d.t.Context(), s3store.Config{
		Endpoint: env["ARTIFACTD_S3_ENDPOINT"], Region: "us-east-1", Bucket: env["ARTIFACTD_S3_BUCKET"], Prefix: prefix,
		AccessKeyID: env["ARTIFACTD_S3_ACCESS_KEY_ID"], SecretAccessKey: env["ARTIFACTD_S3_SECRET_ACCESS_KEY"], PathStyle: true,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	defer store.Close()
	n := 0
	for _, err := range store.List(d.t.Context(), artifacts.Layout{Prefix: prefix}.ArtifactsPrefix()) {
		if err != nil {
			d.t.Fatal(err)
		}
		n++
	}
	return n
}

// trees: of a tree that is published again only what changed is sent, and of one that is there only
// what is missing or wrong is fetched.
func trees(t *testing.T, d *instance) {
	const files, changed = 300, 3
	tree := t.TempDir()
	name := func(i int) string { return filepath.Join(tree, fmt.Sprintf("d%02d/f%03d.txt", i%20, i)) }
	content := func(i int) string {
		if i >= files-10 {
			return "the same in ten files"
		}
		return fmt.Sprint("content ", i)
	}
	for i := range files {
		writeFile(t, name(i), []byte(content(i)))
	}
	d.run(exitDone, "pointer", "create", "a.tree")
	publish := func(want int64) {
		t.Helper()
		before := d.objects()
		p := decode[client.FilesPublished](t, d.run(exitDone, "publish", "a.tree", tree, "-o", "json"))
		if made := d.objects() - before; p.UploadedFiles != want || made != int(want) {
			t.Errorf("%d files were sent and %d objects made, want %d", p.UploadedFiles, made, want)
		}
	}
	publish(files - 9)
	for i := range changed {
		writeFile(t, name(i*7), []byte(content(i*7)+", changed"))
	}
	publish(changed)
	publish(0)

	out := filepath.Join(t.TempDir(), "out")
	d.run(exitDone, "get", "a.tree", "-O", out)
	sameTree(t, tree, out)
	same := statOf(t, filepath.Join(out, "d01/f001.txt"))
	writeFile(t, filepath.Join(out, "d02/f002.txt"), []byte("tampered!")) // of the right length
	if err := os.Remove(filepath.Join(out, "d03/f003.txt")); err != nil {
		t.Fatal(err)
	}
	d.run(exitDone, "get", "a.tree", "-O", out)
	sameTree(t, tree, out)
	if again := statOf(t, filepath.Join(out, "d01/f001.txt")); !os.SameFile(same, again) || !same.ModTime().Equal(again.ModTime()) {
		t.Error("a file that was there and right was fetched again")
	}
}

func statOf(t *testing.T, name string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// sameTree checks that got has want's files and nothing else.
func sameTree(t *testing.T, want, got string) {
	t.Helper()
	read := func(dir string) map[string]string {
		all := map[string]string{}
		err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				rel, _ := filepath.Rel(dir, name)
				all[rel] = readFile(t, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	a, b := read(want), read(got)
	for name, content := range a {
		if b[name] != content {
			t.Errorf("%s: %q, want %q", name, b[name], content)
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d files, want %d", len(b), len(a))
	}
}

// badTrees: what cannot be published is refused with its name, before a lease is taken.
func badTrees(t *testing.T, d *instance) {
	d.run(exitDone, "pointer", "create", "a.bad")
	refused := func(dir, words string) {
		t.Helper()
		r := run(t, nil, "publish", "a.bad", dir, "--data", d.data)
		if r.code == exitDone || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, words) {
			t.Errorf("exit code %d, stderr %q; want one line with %q", r.code, r.stderr, words)
		}
	}
	dir := func(names ...string) string {
		t.Helper()
		dir := t.TempDir()
		for _, name := range names {
			writeFile(t, filepath.Join(dir, name), []byte(name))
		}
		return dir
	}

	socket, err := os.MkdirTemp("", "s") // short: the path of a socket is
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(socket)
	listener, err := net.Listen("unix", filepath.Join(socket, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	writeFile(t, filepath.Join(socket, "file"), nil)
	refused(socket, "sock is a socket, not a regular file")
	refused(dir("good", "caf\xe9"), `caf\xe9" cannot be published under that name: a path is UTF-8; rename it`)
	refused(dir("good", "new\nline"), "a path has no control characters")
	refused(t.TempDir(), "there is no file in")
	long := strings.Repeat(strings.Repeat("x", 204)+"/", 5) // 1,025 bytes
	refused(dir("good", long[:1023]+"yy"), "a path has at most 1024 bytes")
	if err := os.Mkdir(filepath.Join(dir(), "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if r := d.run(exitDone, "pointer", "show", "a.bad", "-o", "json"); strings.Contains(r.stdout, `"generation": 1`) {
		t.Errorf("a lease was taken: %s", r.stdout)
	}

	// At the limits. Empty files are files; empty folders are not in a version.
	good := dir(long[:1022]+"yy", "Read.me", "read.me", "READ.ME")
	writeFile(t, filepath.Join(good, "empty"), nil)
	if err := os.Mkdir(filepath.Join(good, "nothing in it"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := d.run(exitDone, "publish", "a.bad", good)
	if !strings.Contains(r.stderr, "artifactd: READ.ME and Read.me differ only in upper and lower case\n") || !strings.Contains(r.stderr, "artifactd: READ.ME and read.me differ") || !strings.Contains(r.stderr, "cannot get all of these into one folder\n") {
		t.Errorf("stderr %q", r.stderr)
	}
	if r := d.run(exitDone, "publish", "a.bad", good, "-q"); r.stderr != "" {
		t.Errorf("stderr %q", r.stderr)
	}
	out := t.TempDir()
	d.run(exitDone, "get", "a.bad", "-O", out)
	sameTree(t, good, out)
	if _, err := os.Stat(filepath.Join(out, "nothing in it")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder came back: %v", err)
	}
}

// Where case is not told apart, two files must not become one in silence.
func TestFilesThatDifferOnlyInCase(t *testing.T) {
	files := func(paths ...string) (out []types.File) {
		for _, p := range paths {
			out = append(out, types.File{Path: p})
		}
		return out
	}
	for _, c := range []struct {
		paths []string
		same  bool
	}{
		{[]string{"a", "b", "a/b"}, false},
		{[]string{"a/Read.me", "x", "A/README", "a/README"}, true},
		{[]string{"straße", "STRASSE"}, false}, // two names to every file system
		{[]string{"é", "É"}, true},
		{[]string{"ς", "σ"}, true},
	} {
		err := oneInCase(files(c.paths...), "x")
		if got := err != nil; got != c.same {
			t.Errorf("%q: %v", c.paths, err)
		}
	}

	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.Mkdir("probe", 0o700); err != nil {
		t.Fatal(err)
	}
	if foldsCase(root, "probe") != folds(t, dir) {
		t.Error("the probe is wrong about this file system")
	}
	if folds(t, dir) {
		return
	}
	// What a file system without case shows: the name in capitals is the same file.
	if err := root.Symlink("probe", "PROBE"); err != nil {
		t.Fatal(err)
	}
	if !foldsCase(root, "probe") {
		t.Error("the probe does not see one file behind both names")
	}
	if err := errors.Join(root.Remove("PROBE"), root.Mkdir("PROBE", 0o700)); err != nil {
		t.Fatal(err)
	}
	if foldsCase(root, "probe") {
		t.Error("the probe takes two folders for one")
	}
}

// folds reports what a file system does with case, by other means than the program.
func folds(t *testing.T, dir string) bool {
	t.Helper()
	writeFile(t, filepath.Join(dir, "case"), []byte("lower"))
	_, err := os.ReadFile(filepath.Join(dir, "CASE"))
	return err == nil
}
