package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactd/artifactd/api/types"
)

func symlink(t *testing.T, target, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// Everything that is wrong with a tree is told in one run: the first ten, how many more there are, and how
// many in all.
func TestAllFaultsOfATree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"good", "a/caf\xe9", "b\nnew", strings.Repeat("c"+strings.Repeat("x", 203)+"/", 5) + "yyyyy"} {
		writeFile(t, filepath.Join(dir, name), nil)
	}
	symlink(t, "good", filepath.Join(dir, "d"))
	if err := syscall.Mkfifo(filepath.Join(dir, "e"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := writeFile(t, filepath.Join(t.TempDir(), "good"), nil)
	missing := filepath.Join(dir, "missing")
	publish := func() []string {
		t.Helper()
		r := run(t, nil, "publish", "a", dir, other, dir+"//good", missing, "--url", "http://127.0.0.1:1", "--data", t.TempDir())
		if r.code != exitUsage || r.stdout != "" {
			t.Errorf("exit code %d, stdout %q", r.code, r.stdout)
		}
		return strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	}
	lines := publish()
	for i, words := range []string{
		`a/caf\xe9" cannot be published under that name: a path is UTF-8; rename it`,
		`b\nnew" cannot be published under that name: a path has no control characters; rename it`,
		"a path has at most 1024 bytes; rename it",
		"/d is a symbolic link; with --follow-symlinks what it leads to is published",
		"/e is a named pipe, not a regular file; take it out",
		"would both be named good; publish their folder instead",
		"/good is given twice; give it once",
		"missing: no such file or directory",
		"artifactd: 8 paths cannot be published as they are; nothing was published",
	} {
		if len(lines) != 9 || !strings.HasPrefix(lines[i], "artifactd: ") || !strings.Contains(lines[i], words) || len(lines[i]) > 300 {
			t.Errorf("line %d of %d is not of %q:\n%s", i+1, len(lines), words, strings.Join(lines, "\n"))
		}
	}
	for i := range 20 {
		symlink(t, "good", filepath.Join(dir, fmt.Sprintf("e%d", i)))
	}
	lines = publish()
	if n := len(lines); n != mostFaults+2 || lines[n-2] != "artifactd: and 18 more" || !strings.HasPrefix(lines[n-1], "artifactd: 28 paths cannot") {
		t.Errorf("lines %q", lines)
	}

	var files []types.File
	for _, path := range []string{"a/Read.me", "x", "A/README", "a/README.ME", "a/README", "X"} {
		files = append(files, types.File{Path: path})
	}
	if err := oneInCase(files, "here"); err == nil || !strings.Contains(err.Error(), "2 files cannot be told apart in here") && !strings.Contains(err.Error(), "3 files") {
		t.Errorf("%v", err)
	}
}

// With --follow-symlinks a link is what it leads to, within the folder that is published; what leads out
// of it, nowhere, or round in circles is told.
func TestFollowSymlinks(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "tree")
	writeFile(t, filepath.Join(dir, "a/one"), []byte("1"))
	writeFile(t, filepath.Join(dir, "b/two"), []byte("22"))
	symlink(t, "a/one", filepath.Join(dir, "file"))
	symlink(t, "file", filepath.Join(dir, "again"))
	symlink(t, filepath.Join(dir, "b"), filepath.Join(dir, "a/absolute"))
	symlink(t, "../../tree/a/one", filepath.Join(dir, "b/roundabout"))
	symlink(t, dir, filepath.Join(base, "named"))
	p := Program{Stderr: &buffer{}}
	paths := func(arg string) (found []string, total int64, err error) {
		files, total, err := p.walk([]string{arg}, true)
		for _, f := range files {
			found = append(found, fmt.Sprintf("%s %d", f.path, len(readFile(t, f.file))))
		}
		slices.Sort(found)
		return found, total, err
	}
	want := []string{"a/absolute/roundabout 1", "a/absolute/two 2", "a/one 1", "again 1", "b/roundabout 1", "b/two 2", "file 1"}
	for _, arg := range []string{dir, filepath.Join(base, "named") + "/"} {
		if got, total, err := paths(arg); err != nil || !slices.Equal(got, want) || total != 9 {
			t.Errorf("%s: %q, %d bytes, %v", arg, got, total, err)
		}
	}

	outside := writeFile(t, filepath.Join(base, "treetop"), nil) // its name begins as the tree's
	for name, tc := range map[string]struct{ target, says string }{
		"out":      {outside, "is a symbolic link that leads out of the folder, to "},
		"up":       {"..", "is a symbolic link that leads out of the folder, to "},
		"nowhere":  {"none", "is a symbolic link that leads nowhere: "},
		"self":     {"self", "is a symbolic link that leads nowhere: "},
		"circle":   {".", "is a symbolic link to a folder that it is in itself, "},
		"a/circle": {"../a", "is a symbolic link to a folder that it is in itself, "},
		"b/ring":   {"../a", "is a symbolic link to a folder that it is in itself, "}, // which leads to b
	} {
		link := filepath.Join(dir, name)
		symlink(t, tc.target, link)
		_, _, err := paths(dir)
		if err == nil || outcomeOf(err).code != exitUsage {
			t.Fatalf("%s: %v", name, err)
		}
		text := complaint(err)
		if several, ok := err.(*severalError); ok { // met by more than one way
			text = complaint(several.told[0])
		}
		if !strings.Contains(text, tc.says) || !strings.Contains(text, filepath.Base(name)+" is a") {
			t.Errorf("%s: %s", name, text)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if got, _, err := paths(dir); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// Folders that lead to each other have far more paths than files: the walk ends all the same.
func TestLinksWithoutEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const folders = 10
	for i := range folders {
		for j := range folders {
			if i != j {
				symlink(t, fmt.Sprintf("../../%d/x", j), filepath.Join(dir, fmt.Sprintf("%d/x/to%d", i, j)))
			}
		}
	}
	p := Program{Stderr: &buffer{}}
	if _, _, err := p.walk([]string{dir}, true); err == nil || !strings.Contains(err.Error(), "symbolic links were followed") {
		t.Errorf("%v", err)
	}
}
