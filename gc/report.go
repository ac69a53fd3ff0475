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
	recordSQL = `SELECT artifactd.record_gc_run($1, $2, $3, $4)`
	runsSQL   = `SELECT report, CASE WHEN finished_at IS NOT NULL THEN 'done' WHEN updated_at > clock_timestamp() - $2::interval THEN 'running' ELSE 'interrupted' END
		FROM artifactd.gc_run WHERE (report->>'dry_run')::boolean IS NOT TRUE ORDER BY started_at DESC LIMIT $1`
	runSQL = `SELECT report, CASE WHEN finished_at IS NOT NULL THEN 'done' WHEN updated_at > clock_timestamp() - $2::interval THEN 'running' ELSE 'interrupted' END
		FROM artifactd.gc_run WHERE run_id = $1`
	lastSuccessSQL = `SELECT finished_at FROM artifactd.gc_run WHERE finished_at IS NOT NULL AND report->>'first_error' IS NULL
		AND started_at > clock_timestamp() - interval '7 days' ORDER BY started_at DESC LIMIT 1`
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
	// State is running, done (with or without an error), or interrupted: nobody goes on with it,
	// and the next run does what it left.
	State  string `json:"state"`
	DryRun bool   `json:"dry_run"`
	// PlanID is the plan that a dry run made, or that the run did.
	PlanID  *uuid.UUID `json:"plan_id,omitempty"`
	Looked  int64      `json:"looked"`  // generations that were due for a look
	Expired int64      `json:"expired"` // leases whose end nobody else had recorded
	Marked  int64      `json:"marked"`  // generations found to be garbage
	// Deleted counts objects whose first deletion the store confirmed, and their bytes. What was
	// declared and never uploaded does not count.
	Deleted    Count            `json:"deleted"`
	ByReason   map[string]Count `json:"by_reason"`
	Failed     int64            `json:"failed"`      // deletions that failed; they stay in the ledger and are tried again
	Retained   int64            `json:"retained"`    // objects that the store keeps for now (object lock); likewise
	Skipped    int64            `json:"skipped"`     // steps that lost to a concurrent publish or collector; the next run repeats them
	LedgerSize int64            `json:"ledger_size"` // keys still in the ledger
	// LedgerAgeSeconds is the age of its oldest key.
	LedgerAgeSeconds float64 `json:"ledger_age_seconds"`
	// LedgerNext is when the first of its keys is due again; nil when it is empty.
	LedgerNext *time.Time `json:"ledger_next,omitempty"`
	// Kept counts the items of a plan that were left alone, by what keeps them after all.
	Kept       map[string]int64 `json:"kept,omitempty"`
	FirstError string           `json:"first_error,omitempty"`

	noted, logged time.Time // progress, see note
}

// The states of a run.
const (
	RunRunning     = "running"
	RunDone        = "done"
	RunInterrupted = "interrupted"
)

// LedgerAge is the age of the oldest key in the deletion ledger.
func (r *Report) LedgerAge() time.Duration {
	return time.Duration(r.LedgerAgeSeconds * float64(time.Second)).Round(time.Second)
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

// recordTimeout bounds the last word of a run that was stopped.
const recordTimeout = 5 * time.Second

func (c *Collector) record(ctx context.Context, report *Report, finished bool) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	if _, err := c.pool.Exec(ctx, recordSQL, report.RunID, report.StartedAt, text, finished); err != nil {
		return fmt.Errorf("record the run: %w", err)
	}
	return nil
}

const (
	// noteEvery is how often a run that is under way writes down how far it has come.
	noteEvery = 2 * time.Second
	// logEvery is how often it says so in the log.
	logEvery = time.Minute
	// quietAfter is how long after its last word a run counts as interrupted. One step, between two
	// words, takes no longer than a batch does.
	quietAfter = 2 * time.Minute
)

// note writes down how far a run has come, from time to time. It is for those who watch: when it
// fails, the run goes on.
func (c *Collector) note(ctx context.Context, r *Report) {
	if r.RunID == uuid.Nil {
		return // a part of a run, not the run
	}
	now := time.Now()
	if r.noted.IsZero() {
		r.noted, r.logged = r.StartedAt, r.StartedAt
	}
	if now.Sub(r.noted) < noteEvery {
		return
	}
	r.noted = now
	if err := c.record(ctx, r, false); err != nil && ctx.Err() == nil {
		c.opts.Logger.Warn("the progress of a collection could not be recorded", "run_id", r.RunID, "error", err)
	}
	if now.Sub(r.logged) >= logEvery {
		r.logged = now
		c.opts.Logger.Info("collecting", "run_id", r.RunID, "marked", r.Marked, "deleted_objects", r.Deleted.Objects, "deleted_bytes", r.Deleted.Bytes, "failed", r.Failed)
	}
}

// Runs gives the reports of the last runs, newest first, at most limit of them. Dry ones are not
// among them.
func (c *Collector) Runs(ctx context.Context, limit int) ([]Report, error) {
	rows, err := c.pool.Query(ctx, runsSQL, limit, quietAfter)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanRun)
}

// ErrRunNotFound: no run has this id, or it is too long ago.
var ErrRunNotFound = errors.New("no such run")

// Run gives the report of one run, as far as it has come. [ErrRunNotFound].
func (c *Collector) Run(ctx context.Context, id uuid.UUID) (Report, error) {
	rows, err := c.pool.Query(ctx, runSQL, id, quietAfter)
	if err != nil {
		return Report{}, err
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRun)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, ErrRunNotFound
	}
	return r, err
}

func scanRun(row pgx.CollectableRow) (Report, error) {
	var r Report
	var state string
	err := row.Scan(&r, &state)
	r.State = state
	return r, err
}

// recallSuccess takes over what the last run of any replica said, so that a restart does not look
// like a collector that never ran.
func (c *Collector) recallSuccess(ctx context.Context) {
	var at *time.Time
	if err := c.pool.QueryRow(ctx, lastSuccessSQL).Scan(&at); err == nil && at != nil {
		c.metrics.last.Set(float64(at.Unix()))
	}
}
