package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/artifactd/artifactd/pointer"
)

// options are what can be told on the command line.
type options struct {
	duration time.Duration
	window   time.Duration // between two barriers
	seed     uint64
	workers  int
	readers  int
	pointers int
	crashes  time.Duration // mean time between two crashes of Postgres
	report   string        // file of the report; empty for standard output alone
	prove    bool          // that broken protocols are noticed
	// firstOnly ends the campaign at the first window after a violation.
	firstOnly bool
	sabotage  string // SQL that breaks the protocol, for the test that this is noticed
	// shelves are pointers with short retention, whose publishers and fetchers move real files.
	shelves, publishers, fetchers int
	// enough says whether the campaign may end when its time is over: on a machine that is busy
	// otherwise it may have attacked nothing by then.
	enough    func(*campaign) bool
	only      string // of the attacks; empty for all
	calm      int    // by how much longer than usual the network is left alone between faults; 0 for 1
	rollbacks int    // of the database, in the attack on recovery
	// hurry lets the time pass at the end that the deletion ledger waits for, instead of waiting.
	hurry bool
}

func (o options) validate() error {
	if o.rollbacks < 0 || o.only != "" && o.only != onlyFence && o.only != onlyRollbacks {
		return errors.New(`rollbacks must not be negative, and the only attack "fence" or "rollbacks"`)
	}
	if o.duration <= 0 || o.window <= 0 || o.crashes <= 0 || o.workers < 1 || o.readers < 0 || o.pointers < 1 || o.pointers > 100 ||
		o.shelves < 0 || o.publishers < 0 || o.fetchers < 0 {
		return errors.New("durations must be positive, with at least one worker and 1 to 100 pointers")
	}
	return nil
}

// campaign is one run. The gate is held by whoever acts; a barrier closes it.
type campaign struct {
	options options
	stack   *stack
	http    *http.Client
	clock   clock
	offset  atomic.Int64 // of the database's clock, as the last barrier found it
	names   []string     // of the fenced pointers first, then of the shelves
	shelves []*shelf
	// On the clock: when it has lasted as long as it was asked to, and when it ends whatever was done.
	earliest int64
	ends     atomic.Int64

	gate    sync.RWMutex
	chaos   sync.RWMutex   // the same for those who inject faults
	trips   sync.WaitGroup // faults armed for single operations
	stopped atomic.Bool
	// abandoned says that there is no Postgres any more that could answer what is still open.
	abandoned atomic.Bool

	history history
	// unreadable decides what it means that a file of a published version could not be read.
	unreadable func(s *shelf, t pointer.Token, path string, status int)
	library    library
	strays     strays
	lates      sync.WaitGroup // uploads that come too late
	tracks     []*track
	revisions  []atomic.Int64
	faults     tally
	answers    tally
	answered   atomic.Int64 // calls that were answered with anything definite
	unknowns   atomic.Int64
	settled    atomic.Int64
	total      int64 // operations, as histories count them
	windows    chan *window
	checked    atomic.Int64
	slowest    time.Duration
	lasted     time.Duration // how long faults and calls went on
	actors     []*actor
	// Of the shelves: files that were uploaded, adopted, sent too late and all the same stored, read
	// back whole, and not found after they were displaced.
	uploaded, adopted, landed, fetched, displaced atomic.Int64
	collection                                    collection

	mu         sync.Mutex
	versions   [][]pointer.Token // the last few published, by pointer
	snapshots  [][]pointer.Token
	promised   []string // holders who were told that nothing happened
	violations []string
}

func newCampaign(o options, s *stack) *campaign {
	c := &campaign{
		options: o, stack: s, http: httpClient(), clock: newClock(), windows: make(chan *window, 10_000),
		revisions: make([]atomic.Int64, o.pointers+o.shelves), versions: make([][]pointer.Token, o.pointers+o.shelves),
	}
	c.unreadable = c.mayBeCollected
	for i := range o.pointers {
		c.names = append(c.names, fmt.Sprintf("campaign.p%d", i))
		c.tracks = append(c.tracks, &track{fates: fates{}, issued: map[pointer.Token]bool{}})
	}
	for i := range o.shelves {
		c.shelves = append(c.shelves, newShelf(i, len(c.names)))
		c.names = append(c.names, c.shelves[i].name)
	}
	return c
}

// fenced are the names of the pointers whose histories are checked.
func (c *campaign) fenced() []string { return c.names[:c.options.pointers] }

// running reports whether actors should go on.
func (c *campaign) running() bool {
	return !c.stopped.Load() && !c.abandoned.Load() && c.clock.now() < c.ends.Load()
}

// at is a time of the database's on the campaign's clock.
func (c *campaign) at(t time.Time) int64 { return c.clock.at(t, c.offset.Load()) }

// count notes an answer for the report.
func (c *campaign) count(method string, a answer) {
	what := fmt.Sprintf("%s %d", method, a.status)
	if a.unavailable() {
		what += " " + a.Code
	}
	if a.status == 0 {
		what = method + " no answer"
	}
	c.answers.add(what)
	c.expected(method, a.status, a.Detail)
}

// expected takes an internal error for a violation: no fault here is one that a service must not expect.
func (c *campaign) expected(what string, status int, said string) {
	if status == http.StatusInternalServerError {
		c.violate("%s was answered 500: %s", what, said)
	}
}

// maxViolations bounds what is kept; the first ones matter.
const maxViolations = 100

func (c *campaign) violate(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.violations) < maxViolations {
		c.violations = append(c.violations, fmt.Sprintf(format, args...))
	}
}

func (c *campaign) violated() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.violations) > 0
}

// promise remembers a holder who was told that nothing happened.
func (c *campaign) promise(holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.promised = append(c.promised, holder)
}

