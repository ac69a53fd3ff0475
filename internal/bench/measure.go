package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// side is one of the two that a benchmark compares: it works for about d and tells how it went.
type side func(ctx context.Context, d time.Duration) (sample, error)

// benchmark is one row of the table.
type benchmark struct {
	name string
	what string  // what one operation is
	peer string  // what it is compared with
	goal float64 // ratio to reach
	// most is the largest number of rounds, and 0 no limit. A benchmark with a limit is bulk: its
	// rounds last as long as they must, and nothing is warmed up for them.
	most int
	// pairs is how many pairs of turns a round has, each turn a fifth as long; 0 means one pair of
	// whole turns. It is for ratios close to 1: what the machine does otherwise falls on both sides
	// alike when turns are short, and the median of many pairs settles.
	pairs int
	// prepare makes what both sides need, on a stack that other benchmarks have used before.
	prepare func(context.Context, *stack) (ours, peer side, err error)
}

// benchmarks are all there are, in the order they run.
func benchmarks() []benchmark {
	return []benchmark{
		{
			name: "resolve", goal: 0.8, prepare: prepareResolve,
			what: "resolve, 64 connections", peer: "bare echo handler, same bytes",
		},
		{
			name: "commit", goal: 1, prepare: prepareCommit,
			what: "acquire + stage + publish over HTTP, 64 workers", peer: "two bare UPDATEs in pgbench, 64 clients",
		},
		{
			// The last record is written within the worker's pause after the last publish.
			name: "records", goal: 0.7, prepare: prepareRecords,
			what: "the same until the bucket has the record of each", peer: "the publishes alone",
		},
		{
			name: "checks", goal: 0.95, prepare: prepareChecks, pairs: 20,
			what: "acquire + stage + publish over HTTP, 64 workers, with what guards the database's history", peer: "the same without that",
		},
		{
			// A hand-over waits for the end of one cycle and begins the next; there is no peer to name a goal.
			name: "contend", goal: 0.5, prepare: prepareContend,
			what: "acquire + stage + publish of one pointer by 64 workers in line", peer: "the same by one worker alone",
		},
		{
			name: "upload", goal: 0.8, prepare: prepareUpload,
			what: "publish of 64 KiB end to end, 16 workers", peer: "raw PUTs of 64 KiB to the same store",
		},
		{
			name: "large", goal: 0.9, prepare: prepareLarge, most: 2,
			what: "MiB of one large file (-size), published by the command's client", peer: "the SDK's own upload of the file",
		},
		{
			name: "read", goal: 0.9, prepare: prepareRead, most: 3,
			what: "MiB of one large file, read through the service", peer: "GET of the object from the store",
		},
		{
			name: "many", goal: 0.8, prepare: prepareMany, most: 2,
			what: "files of 1 KiB (-files of them), published by the command's client", peer: "the SDK's PUTs of them, as many at once",
		},
		{
			name: "again", goal: 5, prepare: prepareAgain, most: 1,
			what: "files of a version of many (-files), published again with 10 of them changed", peer: "the same with all of them changed",
		},
		{
			// At most 1.2 times as long.
			name: "flip", goal: 1 / 1.2, prepare: prepareFlip, most: 2,
			what: "the request that publishes a sealed version of many files (-files)", peer: "that of a version of one file",
		},
		{
			name: "token", goal: 0.95, prepare: prepareToken,
			what: "resolve with an access token, 64 connections", peer: "resolve of a public pointer without one",
		},
		{
			// At most 3 times as long.
			name: "hostile", goal: 1. / 3, prepare: prepareHostile, most: 5,
			what: "1/p99 of resolves beside 10,000 slow connections (-slow) and 1,000 wrong tokens a second", peer: "1/p99 of resolves alone",
		},
		{
			name: "collect", goal: 0.8, prepare: prepareCollect, most: 2,
			what: "objects of dead generations (-dead) collected beside a catalogue (-live)", peer: "batch deletes of as many objects from the same store",
		},
		{
			// At most 1.2 times as long.
			name: "catalogue", goal: 1 / 1.2, prepare: prepareCatalogue, most: 2,
			what: "the same collection beside a large catalogue (-live)", peer: "beside a small one, of 10,000 files at most",
		},
		{
			// At most 1.5 times as long.
			name: "beside", goal: 1 / 1.5, prepare: prepareBeside, most: 3,
			what: "1/p99 of publishes of 1 KiB, 4 workers, while a collection runs (-dead)", peer: "with an idle collector",
		},
		{
			name: "reconcile", goal: 0.8, prepare: prepareReconcile, most: 2,
			what: "objects (-objects) compared with the catalogue", peer: "the bare listing of them",
		},
	}
}

func names() []string {
	var names []string
	for _, b := range benchmarks() {
		names = append(names, b.name)
	}
	return names
}

// warmUp is how long a side runs unmeasured before a benchmark's first round: connections are
// made, statements prepared, caches filled.
func warmUp(d time.Duration) time.Duration { return min(max(d/3, 100*time.Millisecond), time.Second) }

// measure runs one benchmark.
func measure(ctx context.Context, s *stack, b benchmark, o options, stderr io.Writer) (result, error) {
	ours, peer, err := b.prepare(ctx, s)
	if err != nil {
		return result{}, fmt.Errorf("prepare: %w", err)
	}
	for _, run := range []side{ours, peer} {
		if b.most > 0 {
			break
		}
		if _, err := run(ctx, warmUp(o.duration)); err != nil {
			return result{}, fmt.Errorf("warm up: %w", err)
		}
	}
	var a, p []sample
	rounds, d := o.rounds, o.duration
	if b.pairs > 0 {
		rounds, d = rounds*b.pairs, d/5
	}
	if b.most > 0 {
		rounds = min(rounds, b.most)
	}
	for round := range rounds {
		one := func(run side, samples *[]sample, who string) error {
			one, err := run(ctx, d)
			if err == nil {
				err = s.recorded(ctx) // so that the other side has the machine to itself
			}
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, who, err)
			}
			fmt.Fprintf(stderr, "bench: %s, round %d of %d, %s: %.0f ops/s\n", b.name, round+1, rounds, who, one.rate())
			*samples = append(*samples, one)
			return nil
		}
		turns := []func() error{
			func() error { return one(profiled(s, ours, b.name, round+1), &a, "artifactd") },
			func() error { return one(peer, &p, b.peer) },
		}
		first := round % 2
		for _, turn := range []int{first, 1 - first} {
			if err := turns[turn](); err != nil {
				return result{}, err
			}
		}
	}
	r := newResult(b, a, p)
	r.Notes = s.notes[b.name]
	return r, nil
}

// profiled has the service profile itself while run does, if that was asked for.
func profiled(s *stack, run side, name string, round int) side {
	if s.profiles == "" {
		return run
	}
	return func(ctx context.Context, d time.Duration) (sample, error) {
		failed := make(chan error, 1)
		go func() { failed <- s.profile(ctx, d, fmt.Sprintf("%s.%d.pprof", name, round)) }()
		one, err := run(ctx, d)
		if fault := <-failed; err == nil {
			err = fault
		}
		return one, err
	}
}
