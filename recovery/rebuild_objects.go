package recovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// objects looks for the objects of a checked record, in batches. Outside of a dry run each batch gets
// its rows first: from then on nobody takes its objects for garbage, so that what is proved stays.
func (r *Rebuild) objects(ctx context.Context, s *spool, key string, p *prepared) error {
	body, err := s.reader()
	if err != nil {
		return err
	}
	v, err := readVersion(body, r.layout, key, r.installation.ID)
	if err != nil {
		return err
	}
	var missing []string
	batch := make([]pointer.File, 0, rebuildBatch)
	flush := func() error {
		gone, err := r.batch(ctx, v.VersionRecord, batch, p)
		missing, batch = append(missing, gone...), batch[:0]
		return err
	}
	for f, err := range v.files() {
		if err != nil {
			return err
		}
		if batch = append(batch, f); len(batch) == rebuildBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	if len(missing) > 0 {
		p.lost.Status, p.lost.Detail = LostIncomplete, fmt.Sprintf("%d of %d files: %s", len(missing), v.FileCount, missing[0])
	}
	switch p.lost.Status {
	case LostRestorable, LostKnown:
		return nil
	}
	if r.opts.DryRun {
		return nil
	}
	return r.catalogue.DropRestore(ctx, v.VersionRecord)
}

// batch gives files their rows and proves their objects; it says what is wrong with those that
// are not what they should be.
func (r *Rebuild) batch(ctx context.Context, v pointer.VersionRecord, files []pointer.File, p *prepared) (wrong []string, err error) {
	if len(files) == 0 || p.lost.Status != LostRestorable {
		return nil, nil
	}
	if !r.opts.DryRun {
		status, detail, err := r.catalogue.RestoreFiles(ctx, v, files)
		if err != nil {
			return nil, err
		}
		switch status {
		case pointer.RestoreKnown:
			p.lost.Status = LostKnown
			return nil, nil
		case pointer.RestoreDeleting:
			p.lost.Status, p.lost.Detail = LostDeleting, detail+" is in the deletion ledger"
			return nil, nil
		case pointer.RestoreConflict:
			p.lost.Status, p.lost.Detail = LostConflict, "artifact "+detail+" has another digest or size in the database"
			return nil, nil
		case pointer.RestoreOK:
		default:
			return nil, fmt.Errorf("bring back files: unexpected status %q", status)
		}
	}
	proofs, faults, err := r.proveAll(ctx, files)
	if err != nil {
		return nil, err
	}
	var ids []uuid.UUID
	var verified []string
	for i, f := range files {
		if faults[i] != "" {
			wrong = append(wrong, fmt.Sprintf("%s: object %s %s", f.Path, r.layout.ArtifactKey(f.Digest, f.ArtifactID), faults[i]))
			continue
		}
		ids, verified = append(ids, f.ArtifactID), append(verified, proofs[i])
	}
	if r.opts.DryRun || len(wrong) > 0 {
		return wrong, nil
	}
	return nil, r.catalogue.RestoreProved(ctx, ids, verified)
}

// proveAll proves the objects of some files, several at once.
func (r *Rebuild) proveAll(ctx context.Context, files []pointer.File) (proofs, faults []string, err error) {
	proofs, faults = make([]string, len(files)), make([]string, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(rebuildHeads)
	for i := range files {
		g.Go(func() (err error) {
			proofs[i], faults[i], err = r.prove(gctx, &files[i])
			return err
		})
	}
	return proofs, faults, g.Wait()
}

// prove finds out whether an object is the one that a file names, and says how it was proved or what
// is wrong. Only the store's definite word counts: one that does not answer is an error.
func (r *Rebuild) prove(ctx context.Context, f *pointer.File) (verified, fault string, err error) {
	key := r.layout.ArtifactKey(f.Digest, f.ArtifactID)
	if err := r.heads.Acquire(ctx, 1); err != nil {
		return "", "", err
	}
	o, err := r.store.Head(ctx, key)
	r.heads.Release(1)
	switch {
	case errors.Is(err, artifacts.ErrNotFound):
		return "", "is missing", nil
	case err != nil:
		return "", "", err
	case o.Size != f.Size:
		return "", fmt.Sprintf("has %d bytes, not %d", o.Size, f.Size), nil
	case !o.SHA256.IsZero() && o.SHA256 != f.Digest:
		return "", "has the digest " + o.SHA256.String(), nil
	case !o.SHA256.IsZero() && !r.opts.Deep:
		return pointer.VerifiedByStore, "", nil
	}
	if err := r.reads.Acquire(ctx, 1); err != nil {
		return "", "", err
	}
	defer r.reads.Release(1)
	d, err := artifacts.ReadDigest(ctx, r.store, key, f.Size)
	switch {
	case errors.Is(err, artifacts.ErrNotFound):
		return "", "is missing", nil
	case errors.Is(err, artifacts.ErrSizeMismatch):
		return "", "has another size", nil
	case err != nil:
		return "", "", err
	case d != f.Digest:
		return "", "has the digest " + d.String(), nil
	}
	return pointer.VerifiedByRead, "", nil
}
