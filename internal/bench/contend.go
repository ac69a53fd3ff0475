package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
)

const (
	contenders = 64
	// patience is how long, in seconds, a contender stands in line: far longer than its turn takes.
	patience = 60
)

// prepareContend compares many workers who want one pointer, and hand it over to each other, with
// one who has a pointer to itself.
func prepareContend(ctx context.Context, s *stack) (ours, peer side, err error) {
	payload := make([]byte, smallSize)
	names, err := pointers(ctx, s, "contend", 2, payload)
	if err != nil {
		return nil, nil, err
	}
	digest := artifacts.DigestOf(payload)
	cycle := func(ctx context.Context, name string) error {
		l, err := s.api.acquireInLine(ctx, name)
		if err != nil {
			return err
		}
		return s.api.publishAdopted(ctx, l, digest, len(payload))
	}
	ours = s.api.counted(func(ctx context.Context, d time.Duration) (sample, error) {
		turns := make([]atomic.Int64, contenders)
		all, err := load(ctx, contenders, d, func(ctx context.Context, w int) error {
			turns[w].Add(1)
			return cycle(ctx, names[0])
		})
		if err == nil {
			err = fair(turns)
		}
		return all, err
	})
	peer = s.api.counted(func(ctx context.Context, d time.Duration) (sample, error) {
		return load(ctx, 1, d, func(ctx context.Context, _ int) error { return cycle(ctx, names[1]) })
	})
	return ours, peer, nil
}

// fair is an error when somebody had a turn for more than eight of another: those who wait stand in a
// line, so turns differ by what a round begins and ends with.
func fair(turns []atomic.Int64) error {
	n := make([]int64, len(turns))
	for i := range turns {
		n[i] = turns[i].Load()
	}
	if least, most := slices.Min(n), slices.Max(n); least*8 < most-8 {
		return fmt.Errorf("one worker had %d turns and another %d: somebody starves", least, most)
	}
	return nil
}

// acquireInLine waits for the lease until it is one's turn.
func (a *apiClient) acquireInLine(ctx context.Context, name string) (l lease, err error) {
	operation, err := uuid.NewV7()
	if err != nil {
		return l, err
	}
	wait := float64(patience)
	in := types.AcquireRequest{Holder: "bench", OperationId: &operation, WaitSeconds: &wait}
	return l, a.call(ctx, http.MethodPost, "/v1/pointers/"+name+"/leases", in, &l)
}
