package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

const (
	dueSQL     = `SELECT pointer_id, generation_ids FROM artifactd.collect_due($1)`
	markSQL    = `SELECT looked, expired, marked FROM artifactd.collect_mark($1, $2, $3)`
	filesSQL   = `SELECT status, artifacts FROM artifactd.collect_files($1, $2)`
	unnamedSQL = `SELECT looked, artifacts FROM artifactd.collect_unnamed($1, $2)`
	claimSQL   = `SELECT object_key, size, reason, first, coalesce(upload_id, ''), stored, claimed_at FROM artifactd.claim_deletions($1, $2)`
	finishSQL  = `SELECT left_ledger FROM artifactd.finish_deletions($1, $2, $3)`
	ledgerSQL  = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(enqueued_at)), 0)::float8 FROM artifactd.deletion`
	forgetSQL  = `SELECT forgotten FROM artifactd.forget_operations($1)`
	planSQL    = `SELECT reason, generations, objects, bytes FROM artifactd.collect_plan($1)`
	recordSQL  = `SELECT artifactd.record_gc_run($1, $2, $3)`
	runsSQL    = `SELECT report FROM artifactd.gc_run ORDER BY started_at DESC LIMIT $1`
)

// Defaults of [Options].
const (
	DefaultResumeGrace  = time.Hour
	DefaultLandingGrace = 15 * time.Minute
	DefaultBatch        = 1_000
	DefaultParallel     = 4
)

// claimFor is how long a claimed batch of keys is left to the collector that claimed it.
const claimFor = 5 * time.Minute

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

// Count is a number of objects and their bytes.
type Count struct {
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// Report says what one run did. In a dry run, Deleted and ByReason say what it would have done.
type Report struct {
	RunID      uuid.UUID `json:"run_id"`
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
	DryRun     bool      `json:"dry_run"`
	Looked     int64     `json:"looked"`  // generations that were due for a look
	Expired    int64     `json:"expired"` // leases whose end nobody else had recorded
	Marked     int64     `json:"marked"`  // generations found to be garbage
	// Deleted counts objects whose first deletion the store confirmed, and their bytes. What was
	// declared and never uploaded does not count.
	Deleted    Count            `json:"deleted"`
	ByReason   map[string]Count `json:"by_reason"`
	Failed     int64            `json:"failed"`      // deletions that failed; they stay in the ledger and are tried again
	Retained   int64            `json:"retained"`    // objects that the store keeps for now (object lock); likewise
	Skipped    int64            `json:"skipped"`     // steps that lost to a concurrent publish or collector; the next run repeats them
	LedgerSize int64            `json:"ledger_size"` // keys still in the ledger
	FirstError string           `json:"first_error,omitempty"`
}

// Partial reports whether something was left undone that the run had wanted to do.
func (r *Report) Partial() bool { return r.Failed > 0 }

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
	off := false // told that the database refuses to collect
	for {
		pause := time.Duration(float64(interval) * (0.9 + 0.2*rand.Float64()))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		report, err := c.RunOnce(ctx, RunOptions{})
		refused := errors.Is(err, pointer.ErrHistoryChanged)
		if refused && !off {
			c.opts.Logger.Warn("collection is off", "error", err)
		}
		off = refused
		switch {
		case ctx.Err() != nil:
			return
		case refused:
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
		err = historyFault(c.collect(ctx, grace, &report))
	}
	report.FinishedAt = time.Now().UTC()
	if err != nil && report.FirstError == "" {
		report.FirstError = err.Error()
	}
	if errors.Is(err, pointer.ErrHistoryChanged) {
		return report, err // no run at all
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

// markDue looks at every generation that was due, pointer by pointer, each in a transaction of
// its own. It stops when a batch comes back short; what fell due meanwhile is the next run's.
func (c *Collector) markDue(ctx context.Context, grace time.Duration, report *Report) error {
	type due struct {
		pointer     int64
		generations []uuid.UUID
	}
	for {
		rows, err := c.pool.Query(ctx, dueSQL, c.opts.Batch)
		if err != nil {
			return fmt.Errorf("find due generations: %w", err)
		}
		batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (due, error) {
			var d due
			return d, row.Scan(&d.pointer, &d.generations)
		})
		if err != nil {
			return fmt.Errorf("find due generations: %w", err)
		}
		results := make([]struct{ looked, expired, marked, skipped int64 }, len(batch))
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(c.opts.Parallel)
		for i, d := range batch {
			g.Go(func() error {
				r := &results[i]
				err := c.pool.QueryRow(gctx, markSQL, d.pointer, d.generations, grace.Seconds()).Scan(&r.looked, &r.expired, &r.marked)
				if lostRace(err) {
					r.skipped++
					return nil
				}
				return err
			})
		}
		err = g.Wait()
		var found, worked int64
		for i, r := range results {
			found += int64(len(batch[i].generations))
			worked += r.looked
			report.Looked, report.Expired = report.Looked+r.looked, report.Expired+r.expired
			report.Marked, report.Skipped = report.Marked+r.marked, report.Skipped+r.skipped
		}
		if err != nil {
			return fmt.Errorf("mark garbage: %w", err)
		}
		// An expiry recorded just now makes its generation due again, so one more round is
		// needed; a round that found nothing to look at ends it.
		if found == 0 || worked == 0 {
			return nil
		}
	}
}

// takeFiles empties the manifests of collecting generations into the ledger.
func (c *Collector) takeFiles(ctx context.Context, _ time.Duration, report *Report) error {
	return c.untilIdle(ctx, report, func(ctx context.Context) (bool, error) {
		var status string
		var buried int64
		err := c.pool.QueryRow(ctx, filesSQL, c.opts.Batch, c.opts.LandingGrace.Seconds()).Scan(&status, &buried)
		return status == "worked", err
	})
}

// takeUnnamed moves artifacts whose path was staged again with other bytes to the ledger.
func (c *Collector) takeUnnamed(ctx context.Context, _ time.Duration, report *Report) error {
	return c.untilIdle(ctx, report, func(ctx context.Context) (bool, error) {
		var looked, buried int64
		err := c.pool.QueryRow(ctx, unnamedSQL, c.opts.Batch, c.opts.LandingGrace.Seconds()).Scan(&looked, &buried)
		return looked > 0, err
	})
}

// lostRaces bounds how many lost races in a row end a step; the next run repeats it.
const lostRaces = 10

func (c *Collector) untilIdle(ctx context.Context, report *Report, step func(context.Context) (bool, error)) error {
	lost := 0
	for {
		worked, err := step(ctx)
		switch {
		case lostRace(err) && lost < lostRaces:
			lost++
			report.Skipped++
		case err != nil && !lostRace(err):
			return fmt.Errorf("take files: %w", err)
		case !worked:
			return nil
		default:
			lost = 0
		}
	}
}

// claimed is one key of the ledger that this collector may delete.
type claimed struct {
	key, reason string
	size        int64
	first       bool
	upload      string // a multipart upload to abort too; empty when there is none
	there       bool   // the object is known to be there
	at          time.Time
}

// deleteDue deletes the ledger's due keys from the store, in batches, several requests at once.
func (c *Collector) deleteDue(ctx context.Context, _ time.Duration, report *Report) error {
	for {
		batches := make([][]claimed, 0, c.opts.Parallel)
		for range c.opts.Parallel {
			batch, err := c.claim(ctx)
			if err != nil {
				return err
			}
			if len(batch) > 0 {
				batches = append(batches, batch)
			}
			if len(batch) < c.opts.Batch {
				break
			}
		}
		results := make([]Report, len(batches))
		g, gctx := errgroup.WithContext(ctx)
		for i, batch := range batches {
			g.Go(func() error { return c.deleteBatch(gctx, batch, &results[i]) })
		}
		err := g.Wait()
		for i := range results {
			report.add(&results[i])
		}
		if err != nil {
			return err
		}
		if len(batches) < c.opts.Parallel {
			return nil
		}
	}
}

func (r *Report) add(part *Report) {
	r.Deleted.Objects += part.Deleted.Objects
	r.Deleted.Bytes += part.Deleted.Bytes
	r.Failed += part.Failed
	r.Retained += part.Retained
	for reason, n := range part.ByReason {
		sum := r.ByReason[reason]
		r.ByReason[reason] = Count{sum.Objects + n.Objects, sum.Bytes + n.Bytes}
	}
	if r.FirstError == "" {
		r.FirstError = part.FirstError
	}
}

func (c *Collector) claim(ctx context.Context) ([]claimed, error) {
	rows, err := c.pool.Query(ctx, claimSQL, c.opts.Batch, claimFor.Seconds())
	if err != nil {
		return nil, fmt.Errorf("claim deletions: %w", err)
	}
	batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (claimed, error) {
		var d claimed
		return d, row.Scan(&d.key, &d.size, &d.reason, &d.first, &d.upload, &d.there, &d.at)
	})
	if err != nil {
		return nil, fmt.Errorf("claim deletions: %w", err)
	}
	return batch, nil
}

// deleteBatch deletes one claimed batch and writes down what the store said, key by key. A
// request that failed as a whole says nothing of any key: all of them are tried again.
func (c *Collector) deleteBatch(ctx context.Context, batch []claimed, report *Report) error {
	report.ByReason = map[string]Count{}
	keys, errs := make([]string, len(batch)), make([]string, len(batch))
	for i, d := range batch {
		keys[i] = d.key
	}
	c.lookAtUnproved(ctx, batch)
	fates, err := c.deleteAll(ctx, batch, keys)
	if ctx.Err() != nil {
		return ctx.Err() // the claim runs out, and the deletions are repeated
	}
	for i, d := range batch {
		fate := err
		if err == nil {
			fate = fates[i].Err
		}
		if fate != nil {
			errs[i] = fate.Error()
			report.undone(d.key, fate)
		} else if d.first && d.there {
			n := report.ByReason[d.reason]
			report.ByReason[d.reason] = Count{n.Objects + 1, n.Bytes + d.size}
			report.Deleted.Objects++
			report.Deleted.Bytes += d.size
		}
	}
	var left int64
	if err := c.pool.QueryRow(ctx, finishSQL, keys, errs, batch[0].at).Scan(&left); err != nil {
		return fmt.Errorf("record deletions: %w", err)
	}
	return nil
}

// lookAtUnproved finds out which of the objects that were never proved are there at all, for the
// report. They are deleted either way, so a store that does not answer costs only the count.
func (c *Collector) lookAtUnproved(ctx context.Context, batch []claimed) {
	var g errgroup.Group
	g.SetLimit(16)
	for i := range batch {
		d := &batch[i]
		if d.there || !d.first {
			continue
		}
		g.Go(func() error {
			object, err := c.store.Head(ctx, d.key)
			d.there, d.size = err == nil, object.Size
			return nil
		})
	}
	_ = g.Wait() // nothing in it fails
}

// deleteAll deletes the keys of a batch. Open multipart uploads are aborted before that: one that
// were completed in between would leave its object behind.
func (c *Collector) deleteAll(ctx context.Context, batch []claimed, keys []string) ([]artifacts.Deleted, error) {
	aborts := make([]error, len(batch))
	for i, d := range batch {
		if d.upload != "" {
			aborts[i] = c.store.AbortMultipart(ctx, artifacts.Multipart{Key: d.key, UploadID: d.upload})
		}
	}
	fates, err := c.store.Delete(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i, abort := range aborts {
		if abort != nil {
			fates[i].Err = fmt.Errorf("abort upload in parts: %w", abort)
		}
	}
	return fates, nil
}

// undone counts a deletion that did not happen. An object that the store retains is no failure:
// nobody can do anything about it, and the run is complete without it.
func (r *Report) undone(key string, fate error) {
	if errors.Is(fate, artifacts.ErrRetained) {
		r.Retained++
		return
	}
	r.Failed++
	if r.FirstError == "" {
		r.FirstError = fmt.Sprintf("delete %s: %v", key, fate)
	}
}

// forget drops outcomes past their keeping.
func (c *Collector) forget(ctx context.Context, _ time.Duration, report *Report) error {
	return c.untilIdle(ctx, report, func(ctx context.Context) (bool, error) {
		var forgotten int
		err := c.pool.QueryRow(ctx, forgetSQL, c.opts.Batch).Scan(&forgotten)
		return forgotten == c.opts.Batch, err
	})
}

func (c *Collector) measureLedger(ctx context.Context, report *Report) error {
	var age float64
	if err := c.pool.QueryRow(ctx, ledgerSQL).Scan(&report.LedgerSize, &age); err != nil {
		return fmt.Errorf("measure the deletion ledger: %w", err)
	}
	c.metrics.ledger(report.LedgerSize, age)
	return nil
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

func (c *Collector) record(ctx context.Context, report *Report) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	if _, err := c.pool.Exec(ctx, recordSQL, report.RunID, report.StartedAt, text); err != nil {
		return fmt.Errorf("record the run: %w", err)
	}
	return nil
}

// Runs gives the reports of the last runs, newest first, at most limit of them.
func (c *Collector) Runs(ctx context.Context, limit int) ([]Report, error) {
	rows, err := c.pool.Query(ctx, runsSQL, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Report, error) {
		var r Report
		return r, row.Scan(&r)
	})
}

// lostRace reports whether the database refused a step for the sake of a concurrent one: a
// foreign key that refereed (somebody adopted the artifact), a deadlock, or a pointer that
// somebody else held for too long.
func lostRace(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "23503" || pgErr.Code == "40P01" || pgErr.Code == "55P03")
}
