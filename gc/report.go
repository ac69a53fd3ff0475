package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	recordSQL = `SELECT artifactd.record_gc_run($1, $2, $3)`
	runsSQL   = `SELECT report FROM artifactd.gc_run ORDER BY started_at DESC LIMIT $1`
)

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
