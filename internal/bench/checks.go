package main

import (
	"context"
	"fmt"
	"time"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/daemon"
)

// uncheckedSQL takes out of a database what every decision does for the history's sake: it is
// compared with the server, and counted. For a comparison only: such a database notices nothing.
var uncheckedSQL = []string{
	`CREATE OR REPLACE FUNCTION artifactd.begin_decision() RETURNS void
	 LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$
	 BEGIN
	     IF current_setting('transaction_isolation') <> 'read committed' THEN
	         RAISE EXCEPTION 'read committed only';
	     END IF;
	 END $$`,
	`CREATE OR REPLACE FUNCTION artifactd.count_decision() RETURNS void
	 LANGUAGE plpgsql SET search_path = artifactd, pg_temp AS $$ BEGIN END $$`,
}

// prepareChecks compares publishing with and without what guards the database's history: two
// installations on the same servers, of which the peer's counts and compares nothing, and looks at
// the bucket once an hour.
func prepareChecks(ctx context.Context, s *stack) (ours, peer side, err error) {
	if ours, err = s.publishing(ctx, "checked", func(*daemon.Config) {}); err != nil {
		return nil, nil, err
	}
	peer, err = s.publishing(ctx, "unchecked", func(c *daemon.Config) { c.HistoryTiming.Confirm = time.Hour }, uncheckedSQL...)
	return ours, peer, err
}

// publishing is the load of `commit` on an installation of its own.
func (s *stack) publishing(ctx context.Context, name string, change func(*daemon.Config), sql ...string) (side, error) {
	o, err := s.newSiteWith(ctx, name, change, sql...)
	if err != nil {
		return nil, err
	}
	payload := make([]byte, smallSize)
	names := make([]string, commitWorkers)
	for i := range names {
		names[i] = fmt.Sprintf("bench.%s.%03d", name, i)
		if err := o.api.createPointer(ctx, names[i]); err != nil {
			return nil, err
		}
		if err := o.api.publishNew(ctx, names[i], payload); err != nil {
			return nil, err
		}
	}
	digest := artifacts.DigestOf(payload)
	return s.spentOverall("checks", name, o.service.PID, o.api.counted(func(ctx context.Context, d time.Duration) (sample, error) {
		return load(ctx, commitWorkers, d, func(ctx context.Context, w int) error {
			return o.api.publishSame(ctx, names[w], digest, len(payload))
		})
	})), nil
}
