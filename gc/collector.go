package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Defaults of [Options].
const (
	DefaultResumeGrace  = time.Hour
	DefaultLandingGrace = 15 * time.Minute
	DefaultBatch        = 1_000
	DefaultParallel     = 4
)

// Options of a [Collector]. The zero value of each means its default.
type Options struct {
	// ResumeGrace is how long a dead generation's uploads are kept for a later one to adopt.
	// A newer publication ends it early. A courtesy, not safety.
	ResumeGrace time.Duration
	// LandingGrace is how long after its URL expired an upload that began in time may still be
	// on its way into the store.
	LandingGrace time.Duration
	Batch        int // rows a transaction and keys a delete request; at most 1,000
	// Parallel is how many pointers are looked at, and delete requests under way, at once, while
	// nobody publishes; beside publishers it is one of them, for the first minutes of a run.
	Parallel int
	// Rate bounds how many keys a second are deleted from the store; 0 means no bound.
	Rate     float64
	Logger   *slog.Logger
	Registry prometheus.Registerer
}

// Store is what a collector needs of the object store.
type Store interface {
	artifacts.BlobDeleter
	Head(ctx context.Context, key string) (artifacts.Object, error)
	AbortMultipart(ctx context.Context, m artifacts.Multipart) error
}

// Collector runs collection. Any number of them may run at once, in any number of processes.
type Collector struct {
	pool    *pgxpool.Pool
	store   Store
	opts    Options
	limit   *rate.Limiter // of keys
	metrics *metrics
}

