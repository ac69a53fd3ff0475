package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	endListingSQL = `SELECT due, limit_of_pass FROM artifactd.end_listing($1, $2)`
	dueOrphansSQL = `SELECT object_key, upload_id FROM artifactd.due_orphans($1, $2, $3, $4)`
	condemnSQL    = `SELECT object_key, upload_id, fate FROM artifactd.condemn_orphans($1, $2, $3, $4, $5)`
	forgetUploads = `SELECT artifactd.forget_uploads($1, $2)`
)

// Defaults of [ReconcileOptions].
const (
	DefaultOrphanGrace = 24 * time.Hour
	DefaultMaxShare    = 0.1
)

// ErrShareLimit: more objects are due for deletion than one pass may delete. None was.
var ErrShareLimit = errors.New("too large a share of the bucket is unknown to the database")

// Metadata that every artifact's object carries.
const pointerMetadata, tokenMetadata = "artifactd-pointer", "artifactd-token"

// ReconcileStore is what a [Reconciler] needs of the object store.
type ReconcileStore interface {
	artifacts.BlobReader
	artifacts.BlobLister
	AbortMultipart(ctx context.Context, m artifacts.Multipart) error
}

// ReconcileOptions of one pass.
type ReconcileOptions struct {
	// Grace is how long ago an object must have been seen first, by the database's clock.
	Grace time.Duration
	// MaxShare is the largest share of the listed objects and uploads, 0 to 1, that a pass may
	// delete. When more are due it deletes none. A single one is always below it, unless it is 0.
	MaxShare float64
	// DryRun writes down what was seen, and deletes nothing.
	DryRun bool

	every *time.Duration // since the last pass; nil for now
}

func (o ReconcileOptions) check() error {
	switch {
	case o.Grace < 0:
		return fmt.Errorf("%w: the grace must not be negative, as %s is", ErrBadOptions, o.Grace)
	case !(o.MaxShare >= 0 && o.MaxShare <= 1): // NaN is refused, too
		return fmt.Errorf("%w: the largest share must be 0 to 1, not %v", ErrBadOptions, o.MaxShare)
	}
	return nil
}

// ReconcileReport says what one pass found and did.
type ReconcileReport struct {
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
	DryRun     bool      `json:"dry_run"`
	Listed     int64     `json:"listed"`  // artifacts' objects in the bucket
	Uploads    int64     `json:"uploads"` // artifacts' multipart uploads in progress
	// Foreign counts objects and uploads under the artifacts' prefix whose keys are no artifacts'.
	// They are never touched.
	Foreign        int64  `json:"foreign"`
	FirstForeign   string `json:"first_foreign,omitempty"`
	Unknown        int64  `json:"unknown"`         // objects that no row knows
	UnknownUploads int64  `json:"unknown_uploads"` // likewise
	Due            int64  `json:"due"`             // of these, seen in an earlier pass and older than the grace
	Limit          int64  `json:"limit"`           // how many of these the pass may delete
	Moved          int64  `json:"moved"`           // to the deletion ledger; the collector deletes them
	Aborted        int64  `json:"aborted"`         // uploads
	// Quarantined counts objects that are due but were written by a history which this database
	// does not know: a newer epoch, or a generation that it never issued. They stay.
	Quarantined      int64  `json:"quarantined"`
	FirstQuarantined string `json:"first_quarantined,omitempty"`
	Known            int64  `json:"known"` // got a row in the meantime
}

// Reconciler compares the bucket with the catalogue. It is the only one that ever deletes what no
// row knows, and the only part of collection whose cost is the bucket's size.
type Reconciler struct {
	pool    *pgxpool.Pool
	store   ReconcileStore
	layout  artifacts.Layout
	lease   time.Duration // see passLease; shorter in tests
	metrics *reconcileMetrics
}

// NewReconciler makes a Reconciler. Any number of them may be asked at once, beside collectors: the
// database lets one pass be under way at a time. The registry may be nil.
func NewReconciler(pool *pgxpool.Pool, store ReconcileStore, layout artifacts.Layout, registry prometheus.Registerer) (*Reconciler, error) {
	m, err := newReconcileMetrics(registry)
	return &Reconciler{pool: pool, store: store, layout: layout, lease: passLease, metrics: m}, err
}

// RunOnce makes one pass. Its steps, and what a crash after each leaves:
//
//	begin     a row says that a pass is under way, and until when unless it goes on. A crash: once
//	          that time is over, by the database's clock, the next pass takes over.
//	list      the bucket is walked once, in batches, each joined with the catalogue after it was
//	          listed; what nobody knows is written down. A crash, or an error of the listing:
//	          only sightings are recorded, and this pass deletes nothing.
//	condemn   what an earlier pass had seen, and this one saw again, after the grace, is looked at
//	          once more and moved to the deletion ledger. A crash: the rest is the next pass's.
//	abort     unknown multipart uploads are aborted by their id. A crash: the next pass sees them.
//
// Its memory is that of a few batches. [ErrForeignBucket], [ErrUnmarkedBucket], [ErrShareLimit],
// [ErrPassRunning], [ErrPassLost], [ErrBadOptions].
func (r *Reconciler) RunOnce(ctx context.Context, o ReconcileOptions) (ReconcileReport, error) {
	report := ReconcileReport{StartedAt: time.Now().UTC(), DryRun: o.DryRun}
	if err := o.check(); err != nil {
		return report, err
	}
	id, err := installation(ctx, r.pool)
	if err == nil {
		err = checkMarker(ctx, r.store, r.layout, id)
	}
	if err == nil {
		err = r.holding(ctx, o, func(ctx context.Context, pass int64) error { return r.pass(ctx, o, id, pass, &report) })
	}
	err = historyFault(err)
	report.FinishedAt = time.Now().UTC()
	r.metrics.observe(&report, err)
	return report, err
}

