package gc_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

func (s *site) plan(c *gc.Collector, o gc.PlanOptions) gc.Plan {
	s.t.Helper()
	p, err := c.Plan(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// items reads all items of a plan in small pages, by pointer, version and kind.
func (s *site) items(c *gc.Collector, p gc.Plan) map[string]gc.PlanItem {
	s.t.Helper()
	all := map[string]gc.PlanItem{}
	for at := (gc.PlanCursor{}); ; {
		page, next, err := c.PlanItems(s.t.Context(), p.ID, at, 2)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		for _, i := range page {
			all[fmt.Sprintf("%s %s %s", i.Pointer, i.Kind, i.Version)] = i
		}
		at = next
	}
}

// sums are the lines of a plan's summary as text.
func sums(list []gc.PlanCount) map[string]string {
	m := map[string]string{}
	for _, n := range list {
		m[n.Reason] = fmt.Sprintf("%d generations, %d objects, %d bytes", n.Generations, n.Objects, n.Bytes)
	}
	return m
}

func (s *site) dead(name string, bodies ...string) pointer.Lease {
	s.t.Helper()
	l := s.acquire(name)
	s.upload(l, bodies...)
	if err := s.catalogue.Release(s.t.Context(), l.ID); err != nil {
		s.t.Fatal(err)
	}
	return l
}

// everyFate makes a catalogue in which each reason to go, and each to stay, stands at least once.
func (s *site) everyFate() {
	t := s.t
	t.Helper()
	s.pointer("keeps", 2, 0)
	pinned := s.version("keeps", "pinned")
	if err := s.catalogue.Pin(t.Context(), "keeps", pinned.Token, true); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"gone", "number", "number", "shown"} {
		s.version("keeps", body, "shared")
	}
	s.pointer("seconds", 0, 3600)
	s.version("seconds", "time")
	s.version("seconds", "shown, too")
	s.pointer("leases", 5, 3600)
	s.dead("leases", "old news")
	s.version("leases", "published")
	broken := s.acquire("leases")
	s.upload(broken, "broken", "resumed")
	if err := s.catalogue.BreakLease(t.Context(), "leases", broken.Token); err != nil {
		t.Fatal(err)
	}
	l := s.acquire("leases")
	s.upload(l, "first thoughts", "resumed")
	s.upload(l, "second thoughts", "resumed")
	s.pointer("unseen", 5, 3600)
	s.upload(s.acquire("unseen"), "ran out")
	s.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp() WHERE name = 'unseen'`)
	s.exec(`UPDATE artifactd.generation SET collect_at = clock_timestamp() WHERE pointer_id = (SELECT pointer_id FROM artifactd.pointer WHERE name = 'unseen')`)
}

func TestPlanSaysWhatGoesAndWhatStays(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.everyFate()
	c := s.collector(s.store)
	p := s.plan(c, gc.PlanOptions{})
	stays := map[string]string{
		"current":       "3 generations, 4 objects, 30 bytes", // shown+shared, shown too, published
		"pinned":        "1 generations, 1 objects, 6 bytes",
		"keep-versions": "2 generations, 4 objects, 24 bytes",
		"keep-seconds":  "1 generations, 1 objects, 4 bytes",
		"resume-grace":  "2 generations, 3 objects, 20 bytes", // broken+resumed, ran out
		"leased":        "1 generations, 2 objects, 22 bytes",
	}
	if got := sums(p.Stays); !maps.Equal(got, stays) {
		t.Errorf("stays %v\nwant  %v", got, stays)
	}
	goes := map[string]string{
		"displaced": "1 generations, 1 objects, 4 bytes", // its other file is shared with what is shown
		"released":  "1 generations, 1 objects, 8 bytes",
		"replaced":  "0 generations, 1 objects, 14 bytes",
	}
	if got := sums(p.Goes); !maps.Equal(got, goes) {
		t.Errorf("goes %v\nwant %v", got, goes)
	}
	if n := len(s.items(c, p)); n != 3 {
		t.Errorf("%d items, want the three that go", n)
	}
	// Without the grace, what the live lease has adopted stays all the same.
	p = s.plan(c, gc.PlanOptions{ResumeGrace: new(time.Duration)})
	goes["broken"], goes["expired"] = "1 generations, 1 objects, 6 bytes", "1 generations, 1 objects, 7 bytes"
	if got := sums(p.Goes); !maps.Equal(got, goes) {
		t.Errorf("goes without grace %v\nwant %v", got, goes)
	}
	// Of one pointer, what stays is told version by version.
	p = s.plan(c, gc.PlanOptions{Pointer: "keeps"})
	items := s.items(c, p)
	for version, reason := range map[string]string{"1.1": "pinned", "1.2": "displaced", "1.3": "keep-versions", "1.4": "keep-versions", "1.5": "current"} {
		i, ok := items["keeps generation "+version]
		if !ok || i.Reason != reason || i.Goes != (reason == "displaced") {
			t.Errorf("%s: %+v, want %s", version, i, reason)
		}
	}
	if len(items) != 5 || len(p.Goes) != 1 {
		t.Errorf("%d items of one pointer, %+v", len(items), p)
	}
	p = s.plan(c, gc.PlanOptions{Pointer: "leases"})
	if got := s.items(c, p)["leases generation 1.3"]; got.Reason != "resume-grace" || got.KeepsUntil == nil {
		t.Errorf("%+v", got)
	}
	// The plan told the truth: that is what a run takes.
	report, err := c.RunOnce(t.Context(), gc.RunOptions{ResumeGrace: new(time.Duration)})
	if err != nil || report.Deleted != (gc.Count{Objects: 5, Bytes: 39}) {
		t.Errorf("%+v, %v", report, err)
	}
	s.check()
}

// A plan is done exactly: what came to be garbage later stays, what came to be wanted later stays
// and is told, and what another run had condemned is not this one's.
func TestPlanIsRunExactly(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.everyFate()
	s.pointer("p", 0, 0)
	one := s.version("p", "p one")
	s.version("p", "p two")
	c := s.collector(s.store)
	p := s.plan(c, gc.PlanOptions{ResumeGrace: new(time.Duration)})

	if err := s.catalogue.Pin(t.Context(), "p", one.Token, true); err != nil {
		t.Fatal(err)
	}
	s.pointer("later", 0, 0)
	s.version("later", "later one")
	s.version("later", "later two")
	s.exec(`INSERT INTO artifactd.deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
		VALUES ('artifactd/condemned', 1, 'unknown', true, now(), now(), now())`)
	before := len(s.keys(s.layout.ArtifactsPrefix()))

	report, err := c.RunOnce(t.Context(), gc.RunOptions{PlanID: p.ID})
	if err != nil {
		t.Fatal(err)
	}
	if report.Deleted != (gc.Count{Objects: 5, Bytes: 39}) || !maps.Equal(report.Kept, map[string]int64{"pinned": 1}) || *report.PlanID != p.ID {
		t.Errorf("%+v, want the plan's five objects, and one item kept by a pin", report)
	}
	if after := len(s.keys(s.layout.ArtifactsPrefix())); before-after != 5 {
		t.Errorf("%d objects went, want 5", before-after)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.deletion WHERE object_key = 'artifactd/condemned' AND attempts = 0`); n != 1 {
		t.Error("a key that the plan did not bring into the ledger was claimed")
	}
	if n := s.number(`SELECT count(*) FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id) WHERE p.name = 'later' AND collecting_at IS NOT NULL`); n != 0 {
		t.Errorf("%d generations were marked that the plan does not name", n)
	}
	items := s.items(c, p)
	if i := items["p generation 1.1"]; i.Outcome != "pinned" {
		t.Errorf("%+v", i)
	}
	if i := items["keeps generation 1.2"]; i.Outcome != "collected" {
		t.Errorf("%+v", i)
	}
	// Doing it again does nothing more; everything else is still there for a common run.
	if report, err = c.RunOnce(t.Context(), gc.RunOptions{PlanID: p.ID}); err != nil || report.Deleted.Objects != 0 || report.Marked != 0 {
		t.Errorf("again: %+v, %v", report, err)
	}
	if report := s.collect(); report.Deleted.Objects != 2 { // later's, and the condemned key
		t.Errorf("%+v", report)
	}
	s.check()
}

