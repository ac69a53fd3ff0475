package gc

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PublishingSQL is asked before a step of a collection.
const PublishingSQL = publishingSQL

// BesidePublishers reports whether a collection that began now would find that somebody publishes.
func BesidePublishers(ctx context.Context, pool *pgxpool.Pool) bool {
	return newPacer(publishing(pool)).beside(ctx)
}

// SetLease shortens how long a pass is held without a word.
func (r *Reconciler) SetLease(d time.Duration) { r.lease = d }

// RunDue makes a pass if one is due, as Loop does.
func (r *Reconciler) RunDue(ctx context.Context, interval time.Duration, o ReconcileOptions) (bool, error) {
	o.every = &interval
	_, err := r.RunOnce(ctx, o)
	if errors.Is(err, errNotDue) {
		return false, nil
	}
	return err == nil, err
}
