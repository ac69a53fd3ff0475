package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactd/artifactd/api/types"
)

// releaseTime is how long giving a lease back may take once the work has failed.
const releaseTime = 5 * time.Second

// PublishFiles publishes files under a name, from lease to outcome: it acquires and keeps the lease,
// stages and uploads, and publishes. When it fails the lease is given back. progress is as in
// [Client.UploadAll].
func (c *Client) PublishFiles(ctx context.Context, pointer string, files []Source, a AcquireOptions, p Publication, progress func(int64)) (types.Published, error) {
	if len(files) == 0 {
		return types.Published{}, errors.New("there is no file to publish")
	}
	lease, err := c.Acquire(ctx, pointer, a)
	if err != nil {
		return types.Published{}, err
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
func (c *Client) publishKept(ctx context.Context, k *Keeper, files []Source, p Publication, progress func(int64)) (types.Published, error) {
	if err := c.UploadAll(k.Context(), k.Lease(), files, progress); err != nil {
		if cause := context.Cause(k.Context()); cause != nil && ctx.Err() == nil {
			err = fmt.Errorf("stopped before everything was uploaded: %w", cause)
		}
		return types.Published{}, err
	}
	p.FileCount = len(files)
	return c.Publish(ctx, k.Lease(), p)
}

// giveBack releases a lease so that the next worker need not wait for its expiry. A failure changes
// nothing but that wait.
func (c *Client) giveBack(ctx context.Context, l Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	_ = c.Release(ctx, l)
}