// A plan's run that was killed anywhere is finished by doing the plan again, or by any other run.
func TestPlanRunStopsAfterAnyStep(t *testing.T) {
	steps := []string{
		`SELECT artifactd.collect_mark(pointer_id, array_agg(item_id), 0, true) FROM artifactd.gc_plan_item GROUP BY pointer_id`,
		`SELECT artifactd.collect_files(1, 0, plan_id, item_id) FROM artifactd.gc_plan_item`,
		`SELECT artifactd.collect_files(1000, 0, plan_id, item_id) FROM artifactd.gc_plan_item`,
		`SELECT artifactd.claim_deletions(1, 0, plan_id) FROM artifactd.gc_plan`,
	}
	for n := range len(steps) + 1 {
		t.Run(fmt.Sprintf("after step %d", n), func(t *testing.T) {
			s := newSite(t, testenv.Versitygw)
			s.pointer("p", 0, 0)
			s.version("p", "one", "two", "three")
			s.version("p", "three", "four")
			c := s.collector(s.store)
			p := s.plan(c, gc.PlanOptions{})
			for _, step := range steps[:n] {
				s.exec(step)
			}
			report, err := c.RunOnce(t.Context(), gc.RunOptions{PlanID: p.ID})
			if err != nil || report.Deleted.Objects != 2 {
				t.Errorf("%+v, %v, want 2 deleted", report, err)
			}
			s.check()
		})
	}
}

