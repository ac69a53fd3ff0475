package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrLeaseEnding is the cause of a kept context that ended because the lease's time ran out before
// any renewal got through. errors.Is(err, ErrLeaseLost) holds for it too.
var ErrLeaseEnding = fmt.Errorf("%w: no renewal got through in time", ErrLeaseLost)

// Keeper renews a lease until it is stopped or the lease is lost.
type Keeper struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	renew  func(context.Context) (Lease, error)
	done   chan struct{}

	mu    sync.Mutex
	lease Lease
	// until is when the lease ends at the earliest: what the service said was left of it, counted
	// from when the request it answered was sent.
	until time.Time
}

// Keep renews lease at every third of its ttl. The keeper's context ends when ctx does, when the
// service says that the lease is lost (its cause is then the [*Problem]), and in any case before the
// lease does. Stop must be called.
func (c *Client) Keep(ctx context.Context, lease Lease) *Keeper {
	k := &Keeper{done: make(chan struct{}), lease: lease, until: lease.EndsBefore()}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	k.renew = func(ctx context.Context) (Lease, error) { return c.renewOnce(ctx, k.Lease()) }
	go k.run()
	return k
}

// Context is done when the work must stop.
func (k *Keeper) Context() context.Context { return k.ctx }

// Lease is the lease as last renewed.
func (k *Keeper) Lease() Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lease
}

// Stop ends the renewing and the keeper's context, and returns when nothing runs any more. It does
// not release the lease. The error is why the context had ended before, or nil.
func (k *Keeper) Stop() error {
	err := context.Cause(k.ctx)
	k.cancel(context.Canceled)
	<-k.done
	return err
}

// margin is how long before the lease's end the context ends: room for a request under way to be
// answered, for clocks that do not run alike, and for a machine that is too busy to end at once what
// has to end.
func margin(ttl time.Duration) time.Duration { return min(ttl/5, 3*time.Second) }

func (k *Keeper) run() {
	defer close(k.done)
	next := k.pause()
	deadline := time.NewTimer(time.Until(k.deadline()))
	defer deadline.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-deadline.C:
			k.cancel(ErrLeaseEnding)
			return
		case <-time.After(next):
		}
		next = k.tryRenew()
		deadline.Reset(time.Until(k.deadline()))
	}
}

// tryRenew renews once, for no longer than the lease lasts, and returns the pause before the next try.
func (k *Keeper) tryRenew() time.Duration {
	ctx, cancel := context.WithDeadlineCause(k.ctx, k.deadline(), ErrLeaseEnding)
	defer cancel()
	lease, err := k.renew(ctx)
	if err == nil {
		k.mu.Lock()
		k.lease, k.until = lease, lease.EndsBefore()
		k.mu.Unlock()
		return k.pause()
	}
	if p, ok := asProblem(err); ok && !p.temporary() {
		k.cancel(err)
	}
	// A second later at most, and several times within a short lease.
	return min(k.ttl()/10, time.Second)
}

func (k *Keeper) deadline() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until.Add(-margin(seconds(k.lease.TtlSeconds)))
}

func (k *Keeper) ttl() time.Duration { return seconds(k.Lease().TtlSeconds) }

// pause is a third of the ttl, less when less is left.
func (k *Keeper) pause() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(0, min(seconds(k.lease.TtlSeconds)/3, time.Until(k.until)/3))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// lostLease reports whether err says that the lease is gone for good.
func lostLease(err error) bool {
	return errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrLeaseNotFound)
}