// versionsKept is from how many of a pointer's versions a rollback chooses.
const versionsKept = 50

func (c *campaign) published(p int, t pointer.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := append(c.versions[p], t)
	c.versions[p] = kept[max(0, len(kept)-versionsKept):]
}

func (c *campaign) someVersion(p int, r *rand.Rand) (pointer.Token, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.versions[p]) == 0 {
		return pointer.Token{}, false
	}
	return c.versions[p][r.IntN(len(c.versions[p]))], true
}

// snapshot remembers what all pointers showed at one time.
func (c *campaign) snapshot(shown []pointer.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshots = append(c.snapshots, shown)
}

// run is the whole campaign, from the first pointer to the invariants.
func (c *campaign) run(ctx context.Context) error {
	if err := c.makePointers(ctx); err != nil {
		return err
	}
	if err := c.barrier(ctx, 0); err != nil {
		return err
	}
	c.earliest = c.clock.now() + int64(c.options.duration)
	c.ends.Store(c.earliest)
	if c.options.enough != nil {
		c.ends.Store(c.earliest + int64(longestExtension))
	}
	var checking, acting sync.WaitGroup
	checking.Go(c.check)
	began := time.Now()
	c.begin(&acting)
	failed := c.disturb(ctx, &acting)
	err := c.cut(ctx, failed)
	if err != nil {
		c.abandoned.Store(true)
	}
	c.stopped.Store(true)
	c.lasted = time.Since(began)
	acting.Wait()
	c.lates.Wait()
	c.trips.Wait()
	if err == nil {
		err = c.barrier(ctx, -1)
	}
	close(c.windows)
	checking.Wait()
	if err != nil {
		return err
	}
	if err := c.verify(ctx); err != nil || c.options.firstOnly && c.violated() {
		return err
	}
	return c.verifyCollection(ctx)
}

// begin sets everybody to work.
func (c *campaign) begin(acting *sync.WaitGroup) {
	start := func(n int, unrecorded bool, act func(*actor)) {
		for range n {
			a := newActor(c, len(c.actors))
			a.unrecorded = unrecorded
			c.actors = append(c.actors, a)
			acting.Go(func() { act(a) })
		}
	}
	start(c.options.workers, false, (*actor).work)
	start(c.options.readers, false, (*actor).observe)
	if len(c.shelves) > 0 {
		start(c.options.publishers, true, (*actor).fill)
		start(c.options.fetchers, true, (*actor).fetch)
		start(1, true, (*actor).litter)
	}
}

// makePointers makes all pointers. What a rollback of a fenced one goes back to is never collected.
func (c *campaign) makePointers(ctx context.Context) error {
	for p, name := range c.names {
		settings := map[string]any{"keep_versions": 1_000_000, "keep_seconds": 1_000_000}
		if p >= c.options.pointers {
			s := c.shelves[p-c.options.pointers]
			settings = map[string]any{"keep_versions": s.keepVersions, "keep_seconds": s.keepSeconds}
		}
		if err := newActor(c, -1-p).makePointer(ctx, name, settings); err != nil {
			return err
		}
	}
	return nil
}

// makePointer makes one before the campaign begins. A service that is ready to be read from may
// still wait for its first look at the bucket before it takes writes, and says so with 503.
func (a *actor) makePointer(ctx context.Context, name string, settings map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r := a.c.stack.replicas[0]
	for {
		out := a.exchange(r, http.MethodPut, "/v1/pointers/"+name, settings, callTimeout, nil)
		// The answer to an attempt before may have been lost: then the pointer is there.
		if out.status == http.StatusCreated || out.status == http.StatusOK {
			return nil
		}
		if !out.silent() && !out.unavailable() {
			return fmt.Errorf("create %s: %d %s %s", name, out.status, out.Code, out.Detail)
		}
		select {
		case <-time.After(createPause):
		case <-ctx.Done():
			return fmt.Errorf("create %s: %d %s %s; the service said:\n%s", name, out.status, out.Code, out.Detail, r.said())
		}
	}
}

// createPause is between two attempts to make a pointer.
const createPause = 100 * time.Millisecond

// longestExtension is by how much a campaign lasts longer at most until it has done enough.
const longestExtension = 10 * time.Minute

// cut makes a barrier at the end of every window until the time is over.
func (c *campaign) cut(ctx context.Context, failed <-chan error) error {
	for n := 1; c.running() && !(c.options.firstOnly && c.violated()); n++ {
		if c.options.enough != nil && c.clock.now() > c.earliest && c.options.enough(c) {
			break
		}
		left := time.Duration(c.ends.Load() - c.clock.now())
		select {
		case <-time.After(min(c.options.window, left)):
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.barrier(ctx, n); err != nil {
			// Without a server there is no barrier: why there is none says more.
			return cmp.Or(whyFailed(failed), err)
		}
	}
	return whyFailed(failed)
}

func whyFailed(failed <-chan error) error {
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// check checks windows until there are no more.
func (c *campaign) check() {
	for w := range c.windows {
		start := time.Now()
		switch w.check(checkTimeout) {
		case porcupine.Ok:
			c.checked.Add(1)
		case porcupine.Illegal:
			c.violate("not linearizable:\n%s", w.explain())
		default:
			c.violate("not decided in %s:\n%s", checkTimeout, w.list())
		}
		c.slowest = max(c.slowest, time.Since(start))
	}
}

// tally counts by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tally) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int{}
	}
	t.n[name]++
}

// of is how many there are whose names begin like this.
func (t *tally) of(prefix string) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, count := range t.n {
		if strings.HasPrefix(name, prefix) {
			n += count
		}
	}
	return n
}
