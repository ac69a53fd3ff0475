package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/pointer"
)

// publication is one that somebody was told of.
type publication struct {
	shelf      *shelf
	generation uuid.UUID // which is the lease's id too
	token      pointer.Token
	told       int64 // when, on the campaign's clock
	lost       bool  // by a rollback at some time
	// beyond: a rollback lost it before its record was in the bucket. That is what the outbox's lag
	// costs; nothing is promised of it.
	beyond bool
}

// abortion is an operation that was settled as one that never happens.
type abortion struct {
	publication
	operation uuid.UUID
}

// losses is the attack on recovery: the database is taken back again and again while workers go on,
// and the campaign is the operator.
type losses struct {
	*campaign
	past  past
	epoch atomic.Int64 // that publishes are in, as far as anybody was told

	mu      sync.Mutex
	issued  map[string]uuid.UUID // whose lease each token is, by pointer and token
	told    []*publication
	aborted []*abortion
	origins map[uuid.UUID]uuid.UUID // which lost version a generation was, by their ids
	report  lossReport
}

// lossReport is what the attack came to.
type lossReport struct {
	Asked       int            `json:"rollbacks_asked_for"`
	Rollbacks   int            `json:"rollbacks"`
	Kinds       map[string]int `json:"rollbacks_by_kind"`
	Raised      int            `json:"epochs_raised_by_the_operator"`
	Automatic   int            `json:"epochs_raised_by_a_service"`
	Idle        int            `json:"rollbacks_that_had_nothing_to_lose"`
	Published   int            `json:"publishes_acknowledged"`
	Leases      int            `json:"tokens_issued"`
	Ghosts      int64          `json:"publishes_with_leases_of_a_lost_history"`
	Lost        int            `json:"acknowledged_publishes_lost"`
	Listed      int            `json:"of_these_listed_by_recover"`
	Beyond      int            `json:"of_these_younger_than_the_outbox_lag"`
	BroughtBack int            `json:"versions_brought_back"`
	LongestLag  float64        `json:"longest_outbox_lag_seconds"`
	LongestStop float64        `json:"longest_time_until_writes_went_on_seconds"`
	Seconds     float64        `json:"seconds"`
	Present     int            `json:"acknowledged_publishes_there_at_the_end"`
	Read        int64          `json:"files_read_back"`
	Verified    int64          `json:"artifacts_verified_at_the_end"`
}

// lossStack is a stack whose database can be taken back.
func lossStack(sabotage string) stackOptions {
	return stackOptions{
		sabotage: sabotage, archived: true, confirm: 2 * time.Second,
		configure: func(c *daemon.Config) {
			// The uploads of dead generations can be adopted for long, and are collected early.
			c.GC = daemon.GCConfig{Interval: 300 * time.Millisecond, ResumeGrace: time.Minute, LandingGrace: time.Second,
				ReconcileInterval: time.Second, ReconcileGrace: time.Hour, ReconcileMaxShare: 1}
		},
	}
}