func (r *Reconciler) pass(ctx context.Context, o ReconcileOptions, id uuid.UUID, pass int64, report *ReconcileReport) error {
	if err := r.list(ctx, pass, report); err != nil {
		return fmt.Errorf("%w; nothing was deleted", err)
	}
	if err := r.pool.QueryRow(ctx, endListingSQL, pass, report.Listed+report.Uploads).Scan(&report.Due, &report.Limit); err != nil {
		return fmt.Errorf("end the listing: %w", err)
	}
	if report.Due > report.Limit {
		return fmt.Errorf("%w: %d of %d objects and uploads are due for deletion and a pass may delete %d; nothing was deleted. "+
			"If the database was restored or is another one, do not go on; otherwise allow more with --max-share",
			ErrShareLimit, report.Due, report.Listed+report.Uploads, report.Limit)
	}
	if o.DryRun {
		return nil
	}
	// The listing took its time: does the bucket still say that it is ours?
	if err := checkMarker(ctx, r.store, r.layout, id); err != nil {
		return err
	}
	return r.condemn(ctx, pass, report)
}

// orphan is one unknown object or upload that is due.
type orphan struct{ key, upload string }

// headsAtOnce bounds the requests for single objects that are under way at once.
const headsAtOnce = 16

// condemn walks the orphans that are due, in pages by key.
func (r *Reconciler) condemn(ctx context.Context, pass int64, report *ReconcileReport) error {
	var after orphan
	for {
		rows, err := r.pool.Query(ctx, dueOrphansSQL, pass, after.key, after.upload, DefaultBatch)
		if err != nil {
			return fmt.Errorf("find due orphans: %w", err)
		}
		page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (orphan, error) {
			var o orphan
			return o, row.Scan(&o.key, &o.upload)
		})
		if err != nil {
			return fmt.Errorf("find due orphans: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		if err := r.condemnPage(ctx, pass, page, report); err != nil {
			return err
		}
		after = page[len(page)-1]
	}
}

func (r *Reconciler) condemnPage(ctx context.Context, pass int64, page []orphan, report *ReconcileReport) error {
	keys, uploads, pointers, tokens, err := r.describe(ctx, page)
	if err != nil {
		return err
	}
	rows, err := r.pool.Query(ctx, condemnSQL, pass, keys, uploads, pointers, tokens)
	if err != nil {
		return fmt.Errorf("condemn orphans: %w", err)
	}
	var abort []orphan
	var o orphan
	var fate string
	_, err = pgx.ForEachRow(rows, []any{&o.key, &o.upload, &fate}, func() error {
		switch fate {
		case "ledger":
			report.Moved++
		case "abort":
			abort = append(abort, o)
		case "known":
			report.Known++
		case "quarantined":
			if report.Quarantined++; report.FirstQuarantined == "" {
				report.FirstQuarantined = o.key
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("condemn orphans: %w", err)
	}
	return r.abort(ctx, abort, report)
}

// describe asks the store for the metadata of the objects. An object that is gone is left out; any
// other fault ends the pass, because an object that nobody could look at is not condemned.
func (r *Reconciler) describe(ctx context.Context, page []orphan) (keys, uploads, pointers, tokens []string, err error) {
	heads, gone := make([]artifacts.Object, len(page)), make([]bool, len(page))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(headsAtOnce)
	for i, o := range page {
		if o.upload != "" {
			continue // an upload in progress has no metadata to ask for, and no reader
		}
		g.Go(func() error {
			var err error
			heads[i], err = r.store.Head(gctx, o.key)
			if errors.Is(err, artifacts.ErrNotFound) {
				gone[i], err = true, nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, nil, nil, fmt.Errorf("look at unknown objects: %w", err)
	}
	for i, o := range page {
		if !gone[i] {
			keys, uploads = append(keys, o.key), append(uploads, o.upload)
			pointers, tokens = append(pointers, heads[i].Metadata[pointerMetadata]), append(tokens, heads[i].Metadata[tokenMetadata])
		}
	}
	return keys, uploads, pointers, tokens, nil
}

// abort aborts unknown uploads, by their ids. They do not go through the deletion ledger, which
// would delete the object under their key too: another upload to the same key may be a live one.
func (r *Reconciler) abort(ctx context.Context, list []orphan, report *ReconcileReport) error {
	var keys, ids []string
	var fault error
	for _, o := range list {
		if fault = r.store.AbortMultipart(ctx, artifacts.Multipart{Key: o.key, UploadID: o.upload}); fault != nil {
			fault = fmt.Errorf("abort the upload %s of %s: %w; run it again", o.upload, o.key, fault)
			break
		}
		keys, ids = append(keys, o.key), append(ids, o.upload)
	}
	report.Aborted += int64(len(keys))
	if len(keys) == 0 {
		return fault
	}
	if _, err := r.pool.Exec(ctx, forgetUploads, keys, ids); err != nil {
		return errors.Join(fault, fmt.Errorf("record aborted uploads: %w", err))
	}
	return fault
}
