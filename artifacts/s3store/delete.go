package s3store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	// maxBatch is the most keys that S3 takes in one deletion.
	maxBatch = 1000
	// singleDeletes bounds the requests at once where each key needs its own.
	singleDeletes = 16
	// versioningMemory is how long the answer to "is this bucket versioned?" is believed.
	versioningMemory = time.Minute
)

// Delete implements [artifacts.BlobDeleter].
func (s *Store) Delete(ctx context.Context, keys []string) ([]artifacts.Deleted, error) {
	if len(keys) > maxBatch {
		return nil, fmt.Errorf("s3: delete: %d keys at once, at most %d are possible", len(keys), maxBatch)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	versioned, err := s.versioned(ctx)
	if err != nil {
		return nil, err
	}
	fates := make(map[string]error, len(keys))
	if versioned {
		err = s.deleteVersions(ctx, keys, fates)
	} else {
		err = s.deleteObjects(ctx, identifiers(keys), func(id types.ObjectIdentifier, err error) {
			fates[aws.ToString(id.Key)] = err
		})
	}
	if err != nil {
		return nil, err
	}
	deleted := make([]artifacts.Deleted, len(keys))
	for i, key := range keys {
		deleted[i] = artifacts.Deleted{Key: key, Err: fates[key]}
	}
	return deleted, nil
}

func identifiers(keys []string) []types.ObjectIdentifier {
	ids := make([]types.ObjectIdentifier, len(keys))
	for i := range keys {
		ids[i].Key = &keys[i]
	}
	return ids
}

// versioned reports whether the bucket keeps, or has kept, old versions. Deleting by key alone
// would then only hide the bytes.
func (s *Store) versioned(ctx context.Context) (bool, error) {
	s.versioning.Lock()
	defer s.versioning.Unlock()
	if time.Now().Before(s.versioning.until) {
		return s.versioning.versioned, nil
	}
	out, err := s.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &s.cfg.Bucket})
	switch {
	case err == nil:
		s.versioning.versioned = out.Status != "" // enabled, or suspended with versions left
	case status(err) == http.StatusNotImplemented || status(err) == http.StatusMethodNotAllowed:
		s.versioning.versioned = false // a store without versions
	default:
		return false, s.translate(ctx, "ask for the versioning of", s.cfg.Bucket, err)
	}
	s.versioning.until = time.Now().Add(versioningMemory)
	return s.versioning.versioned, nil
}

