package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

const (
	explainArtifactSQL = `SELECT size, stored_at IS NOT NULL, missing_at IS NOT NULL, unnamed_at IS NOT NULL
		FROM artifactd.artifact WHERE artifact_id = $1 AND digest = $2`
	explainNamesSQL  = `SELECT pointer, epoch, generation, state, path, goes, reason, keeps_until FROM artifactd.explain_names($1, $2, $3)`
	explainLedgerSQL = `SELECT size, reason, enqueued_at, not_before, final_after, deleted_at, attempts, coalesce(last_error, '')
		FROM artifactd.deletion WHERE object_key = $1`
	explainOrphanSQL = `SELECT size, first_seen_at, last_seen_at, coalesce(quarantine, '')
		FROM artifactd.orphan WHERE object_key = $1 AND upload_id = ''`
)

// maxNames bounds how many files that name an artifact are told.
const maxNames = 100

// What becomes of a key.
const (
	VerdictStays   = "stays"   // a file names it whose generation is no garbage
	VerdictGoes    = "goes"    // the next collection takes it
	VerdictLedger  = "ledger"  // it was condemned, and is being deleted
	VerdictUnknown = "unknown" // no row knows it: reconciliation decides
)

// Explanation says what collection makes of one object key, and why.
type Explanation struct {
	Key     string `json:"key"`
	Verdict string `json:"verdict"`
	// Reason in short: what keeps it, why it goes, or why it was condemned.
	Reason string `json:"reason"`
	// InStore: the store has the object now.
	InStore bool         `json:"in_store"`
	Size    int64        `json:"size"` // bytes, as declared
	Names   []Naming     `json:"names,omitempty"`
	Ledger  *LedgerEntry `json:"ledger,omitempty"`
	Orphan  *OrphanSeen  `json:"orphan,omitempty"`
	More    bool         `json:"more_names,omitempty"` // Names is not all
}

// Naming is one file that names an artifact, and what collection makes of its generation.
type Naming struct {
	Pointer    string        `json:"pointer"`
	Version    pointer.Token `json:"-"`
	State      string        `json:"state"`
	Path       string        `json:"path"`
	Goes       bool          `json:"goes"`
	Reason     string        `json:"reason"`
	KeepsUntil *time.Time    `json:"keeps_until,omitempty"`
}

// LedgerEntry is a key of the deletion ledger.
type LedgerEntry struct {
	Reason      string     `json:"reason"`
	EnqueuedAt  time.Time  `json:"enqueued_at"`
	NextAttempt time.Time  `json:"next_attempt"`
	FinalAfter  time.Time  `json:"final_after"`          // a deletion before this is repeated: an upload may still land
	DeletedAt   *time.Time `json:"deleted_at,omitempty"` // first deletion that the store confirmed
	Attempts    int        `json:"attempts"`
	LastError   string     `json:"last_error,omitempty"`
}

// OrphanSeen is what reconciliation wrote down of a key that no row knows.
type OrphanSeen struct {
	FirstSeen  time.Time `json:"first_seen"`
	LastSeen   time.Time `json:"last_seen"`
	Quarantine string    `json:"quarantine,omitempty"` // why it is not deleted although it is due
}

// Explain says what collection makes of an object key. [artifacts.ErrForeignKey].
func (c *Collector) Explain(ctx context.Context, layout artifacts.Layout, key string) (Explanation, error) {
	e := Explanation{Key: key}
	if err := c.explain(ctx, layout, &e); err != nil {
		return e, err
	}
	_, err := c.store.Head(ctx, key)
	if err != nil && !errors.Is(err, artifacts.ErrNotFound) {
		return e, fmt.Errorf("explain %s: %w", key, err)
	}
	e.InStore = err == nil
	return e, nil
}

// explain asks the ledger first: beside artifacts it has the records of collected versions.
func (c *Collector) explain(ctx context.Context, layout artifacts.Layout, e *Explanation) error {
	found, err := c.explainLedger(ctx, e)
	if err == nil && !found {
		digest, id, foreign := layout.ParseArtifactKey(e.Key)
		if foreign != nil {
			return fmt.Errorf("%w; collection never touches it", foreign)
		}
		found, err = c.explainArtifact(ctx, e, digest, id)
	}
	if err == nil && !found {
		err = c.explainOrphan(ctx, e)
	}
	if err != nil {
		return fmt.Errorf("explain %s: %w", e.Key, err)
	}
	return nil
}

func (c *Collector) explainArtifact(ctx context.Context, e *Explanation, digest artifacts.Digest, id uuid.UUID) (bool, error) {
	var stored, missing, unnamed bool
	err := c.pool.QueryRow(ctx, explainArtifactSQL, id, digest[:]).Scan(&e.Size, &stored, &missing, &unnamed)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	rows, err := c.pool.Query(ctx, explainNamesSQL, id, c.opts.ResumeGrace.Seconds(), maxNames+1)
	if err != nil {
		return false, err
	}
	e.Names, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Naming, error) {
		var n Naming
		return n, row.Scan(&n.Pointer, &n.Version.Epoch, &n.Version.Generation, &n.State, &n.Path, &n.Goes, &n.Reason, &n.KeepsUntil)
	})
	if err != nil {
		return false, err
	}
	e.Verdict, e.Reason = VerdictGoes, "replaced"
	for _, n := range e.Names {
		e.Reason = n.Reason
		if !n.Goes {
			e.Verdict = VerdictStays
			break
		}
	}
	if len(e.Names) > maxNames {
		e.Names, e.More = e.Names[:maxNames], true
	}
	return true, nil
}

func (c *Collector) explainLedger(ctx context.Context, e *Explanation) (bool, error) {
	var l LedgerEntry
	err := c.pool.QueryRow(ctx, explainLedgerSQL, e.Key).Scan(&e.Size, &l.Reason, &l.EnqueuedAt, &l.NextAttempt, &l.FinalAfter, &l.DeletedAt, &l.Attempts, &l.LastError)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	e.Verdict, e.Reason, e.Ledger = VerdictLedger, l.Reason, &l
	return true, err
}

func (c *Collector) explainOrphan(ctx context.Context, e *Explanation) error {
	e.Verdict, e.Reason = VerdictUnknown, "never-seen"
	var o OrphanSeen
	err := c.pool.QueryRow(ctx, explainOrphanSQL, e.Key).Scan(&e.Size, &o.FirstSeen, &o.LastSeen, &o.Quarantine)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	e.Reason, e.Orphan = "unknown", &o
	if o.Quarantine != "" {
		e.Reason = o.Quarantine
	}
	return err
}
