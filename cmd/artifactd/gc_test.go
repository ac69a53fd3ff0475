package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
)

// The operator's way through collection: plan, explain, run the plan, look back.
func TestCollectionCommands(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	dir := t.TempDir()
	d.run(exitDone, "pointer", "create", "a.report", "--keep-versions", "0", "--keep-seconds", "3600")
	for _, content := range []string{"old", "new one"} {
		d.run(exitDone, "publish", "a.report", writeFile(t, filepath.Join(dir, "f"), []byte(content)))
	}
	r := d.run(exitDone, "gc", "plan", "a.report")
	for _, want := range []string{"keep-seconds", "current", "1.1", "can be run until"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the plan does not show %q:\n%s", want, r.stdout)
		}
	}
	d.run(exitDone, "pointer", "create", "a.report", "--keep-seconds", "0")
	plan := decode[types.GcPlan](t, d.run(exitDone, "gc", "plan", "-o", "json"))
	if len(plan.Goes) != 1 || plan.Goes[0].Reason != "displaced" || plan.Goes[0].Objects != 1 || plan.Goes[0].Bytes != 3 {
		t.Errorf("%+v", plan)
	}
	if r := d.run(exitDone, "gc", "plan", "--show", plan.PlanId.String(), "--items"); !strings.Contains(r.stdout, "displaced") || !strings.Contains(r.stdout, "a.report") {
		t.Errorf("%s", r.stdout)
	}
	run := decode[types.GcRun](t, d.run(exitDone, "gc", "run", "--plan", plan.PlanId.String(), "-o", "json"))
	if run.DeletedObjects != 1 || run.DeletedBytes != 3 || run.PlanId == nil || *run.PlanId != plan.PlanId {
		t.Errorf("%+v", run)
	}
	// A deleted key stays for as long as its upload URL is good: that is told, and until when. Records that
	// newer ones have replaced come and go beside it.
	if run.LedgerSize < 1 || run.LedgerNextAt == nil {
		t.Errorf("%+v", run)
	}
	// The same plan again does nothing, and says why.
	r = d.run(exitDone, "gc", "run", "--plan", plan.PlanId.String())
	const moment = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`
	for _, want := range []string{"this plan was run before", run.RunId.String(), "deleted 1 object, 3 B",
		`in the ledger: \d+ keys?; each stays until no upload of it can arrive any more.* the first after ` + moment} {
		if !regexp.MustCompile(want).MatchString(r.stderr) {
			t.Errorf("stderr does not say %q: %q", want, r.stderr)
		}
	}
	if table := strings.Join(strings.Fields(r.stdout), " "); !regexp.MustCompile(`waiting in the ledger \d+ next attempt ` + moment).MatchString(table) {
		t.Errorf("%s", r.stdout)
	}
	if r := d.run(exitDone, "gc", "runs", run.RunId.String()); !strings.Contains(r.stdout, "done") {
		t.Errorf("%s", r.stdout)
	}
	if r := d.run(exitDone, "gc", "runs"); !strings.Contains(r.stdout, run.RunId.String()) {
		t.Errorf("%s", r.stdout)
	}
	if r := d.run(exitDone, "gc", "run", "--dry-run"); !strings.Contains(r.stdout, "objects would be deleted") || !strings.Contains(r.stdout, "plan ") {
		t.Errorf("%s", r.stdout)
	}
	key := keyInStore(t, d)
	if e := decode[types.GcExplanation](t, d.run(exitDone, "gc", "explain", key, "-o", "json")); e.Verdict != "stays" || e.Reason != "current" || !e.InStore || len(e.Names) != 1 {
		t.Errorf("%+v", e)
	}
	if r := d.run(exitDone, "gc", "explain", key); !strings.Contains(r.stdout, "named by") {
		t.Errorf("%s", r.stdout)
	}
	for code, lines := range map[int][][]string{
		exitUsage: {{"gc", "run", "--plan", "x"}, {"gc", "run", "--plan", plan.PlanId.String(), "--dry-run"}, {"gc", "explain", "other/key"},
			{"gc", "plan", "no/name"}, {"gc", "plan", "a.report", "--show", plan.PlanId.String()}, {"gc", "runs", "x"}, {"gc", "runs", "--limit", "0"}},
		exitNotFound: {{"gc", "run", "--plan", uuid.NewString()}, {"gc", "plan", "never"}, {"gc", "plan", "--show", uuid.NewString()}, {"gc", "runs", uuid.NewString()}},
	} {
		for _, args := range lines {
			if r := d.run(code, args...); r.stderr == "" {
				t.Errorf("%v says nothing", args)
			}
		}
	}
}

// keyInStore is the key of the one object that lies in the store of dev.
func keyInStore(t *testing.T, d *instance) string {
	t.Helper()
	const mark = "/artifactd/artifacts/"
	files, err := filepath.Glob(filepath.Join(d.data, "s3", "*", "*", "artifactd", "artifacts", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(d.data, "s3", "*", "artifactd", "artifacts", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, more...) {
		if i := strings.LastIndex(f, mark); i >= 0 && len(f)-i-1 == len("artifactd/artifacts/")+64+1+36 {
			return f[i+1:]
		}
	}
	t.Fatalf("no object in %v", append(files, more...))
	return ""
}
