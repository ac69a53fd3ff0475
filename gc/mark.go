package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

const (
	dueSQL         = `SELECT pointer_id, generation_ids FROM artifactd.collect_due($1)`
	markSQL        = `SELECT looked, expired, marked FROM artifactd.collect_mark($1, $2, $3)`
	filesSQL       = `SELECT status, artifacts FROM artifactd.collect_files($1, $2)`
	unnamedSQL     = `SELECT looked, artifacts FROM artifactd.collect_unnamed($1, $2)`
	forgetSQL      = `SELECT forgotten FROM artifactd.forget_operations($1)`
	forgetPlansSQL = `SELECT forgotten FROM artifactd.forget_plans($1)`
)

// markDue looks at every generation that was due, pointer by pointer, each in a transaction of
// its own. It stops when a batch comes back short; what fell due meanwhile is the next run's.
func (c *Collector) markDue(ctx context.Context, grace time.Duration, report *Report) error {
	type due struct {
		pointer     int64
		generations []uuid.UUID
	}
	for {
		c.note(ctx, report)
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

// takeFiles empties the manifests of collecting generations into the ledger, and gives a word for
// each batch of keys that is there.
func (c *Collector) takeFiles(ctx context.Context, report *Report, words chan<- struct{}) error {
	ready := 0
	return c.untilIdle(ctx, report, func(ctx context.Context) (bool, error) {
		var status string
		var buried int
		err := c.pool.QueryRow(ctx, filesSQL, c.opts.Batch, c.opts.LandingGrace.Seconds()).Scan(&status, &buried)
		for ready += buried; ready >= c.opts.Batch; ready -= c.opts.Batch {
			select {
			case words <- struct{}{}:
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
		return status == "worked", err
	})
}

// takeUnnamed moves artifacts whose path was staged again with other bytes to the ledger.
func (c *Collector) takeUnnamed(ctx context.Context, report *Report) error {
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
