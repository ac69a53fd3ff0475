package gc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	claimSQL  = `SELECT object_key, size, reason, first, coalesce(upload_id, ''), stored, claimed_at FROM artifactd.claim_deletions($1, $2, $3)`
	finishSQL = `SELECT left_ledger FROM artifactd.finish_deletions($1, $2, $3)`
	ledgerSQL = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(enqueued_at)), 0)::float8 FROM artifactd.deletion`
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

// deleteDue deletes the ledger's due keys from the store, in batches, several at once; of a plan only
// those that it brought there. It takes a batch for each word that comes, and when no more words come
// it takes what is left.
func (c *Collector) deleteDue(ctx context.Context, plan *uuid.UUID, report *Report, words <-chan struct{}) error {
	var mu sync.Mutex // guards report
	g, ctx := errgroup.WithContext(ctx)
	for range c.opts.Parallel {
		g.Go(func() error {
			for {
				_, more := <-words
				batch, err := c.claim(ctx, plan)
				if err != nil {
					return err
				}
				if len(batch) > 0 {
					var part Report
					err = c.deleteBatch(ctx, batch, &part)
					mu.Lock()
					report.add(&part)
					c.note(ctx, report)
					mu.Unlock()
				}
				if err != nil || !more && len(batch) < c.opts.Batch {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// noWords has deleteDue take what is there.
func noWords() <-chan struct{} {
	words := make(chan struct{})
	close(words)
	return words
}

// claim takes a batch of due keys. The pause that the rate asks for comes first, so that it does not
// eat into the claim.
func (c *Collector) claim(ctx context.Context, plan *uuid.UUID) ([]claimed, error) {
	if err := c.limit.WaitN(ctx, c.opts.Batch); err != nil {
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

func (c *Collector) measureLedger(ctx context.Context, report *Report) error {
	if err := c.pool.QueryRow(ctx, ledgerSQL).Scan(&report.LedgerSize, &report.LedgerAgeSeconds); err != nil {
		return fmt.Errorf("measure the deletion ledger: %w", err)
	}
	c.metrics.ledger(report.LedgerSize, report.LedgerAgeSeconds)
	return nil
}
