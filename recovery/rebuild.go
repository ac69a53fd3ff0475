package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Errors of a [Rebuild] that a person must see to.
var (
	// ErrNoMarker: the bucket does not say whose it is.
	ErrNoMarker = errors.New("the bucket carries no installation's marker")
	// ErrForeignBucket: the bucket is another installation's, and the database has pointers of its own.
	ErrForeignBucket = errors.New("the bucket belongs to another installation")
)

// Defaults and bounds of a [Rebuild].
const (
	// DefaultRebuildParallel is how many pointers are worked on at once.
	DefaultRebuildParallel = 8
	rebuildAhead           = 16    // versions of one pointer that are prepared before their turn
	rebuildHeads           = 64    // objects asked for at once
	rebuildReads           = 16    // objects read back at once
	rebuildBatch           = 1_000 // rows a statement
)

// RebuildOptions of one run.
type RebuildOptions struct {
	// Pointers whose versions and settings are brought back; empty means all.
	Pointers []string
	// DryRun looks and changes nothing.
	DryRun bool
	// Deep reads and hashes every object, also where the store tells its digest.
	Deep     bool
	Parallel int // pointers at once; 0 means DefaultRebuildParallel
	// Version and Settings are called for everything that the database lost, one at a time.
	Version  func(LostVersion)
	Settings func(LostSettings)
}

// RebuildStore is what a [Rebuild] needs of the object store.
type RebuildStore interface {
	artifacts.BlobReader
	artifacts.BlobLister
}

// Rebuild compares the records in the bucket with the database, and brings back what that has lost:
// versions, as new generations of the current epoch, settings of pointers, and tombstones of aborted
// operations. It needs the owner's connection. It may be repeated, and run by several at once.
type Rebuild struct {
	catalogue *pointer.Catalogue
	store     RebuildStore
	layout    artifacts.Layout
	opts      RebuildOptions

	found        sync.Mutex // one call of the options' functions at a time; guards report
	report       RebuildReport
	installation pointer.Installation
	aborted      map[uuid.UUID]bool // what the bucket knows and a dry run may not bring back
	heads, reads *semaphore.Weighted
}

// NewRebuild makes a Rebuild, for one run.
func NewRebuild(catalogue *pointer.Catalogue, store RebuildStore, layout artifacts.Layout, opts RebuildOptions) *Rebuild {
	if opts.Parallel <= 0 {
		opts.Parallel = DefaultRebuildParallel
	}
	return &Rebuild{catalogue: catalogue, store: store, layout: layout, opts: opts, aborted: map[uuid.UUID]bool{},
		heads: semaphore.NewWeighted(rebuildHeads), reads: semaphore.NewWeighted(rebuildReads)}
}

// RebuildReport says what a run found and did.
type RebuildReport struct {
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
	DryRun     bool      `json:"dry_run"`
	Records    int64     `json:"records"` // of versions, in the bucket
	Lost       int64     `json:"lost"`    // of these, that the database does not have
	LostBytes  int64     `json:"lost_bytes"`
	Restorable int64     `json:"restorable"` // all of whose objects are there; counted by a dry run
	Restored   int64     `json:"restored"`
	Skipped    int64     `json:"skipped"`      // lost and not brought back; why is said with each
	Settings   int64     `json:"settings"`     // pointers whose settings were lost
	Aborted    int64     `json:"aborted"`      // tombstones brought back
	Foreign    int64     `json:"foreign_keys"` // keys among the records' that are none
}

// Run makes one run. What it did when it fails is durable, and running again goes on.
// [ErrForeignBucket], [ErrNoMarker], [pointer.ErrEpochNotRaised].
func (r *Rebuild) Run(ctx context.Context) (RebuildReport, error) {
	r.report = RebuildReport{StartedAt: time.Now().UTC(), DryRun: r.opts.DryRun}
	err := r.run(ctx)
	r.report.FinishedAt = time.Now().UTC()
	return r.report, err
}