func TestPlanRefusals(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	s.version("p", "one")
	s.version("p", "two")
	c, negative := s.collector(s.store), -time.Second
	expired := s.plan(c, gc.PlanOptions{})
	s.exec(`UPDATE artifactd.gc_plan SET expires_at = clock_timestamp()`)
	unfinished := uuid.New()
	s.exec(`SELECT artifactd.begin_plan($1, NULL, 0, 60)`, unfinished)
	for name, c2 := range map[string]struct {
		run  gc.RunOptions
		want error
	}{
		"an expired plan":          {gc.RunOptions{PlanID: expired.ID}, gc.ErrPlanExpired},
		"an unknown plan":          {gc.RunOptions{PlanID: uuid.New()}, gc.ErrPlanNotFound},
		"an unfinished plan":       {gc.RunOptions{PlanID: unfinished}, gc.ErrPlanIncomplete},
		"a dry run of a plan":      {gc.RunOptions{PlanID: expired.ID, DryRun: true}, gc.ErrBadOptions},
		"a run of a pointer":       {gc.RunOptions{Pointer: "p"}, gc.ErrBadOptions},
		"a plan of no pointer":     {gc.RunOptions{Pointer: "q", DryRun: true}, pointer.ErrPointerNotFound},
		"a negative grace":         {gc.RunOptions{ResumeGrace: &negative}, gc.ErrBadOptions},
		"a negative grace, dry":    {gc.RunOptions{ResumeGrace: &negative, DryRun: true}, gc.ErrBadOptions},
		"a negative landing grace": {},
	} {
		if c2.want == nil {
			if _, err := gc.New(s.pool, s.store, gc.Options{LandingGrace: negative}); !errors.Is(err, gc.ErrBadOptions) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if _, err := c.RunOnce(t.Context(), c2.run); !errors.Is(err, c2.want) {
			t.Errorf("%s: %v, want %v", name, err, c2.want)
		}
	}
	if n := s.number(`SELECT count(*) FROM artifactd.generation WHERE collecting_at IS NOT NULL`); n != 0 {
		t.Errorf("%d generations were marked by runs that were refused", n)
	}
	// The database holds every caller to it.
	for _, sql := range []string{`SELECT artifactd.collect_mark(1, '{}', -1)`, `SELECT artifactd.collect_files(1, -1)`, `SELECT artifactd.collect_unnamed(1, 'NaN')`,
		`SELECT artifactd.begin_plan(gen_random_uuid(), NULL, -1, 60)`} {
		if _, err := s.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s was accepted", sql)
		}
	}
	// Plans are forgotten in the end, their items first.
	s.exec(`UPDATE artifactd.gc_plan SET created_at = created_at - interval '3 days', expires_at = expires_at - interval '3 days'`)
	s.collect()
	if n := s.number(`SELECT (SELECT count(*) FROM artifactd.gc_plan) + (SELECT count(*) FROM artifactd.gc_plan_item)`); n != 0 {
		t.Errorf("%d rows of old plans are left", n)
	}
}

func TestExplain(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	key := func(f pointer.StagedFile) string { return s.layout.ArtifactKey(f.Artifact.Digest, f.Artifact.ID) }
	one := s.acquire("p")
	gone := key(s.upload(one, "one", "shared")[0])
	s.publish(one)
	two := s.acquire("p")
	files := s.upload(two, "two", "shared")
	s.publish(two)
	replaced := key(s.upload(s.acquire("p"), "first")[0])
	s.exec(`UPDATE artifactd.artifact SET unnamed_at = clock_timestamp() WHERE position(encode(digest, 'hex') in $1) > 0`, replaced)
	s.exec(`DELETE FROM artifactd.manifest_file m USING artifactd.artifact a WHERE a.artifact_id = m.artifact_id AND a.unnamed_at IS NOT NULL`)
	orphan, unseen := s.orphan("lost", nil), s.layout.ArtifactKey(artifacts.DigestOf([]byte("x")), uuid.New())
	s.pass(anyShare)
	c := s.collector(s.store)
	explain := func(key, verdict, reason string, there bool) gc.Explanation {
		t.Helper()
		e, err := c.Explain(t.Context(), s.layout, key)
		if err != nil || e.Verdict != verdict || e.Reason != reason || e.InStore != there {
			t.Errorf("%s: %+v, %v, want %s (%s)", key, e, err, verdict, reason)
		}
		return e
	}
	explain(gone, gc.VerdictGoes, "displaced", true)
	if e := explain(key(files[1]), gc.VerdictStays, "current", true); len(e.Names) != 2 || e.Names[0].Version != two.Token || !e.Names[1].Goes {
		t.Errorf("%+v", e)
	}
	explain(replaced, gc.VerdictGoes, "replaced", true)
	explain(orphan, gc.VerdictUnknown, "unknown", true)
	explain(unseen, gc.VerdictUnknown, "never-seen", false)
	s.collect()
	if e := explain(gone, gc.VerdictLedger, "displaced", false); e.Ledger.DeletedAt == nil || e.Ledger.Attempts != 1 {
		t.Errorf("%+v", e.Ledger)
	}
	for _, foreign := range []string{"other/thing", "artifactd/installation", "artifactd2" + gone[len("artifactd"):]} {
		if _, err := c.Explain(context.Background(), s.layout, foreign); !errors.Is(err, artifacts.ErrForeignKey) {
			t.Errorf("%s: %v", foreign, err)
		}
	}
}
