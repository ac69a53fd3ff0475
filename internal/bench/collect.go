package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/pointer"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// fewLive is the catalogue, in files, that a large one is compared with.
	fewLive = 10_000
	// publishersBeside is how many workers publish while a collection runs.
	publishersBeside = 4
	// deletesAtOnce is how many batches the collector, and its peer, have under way.
	deletesAtOnce = gc.DefaultParallel
)

// collect has the service collect what garbage made, and wants all of it gone.
func (o *site) collect(ctx context.Context, n int) (sample, error) {
	if err := o.garbage(ctx, n); err != nil {
		return sample{}, err
	}
	return o.collectGarbage(ctx, n)
}

// collectGarbage has the service collect n objects of garbage, and wants all of it gone.
func (o *site) collectGarbage(ctx context.Context, n int) (sample, error) {
	return whole(int64(n), func() error {
		run, err := o.client.Collect(ctx, types.GcRequest{}, nil)
		if err == nil && (run.DeletedObjects != int64(n) || run.LedgerSize != 0) {
			err = fmt.Errorf("%d objects of %d were deleted, and %d keys are left in the ledger", run.DeletedObjects, n, run.LedgerSize)
		}
		return err
	})
}

// prepareCollect compares collection, decisions and ledger included, with nothing but the batch
// deletes of as many objects from the same store.
func prepareCollect(ctx context.Context, s *stack) (ours, peer side, err error) {
	large, err := s.newSite(ctx, "large", s.live)
	if err != nil {
		return nil, nil, err
	}
	ours = func(ctx context.Context, _ time.Duration) (one sample, err error) {
		if err := large.garbage(ctx, s.dead); err != nil {
			return sample{}, err
		}
		s.note("collect", "%s", large.memory(ctx, func() {
			one, err = s.spent("collect", "artifactd", large.service.PID, func() (sample, error) { return large.collectGarbage(ctx, s.dead) })
		}))
		return one, err
	}
	rounds := 0
	peer = func(ctx context.Context, _ time.Duration) (sample, error) {
		rounds++
		keys := make([]string, s.dead)
		raw := artifacts.Layout{Prefix: rawPrefix + "collect/"}
		err := each(ctx, len(keys), func(ctx context.Context, i int) error {
			content := fmt.Appendf(nil, "raw%d-%d", rounds, i)
			digest := artifacts.DigestOf(content)
			keys[i] = raw.ArtifactKey(digest, uuid.New())
			return large.store.Put(ctx, artifacts.Upload{Key: keys[i], Digest: digest, Size: int64(len(content))}, strings.NewReader(string(content)))
		})
		if err != nil {
			return sample{}, err
		}
		return s.spent("collect", "batch deletes", large.service.PID, func() (sample, error) {
			return whole(int64(len(keys)), func() error { return deleteRaw(ctx, large.store, keys) })
		})
	}
	return ours, peer, nil
}

// deleteRaw deletes keys in batches, as many at once as the collector has under way.
func deleteRaw(ctx context.Context, store artifacts.BlobDeleter, keys []string) error {
	var deleting sync.WaitGroup
	batches := make(chan []string)
	faults := make([]error, deletesAtOnce)
	for w := range deletesAtOnce {
		deleting.Go(func() {
			for batch := range batches {
				fates, err := store.Delete(ctx, batch)
				for _, f := range fates {
					if err == nil {
						err = f.Err
					}
				}
				if err != nil {
					faults[w] = err
				}
			}
		})
	}
	for from := 0; from < len(keys); from += gc.DefaultBatch {
		batches <- keys[from:min(from+gc.DefaultBatch, len(keys))]
	}
	close(batches)
	deleting.Wait()
	for _, err := range faults {
		if err != nil {
			return err
		}
	}
	return nil
}

// prepareCatalogue compares the same collection in a large catalogue and in a small one.
func prepareCatalogue(ctx context.Context, s *stack) (ours, peer side, err error) {
	large, err := s.newSite(ctx, "large", s.live)
	if err != nil {
		return nil, nil, err
	}
	small, err := s.newSite(ctx, "small", min(fewLive, s.live))
	if err != nil {
		return nil, nil, err
	}
	ours = func(ctx context.Context, _ time.Duration) (sample, error) { return large.collect(ctx, s.dead) }
	peer = func(ctx context.Context, _ time.Duration) (sample, error) { return small.collect(ctx, s.dead) }
	return ours, peer, nil
}