func (r *Rebuild) run(ctx context.Context) error {
	var err error
	if r.installation, err = r.catalogue.Installation(ctx); err != nil {
		return err
	}
	owner, err := bucketOwner(ctx, r.store, r.layout)
	if err != nil {
		return err
	}
	switch {
	case owner != r.installation.ID && !(r.opts.DryRun && r.installation.Empty):
		return fmt.Errorf("%w: it is that of installation %s, and this database is installation %s", ErrForeignBucket, owner, r.installation.ID)
	case owner == r.installation.ID && r.installation.KeyPrefix != r.layout.Prefix:
		return fmt.Errorf("this installation's objects lie under the prefix %q, not %q", r.installation.KeyPrefix, r.layout.Prefix)
	}
	r.installation.ID = owner
	for _, step := range []func(context.Context) error{r.restoreAborted, r.restorePointers, r.restoreVersions} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Foreign reports whether the bucket is that of another installation, which this database, being
// empty, may become with Adopt. [ErrForeignBucket] when it is not empty.
func (r *Rebuild) Foreign(ctx context.Context) (bool, error) {
	i, err := r.catalogue.Installation(ctx)
	if err != nil {
		return false, err
	}
	owner, err := bucketOwner(ctx, r.store, r.layout)
	switch {
	case err != nil:
		return false, err
	case i.ID == owner:
		return false, nil
	case !i.Empty:
		return false, fmt.Errorf("%w: it is that of installation %s, and this database is installation %s with pointers of its own; "+
			"to build that one anew, take an empty database, migrated", ErrForeignBucket, owner, i.ID)
	}
	return true, nil
}

// Adopt makes an empty database the one of the bucket's installation, in an epoch above every one
// that the bucket knows. Nothing can be decided there until the epoch is raised. It does nothing when
// it is that installation already.
func (r *Rebuild) Adopt(ctx context.Context) (adopted bool, err error) {
	foreign, err := r.Foreign(ctx)
	if err != nil || !foreign {
		return false, err
	}
	owner, err := bucketOwner(ctx, r.store, r.layout)
	if err != nil {
		return false, err
	}
	above, err := r.highestEpoch(ctx)
	if err != nil {
		return false, err
	}
	return true, r.catalogue.AdoptInstallation(ctx, owner, r.layout.Prefix, above)
}

// highestEpoch is the highest epoch that anything in the bucket is of, 0 when nothing is.
func (r *Rebuild) highestEpoch(ctx context.Context) (highest int64, err error) {
	epochs := r.layout.Prefix + "epochs/"
	for o, err := range r.store.List(ctx, epochs) {
		if err != nil {
			return 0, fmt.Errorf("list the bucket's epochs: %w", err)
		}
		var n int64
		number, _, _ := strings.Cut(strings.TrimPrefix(o.Key, epochs), "/")
		if _, err := fmt.Sscan(number, &n); err == nil {
			highest = max(highest, n)
		}
	}
	for _, folder := range []string{versionsFolder, pointersFolder} {
		for o, err := range r.store.List(ctx, r.layout.Prefix+folder) {
			if err != nil {
				return 0, fmt.Errorf("list the records: %w", err)
			}
			if k, err := parseRecordKey(r.layout, folder, o.Key); err == nil {
				highest = max(highest, k.Token.Epoch)
			}
		}
	}
	return highest, nil
}

// maxMarker bounds what is read of the marker, in bytes.
const maxMarker = 100

// bucketOwner reads which installation the bucket's prefix belongs to. [ErrNoMarker].
func bucketOwner(ctx context.Context, store artifacts.BlobReader, layout artifacts.Layout) (uuid.UUID, error) {
	text, err := readSmall(ctx, store, layout.Prefix+"installation", maxMarker)
	if errors.Is(err, artifacts.ErrNotFound) {
		return uuid.Nil, fmt.Errorf("%w under the prefix %q: a service that starts on it writes one", ErrNoMarker, layout.Prefix)
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("read the bucket's marker: %w", err)
	}
	id, err := uuid.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return uuid.Nil, fmt.Errorf("the bucket's marker %q holds no installation id: %w", layout.Prefix+"installation", err)
	}
	return id, nil
}

// readSmall reads a whole object of at most limit bytes.
func readSmall(ctx context.Context, store artifacts.BlobReader, key string, limit int64) ([]byte, error) {
	body, o, err := store.Get(ctx, key, artifacts.WholeObject)
	if err != nil {
		return nil, err
	}
	defer body.Close() // everything that is wanted was read
	if o.Size > limit {
		return nil, fmt.Errorf("%w: %s has %d bytes", ErrDamagedRecord, key, o.Size)
	}
	return io.ReadAll(body)
}

// restoreAborted brings the tombstones back first: what was answered as aborted never happens.
func (r *Rebuild) restoreAborted(ctx context.Context) error {
	var operations []uuid.UUID
	var names []string
	flush := func() error {
		if len(operations) == 0 || r.opts.DryRun {
			operations, names = nil, nil
			return nil
		}
		n, err := r.catalogue.RestoreAborted(ctx, operations, names)
		r.report.Aborted += int64(n)
		operations, names = nil, nil
		return err
	}
	for o, err := range r.store.List(ctx, r.layout.Prefix+operationsFolder) {
		if err != nil {
			return fmt.Errorf("list the records of aborted operations: %w", err)
		}
		id, name, err := parseOperationKey(r.layout, o.Key)
		if err != nil {
			r.report.Foreign++
			continue
		}
		if r.opts.DryRun {
			r.aborted[id] = true
			continue
		}
		if operations, names = append(operations, id), append(names, name); len(operations) == rebuildBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// workers runs at most Parallel jobs at once and ends with the first fault.
func (r *Rebuild) workers(ctx context.Context) (*errgroup.Group, context.Context) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.opts.Parallel)
	return g, ctx
}
