package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

func TestMain(m *testing.M) {
	if ranChild() {
		return
	}
	testenv.Main(m)
}

func testOptions() options {
	return options{duration: 10 * time.Second, window: 4 * time.Second, seed: 1, workers: 6, readers: 2, pointers: 4, crashes: 4 * time.Second,
		calm:    3,
		shelves: 5, publishers: 4, fetchers: 2, hurry: true}
}

// TestCampaign is the campaign in small.
func TestCampaign(t *testing.T) {
	o := testOptions()
	o.enough = func(c *campaign) bool {
		return c.total >= 500 && c.faults.of("Postgres") > 0 && c.versionsPublished() >= 5 && c.checked.Load() >= 2*int64(c.options.pointers) &&
			c.uploaded.Load() >= 50 && c.fetched.Load() >= 50
	}
	r, err := attack(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.markdown())
	for _, v := range r.Violations {
		t.Error(v)
	}
	if r.Operations < 300 || r.Faults < 10 || r.Versions < 5 || r.Histories < 2*testOptions().pointers {
		t.Errorf("%d operations, %d faults, %d versions, %d histories: this campaign hardly attacked anything", r.Operations, r.Faults, r.Versions, r.Histories)
	}
	if f := r.Files; f.Uploaded < 50 || f.Read < 50 || f.Versions == 0 || f.Verified == 0 || f.Buried["displaced"] == 0 || f.Buried["unknown"] == 0 {
		t.Errorf("%+v: hardly anything was collected", f)
	}
	if r.Unknown != r.Settled {
		t.Errorf("%d outcomes were unknown and %d settled", r.Unknown, r.Settled)
	}
}

// TestBrokenProtocolIsNoticed: a campaign against a protocol that is broken in one place fails,
// and does so soon. What takes longer to be noticed is tried by `make proof`.
func TestBrokenProtocolIsNoticed(t *testing.T) {
	for _, b := range brokenFences {
		t.Run(b.name, func(t *testing.T) {
			n, first, err := b.attacked(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				t.Error("no violation was noticed")
			}
			t.Logf("%d violations, the first: %.3000s", n, first)
		})
	}
}

// TestCampaignWithoutPostgresEnds: when the server cannot be brought back, the campaign says so and
// ends, although somebody was left not to know an outcome.
func TestCampaignWithoutPostgresEnds(t *testing.T) {
	s, err := startStack(t.Context(), fenceStack("", true))
	if err != nil {
		t.Fatal(err)
	}
	o := testOptions()
	o.duration, o.crashes = time.Hour, 2*time.Second
	// No server runs on this folder again.
	version := filepath.Join(s.postgresOptions().DataDir, "data", "PG_VERSION")
	if err := os.WriteFile(version, []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = newCampaign(o, s).run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "start Postgres after a crash") {
		t.Errorf("the campaign ended with %v", err)
	}
	if err := s.stop(); err != nil {
		t.Log("stop what is left:", err)
	}
}