// deleteVersions removes every version and delete marker of the keys.
func (s *Store) deleteVersions(ctx context.Context, keys []string, fates map[string]error) error {
	found := make([][]types.ObjectIdentifier, len(keys))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(singleDeletes)
	for i, key := range keys {
		g.Go(func() (err error) {
			found[i], err = s.versionsOf(gctx, key)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var all []types.ObjectIdentifier
	for _, ids := range found {
		all = append(all, ids...)
	}
	for len(all) > 0 {
		n := min(len(all), maxBatch)
		err := s.deleteObjects(ctx, all[:n], func(id types.ObjectIdentifier, err error) {
			key := aws.ToString(id.Key)
			fates[key] = errors.Join(fates[key], err)
		})
		if err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// versionsOf lists the versions and delete markers of one key.
func (s *Store) versionsOf(ctx context.Context, key string) ([]types.ObjectIdentifier, error) {
	var ids []types.ObjectIdentifier
	in := &s3.ListObjectVersionsInput{Bucket: &s.cfg.Bucket, Prefix: &key}
	for {
		page, err := s.client.ListObjectVersions(ctx, in)
		if err != nil {
			return nil, s.translate(ctx, "list the versions of", key, err)
		}
		for _, v := range page.Versions {
			if aws.ToString(v.Key) == key {
				ids = append(ids, types.ObjectIdentifier{Key: &key, VersionId: v.VersionId})
			}
		}
		for _, m := range page.DeleteMarkers {
			if aws.ToString(m.Key) == key {
				ids = append(ids, types.ObjectIdentifier{Key: &key, VersionId: m.VersionId})
			}
		}
		if page.IsTruncated == nil {
			return nil, fmt.Errorf("s3: list the versions of %s: %w: the store does not say whether the listing is complete",
				key, artifacts.ErrStoreUnavailable)
		}
		// The prefix is a whole key: what follows it in the listing belongs to longer keys, and
		// those sort after every version of this one.
		if !*page.IsTruncated || beyond(page, key) {
			return ids, nil
		}
		if aws.ToString(page.NextKeyMarker) == "" || aws.ToString(page.NextKeyMarker) == aws.ToString(in.KeyMarker) &&
			aws.ToString(page.NextVersionIdMarker) == aws.ToString(in.VersionIdMarker) {
			return nil, fmt.Errorf("s3: list the versions of %s: %w: the store cut the listing short without a way to go on",
				key, artifacts.ErrStoreUnavailable)
		}
		in.KeyMarker, in.VersionIdMarker = page.NextKeyMarker, page.NextVersionIdMarker
	}
}

func beyond(page *s3.ListObjectVersionsOutput, key string) bool {
	for _, v := range page.Versions {
		if aws.ToString(v.Key) > key {
			return true
		}
	}
	return false
}

// deleteObjects removes up to maxBatch objects or versions and tells the fate of each.
func (s *Store) deleteObjects(ctx context.Context, ids []types.ObjectIdentifier, fate func(types.ObjectIdentifier, error)) error {
	if s.noBatchDelete.Load() {
		return s.deleteSingly(ctx, ids, fate)
	}
	out, err := s.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: &s.cfg.Bucket, Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(false)},
	})
	if err != nil {
		switch status(err) {
		case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusLengthRequired, http.StatusNotImplemented:
			// No such call here, or one that wants a Content-MD5.
			s.noBatchDelete.Store(true)
			return s.deleteSingly(ctx, ids, fate)
		}
		return s.translate(ctx, "delete from", s.cfg.Bucket, err)
	}
	type objectVersion struct{ key, version string }
	confirmed := make(map[objectVersion]bool, len(out.Deleted))
	for _, d := range out.Deleted {
		confirmed[objectVersion{aws.ToString(d.Key), aws.ToString(d.VersionId)}] = true
	}
	refused := make(map[objectVersion]types.Error, len(out.Errors))
	for _, e := range out.Errors {
		refused[objectVersion{aws.ToString(e.Key), aws.ToString(e.VersionId)}] = e
	}
	for _, id := range ids {
		this := objectVersion{aws.ToString(id.Key), aws.ToString(id.VersionId)}
		switch e, no := refused[this]; {
		case no:
			fate(id, s.refusal(ctx, id, e))
		case confirmed[this]:
			fate(id, nil)
		default:
			fate(id, fmt.Errorf("s3: delete %s: %w: the store did not say what became of it", this.key, artifacts.ErrStoreUnavailable))
		}
	}
	return nil
}

// deleteSingly removes objects one request each.
func (s *Store) deleteSingly(ctx context.Context, ids []types.ObjectIdentifier, fate func(types.ObjectIdentifier, error)) error {
	fates := make([]error, len(ids))
	var g errgroup.Group
	g.SetLimit(singleDeletes)
	for i, id := range ids {
		g.Go(func() error {
			_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{
				Bucket: &s.cfg.Bucket, Key: id.Key, VersionId: id.VersionId,
			})
			if err = s.translate(ctx, "delete", aws.ToString(id.Key), err); err != nil {
				fates[i] = s.orRetained(ctx, id, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, id := range ids {
		fate(id, fates[i])
	}
	return nil
}

// refusal is the meaning of one key's error in the answer to a batch.
func (s *Store) refusal(ctx context.Context, id types.ObjectIdentifier, e types.Error) error {
	code, key := aws.ToString(e.Code), aws.ToString(id.Key)
	meaning, ok := outcomes[code]
	if !ok {
		meaning = artifacts.ErrStoreUnavailable // "InternalError" and its like
	}
	return s.orRetained(ctx, id, fmt.Errorf("s3: delete %s: %w: %s: %s", key, meaning, code, aws.ToString(e.Message)))
}

// orRetained sorts a refused deletion. An object that is not there is as good as deleted. One
// under object lock is told by its own headers: stores disagree about the code.
func (s *Store) orRetained(ctx context.Context, id types.ObjectIdentifier, err error) error {
	if errors.Is(err, artifacts.ErrNotFound) {
		return nil
	}
	if id.VersionId == nil || ctx.Err() != nil {
		return err // object lock needs versions
	}
	head, headErr := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.cfg.Bucket, Key: id.Key, VersionId: id.VersionId})
	if headErr != nil {
		return err
	}
	if head.ObjectLockLegalHoldStatus == types.ObjectLockLegalHoldStatusOn ||
		(head.ObjectLockMode != "" && head.ObjectLockRetainUntilDate != nil && time.Now().Before(*head.ObjectLockRetainUntilDate)) {
		return fmt.Errorf("%w: %w", artifacts.ErrRetained, err)
	}
	return err
}
