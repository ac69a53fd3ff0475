package daemon

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// writeRecords makes the worker that writes into the bucket what was published.
func writeRecords(s *service, catalogue *pointer.Catalogue, c Config, o Options, registry *prometheus.Registry) (*recovery.Outbox, error) {
	layout := artifacts.Layout{Prefix: c.S3.Prefix}
	return recovery.NewOutbox(catalogue, s.store, layout, recovery.OutboxOptions{
		Claim:  func(ctx context.Context) error { return gc.ClaimBucket(ctx, s.pool, s.store, layout) },
		Logger: o.Logger, Registry: registry,
	})
}

// Rebuild compares the bucket's records with the database, and brings back what that has lost. To
// change anything it needs the owner's connection.
func (m *Maintenance) Rebuild(o recovery.RebuildOptions) *recovery.Rebuild {
	return recovery.NewRebuild(m.catalogue, m.store, m.layout, o)
}

// DrainRecords writes into the bucket what the database still holds for it.
func (m *Maintenance) DrainRecords(ctx context.Context) error {
	outbox, err := recovery.NewOutbox(m.catalogue, m.store, m.layout, recovery.OutboxOptions{
		Claim: func(ctx context.Context) error { return gc.CheckBucket(ctx, m.pool, m.store, m.layout) },
	})
	if err != nil {
		return err
	}
	return outbox.Drain(ctx)
}
