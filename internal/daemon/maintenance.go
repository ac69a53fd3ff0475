package daemon

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// Maintenance is direct access to an installation's database and bucket, for the work of an
// operator that takes as long as the bucket is large.
type Maintenance struct {
	Reconciler *gc.Reconciler
	Verifier   *gc.Verifier
	History    *recovery.Operator

	pool      *pgxpool.Pool
	store     store
	layout    artifacts.Layout
	catalogue *pointer.Catalogue
}

// maintenanceConns is enough for a pass, which asks for one thing at a time, and for a rebuild, which
// brings back several pointers at once.
const maintenanceConns = 12

// OpenMaintenance connects to the database and the store of an installation. Of the configuration
// only DatabaseURL and S3 count. Close it.
func OpenMaintenance(ctx context.Context, c Config) (*Maintenance, error) {
	var v faults
	v.need(c.DatabaseURL != "", "database-url", "is required: where is Postgres? as the service's role or the owner")
	c.S3.validate(&v)
	if len(v) > 0 {
		return nil, errors.Join(v...)
	}
	c.DatabaseConns = maintenanceConns
	pool, err := openPool(ctx, c)
	if err != nil {
		return nil, err
	}
	m := &Maintenance{pool: pool}
	if err := checkSchema(ctx, pool); err != nil {
		m.Close()
		return nil, err
	}
	if m.store, err = openStore(ctx, c.S3); err != nil {
		m.Close()
		return nil, err
	}
	layout := artifacts.Layout{Prefix: c.S3.Prefix}
	m.layout = layout
	if m.catalogue, err = pointer.New(pool, pointer.Options{}); err != nil {
		m.Close()
		return nil, err
	}
	if m.Reconciler, err = gc.NewReconciler(pool, m.store, layout, nil); err != nil {
		m.Close()
		return nil, err
	}
	m.Verifier = gc.NewVerifier(pool, m.store, layout)
	m.History = recovery.NewOperator(recovery.Options{
		Table: pointer.NewHistories(pool), Store: m.store, Layout: layout, Timing: c.HistoryTiming,
		Claim: func(ctx context.Context) error { return gc.CheckBucket(ctx, pool, m.store, layout) },
	})
	return m, nil
}

// Close ends the connections.
func (m *Maintenance) Close() {
	if m.store != nil {
		m.store.Close()
	}
	m.pool.Close()
}
