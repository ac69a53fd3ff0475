package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/artifacts"
)

const planSQL = `SELECT reason, generations, objects, bytes FROM artifactd.collect_plan($1)`

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
	Parallel     int // pointers looked at, and delete requests under way, at once
	Logger       *slog.Logger
	Registry     prometheus.Registerer
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
	metrics *metrics
}

// New makes a Collector on a pool and a store.
func New(pool *pgxpool.Pool, store Store, opts Options) (*Collector, error) {
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
	m, err := newMetrics(opts.Registry)
	if err != nil {
		return nil, err
	}
	return &Collector{pool: pool, store: store, opts: opts, metrics: m}, nil
}

// Loop runs until ctx ends: about every interval, spread by a fifth so that replicas do not step
// in time. A failed run is logged and the next one goes on from there.
func (c *Collector) Loop(ctx context.Context, interval time.Duration) {
	for {
		pause := time.Duration(float64(interval) * (0.9 + 0.2*rand.Float64()))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		report, err := c.RunOnce(ctx, RunOptions{})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.opts.Logger.Error("collection failed; it goes on at the next run", "error", err)
		case report.Marked+report.Deleted.Objects+report.Failed > 0:
			c.opts.Logger.Info("collected", "marked", report.Marked, "deleted_objects", report.Deleted.Objects,
				"deleted_bytes", report.Deleted.Bytes, "failed", report.Failed, "ledger_size", report.LedgerSize)
		}
	}
}

// RunOptions of one run.
type RunOptions struct {
	// DryRun reports what would be collected and changes nothing.
	DryRun bool
	// ResumeGrace replaces the collector's own when it is not nil; zero collects at once.
	ResumeGrace *time.Duration
}

// RunOnce collects what is garbage now, and reports. When it fails half-way, what it did is
// durable and the report says so; running again goes on.
func (c *Collector) RunOnce(ctx context.Context, run RunOptions) (Report, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Report{}, err
	}
	report := Report{RunID: id, StartedAt: time.Now().UTC(), DryRun: run.DryRun, ByReason: map[string]Count{}}
	grace := c.opts.ResumeGrace
	if run.ResumeGrace != nil {
		grace = *run.ResumeGrace
	}
	if run.DryRun {
		err = c.plan(ctx, grace, &report)
	} else {
		err = c.collect(ctx, grace, &report)
	}
	report.FinishedAt = time.Now().UTC()
	if err != nil && report.FirstError == "" {
		report.FirstError = err.Error()
	}
	if !run.DryRun {
		c.metrics.observe(&report, err)
		err = errors.Join(err, c.record(ctx, &report))
	}
	return report, err
}

func (c *Collector) collect(ctx context.Context, grace time.Duration, report *Report) error {
	for _, step := range []func(context.Context, time.Duration, *Report) error{c.markDue, c.takeFiles, c.takeUnnamed, c.deleteDue, c.forget} {
		if err := step(ctx, grace, report); err != nil {
			return err
		}
	}
	return c.measureLedger(ctx, report)
}

// plan reports what collect would do now.
func (c *Collector) plan(ctx context.Context, grace time.Duration, report *Report) error {
	rows, err := c.pool.Query(ctx, planSQL, grace.Seconds())
	if err != nil {
		return fmt.Errorf("plan collection: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var reason string
		var generations int64
		var n Count
		if err := rows.Scan(&reason, &generations, &n.Objects, &n.Bytes); err != nil {
			return err
		}
		report.Marked += generations
		if n.Objects > 0 {
			report.ByReason[reason] = n
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("plan collection: %w", err)
	}
	for _, reason := range slices.Collect(maps.Keys(report.ByReason)) {
		report.Deleted.Objects += report.ByReason[reason].Objects
		report.Deleted.Bytes += report.ByReason[reason].Bytes
	}
	return c.measureLedger(ctx, report)
}