// attackHistory is the attack on recovery on servers of its own.
func attackHistory(ctx context.Context, o options) (r lossReport, violations []string, err error) {
	s, err := startStack(ctx, lossStack(o.sabotage))
	if err != nil {
		return r, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	o.pointers, o.workers, o.readers = 0, 0, 0
	o.shelves = lossShelves
	c := newCampaign(o, s)
	l := &losses{campaign: c, issued: map[string]uuid.UUID{}, origins: map[uuid.UUID]uuid.UUID{}}
	l.past = past{stack: s, rng: c.injector(streamLoss).rng}
	l.report.Asked, l.report.Kinds = o.rollbacks, map[string]int{}
	c.unreadable = l.unreadable
	err = l.run(ctx)
	l.report.Read = c.fetched.Load()
	return l.report, c.violations, err
}

const (
	lossShelves = 6
	streamLoss  = 1 << 24
)

// run takes the database back as often as was asked for, or as fits.
func (l *losses) run(ctx context.Context) error {
	for p, s := range l.shelves {
		// What was published stays, so that nothing of it may be missing.
		settings := map[string]any{"keep_versions": 1_000_000, "keep_seconds": 1_000_000}
		if err := newActor(l.campaign, -1-p).makePointer(ctx, s.name, settings); err != nil {
			return err
		}
	}
	l.epoch.Store(1)
	l.ends.Store(l.clock.now() + int64(l.options.duration))
	began := time.Now()
	var acting sync.WaitGroup
	start := func(n int, act func(*actor)) {
		for range n {
			a := newActor(l.campaign, len(l.actors))
			a.unrecorded = true
			l.actors = append(l.actors, a)
			acting.Go(func() { act(a) })
		}
	}
	start(l.options.publishers, l.work)
	start(l.options.fetchers, func(a *actor) {
		for l.running() {
			a.fetchCurrent(l.shelves[a.rng.IntN(len(l.shelves))])
			time.Sleep(a.between(0, 10*time.Millisecond))
		}
	})
	for n, r := range l.stack.replicas {
		i := l.injector(streamReplica + n)
		acting.Go(func() { i.loop(4*time.Second, 12*time.Second, func() { i.network(r) }) })
	}
	var err error
	for n := 0; err == nil && n < l.options.rollbacks && l.running() && ctx.Err() == nil && !(l.options.firstOnly && l.violated()); n++ {
		kind := takeBacks[n%len(takeBacks)]
		if n >= len(takeBacks) {
			kind = takeBacks[l.past.rng.IntN(len(takeBacks))]
		}
		if err = l.rollback(ctx, kind); err != nil {
			err = fmt.Errorf("rollback %d, %s: %w", n+1, kind, err)
		}
		if errors.Is(err, pointer.ErrEpochNotRaised) { // although something is lost, as whoever brings it back sees
			l.violate("unnoticed: %v", err)
			err = nil
		}
		time.Sleep(l.past.between(200*time.Millisecond, time.Second))
	}
	l.report.Seconds = time.Since(began).Seconds()
	if err != nil {
		l.abandoned.Store(true)
	}
	l.stopped.Store(true)
	acting.Wait()
	l.trips.Wait()
	if err != nil || l.options.firstOnly && l.violated() {
		return err
	}
	return l.verifyAll(ctx)
}

// work publishes, keeps leases for later, and comes back with leases of histories that are lost.
func (l *losses) work(a *actor) {
	var kept []lease
	for l.running() {
		if len(kept) > 0 && a.chance(25) {
			old := kept[a.rng.IntN(len(kept))]
			floor := l.epoch.Load()
			if old.Token.Epoch < floor {
				l.ghost(a, old, floor)
				continue
			}
		}
		s := l.shelves[a.rng.IntN(len(l.shelves))]
		a.ttl = a.wholeTTL()
		if a.chance(50) {
			a.glance(s)
		}
		got, ok := a.acquire(s.index)
		if !ok {
			continue
		}
		l.issue(s, got)
		tree := a.tree(s)
		if again, ok := s.abandoned(); ok && a.chance(50) {
			tree = again // a job that failed is repeated, with the same bytes
		}
		whole := a.put(&got, tree, true)
		kept = append(kept, got)
		kept = kept[max(0, len(kept)-20):]
		switch {
		case a.chance(15): // left to be a ghost
			if a.chance(70) {
				s.abandon(tree)
				a.release(got)
			}
		case whole:
			l.publish(a, s, got, tree)
		default:
			a.release(got)
		}
	}
}

// issue notes that a token was given to a lease, and never to two.
func (l *losses) issue(s *shelf, got lease) {
	id, err := uuid.Parse(got.ID)
	if err != nil {
		l.violate("%s: the lease of token %s has the id %q", s.name, got.Token, got.ID)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := s.name + " " + got.Token.String()
	if other, ok := l.issued[key]; ok && other != id {
		l.violate("%s: token %s was issued twice, to the leases %s and %s", s.name, got.Token, other, id)
	}
	l.issued[key] = id
	l.report.Leases = len(l.issued)
}

// publish publishes and remembers what it was told.
func (l *losses) publish(a *actor, s *shelf, got lease, tree []staged) {
	m := manifest{}
	for _, f := range tree {
		m[f.path] = f.digest
	}
	s.promise(got.Token, m)
	floor := l.epoch.Load()
	published := a.publish([]lease{got}, false)
	r := a.requests[len(a.requests)-1]
	id, _ := uuid.Parse(got.ID) // it was looked at when it was issued
	p := publication{shelf: s, generation: id, token: got.Token, told: l.clock.now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case published && got.Token.Epoch < floor:
		l.violate("stale: %s: token %s published after epoch %d was raised", s.name, got.Token, floor)
	case published:
		l.told = append(l.told, &p)
		l.report.Published++
		l.campaign.published(s.index, got.Token)
	case r.outcome() == "aborted":
		l.aborted = append(l.aborted, &abortion{p, r.id})
	}
}

// ghost comes back with a lease of a history that is over: it publishes nothing, stages nothing and
// renews nothing.
func (l *losses) ghost(a *actor, old lease, floor int64) {
	atomic.AddInt64(&l.report.Ghosts, 1)
	s := l.shelves[old.Pointer]
	if a.chance(30) {
		a.renewStale(old, floor)
	}
	if a.publish([]lease{old}, false) {
		l.violate("stale: %s: token %s published after epoch %d was raised", s.name, old.Token, floor)
	}
}

// renewStale renews a lease that must be dead.
func (a *actor) renewStale(old lease, floor int64) {
	out := a.send("POST", "/v1/leases/"+old.ID+"/renew", map[string]any{"token": old.Token.String()}, uuid.Nil)
	if out.status == 200 {
		a.c.violate("stale: token %s was renewed after epoch %d was raised", old.Token, floor)
	}
}

// unreadable decides about a file of a version that could not be read. Nothing published is ever
// collected here, but the version itself may be lost.
func (l *losses) unreadable(s *shelf, t pointer.Token, path string, status int) {
	a := newActor(l.campaign, readBackStream)
	for deadline := time.Now().Add(quiesceTimeout); time.Now().Before(deadline) && !l.abandoned.Load(); time.Sleep(settlePause) {
		again, _ := a.readFile(s, t, path)
		if again == 200 {
			return
		}
		conn, err := l.stack.owner(context.Background())
		if err != nil {
			continue
		}
		var there bool
		err = conn.QueryRow(context.Background(), `SELECT EXISTS (SELECT 1 FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
			WHERE p.name = $1 AND g.epoch = $2 AND g.generation = $3 AND g.state = 'published')`, s.name, t.Epoch, t.Generation).Scan(&there)
		_ = conn.Close(context.Background()) // has done its work
		if err == nil && !there {
			l.displaced.Add(1)
			return
		}
	}
	l.violate("missing: %s: %s of version %s was answered %d, and again for a minute", s.name, path, t, status)
}

// rows are the report's lines.
func (r lossReport) rows(row func(name, format string, v any)) {
	row("rollbacks asked for", "%d", r.Asked)
	row("rollbacks of the database", "**%d**", r.Rollbacks)
	for _, k := range takeBacks {
		row("rollbacks: "+string(k), "%d", r.Kinds[string(k)])
	}
	row("rollbacks without anything decided meanwhile, left out", "%d", r.Idle)
	row("epochs raised by the operator", "%d", r.Raised)
	row("epochs raised by a service", "%d", r.Automatic)
	row("tokens issued, each once", "%d", r.Leases)
	row("publishes acknowledged", "%d", r.Published)
	row("publishes tried with leases of a lost history", "%d", r.Ghosts)
	row("acknowledged publishes lost by rollbacks", "%d", r.Lost)
	row("of these listed by recover", "%d", r.Listed)
	row("of these younger than the outbox's lag", "%d", r.Beyond)
	row("versions brought back", "%d", r.BroughtBack)
	row("acknowledged publishes there at the end", "%d", r.Present)
	row("longest lag of the outbox at a rollback, seconds", "%.1f", r.LongestLag)
	row("longest time from a rollback until writes went on, seconds", "%.1f", r.LongestStop)
	row("files read back", "%d", r.Read)
	row("artifacts verified at the end", "%d", r.Verified)
	row("seconds", "%.0f", r.Seconds)
}

// text is the report for people.
func (r lossReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## Rollbacks of the database\n\n| | |\n|---|---:|\n")
	r.rows(func(name, format string, v any) { fmt.Fprintf(&b, "| %s | "+format+" |\n", name, v) })
	return b.String()
}
