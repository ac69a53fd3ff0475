package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

const unknownSQL = `SELECT place FROM artifactd.unknown_keys($1, $2)`

// UnknownReport says which objects of the bucket no row knows: after a restore or a failover, what the
// lost history wrote, beside ordinary garbage.
type UnknownReport struct {
	Listed int64 `json:"listed"` // artifacts' objects in the bucket
	Count        // of the unknown ones
	// ByEpoch parts them by the epoch that wrote them, as their metadata says, the oldest first.
	ByEpoch []UnknownEpoch `json:"by_epoch"`
}

// UnknownEpoch counts the unknown objects of one epoch; epoch 0 stands for those that name none.
type UnknownEpoch struct {
	Epoch int64 `json:"epoch"`
	Count
}

// Unknown compares the bucket with the catalogue, as a pass does, but writes nothing down: it is for
// an operator who has not decided yet, also while writes wait because the database's history changed.
// Every unknown object is asked for once, for its epoch. Memory is that of a few batches.
func (r *Reconciler) Unknown(ctx context.Context) (UnknownReport, error) {
	report, epochs := UnknownReport{ByEpoch: []UnknownEpoch{}}, map[int64]Count{}
	var foreign ReconcileReport // keys that are no artifacts' are not what is asked about
	err := r.walk(ctx, objects(r.store.List(ctx, r.layout.ArtifactsPrefix())), &report.Listed, &foreign, func(ctx context.Context, b sightings) error {
		rows, err := r.pool.Query(ctx, unknownSQL, b.keys, b.uploads)
		if err != nil {
			return fmt.Errorf("compare the listing with the catalogue: %w", err)
		}
		places, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			return fmt.Errorf("compare the listing with the catalogue: %w", err)
		}
		return r.countByEpoch(ctx, b, places, epochs)
	})
	if err != nil {
		return report, err
	}
	for epoch, n := range epochs {
		report.ByEpoch = append(report.ByEpoch, UnknownEpoch{epoch, n})
		report.Objects, report.Bytes = report.Objects+n.Objects, report.Bytes+n.Bytes
	}
	slices.SortFunc(report.ByEpoch, func(a, b UnknownEpoch) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return report, nil
}

// countByEpoch asks the store which epoch wrote the unknown ones of a batch, by their places from 1.
// One that is gone by now is not counted.
func (r *Reconciler) countByEpoch(ctx context.Context, b sightings, places []int, epochs map[int64]Count) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(headsAtOnce)
	for _, place := range places {
		g.Go(func() error {
			object, err := r.store.Head(ctx, b.keys[place-1])
			if errors.Is(err, artifacts.ErrNotFound) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("look at unknown objects: %w", err)
			}
			var epoch int64
			if token, err := pointer.ParseToken(object.Metadata[tokenMetadata]); err == nil {
				epoch = token.Epoch
			}
			mu.Lock()
			defer mu.Unlock()
			n := epochs[epoch]
			epochs[epoch] = Count{n.Objects + 1, n.Bytes + b.sizes[place-1]}
			return nil
		})
	}
	return g.Wait()
}
