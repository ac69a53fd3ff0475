package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/gc"
)

// The operator's look at the bucket, on what `artifactd dev` has running.
func TestReconcileAndVerifyCommands(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	file := writeFile(t, filepath.Join(t.TempDir(), "report.txt"), []byte("a report"))
	d.run(exitDone, "pointer", "create", "a.report")
	d.run(exitDone, "publish", "a.report", file)
	for range 2 {
		r := decode[gc.ReconcileReport](t, d.run(exitDone, "gc", "reconcile", "--grace", "0s", "-o", "json"))
		if r.Listed != 1 || r.Unknown != 0 || r.Foreign != 0 || r.Moved != 0 {
			t.Errorf("%+v", r)
		}
	}
	if v := decode[verification](t, d.run(exitDone, "verify", "--deep", "-o", "json")); v.Checked != 1 || v.Wrong() != 0 || v.Problems == nil {
		t.Errorf("%+v", v)
	}
	if r := d.run(exitDone, "verify"); !strings.Contains(r.stdout, "artifacts checked") || r.stderr != "" {
		t.Errorf("%q, %q", r.stdout, r.stderr)
	}
	// The data folder is an operator's to damage.
	objects := func(damage func(name string) error) {
		t.Helper()
		n := 0
		err := filepath.WalkDir(filepath.Join(d.data, "s3"), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.Contains(name, "/artifactd/artifacts/") {
				return err
			}
			n++
			return damage(name)
		})
		if err != nil || n != 1 {
			t.Fatalf("%d objects damaged, %v", n, err)
		}
	}
	// Wrong bytes are found by who reads them; who does not read says nothing better of them afterwards.
	objects(func(name string) error { return os.WriteFile(name, []byte("A report"), 0o600) })
	d.run(exitPartial, "verify", "--deep")
	if r := d.run(exitPartial, "verify"); !strings.Contains(r.stderr, "1 of 1 artifacts were missing or wrong in the bucket before, and have not been read since; `artifactd verify --deep` reads them\n") ||
		!strings.Contains(r.stdout, "suspect") {
		t.Errorf("%q, %q", r.stdout, r.stderr)
	}
	objects(os.Remove)
	r := d.run(exitPartial, "verify", "-o", "json")
	if v := decode[verification](t, r); v.Missing != 1 || len(v.Problems) != 1 || v.Problems[0].Pointer != "a.report" {
		t.Errorf("%+v", v)
	}
	d.run(exitDone, "publish", "a.report", file)
	d.run(exitDone, "get", "a.report", "-O", filepath.Join(t.TempDir(), "copy"))
	for _, args := range [][]string{{"gc", "reconcile", "--grace", "-1s"}, {"gc", "reconcile", "--max-share", "1.5"}, {"gc", "reconcile", "--max-share", "NaN"},
		{"verify", "--after", "x"}, {"verify", "--parallel", "0"}} {
		d.run(exitUsage, args...)
	}
	if r := d.run(exitFailed, "gc", "reconcile", "--s3-prefix", "other/"); !strings.Contains(r.stderr, "other/installation") {
		t.Errorf("stderr %q", r.stderr)
	}
}
