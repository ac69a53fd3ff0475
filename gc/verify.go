package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	storedSQL = `SELECT a.artifact_id, p.name, a.digest, a.size, a.missing_at IS NOT NULL
		FROM artifactd.artifact a JOIN artifactd.pointer p USING (pointer_id)
		WHERE a.artifact_id > $1 AND a.stored_at IS NOT NULL ORDER BY a.artifact_id LIMIT $2`
	markMissingSQL = `SELECT artifactd.mark_missing($1)`
	markFoundSQL   = `SELECT artifactd.mark_found($1)`
)

// DefaultVerifyParallel is how many objects a [Verifier] asks for at once by default.
const DefaultVerifyParallel = 16

// The faults that a [Verifier] finds.
const (
	FaultMissing = "missing"      // no object has the key
	FaultSize    = "wrong-size"   // the object has another size
	FaultDigest  = "wrong-digest" // its bytes do not hash to the artifact's digest
	FaultSuspect = "suspect"      // it was missing or wrong before, and nobody has read it back since
)

// Problem is one stored artifact whose object is not what its row says.
type Problem struct {
	ArtifactID uuid.UUID        `json:"artifact_id"`
	Pointer    string           `json:"pointer"` // of the generation that uploaded it
	Key        string           `json:"key"`
	Digest     artifacts.Digest `json:"-"`
	Size       int64            `json:"size"` // bytes, as declared
	Fault      string           `json:"fault"`
}

// VerifyOptions of one verification.
type VerifyOptions struct {
	Deep     bool      // reads and hashes every object, too
	After    uuid.UUID // goes on behind this artifact; zero begins at the beginning
	Parallel int       // objects asked for at once; 0 means DefaultVerifyParallel
	// Found is called for every problem, one at a time.
	Found func(Problem)
}

// VerifyReport says what was looked at.
type VerifyReport struct {
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
	Deep       bool      `json:"deep"`
	Checked    int64     `json:"checked"`       // stored artifacts
	Bytes      int64     `json:"bytes"`         // that they declare
	Missing    int64     `json:"missing"`       // objects that are gone
	WrongSize  int64     `json:"wrong_size"`    // objects
	WrongHash  int64     `json:"wrong_digest"`  // objects; without Deep only where the store tells its own SHA-256
	Suspect    int64     `json:"suspect"`       // objects that were missing or wrong before, and look right; only Deep can tell
	Recovered  int64     `json:"recovered"`     // were missing or wrong before, and read back whole; only Deep finds them
	Last       uuid.UUID `json:"last_artifact"` // everything up to it was looked at
}

// Wrong is the number of problems.
func (r *VerifyReport) Wrong() int64 { return r.Missing + r.WrongSize + r.WrongHash + r.Suspect }

// VerifyStore is what a [Verifier] needs of the object store.
type VerifyStore interface{ artifacts.BlobReader }

// Verifier compares the catalogue with the bucket: every artifact that counts as stored must have
// its object. What has none is marked, so that it is not adopted any more; publishing the same
// bytes again uploads them anew.
type Verifier struct {
	pool   *pgxpool.Pool
	store  VerifyStore
	layout artifacts.Layout
}

// NewVerifier makes a Verifier. It may run beside everything else.
func NewVerifier(pool *pgxpool.Pool, store VerifyStore, layout artifacts.Layout) *Verifier {
	return &Verifier{pool: pool, store: store, layout: layout}
}

// Run goes through the catalogue by pages. When it fails, the report's Last says where to go on.
// Problems are an answer, not an error.
func (v *Verifier) Run(ctx context.Context, o VerifyOptions) (VerifyReport, error) {
	if o.Parallel <= 0 {
		o.Parallel = DefaultVerifyParallel
	}
	report := VerifyReport{StartedAt: time.Now().UTC(), Deep: o.Deep, Last: o.After}
	err := v.pages(ctx, o, &report)
	report.FinishedAt = time.Now().UTC()
	return report, err
}