// TestTablesAgainstRequests: what the whole-history invariants compare is told apart.
func TestTablesAgainstRequests(t *testing.T) {
	id, other := uuid.New(), uuid.New()
	good := func() (*tables, map[uuid.UUID]*request) {
		return &tables{
				operations: map[uuid.UUID]record{id: {"publish", "published", "published p=1.1"}},
				generations: []generationRow{
					{pointer: "p", token: tok(1), state: pointer.StatePublished, holder: "a", operation: &id},
					{pointer: "p", token: tok(2), state: pointer.StateReleased, holder: "b"},
				},
			}, map[uuid.UUID]*request{
				id:    {id: id, kind: kindPublish, sent: 1, told: []string{"published p=1.1", "published p=1.1"}},
				other: {id: other, kind: kindAcquire, sent: 1, nothing: 1, holder: "c"},
			}
	}
	all := func(tb *tables, r map[uuid.UUID]*request) []string {
		return append(append(tb.againstRequests(r), tb.generationsInOrder()...), tb.againstPromises(r, []string{"d"})...)
	}
	if problems := all(good()); len(problems) > 0 {
		t.Fatalf("nothing is wrong, and this is found: %q", problems)
	}
	for name, breakIt := range map[string]func(*tables, map[uuid.UUID]*request){
		"acknowledged and not recorded": func(tb *tables, _ map[uuid.UUID]*request) { delete(tb.operations, id) },
		"recorded as another outcome": func(tb *tables, _ map[uuid.UUID]*request) {
			tb.operations[id] = record{"publish", "refused", "refused p=expired"}
		},
		"told twice in different ways": func(_ *tables, r map[uuid.UUID]*request) { r[id].told[1] = "aborted" },
		"unknown and never settled":    func(_ *tables, r map[uuid.UUID]*request) { r[other].nothing = 0 },
		"recorded though nothing was": func(tb *tables, _ map[uuid.UUID]*request) {
			tb.operations[other] = record{"acquire", "acquired", "acquired 1.2"}
		},
		"never asked for":                func(_ *tables, r map[uuid.UUID]*request) { delete(r, id) },
		"published by nobody":            func(tb *tables, _ map[uuid.UUID]*request) { tb.generations[0].operation = nil },
		"published by another operation": func(tb *tables, _ map[uuid.UUID]*request) { tb.generations[0].operation = &other },
		"published twice": func(tb *tables, r map[uuid.UUID]*request) {
			tb.operations[other] = record{"publish", "published", "published p=1.1"}
			r[other].told = []string{"published p=1.1"}
		},
		"a number is missing":          func(tb *tables, _ map[uuid.UUID]*request) { tb.generations[1].token = tok(3) },
		"held by who was told nothing": func(tb *tables, _ map[uuid.UUID]*request) { tb.generations[1].holder = "c" },
		"held against a promise":       func(tb *tables, _ map[uuid.UUID]*request) { tb.generations[1].holder = "d" },
	} {
		t.Run(name, func(t *testing.T) {
			tb, r := good()
			breakIt(tb, r)
			if len(all(tb, r)) == 0 {
				t.Error("nothing was found")
			}
		})
	}
}

// TestMayDiffer: only a refusal that leaves a lease alive lets the same call become another request.
func TestMayDiffer(t *testing.T) {
	for outcome, want := range map[string]bool{
		"published p=1.1": false, "aborted": false, "refused p=superseded": false, "refused p=expired q=released": false,
		"refused p=incomplete": true, "refused p=superseded q=source-stale": true,
	} {
		r := request{kind: kindPublish, pointers: make([]int, max(1, strings.Count(outcome, "="))), told: []string{outcome}}
		if got := r.mayDiffer(); got != want {
			t.Errorf("%q: %v, want %v", outcome, got, want)
		}
	}
	half := request{kind: kindPublish, pointers: []int{0, 1}, told: []string{"refused p=expired"}}
	if !half.mayDiffer() {
		t.Error("the lease that was in order can be staged again")
	}
}

// TestRealTimeOrder: tokens that go back are found even where each window by itself is in order.
func TestRealTimeOrder(t *testing.T) {
	c := &campaign{}
	tr := &track{issued: map[pointer.Token]bool{}}
	c.inOrder(tr, &window{Ops: []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, shows(1)), at(4, 6, acquired(2, 1000))}})
	if len(c.violations) > 0 {
		t.Fatalf("in order, and this is found: %q", c.violations)
	}
	c.inOrder(tr, &window{Ops: []*op{at(10, 11, op{Kind: kindResolve, Result: done})}})
	c.inOrder(tr, &window{Ops: []*op{at(12, 13, acquired(2, 1000))}})
	if len(c.violations) != 3 { // shown went back; issued twice; not above the last one
		t.Errorf("%d violations, want 3: %q", len(c.violations), c.violations)
	}
}

// TestHalfSeenPublish: one snapshot shows all of a publish of several pointers or nothing of it.
func TestHalfSeenPublish(t *testing.T) {
	id := uuid.New()
	both := []*op{at(0, 1, publishes(5)), at(0, 1, publishes(7))}
	both[1].Pointer = 1
	both[0].Operation, both[1].Operation = id, id
	c := &campaign{}
	for _, shown := range [][]pointer.Token{{tok(4), tok(6)}, {tok(5), tok(7)}, {tok(6), {}}} {
		c.snapshot(shown)
	}
	c.wholeSnapshots(both)
	if len(c.violations) > 0 {
		t.Fatalf("all whole, and this is found: %q", c.violations)
	}
	c.snapshot([]pointer.Token{tok(5), tok(6)})
	c.wholeSnapshots(both)
	if len(c.violations) != 1 {
		t.Errorf("%d violations, want 1: %q", len(c.violations), c.violations)
	}
}
