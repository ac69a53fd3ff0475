package gc

import (
	"context"
	"errors"
	"time"
)

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
