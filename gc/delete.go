package gc

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	claimSQL  = `SELECT object_key, size, reason, first, coalesce(upload_id, ''), stored, claimed_at FROM artifactd.claim_deletions($1, $2, $3)`
	finishSQL = `SELECT left_ledger FROM artifactd.finish_deletions($1, $2, $3)`
	ledgerSQL = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(enqueued_at)), 0)::float8, min(not_before) FROM artifactd.deletion`
)

// claimFor is how long a claimed batch of keys is left to the collector that claimed it.
const claimFor = 5 * time.Minute

// claimed is one key of the ledger that this collector may delete.
type claimed struct {
	key, reason string
	size        int64
	first       bool
	upload      string // a multipart upload to abort too; empty when there is none
	there       bool   // the object is known to be there
	at          time.Time
}

// deleteDue deletes claimed batches from the store as they come, several at once; after the last one it
// deletes what else is due in the ledger, of a plan only what that brought there.
func (c *Collector) deleteDue(ctx context.Context, plan *uuid.UUID, so *progress, batches <-chan []claimed) error {
	g, ctx := errgroup.WithContext(ctx)
	for range c.opts.Parallel {
		g.Go(func() error {
			pace := so.pacer.pace(c.opts.Batch)
			for batch := range batches {
				if err := c.deleteInSteps(ctx, batch, &pace, so); err != nil {
					return err
				}
			}
			allowed := allowance{limit: c.limit}
			for {
				batch, err := c.claim(ctx, plan, &allowed)
				if err == nil {
					err = c.deleteInSteps(ctx, batch, &pace, so)
				}
				if err != nil || len(batch) < c.opts.Batch {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// deleteInSteps deletes a claimed batch, at most as many keys at once as the pace allows.
func (c *Collector) deleteInSteps(ctx context.Context, batch []claimed, pace *pace, so *progress) error {
	for len(batch) > 0 {
		err := pace.step(ctx, func(size int) error {
			var part Report
			some := batch[:min(size, len(batch))]
			batch = batch[len(some):]
			err := c.deleteBatch(ctx, some, &part)
			so.note(ctx, func(r *Report) { r.add(&part) })
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// noBatches has deleteDue take what is in the ledger.
func noBatches() <-chan []claimed {
	none := make(chan []claimed)
	close(none)
	return none
}

// allowance is how many keys the rate lets one goroutine delete. The pause that the rate asks for comes
// before a claim, so that it does not eat into it; what that left over is for the next one.
type allowance struct {
	limit *rate.Limiter
	keys  int
}

func (a *allowance) await(ctx context.Context, keys int) error {
	if a.keys >= keys {
		return nil
	}
	if err := a.limit.WaitN(ctx, keys-a.keys); err != nil {
		return err
	}
	a.keys = keys
	return nil
}

// claim takes a batch of due keys.
func (c *Collector) claim(ctx context.Context, plan *uuid.UUID, allowed *allowance) ([]claimed, error) {
	if err := allowed.await(ctx, c.opts.Batch); err != nil {
		return nil, err
	}
	rows, err := c.pool.Query(ctx, claimSQL, c.opts.Batch, claimFor.Seconds(), plan)
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
	allowed.keys -= len(batch)
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
	at := batch[0].at // of the earliest claim: what is later than that is later than each
	for _, d := range batch {
		if d.at.Before(at) {
			at = d.at
		}
	}
	var left int64
	if err := c.pool.QueryRow(ctx, finishSQL, keys, errs, at).Scan(&left); err != nil {
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

func (c *Collector) measureLedger(ctx context.Context, report *Report) error {
	if err := c.pool.QueryRow(ctx, ledgerSQL).Scan(&report.LedgerSize, &report.LedgerAgeSeconds, &report.LedgerNext); err != nil {
		return fmt.Errorf("measure the deletion ledger: %w", err)
	}
	c.metrics.ledger(report.LedgerSize, report.LedgerAgeSeconds)
	return nil
}