// prepareBeside compares the slowest of a hundred publishes while a collection runs with that of an
// idle collector.
func prepareBeside(ctx context.Context, s *stack) (ours, peer side, err error) {
	large, err := s.newSite(ctx, "large", s.live)
	if err != nil {
		return nil, nil, err
	}
	names := make([]string, publishersBeside)
	payloads := newPayloads(publishersBeside, smallSize)
	for w := range names {
		names[w] = fmt.Sprintf("bench.beside.%d", w)
		if err := large.api.createPointer(ctx, names[w]); err != nil {
			return nil, nil, err
		}
	}
	publishing := func(ctx context.Context, d time.Duration) (sample, error) {
		one, err := load(ctx, publishersBeside, d, func(ctx context.Context, w int) error { return large.api.publishNew(ctx, names[w], payloads.next(w)) })
		// The rate of this row is of publishes as slow as the slowest of a hundred.
		one.operations, one.elapsed = 1, time.Duration(one.latency.ValueAtPercentile(99))*time.Microsecond
		return one, err
	}
	ours = func(ctx context.Context, d time.Duration) (sample, error) {
		if err := large.garbage(ctx, s.dead); err != nil {
			return sample{}, err
		}
		done := make(chan error, 1)
		var run types.GcRun
		began := time.Now()
		go func() {
			var err error
			run, err = large.client.Collect(ctx, types.GcRequest{}, nil)
			done <- err
		}()
		one, err := publishing(ctx, d)
		published := time.Since(began)
		if fault := <-done; err == nil {
			err = fault
		}
		if run.FinishedAt != nil {
			s.note("beside", "a collection of %d objects took %s of the %s in which was published", run.DeletedObjects,
				run.FinishedAt.Sub(run.StartedAt).Round(time.Millisecond), published.Round(time.Millisecond))
		}
		return one, err
	}
	return ours, publishing, nil
}

// prepareReconcile compares a pass over the bucket with the listing that it is made of.
func prepareReconcile(ctx context.Context, s *stack) (ours, peer side, err error) {
	listed, err := s.newSite(ctx, "listed", 0)
	if err != nil {
		return nil, nil, err
	}
	if err := listed.objects(ctx, "live", s.listed); err != nil {
		return nil, nil, err
	}
	if err := listed.rows(ctx, "live", s.listed, true); err != nil {
		return nil, nil, err
	}
	cfg, err := pointer.PoolConfig(s.postgres.URLAs(login, listed.database))
	if err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	s.closing = append(s.closing, pool.Close)
	reconciler, err := gc.NewReconciler(pool, listed.store, listed.layout, nil)
	if err != nil {
		return nil, nil, err
	}
	ours = func(ctx context.Context, _ time.Duration) (sample, error) {
		return whole(int64(s.listed), func() error {
			r, err := reconciler.RunOnce(ctx, gc.ReconcileOptions{Grace: time.Hour, MaxShare: 1})
			if err == nil && (r.Listed != int64(s.listed) || r.Unknown != 0) {
				err = fmt.Errorf("%d objects of %d were listed, and %d of them are unknown", r.Listed, s.listed, r.Unknown)
			}
			return err
		})
	}
	peer = func(ctx context.Context, _ time.Duration) (sample, error) {
		return whole(int64(s.listed), func() error {
			n := 0
			for _, err := range listed.store.List(ctx, listed.layout.ArtifactsPrefix()) {
				if err != nil {
					return err
				}
				n++
			}
			if n != s.listed {
				return fmt.Errorf("%d objects of %d were listed", n, s.listed)
			}
			return nil
		})
	}
	return ours, peer, nil
}

// memory does something and says how much memory the service held before, and at most meanwhile.
func (o *site) memory(ctx context.Context, do func()) string {
	pid := o.service.process.Pid()
	idle, most := resident(pid), int64(0)
	ctx, stop := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for ctx.Err() == nil {
			most = max(most, resident(pid))
			time.Sleep(20 * time.Millisecond)
		}
	})
	do()
	stop()
	looking.Wait()
	if idle == 0 {
		return "this system does not tell how much memory a process holds"
	}
	return fmt.Sprintf("the service held %d MiB before and at most %d MiB while it collected: %+d MiB", idle>>20, most>>20, (most-idle)>>20)
}

// resident is the memory that a process holds, in bytes, or 0 where the system does not tell.
func resident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
