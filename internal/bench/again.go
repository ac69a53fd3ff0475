package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/artifactd/artifactd/client"
)

// changedFiles is how many files of a tree change before it is published again.
const changedFiles = 10

// prepareAgain compares a publish of many files of which few have changed with one of which all have.
// Either must send exactly what changed.
func prepareAgain(ctx context.Context, s *stack) (ours, peer side, err error) {
	const pointer = "bench.again"
	c, err := s.client(ctx, pointer)
	if err != nil {
		return nil, nil, err
	}
	publish := func(ctx context.Context, files []client.Source, changed int) (sample, error) {
		return whole(int64(len(files)), func() error {
			published, err := c.PublishFiles(ctx, pointer, files, client.AcquireOptions{Holder: "bench"}, client.Publication{FileCount: len(files)}, nil)
			if err == nil && published.UploadedFiles != int64(changed) {
				err = fmt.Errorf("%d files were sent, and %d had changed", published.UploadedFiles, changed)
			}
			return err
		})
	}
	// No other benchmark has these numbers, or the pointer would not need the bytes.
	var round atomic.Uint64
	next := func() uint64 { return 1<<32 + round.Add(1) }
	files := smallFiles(s.files, next())
	if _, err := publish(ctx, files, len(files)); err != nil {
		return nil, nil, err
	}
	ours = func(ctx context.Context, _ time.Duration) (sample, error) {
		few := min(changedFiles, len(files))
		copy(files, smallFiles(few, next()))
		return publish(ctx, files, few)
	}
	peer = func(ctx context.Context, _ time.Duration) (sample, error) {
		files = smallFiles(s.files, next())
		return publish(ctx, files, len(files))
	}
	return ours, peer, nil
}
