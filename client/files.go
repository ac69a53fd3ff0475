package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
)

// releaseTime is how long giving a lease back may take once the work has failed.
const releaseTime = 5 * time.Second

// FilesPublished is what [Client.PublishFiles] did.
type FilesPublished struct {
	types.Published
	Moved
}

// PublishFiles publishes files under a name, from lease to outcome: it acquires and keeps the lease,
// stages and uploads, and publishes. When it fails the lease is given back. progress is as in
// [Client.UploadAll].
//
// Called again after it was cut off, it moves only what is missing. When p has an operation id and a
// has none, it goes on under the lease of the call that was cut off, if that still lives. When that call
// had published, the recorded outcome is answered and nothing is moved; that it published the same files,
// metadata and revision is checked for as long as its version can be read ([ErrOperationMismatch]).
func (c *Client) PublishFiles(ctx context.Context, pointer string, files []Source, a AcquireOptions, p Publication, progress func(int64)) (FilesPublished, error) {
	if len(files) == 0 {
		return FilesPublished{}, errors.New("there is no file to publish")
	}
	if published, done, err := c.repeated(ctx, pointer, files, p); done || err != nil {
		return FilesPublished{Published: published}, err
	}
	lease, err := c.acquireFor(ctx, pointer, a, p.OperationID)
	if err != nil {
		return FilesPublished{}, err
	}
	keeper := c.Keep(ctx, lease)
	published, err := c.publishKept(ctx, keeper, files, p, progress)
	_ = keeper.Stop() // its reason is in err already
	if err != nil && !lostLease(err) && !errors.Is(err, ErrOutcomeUnknown) {
		c.giveBack(ctx, lease)
	}
	return published, err
}

// publishKept uploads under the keeper's context, and publishes under the caller's: the keeper may
// learn that the lease has published before the answer of the publish is here.
func (c *Client) publishKept(ctx context.Context, k *Keeper, files []Source, p Publication, progress func(int64)) (FilesPublished, error) {
	moved, err := c.UploadAll(k.Context(), k.Lease(), files, progress)
	if err != nil {
		if cause := context.Cause(k.Context()); cause != nil && ctx.Err() == nil {
			err = fmt.Errorf("stopped before everything was uploaded: %w", cause)
		}
		return FilesPublished{Moved: moved}, err
	}
	p.FileCount = len(files)
	published, err := c.Publish(ctx, k.Lease(), p)
	return FilesPublished{Published: published, Moved: moved}, err
}

// leasesTried bounds how many leases of one publish are looked for.
const leasesTried = 16

// acquireFor takes the lease for a publish, or the one that an earlier call with the publish's
// operation id took. Each lease of that publish has an operation id made from the publish's and a
// number; those of leases that have ended are passed over, as are those of somebody else who asked
// for something else.
func (c *Client) acquireFor(ctx context.Context, pointer string, a AcquireOptions, publish uuid.UUID) (Lease, error) {
	if a.OperationID != uuid.Nil || publish == uuid.Nil {
		return c.Acquire(ctx, pointer, a)
	}
	for n := range leasesTried {
		a.OperationID = uuid.NewSHA1(publish, fmt.Appendf(nil, "acquire %s %d", pointer, n))
		lease, err := c.Acquire(ctx, pointer, a)
		if !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrOperationMismatch) {
			return lease, err
		}
	}
	a.OperationID = uuid.Nil
	return c.Acquire(ctx, pointer, a)
}

// giveBack releases a lease so that the next worker need not wait for its expiry. A failure changes
// nothing but that wait.
func (c *Client) giveBack(ctx context.Context, l Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	_ = c.Release(ctx, l)
}
