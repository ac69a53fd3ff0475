package gc

import (
	"context"
	"fmt"
	"iter"

	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
)

const noteSQL = `SELECT unknown FROM artifactd.note_unknown($1, $2, $3, $4)`

// sightings are listed keys, in columns as the database takes them.
type sightings struct {
	keys, uploads []string
	sizes         []int64
}

func (s *sightings) add(key, upload string, size int64) {
	s.keys, s.uploads, s.sizes = append(s.keys, key), append(s.uploads, upload), append(s.sizes, size)
}

// list walks the bucket, joins it with the catalogue, and writes down what nobody knows.
func (r *Reconciler) list(ctx context.Context, pass int64, report *ReconcileReport) error {
	for _, walk := range []struct {
		seq             iter.Seq2[sighting, error]
		listed, unknown *int64
	}{
		{objects(r.store.List(ctx, r.layout.ArtifactsPrefix())), &report.Listed, &report.Unknown},
		{uploads(r.store.ListMultiparts(ctx, r.layout.ArtifactsPrefix())), &report.Uploads, &report.UnknownUploads},
	} {
		err := r.walk(ctx, walk.seq, walk.listed, report, func(ctx context.Context, b sightings) error {
			var unknown int64
			if err := r.pool.QueryRow(ctx, noteSQL, pass, b.keys, b.uploads, b.sizes).Scan(&unknown); err != nil {
				return fmt.Errorf("compare the listing with the catalogue: %w", err)
			}
			*walk.unknown += unknown
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// walk hands a listing over in batches. The next one is listed while compare looks at the one before;
// a batch is always compared after it was listed, so that the row of a listed object is committed.
func (r *Reconciler) walk(ctx context.Context, seq iter.Seq2[sighting, error], listed *int64, report *ReconcileReport,
	compare func(context.Context, sightings) error) error {
	batches := make(chan sightings, 2)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(batches)
		return r.batch(ctx, seq, batches, listed, report)
	})
	g.Go(func() error {
		for b := range batches {
			if err := compare(ctx, b); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// sighting is one listed object or upload.
type sighting struct {
	key, upload string
	size        int64
}

func objects(seq iter.Seq2[artifacts.Object, error]) iter.Seq2[sighting, error] {
	return func(yield func(sighting, error) bool) {
		for o, err := range seq {
			if !yield(sighting{key: o.Key, size: o.Size}, err) {
				return
			}
		}
	}
}

func uploads(seq iter.Seq2[artifacts.Multipart, error]) iter.Seq2[sighting, error] {
	return func(yield func(sighting, error) bool) {
		for m, err := range seq {
			if !yield(sighting{key: m.Key, upload: m.UploadID}, err) {
				return
			}
		}
	}
}

// batch cuts a listing into batches. Keys that are no artifacts' are counted and left alone.
func (r *Reconciler) batch(ctx context.Context, seq iter.Seq2[sighting, error], out chan<- sightings, listed *int64, report *ReconcileReport) error {
	var b sightings
	send := func() error {
		select {
		case out <- b:
			b = sightings{}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for s, err := range seq {
		if err != nil {
			return fmt.Errorf("list the bucket: %w", err)
		}
		if _, _, err := r.layout.ParseArtifactKey(s.key); err != nil {
			report.Foreign++
			if report.FirstForeign == "" {
				report.FirstForeign = s.key
			}
			continue
		}
		*listed++
		if b.add(s.key, s.upload, s.size); len(b.keys) == DefaultBatch {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if len(b.keys) == 0 {
		return ctx.Err()
	}
	return send()
}