// New makes a Collector on a pool and a store.
func New(pool *pgxpool.Pool, store Store, opts Options) (*Collector, error) {
	if opts.ResumeGrace < 0 || opts.LandingGrace < 0 || !(opts.Rate >= 0) {
		return nil, fmt.Errorf("%w: graces and rate must not be negative", ErrBadOptions)
	}
	if opts.ResumeGrace == 0 {
		opts.ResumeGrace = DefaultResumeGrace
	}
	if opts.LandingGrace == 0 {
		opts.LandingGrace = DefaultLandingGrace
	}
	if opts.Batch <= 0 || opts.Batch > DefaultBatch {
		opts.Batch = DefaultBatch
	}
	if opts.Parallel <= 0 {
		opts.Parallel = DefaultParallel
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	limit := rate.NewLimiter(rate.Inf, opts.Batch)
	if opts.Rate > 0 {
		limit.SetLimit(rate.Limit(opts.Rate))
	}
	m, err := newMetrics(opts.Registry)
	if err != nil {
		return nil, err
	}
	return &Collector{pool: pool, store: store, opts: opts, limit: limit, metrics: m}, nil
}

// Loop runs until ctx ends: about every interval, spread by a fifth so that replicas do not step
// in time. A failed run is logged and the next one goes on from there.
func (c *Collector) Loop(ctx context.Context, interval time.Duration) {
	c.recallSuccess(ctx)
	off := false // told that the database refuses to collect
	for {
		if !pause(ctx, interval) {
			return
		}
		report, err := c.RunOnce(ctx, RunOptions{})
		refused := errors.Is(err, pointer.ErrHistoryChanged)
		if refused && !off {
			c.opts.Logger.Warn("collection is off", "error", err)
		}
		off = refused
		if ctx.Err() != nil {
			return
		}
		if !refused {
			c.tell(&report, err)
		}
	}
}

// pause waits for about d and reports whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// tell logs what a run did, if it did anything.
func (c *Collector) tell(r *Report, err error) {
	if err != nil {
		c.opts.Logger.Error("collection failed; it goes on at the next run", "run_id", r.RunID, "error", err)
	}
	if r.Expired+r.Marked+r.Deleted.Objects+r.Failed > 0 {
		c.opts.Logger.Info("collected", "run_id", r.RunID, "took", r.FinishedAt.Sub(r.StartedAt).Round(time.Millisecond), "candidates", r.Looked,
			"expired", r.Expired, "marked", r.Marked, "deleted_objects", r.Deleted.Objects, "deleted_bytes", r.Deleted.Bytes, "by_reason", r.ByReason,
			"failed", r.Failed, "retained", r.Retained, "ledger_size", r.LedgerSize, "ledger_age", r.LedgerAge(), "first_error", r.FirstError)
	}
}

// RunOptions of one run.
type RunOptions struct {
	// RunID makes the run visible under this id from its beginning; zero means a new one, which is
	// written down when the run has lasted for a while, and at its end.
	RunID uuid.UUID
	// Started, when it is not nil, is called once the run is visible.
	Started func()
	// DryRun makes a plan of what would be collected and changes nothing else.
	DryRun bool
	// Pointer confines a dry run to one pointer.
	Pointer string
	// PlanID has the run do exactly that plan.
	PlanID uuid.UUID
	// ResumeGrace replaces the collector's own when it is not nil; zero collects at once. A plan
	// has its own.
	ResumeGrace *time.Duration
}

// ErrBadOptions: the options of a run do not go together.
var ErrBadOptions = errors.New("bad options of a collection")

func (o RunOptions) check() error {
	switch {
	case o.DryRun && o.PlanID != uuid.Nil:
		return fmt.Errorf("%w: a dry run makes a plan, and cannot be asked to run one", ErrBadOptions)
	case o.Pointer != "" && !o.DryRun:
		return fmt.Errorf("%w: only a dry run can be confined to a pointer; make a plan of it and run that", ErrBadOptions)
	}
	return nil
}

// grace is how long uploads of dead generations are kept in a run.
func (c *Collector) grace(own *time.Duration) (time.Duration, error) {
	switch {
	case own == nil:
		return c.opts.ResumeGrace, nil
	case *own < 0:
		return 0, fmt.Errorf("%w: the resume grace must not be negative, as %s is", ErrBadOptions, *own)
	}
	return *own, nil
}

// RunOnce collects what is garbage now, and reports. When it fails half-way, what it did is
// durable and the report says so; running again goes on. [ErrBadOptions], [ErrPlanNotFound],
// [ErrPlanExpired], [ErrPlanIncomplete].
func (c *Collector) RunOnce(ctx context.Context, run RunOptions) (Report, error) {
	grace, err := c.grace(run.ResumeGrace)
	if err = errors.Join(run.check(), err); err != nil {
		return Report{}, err
	}
	report := Report{RunID: run.RunID, StartedAt: time.Now().UTC(), State: RunRunning, DryRun: run.DryRun, ByReason: map[string]Count{}}
	var open openPlan
	if run.PlanID != uuid.Nil {
		if open, err = c.openPlan(ctx, run.PlanID); err != nil {
			return report, err
		}
		report.PlanID = &run.PlanID
	}
	if report.RunID == uuid.Nil {
		if report.RunID, err = uuid.NewV7(); err != nil {
			return report, err
		}
	} else if err := c.record(ctx, &report, false); err != nil {
		return report, err
	}
	if run.Started != nil {
		run.Started()
	}
	switch {
	case run.DryRun:
		err = c.dryRun(ctx, run, &report)
	case run.PlanID != uuid.Nil:
		err = c.runPlan(ctx, open, &report)
	default:
		err = c.collect(ctx, grace, &report)
	}
	return report, c.finish(ctx, run, &report, historyFault(err))
}

// finish ends a report and writes it down. A run that nobody can ask for leaves no trace when it
// was dry.
func (c *Collector) finish(ctx context.Context, run RunOptions, report *Report, err error) error {
	report.FinishedAt, report.State = time.Now().UTC(), RunDone
	if err != nil && report.FirstError == "" {
		report.FirstError = err.Error()
	}
	if errors.Is(err, pointer.ErrHistoryChanged) && run.RunID == uuid.Nil {
		return err // no run at all
	}
	if !run.DryRun {
		c.metrics.observe(report, err)
	} else if run.RunID == uuid.Nil {
		return err
	}
	// Also of a run that was stopped: what it did is done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	return errors.Join(err, c.record(ctx, report, true))
}

func (c *Collector) collect(ctx context.Context, grace time.Duration, report *Report) error {
	if err := c.markAndDelete(ctx, grace, report); err != nil {
		return err
	}
	if err := c.forget(ctx, report); err != nil {
		return err
	}
	return c.measureLedger(ctx, report)
}

// markAndDelete marks what is garbage and, beside that, takes what is marked into the ledger and, beside
// that, deletes it from the store: the store does not wait for the database.
func (c *Collector) markAndDelete(ctx context.Context, grace time.Duration, report *Report) error {
	marks := make(chan struct{}, 1) // a word that there are new ones
	batches := make(chan []claimed)
	so := c.progress(report)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(marks)
		return c.markDue(ctx, grace, so, marks)
	})
	g.Go(func() error {
		defer close(batches)
		return (&taker{progress: so, pace: so.pacer.pace(c.opts.Batch), allowed: allowance{limit: c.limit}, batches: batches}).takeAll(ctx, marks)
	})
	g.Go(func() error { return c.deleteDue(ctx, nil, so, batches) })
	return g.Wait()
}

// progress is the report of a run of which several things are done at once, and their pace.
type progress struct {
	*Collector
	pacer  *pacer
	mu     sync.Mutex
	report *Report
}

func (c *Collector) progress(report *Report) *progress {
	return &progress{Collector: c, pacer: newPacer(publishing(c.pool)), report: report}
}

// note adds to the report, and writes down from time to time how far it has come.
func (p *progress) note(ctx context.Context, add func(*Report)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add(p.report)
	p.Collector.note(ctx, p.report)
}

// dryRun makes a plan and reports what it says.
func (c *Collector) dryRun(ctx context.Context, run RunOptions, report *Report) error {
	plan, err := c.Plan(ctx, PlanOptions{Pointer: run.Pointer, ResumeGrace: run.ResumeGrace, progress: func() { c.note(ctx, report) }})
	if err != nil {
		return err
	}
	report.PlanID = &plan.ID
	for _, n := range plan.Goes {
		if n.Objects > 0 {
			report.ByReason[n.Reason] = Count{n.Objects, n.Bytes}
		}
	}
	sum := plan.Sum()
	report.Marked, report.Deleted = sum.Generations, Count{sum.Objects, sum.Bytes}
	return c.measureLedger(ctx, report)
}
