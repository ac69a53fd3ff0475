package client

import (
	"context"
	"time"
)

// Deadline is when the keeper's context ends at the latest, unless a renewal gets through before: a
// little before the lease may end, counted from when the last successful renewal was sent.
func (k *Keeper) Deadline() time.Time { return k.deadline() }

// PublishKept stages, uploads and publishes files under a lease that is being kept. The lease is the
// caller's to give back when it fails. progress is as in [Client.UploadAll].
func (c *Client) PublishKept(ctx context.Context, k *Keeper, files []Source, p Publication, progress func(int64)) (FilesPublished, error) {
	return c.publishKept(ctx, k, files, p, progress)
}
