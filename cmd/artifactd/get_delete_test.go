package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// TestGetDelete: a folder that is served becomes the version, and nothing else is touched.
func TestGetDelete(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	t.Run("mirrors", func(t *testing.T) { mirrors(t, d) })
	t.Run("removes nothing after a failure", func(t *testing.T) { removesNothing(t, d) })
	t.Run("refuses", func(t *testing.T) { refusesToDelete(t, d) })
}

func mirrors(t *testing.T, d *instance) {
	d.run(exitDone, "pointer", "create", "a.site")
	site, served := t.TempDir(), filepath.Join(t.TempDir(), "served")
	for path, content := range map[string]string{"index.html": "<p>", "a/b.txt": "b", "page": "a file", "old/deep/x.txt": "x", "old/y.txt": "y"} {
		writeFile(t, filepath.Join(site, path), []byte(content))
	}
	d.run(exitDone, "publish", "a.site", site)
	if r := d.run(exitDone, "get", "a.site", "-O", served, "--delete"); !strings.Contains(r.stderr, "removed 0 files from "+served) {
		t.Errorf("stderr %q", r.stderr)
	}
	sameTree(t, site, served)

	// The next version has less, and a folder where a file was.
	for _, gone := range []string{"old", "page"} {
		if err := os.RemoveAll(filepath.Join(site, gone)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(site, "page/index.html"), []byte("a folder now"))
	writeFile(t, filepath.Join(site, "file"), []byte("a file now"))
	d.run(exitDone, "publish", "a.site", site)
	// What lies there besides: links, also in the way of files, an empty folder and a folder in the way.
	outside := t.TempDir()
	for _, name := range []string{"b.txt", "kept"} {
		writeFile(t, filepath.Join(outside, name), []byte("b"))
	}
	if err := os.RemoveAll(filepath.Join(served, "a")); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"a": "aside", "out": outside, "dangling": "nowhere", "index2": "index.html"} {
		if err := os.Symlink(target, filepath.Join(served, link)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(served, "aside/b.txt"), []byte("b")) // as if a/b.txt were there
	writeFile(t, filepath.Join(served, "file/1"), nil)
	writeFile(t, filepath.Join(served, "file/sub/2"), nil)
	if err := os.MkdirAll(filepath.Join(served, "empty/empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	same := statOf(t, filepath.Join(served, "index.html"))
	// page, old/deep/x.txt, old/y.txt; four links; aside/b.txt; two of file.
	if r := d.run(exitDone, "get", "a.site", "-O", served, "--delete"); r.stderr != "artifactd: removed 10 files from "+served+" that version 1.2 does not have\n" {
		t.Errorf("stderr %q", r.stderr)
	}
	sameEntries(t, site, served)
	sameTree(t, site, served)
	if !os.SameFile(same, statOf(t, filepath.Join(served, "index.html"))) {
		t.Error("a file that was there and right was fetched again")
	}
	for _, name := range []string{"b.txt", "kept"} {
		if got := readFile(t, filepath.Join(outside, name)); got != "b" {
			t.Errorf("outside, %s is %q", name, got)
		}
	}

	// A version of one file, under its own path, in a folder that is reached by a link.
	one := t.TempDir()
	writeFile(t, filepath.Join(one, "sub/only"), []byte("one"))
	d.run(exitDone, "publish", "a.site", one)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(served, link); err != nil {
		t.Fatal(err)
	}
	d.run(exitDone, "get", "a.site", "-O", link, "--delete")
	sameEntries(t, one, served)
}

// entries are the paths of everything below a folder.
func entries(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, name)
		all = append(all, rel+" "+e.Type().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

func sameEntries(t *testing.T, want, got string) {
	t.Helper()
	if a, b := entries(t, want), entries(t, got); a != b {
		t.Errorf("there is\n%s\nwant\n%s", b, a)
	}
}

func removesNothing(t *testing.T, d *instance) {
	d.run(exitDone, "pointer", "create", "a.damaged")
	site, served := t.TempDir(), t.TempDir()
	content := []byte("bytes that the store will not keep as they are")
	writeFile(t, filepath.Join(site, "damaged"), content)
	writeFile(t, filepath.Join(site, "whole"), []byte("whole"))
	d.run(exitDone, "publish", "a.damaged", site)
	damageObject(t, d, content)
	writeFile(t, filepath.Join(served, "stale"), nil)
	writeFile(t, filepath.Join(served, "whole/stale"), nil)
	before := entries(t, served)
	if r := d.run(exitMismatch, "get", "a.damaged", "-O", served, "--delete"); strings.Contains(r.stderr, "removed") {
		t.Errorf("stderr %q", r.stderr)
	}
	if after := entries(t, served); after != before {
		t.Errorf("there is\n%s\nwas\n%s", after, before)
	}

	// What was moved out of the way comes back too.
	root, err := os.OpenRoot(served)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.Mkdir("staging", 0o700); err != nil {
		t.Fatal(err)
	}
	m := newMirror(root, nil, false)
	if err := m.makeWay("staging", "whole"); err != nil || m.count != 1 {
		t.Fatalf("%d moved, %v", m.count, err)
	}
	writeFile(t, filepath.Join(served, "whole"), []byte("in place for a moment"))
	m.restore()
	if err := root.Remove("staging"); err != nil {
		t.Error(err)
	}
	if after := entries(t, served); after != before {
		t.Errorf("there is\n%s\nwas\n%s", after, before)
	}
}

// damageObject changes an object in the store of dev by its bytes, and leaves its length.
func damageObject(t *testing.T, d *instance, content []byte) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(filepath.Join(d.data, "s3"), func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, content) {
			return err
		}
		found++
		return os.WriteFile(name, bytes.ToUpper(content), 0o600)
	})
	if err != nil || found != 1 {
		t.Fatalf("%d objects found, %v", found, err)
	}
}

func refusesToDelete(t *testing.T, d *instance) {
	d.run(exitDone, "pointer", "create", "a.refused")
	d.run(exitDone, "publish", "a.refused", writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("f")))
	home := filepath.Join(t.TempDir(), "homes", "me")
	kept := writeFile(t, filepath.Join(home, "kept"), []byte("kept"))
	holds := filepath.Dir(d.data)
	other := t.TempDir() // another one's data folder, which nobody has told of
	writeFile(t, filepath.Join(other, "deep/down", secretsName), nil)
	writeFile(t, filepath.Join(other, "deep/down/s3/objects/f"), nil)
	before := entries(t, other)
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"not for one file", []string{"f", "-O", t.TempDir()}},
		{"not for standard output", []string{"-O", "-"}},
		{"not for standard output", []string{"-O", "/dev/stdout"}},
		{"name it with -O", nil},
		{"your home folder", []string{"-O", home}},
		{"your home folder, or holds it", []string{"-O", filepath.Dir(home)}},
		{"data folder", []string{"-O", d.data}},
		{"data folder", []string{"-O", filepath.Join(d.data, "s3")}},
		{"data folder", []string{"-O", filepath.Join(d.data, "new", "one")}},
		{"data folder", []string{"-O", holds}},
		{"data folder", []string{"-O", other}},
		{"data folder", []string{"-O", filepath.Join(other, "deep/down/s3/objects")}},
	} {
		args := append([]string{"get", "a.refused", "--delete", "--data", d.data}, tc.args...)
		r := run(t, []string{"HOME=" + home}, args...)
		if r.code != exitUsage || !strings.Contains(r.stderr, tc.says) || strings.Count(r.stderr, "\n") != 1 || r.stdout != "" {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", tc.args, r.code, r.stdout, r.stderr)
		}
	}
	// Asked without running the command: a fault here must not cost whoever runs this test the machine.
	p := Program{Environ: []string{"HOME=" + home}, data: d.data}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/", home + strings.Repeat("/..", 20), link, link + "/"} {
		if err := p.mayDeleteIn(dir); outcomeOf(err).code != exitUsage || !strings.Contains(err.Error(), "root of the file system") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if u, err := user.Current(); err != nil || outcomeOf(p.mayDeleteIn(u.HomeDir)).code != exitUsage {
		t.Errorf("the home of %+v, %v", u, err)
	}
	if readFile(t, kept) != "kept" || entries(t, other) != before {
		t.Error("something was removed")
	}
	d.run(exitDone, "get", "a.refused", "-O", "-") // the instance is unharmed
	// A file is no folder, and stays.
	if r := d.run(exitFailed, "get", "a.refused", "-O", kept, "--delete"); !strings.Contains(r.stderr, "not a directory") || readFile(t, kept) != "kept" {
		t.Errorf("stderr %q", r.stderr)
	}
}
