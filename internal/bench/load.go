package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded in microseconds, with three digits.
const (
	longestLatency = int64(time.Minute / time.Microsecond)
	latencyDigits  = 3
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longestLatency, latencyDigits)
}

// sample is what one side did in one round.
type sample struct {
	operations int64
	elapsed    time.Duration
	latency    *hdrhistogram.Histogram // microseconds, of each operation
	calls      int64                   // HTTP requests sent for all operations; 0 when none were counted
}

// rate is operations a second.
func (s sample) rate() float64 {
	if s.elapsed <= 0 {
		return 0
	}
	return float64(s.operations) / s.elapsed.Seconds()
}

// load has workers do op over and over, each in its own closed loop, until d has passed and every
// operation under way is done. The first error ends it.
func load(ctx context.Context, workers int, d time.Duration, op func(ctx context.Context, worker int) error) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	histograms := make([]*hdrhistogram.Histogram, workers)
	for w := range histograms {
		histograms[w] = newHistogram()
	}
	var running sync.WaitGroup
	start := time.Now()
	for w := range workers {
		running.Go(func() {
			if err := loop(ctx, start.Add(d), histograms[w], func() error { return op(ctx, w) }); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	s := sample{elapsed: time.Since(start), latency: newHistogram()}
	if err := context.Cause(ctx); err != nil {
		return s, err
	}
	for _, h := range histograms {
		s.latency.Merge(h)
	}
	s.operations = s.latency.TotalCount()
	return s, nil
}

// loop is one worker, which does something even when it was started after the time was over. The end of
// an operation is the beginning of the next.
func loop(ctx context.Context, deadline time.Time, h *hdrhistogram.Histogram, op func() error) error {
	for began, first := time.Now(), true; (first || began.Before(deadline)) && ctx.Err() == nil; first = false {
		if err := op(); err != nil {
			return err
		}
		ended := time.Now()
		if err := h.RecordValue(ended.Sub(began).Microseconds()); err != nil {
			return fmt.Errorf("an operation took %s, longer than can be recorded: %w", ended.Sub(began), err)
		}
		began = ended
	}
	return nil
}
