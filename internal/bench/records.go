package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
)

// prepareRecords compares how fast records of what was published come into the bucket with how fast
// it is published: the clock of our side runs on until the last record is there.
func prepareRecords(ctx context.Context, s *stack) (ours, peer side, err error) {
	payload := make([]byte, smallSize)
	names, err := pointers(ctx, s, "records", commitWorkers, payload)
	if err != nil {
		return nil, nil, err
	}
	digest := artifacts.DigestOf(payload)
	peer = func(ctx context.Context, d time.Duration) (sample, error) {
		return load(ctx, commitWorkers, d, func(ctx context.Context, w int) error {
			return s.api.publishSame(ctx, names[w], digest, len(payload))
		})
	}
	ours = s.api.counted(func(ctx context.Context, d time.Duration) (sample, error) {
		start := time.Now()
		one, err := peer(ctx, d)
		if err != nil {
			return one, err
		}
		ended := time.Now()
		behind, err := s.behind(ctx)
		if err == nil {
			err = s.recorded(ctx)
		}
		s.note("records", "after %.1f s of publishing %s; %.2f s later there were none", ended.Sub(start).Seconds(), behind, time.Since(ended).Seconds())
		one.elapsed = time.Since(start)
		return one, err
	})
	return ours, peer, nil
}

const (
	waitingSQL = `SELECT count(*) FROM artifactd.outbox`
	behindSQL  = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(enqueued_at)), 0)::float8 FROM artifactd.outbox`
	// recordsTimeout is how far behind the records may be.
	recordsTimeout = 5 * time.Minute
	recordsPoll    = 20 * time.Millisecond
)

// behind says how far the records are behind what is published.
func (s *stack) behind(ctx context.Context) (text string, err error) {
	conn, err := pgx.Connect(ctx, s.postgres.URL(database))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var waiting int64
	var oldest float64
	err = conn.QueryRow(ctx, behindSQL).Scan(&waiting, &oldest)
	return fmt.Sprintf("%d records waited, the oldest for %.2f s", waiting, oldest), err
}

// recorded waits until the bucket has a record of everything that was published.
func (s *stack) recorded(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.postgres.URL(database))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	for {
		var waiting int64
		if err := conn.QueryRow(ctx, waitingSQL).Scan(&waiting); err != nil {
			return fmt.Errorf("wait for the records of what was published: %w", err)
		}
		if waiting == 0 {
			return nil
		}
		time.Sleep(recordsPoll)
	}
}
