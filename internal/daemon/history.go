package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// watchHistory makes what compares the database's history with the bucket's.
func watchHistory(s *service, c Config, o Options, registry *prometheus.Registry) (*recovery.Watch, error) {
	layout := artifacts.Layout{Prefix: c.S3.Prefix}
	return recovery.NewWatch(recovery.Options{
		Table: pointer.NewHistories(s.pool), Store: s.store, Layout: layout, Replica: o.Replica,
		Claim:  func(ctx context.Context) error { return gc.ClaimBucket(ctx, s.pool, s.store, layout) },
		Timing: c.HistoryTiming, Logger: o.Logger, Registry: registry,
	})
}

// historyPatience is how long a service that starts waits until writes are admitted. It is for
// nothing but politeness: reads are answered either way.
const historyPatience = 5 * time.Second

func (s *service) awaitHistory(ctx context.Context) {
	select {
	case <-s.history.Looked():
	case <-ctx.Done():
	case <-time.After(historyPatience):
	}
}
