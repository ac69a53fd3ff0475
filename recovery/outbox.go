package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Defaults of [OutboxOptions].
const (
	DefaultOutboxInterval = time.Second
	DefaultOutboxBatch    = 256
	DefaultOutboxParallel = 32
	// DefaultOutboxClaim is how long a crash leaves records to a worker that is no more. One that is
	// alive renews its claim.
	DefaultOutboxClaim = 10 * time.Second
)

const (
	// outboxFiles is how many files of small versions are read at once; a larger version's are
	// streamed from the database into its record.
	outboxFiles = 10_000
	// outboxFinish bounds saying what became of a batch, also of one that was broken off.
	outboxFinish = 10 * time.Second
	// outboxMaxPause is how long the worker waits at most while the store does not work.
	outboxMaxPause = 5 * time.Second
	// outboxPut is how long one record may take, and a second more for each outboxPutRate bytes: a
	// store that never answers must not keep a claim for ever.
	outboxPut     = 30 * time.Second
	outboxPutRate = 1 << 20
	// outboxMeasure is how often the lag is measured, at most.
	outboxMeasure = 5 * time.Second
)

// OutboxOptions of an [Outbox]. The zero value of each means its default.
type OutboxOptions struct {
	// Claim is called before the first record, until it returns nil once: it makes sure that the
	// bucket is this installation's. Nil means that somebody has made sure.
	Claim    func(context.Context) error
	Interval time.Duration // between two looks at an outbox that was empty
	ClaimFor time.Duration // how long a batch is left to this worker unless it renews, by the database's clock
	Batch    int           // records a claim
	Parallel int           // records written at once
	Logger   *slog.Logger
	Registry prometheus.Registerer
}

// OutboxStore is what an [Outbox] needs of the object store.
type OutboxStore interface{ artifacts.BlobWriter }

// Outbox writes into the bucket what the database has written down for it. Any number of workers may
// run, in any number of processes.
type Outbox struct {
	catalogue *pointer.Catalogue
	store     OutboxStore
	layout    artifacts.Layout
	opts      OutboxOptions
	metrics   *outboxMetrics

	mu       sync.Mutex
	claimed  bool      // the bucket is known to be ours
	measured time.Time // when the lag was
}

