package gc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

const (
	dueSQL         = `SELECT pointer_id, generation_ids FROM artifactd.collect_due($1)`
	markSQL        = `SELECT looked, expired, marked FROM artifactd.collect_mark($1, $2, $3)`
	filesSQL       = `SELECT status = 'worked', claimed_keys, claimed_sizes, claimed_uploads, claimed_stored, claimed_reasons, claimed_at FROM artifactd.collect_files($1, $2, p_claim_seconds => $3)`
	unnamedSQL     = `SELECT looked > 0, claimed_keys, claimed_sizes, claimed_uploads, claimed_stored, claimed_reasons, claimed_at FROM artifactd.collect_unnamed($1, $2, p_claim_seconds => $3)`
	forgetSQL      = `SELECT forgotten FROM artifactd.forget_operations($1)`
	forgetPlansSQL = `SELECT forgotten FROM artifactd.forget_plans($1)`
)

// enoughMarks is how many generations there should be for the taker to begin.
const enoughMarks = 100

// markDue looks at every generation that was due, pointer by pointer, each in a transaction of
// its own, and gives a word when there are new marks. It stops when a batch comes back short; what
// fell due meanwhile is the next run's.
func (c *Collector) markDue(ctx context.Context, grace time.Duration, so *progress, marks chan<- struct{}) error {
	type due struct {
		pointer     int64
		generations []uuid.UUID
	}
	var untold atomic.Int64 // marks
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
		var worked atomic.Int64
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(c.opts.Parallel)
		for _, d := range batch {
			g.Go(func() error {
				var looked, expired, marked, skipped int64
				pace := so.pacer.pace(1) // its size is the pointer's
				err := pace.step(gctx, func(int) error {
					return c.pool.QueryRow(gctx, markSQL, d.pointer, d.generations, grace.Seconds()).Scan(&looked, &expired, &marked)
				})
				if lostRace(err) {
					skipped, err = 1, nil
				}
				worked.Add(looked)
				so.note(gctx, func(r *Report) {
					r.Looked, r.Expired, r.Marked, r.Skipped = r.Looked+looked, r.Expired+expired, r.Marked+marked, r.Skipped+skipped
				})
				if untold.Add(marked) >= enoughMarks {
					untold.Store(0)
					select {
					case marks <- struct{}{}:
					default: // the one before has not been heard yet
					}
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return fmt.Errorf("mark garbage: %w", err)
		}
		// An expiry recorded just now makes its generation due again, so one more round is
		// needed; a round that found nothing to look at ends it.
		if worked.Load() == 0 {
			return nil
		}
	}
}

// taker empties what is marked into the ledger, and passes on what it has claimed there.
type taker struct {
	*progress
	pace    pace
	allowed allowance
	claimed []claimed // not passed on yet
	batches chan<- []claimed
}

// takeAll takes what is marked whenever a word of new marks comes, and when no more of them can come.
func (t *taker) takeAll(ctx context.Context, marks <-chan struct{}) error {
	for more := true; more; {
		_, more = <-marks
		if err := t.take(ctx, filesSQL); err != nil {
			return err
		}
	}
	if err := t.take(ctx, unnamedSQL); err != nil {
		return err
	}
	return t.pass(ctx)
}

// take repeats one step, of collecting generations' manifests or of artifacts whose path was staged again
// with other bytes, until it finds nothing more.
func (t *taker) take(ctx context.Context, sql string) error {
	var taken Report
	err := t.untilIdle(ctx, &taken, func(ctx context.Context) (worked bool, err error) {
		t.note(ctx, func(*Report) {})
		if err := t.allowed.await(ctx, t.opts.Batch); err != nil {
			return false, err
		}
		var keys, uploads, reasons []string
		var sizes []int64
		var stored []bool
		var at *time.Time
		err = t.pace.step(ctx, func(size int) error {
			return t.pool.QueryRow(ctx, sql, size, t.opts.LandingGrace.Seconds(), claimFor.Seconds()).Scan(&worked, &keys, &sizes, &uploads, &stored, &reasons, &at)
		})
		if err != nil || len(keys) == 0 {
			return worked, err
		}
		t.allowed.keys -= len(keys)
		for i, key := range keys {
			t.claimed = append(t.claimed, claimed{key: key, reason: reasons[i], size: sizes[i], first: true, upload: uploads[i], there: stored[i], at: *at})
		}
		if len(t.claimed) < t.pace.size {
			return worked, nil // generations that share a manifest are taken one by one
		}
		return worked, t.pass(ctx)
	})
	t.note(ctx, func(r *Report) { r.Skipped += taken.Skipped })
	return err
}

// pass has deleted what was claimed so far.
func (t *taker) pass(ctx context.Context) error {
	if len(t.claimed) == 0 {
		return nil
	}
	select {
	case t.batches <- t.claimed:
		t.claimed = nil
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lostRaces bounds how many lost races in a row end a step; the next run repeats it.
const lostRaces = 10

func (c *Collector) untilIdle(ctx context.Context, report *Report, step func(context.Context) (bool, error)) error {
	lost := 0
	for {
		c.note(ctx, report)
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

// forget drops outcomes and plans past their keeping.
func (c *Collector) forget(ctx context.Context, report *Report) error {
	for _, sql := range []string{forgetSQL, forgetPlansSQL} {
		err := c.untilIdle(ctx, report, func(ctx context.Context) (bool, error) {
			var forgotten int
			err := c.pool.QueryRow(ctx, sql, c.opts.Batch).Scan(&forgotten)
			return forgotten == c.opts.Batch, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lostRace reports whether the database refused a step for the sake of a concurrent one: a
// foreign key that refereed (somebody adopted the artifact), a deadlock, or a pointer that
// somebody else held for too long.
func lostRace(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "23503" || pgErr.Code == "40P01" || pgErr.Code == "55P03")
}
