package bucket

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

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

// Version names one version of an object, or all that a bucket without versions has: ID is "".
type Version struct{ Key, ID string }

// Deleting is what a driver can do to delete.
type Deleting interface {
	// Versioned asks whether the bucket keeps, or has kept, old versions.
	Versioned(ctx context.Context) (bool, error)
	// VersionsOf lists the versions and delete markers of one key.
	VersionsOf(ctx context.Context, key string) ([]Version, error)
	// TryDeleteBatch removes at most 1,000 versions in one request. It returns the fate of those
	// that the store mentioned, or, when it refused the whole, the status it did that with.
	TryDeleteBatch(ctx context.Context, versions []Version) (fates map[Version]error, status int, err error)
	// TryDelete removes one version.
	TryDelete(ctx context.Context, v Version) error
	// Retained asks whether a version is under object lock now. Stores disagree about the code
	// of the refusal, but not about these headers.
	Retained(ctx context.Context, v Version) (bool, error)
}

// Deleter deletes, in batches where the store takes them. The zero value is ready.
type Deleter struct {
	// noBatch remembers that the store refuses batches.
	noBatch    atomic.Bool
	versioning struct {
		sync.Mutex
		versioned bool
		until     time.Time // the answer is asked for again after this
	}
}

// Delete removes keys. See [artifacts.BlobDeleter].
func (d *Deleter) Delete(ctx context.Context, s Deleting, keys []string) ([]artifacts.Deleted, error) {
	if len(keys) > maxBatch {
		return nil, fmt.Errorf("s3: delete: %d keys at once, at most %d are possible", len(keys), maxBatch)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	versions, err := d.versionsOf(ctx, s, keys)
	if err != nil {
		return nil, err
	}
	fates := make(map[string]error, len(keys))
	for len(versions) > 0 {
		n := min(len(versions), maxBatch)
		err := d.deleteBatch(ctx, s, versions[:n], func(v Version, err error) {
			fates[v.Key] = errors.Join(fates[v.Key], err)
		})
		if err != nil {
			return nil, err
		}
		versions = versions[n:]
	}
	deleted := make([]artifacts.Deleted, len(keys))
	for i, key := range keys {
		deleted[i] = artifacts.Deleted{Key: key, Err: fates[key]}
	}
	return deleted, nil
}

// versionsOf is what must go so that the keys hold no bytes. Deleting by key alone would only
// hide the bytes of a versioned bucket.
func (d *Deleter) versionsOf(ctx context.Context, s Deleting, keys []string) ([]Version, error) {
	seen := make(map[string]bool, len(keys))
	var once []string
	for _, key := range keys {
		if !seen[key] {
			seen[key] = true
			once = append(once, key)
		}
	}
	versioned, err := d.versioned(ctx, s)
	if err != nil {
		return nil, err
	}
	found := make([][]Version, len(once))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(singleDeletes)
	for i, key := range once {
		if !versioned {
			found[i] = []Version{{Key: key}}
			continue
		}
		g.Go(func() (err error) {
			found[i], err = s.VersionsOf(gctx, key)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []Version
	for _, versions := range found {
		all = append(all, versions...)
	}
	return all, nil
}

func (d *Deleter) versioned(ctx context.Context, s Deleting) (bool, error) {
	v := &d.versioning
	v.Lock()
	defer v.Unlock()
	if time.Now().Before(v.until) {
		return v.versioned, nil
	}
	versioned, err := s.Versioned(ctx)
	if err != nil {
		return false, err
	}
	v.versioned, v.until = versioned, time.Now().Add(versioningMemory)
	return versioned, nil
}

// deleteBatch removes up to maxBatch versions and tells the fate of each.
func (d *Deleter) deleteBatch(ctx context.Context, s Deleting, versions []Version, fate func(Version, error)) error {
	if d.noBatch.Load() {
		return deleteSingly(ctx, s, versions, fate)
	}
	fates, status, err := s.TryDeleteBatch(ctx, versions)
	switch status {
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusLengthRequired, http.StatusNotImplemented:
		// No such call here, or one that wants a Content-MD5.
		d.noBatch.Store(true)
		return deleteSingly(ctx, s, versions, fate)
	}
	if err != nil {
		return err
	}
	for _, v := range versions {
		err, mentioned := fates[v]
		if !mentioned {
			err = fmt.Errorf("s3: delete %s: %w: the store did not say what became of it", v.Key, artifacts.ErrStoreUnavailable)
		}
		fate(v, orRetained(ctx, s, v, err))
	}
	return nil
}

// deleteSingly removes versions with one request each.
func deleteSingly(ctx context.Context, s Deleting, versions []Version, fate func(Version, error)) error {
	fates := make([]error, len(versions))
	var g errgroup.Group
	g.SetLimit(singleDeletes)
	for i, v := range versions {
		g.Go(func() error {
			fates[i] = orRetained(ctx, s, v, s.TryDelete(ctx, v))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, v := range versions {
		fate(v, fates[i])
	}
	return nil
}

// orRetained sorts a refused deletion. An object that is not there is as good as deleted. One
// under object lock is told by its own headers; object lock needs versions.
func orRetained(ctx context.Context, s Deleting, v Version, err error) error {
	if err == nil || errors.Is(err, artifacts.ErrNotFound) {
		return nil
	}
	if v.ID == "" || ctx.Err() != nil {
		return err
	}
	retained, askErr := s.Retained(ctx, v)
	switch {
	case errors.Is(askErr, artifacts.ErrNotFound):
		return nil
	case askErr == nil && retained:
		return fmt.Errorf("%w: %w", artifacts.ErrRetained, err)
	}
	return err
}