// stored is one artifact's row.
type stored struct {
	Problem
	marked bool // as missing, already
}

func (v *Verifier) pages(ctx context.Context, o VerifyOptions, report *VerifyReport) error {
	for {
		rows, err := v.pool.Query(ctx, storedSQL, report.Last, DefaultBatch)
		if err != nil {
			return fmt.Errorf("read the catalogue: %w", err)
		}
		page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (stored, error) {
			var s stored
			err := row.Scan(&s.ArtifactID, &s.Pointer, &s.Digest, &s.Size, &s.marked)
			s.Key = v.layout.ArtifactKey(s.Digest, s.ArtifactID)
			return s, err
		})
		if err != nil {
			return fmt.Errorf("read the catalogue: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		if err := v.page(ctx, o, page, report); err != nil {
			return err
		}
		report.Last = page[len(page)-1].ArtifactID
	}
}

// page looks at the objects of one page and records what it found.
func (v *Verifier) page(ctx context.Context, o VerifyOptions, page []stored, report *VerifyReport) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Parallel)
	for i := range page {
		g.Go(func() (err error) {
			page[i].Fault, err = v.look(gctx, page[i], o.Deep)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	var wrong, found []uuid.UUID
	for i := range page {
		s := &page[i]
		if s.Fault == "" && s.marked {
			if o.Deep {
				found = append(found, s.ArtifactID)
				continue
			}
			s.Fault = FaultSuspect // what it looks like proves nothing about its bytes
		}
		if s.Fault != "" {
			wrong = append(wrong, s.ArtifactID)
		}
	}
	still, err := v.markMissing(ctx, wrong)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		if _, err := v.pool.Exec(ctx, markFoundSQL, found); err != nil {
			return fmt.Errorf("record recovered objects: %w", err)
		}
	}
	report.Recovered += int64(len(found))
	for _, s := range page {
		report.count(s, still, o.Found)
	}
	return nil
}

// count adds one artifact to the report. A problem of one that was collected meanwhile is none.
func (r *VerifyReport) count(s stored, still map[uuid.UUID]bool, found func(Problem)) {
	r.Checked++
	r.Bytes += s.Size
	if s.Fault == "" || !still[s.ArtifactID] {
		return
	}
	switch s.Fault {
	case FaultMissing:
		r.Missing++
	case FaultSize:
		r.WrongSize++
	case FaultDigest:
		r.WrongHash++
	case FaultSuspect:
		r.Suspect++
	}
	if found != nil {
		found(s.Problem)
	}
}

// look finds what is wrong with one object. Only the store's definite word counts: a store that
// does not answer is an error.
func (v *Verifier) look(ctx context.Context, s stored, deep bool) (fault string, err error) {
	if deep {
		d, err := artifacts.ReadDigest(ctx, v.store, s.Key, s.Size)
		switch {
		case errors.Is(err, artifacts.ErrNotFound):
			return FaultMissing, nil
		case errors.Is(err, artifacts.ErrSizeMismatch):
			return FaultSize, nil
		case err == nil && d != s.Digest:
			return FaultDigest, nil
		}
		return "", err
	}
	object, err := v.store.Head(ctx, s.Key)
	switch {
	case errors.Is(err, artifacts.ErrNotFound):
		return FaultMissing, nil
	case err == nil && object.Size != s.Size:
		return FaultSize, nil
	case err == nil && !object.SHA256.IsZero() && object.SHA256 != s.Digest:
		return FaultDigest, nil
	}
	return "", err
}

// markMissing marks rows and tells which of them are still there: rows go before their objects,
// so an object that is gone while its row stays is really lost.
func (v *Verifier) markMissing(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := v.pool.Query(ctx, markMissingSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("record missing objects: %w", err)
	}
	still, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("record missing objects: %w", err)
	}
	marked := make(map[uuid.UUID]bool, len(still))
	for _, id := range still {
		marked[id] = true
	}
	return marked, nil
}