// NewOutbox makes an Outbox.
func NewOutbox(catalogue *pointer.Catalogue, store OutboxStore, layout artifacts.Layout, opts OutboxOptions) (*Outbox, error) {
	if opts.Interval <= 0 {
		opts.Interval = DefaultOutboxInterval
	}
	if opts.ClaimFor <= 0 {
		opts.ClaimFor = DefaultOutboxClaim
	}
	if opts.Batch <= 0 {
		opts.Batch = DefaultOutboxBatch
	}
	if opts.Parallel <= 0 {
		opts.Parallel = DefaultOutboxParallel
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := newOutboxMetrics(opts.Registry)
	if err != nil {
		return nil, err
	}
	return &Outbox{catalogue: catalogue, store: store, layout: layout, opts: opts, metrics: m}, nil
}

// OutboxReport says what one batch came to.
type OutboxReport struct {
	Claimed int
	Written int   // records that the bucket has now
	Dropped int   // of versions whose collection had begun
	Failed  int   // tried again later
	Fault   error // the first failed one's
}

// Loop works until ctx ends. What fails is tried again, ever later, and logged once.
func (o *Outbox) Loop(ctx context.Context) {
	failing := 0
	for {
		report, err := o.RunOnce(ctx)
		if err == nil {
			err = report.Fault
		}
		pause := o.opts.Interval
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if failing++; failing == 1 {
				o.opts.Logger.Error("records of what was published cannot be written into the bucket; they wait in the database and are tried again", "error", err)
			}
			pause = min(outboxMaxPause, o.opts.Interval<<min(failing-1, 8))
		case report.Claimed == o.opts.Batch:
			pause = 0
			fallthrough
		default:
			if failing > 0 {
				o.opts.Logger.Info("records of what was published can be written into the bucket again")
			}
			failing = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Drain works until the outbox is empty. It fails when a record cannot be written.
func (o *Outbox) Drain(ctx context.Context) error {
	for {
		report, err := o.RunOnce(ctx)
		switch {
		case err != nil:
			return err
		case report.Fault != nil:
			return report.Fault
		case report.Claimed == 0:
			return nil
		}
	}
}

// RunOnce writes one batch. Its steps, and what a crash after each leaves:
//
//	claim    the rows are this worker's for a while; after a crash another one's
//	write    the records are in the bucket; they never change, so writing them again is harmless
//	finish   the rows are gone
//
// The claim is renewed while the worker is at it. No upload begins after it has run out, by this
// process's clock from before it was asked for.
func (o *Outbox) RunOnce(ctx context.Context) (OutboxReport, error) {
	defer o.measure(ctx)
	if err := o.claimBucket(ctx); err != nil {
		return OutboxReport{}, err
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	end := time.AfterFunc(o.opts.ClaimFor, func() { cancel(errClaimOver) })
	defer end.Stop()
	rows, err := o.catalogue.ClaimOutbox(work, o.opts.Batch, o.opts.ClaimFor)
	if err != nil || len(rows) == 0 {
		return OutboxReport{}, err
	}
	written := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() { o.renew(work, rows, began, end, written) })
	faults := o.write(work, rows)
	close(written)
	renewing.Wait()
	report := o.report(rows, faults)
	ids, texts := make([]uuid.UUID, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
		if faults[i] != nil {
			texts[i] = faults[i].Error()
		}
	}
	// Also of a batch that was broken off: the next worker need not wait for the claim's end.
	finish, done := context.WithTimeout(context.WithoutCancel(ctx), outboxFinish)
	defer done()
	return report, o.catalogue.FinishOutbox(finish, ids, texts)
}

var errClaimOver = errors.New("the claim on the record has run out")

// renew pushes the end of a claim ahead until everything is written. The claim began after the time began.
// When that fails, end stops the work at the claim's end.
func (o *Outbox) renew(ctx context.Context, rows []pointer.OutboxRow, began time.Time, end *time.Timer, written <-chan struct{}) {
	tick := time.NewTicker(o.opts.ClaimFor / 3)
	defer tick.Stop()
	for {
		select {
		case <-written:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		ask, done := context.WithDeadline(ctx, began.Add(o.opts.ClaimFor))
		all, err := o.catalogue.RenewOutbox(ask, rows, o.opts.ClaimFor)
		done()
		switch {
		case err != nil:
			continue // there is time for another try
		case !all:
			return
		}
		if !end.Reset(time.Until(asked.Add(o.opts.ClaimFor))) {
			return // too late: the work has been stopped
		}
		began = asked
	}
}

func (o *Outbox) claimBucket(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.claimed || o.opts.Claim == nil {
		return nil
	}
	if err := o.opts.Claim(ctx); err != nil {
		return err
	}
	o.claimed = true
	return nil
}

func (o *Outbox) report(rows []pointer.OutboxRow, faults []error) OutboxReport {
	r := OutboxReport{Claimed: len(rows)}
	for i, row := range rows {
		switch {
		case faults[i] != nil:
			r.Failed++
			if r.Fault == nil {
				r.Fault = fmt.Errorf("record of %s %s: %w", row.Kind, row.Pointer, faults[i])
			}
			o.metrics.failed.Inc()
		case row.Gone:
			r.Dropped++
		default:
			r.Written++
			o.metrics.written.WithLabelValues(string(row.Kind)).Inc()
		}
	}
	return r
}

// measure tells how far the bucket is behind, not more often than it pays.
func (o *Outbox) measure(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.measured) < outboxMeasure {
		return
	}
	rows, oldest, err := o.catalogue.OutboxLag(ctx)
	if err != nil {
		return // the next look tells; the metrics keep what was true last
	}
	o.measured = time.Now()
	o.metrics.rows.Set(float64(rows))
	o.metrics.oldest.Set(oldest.Seconds())
}
