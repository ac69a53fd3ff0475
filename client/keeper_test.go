package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/artifactd/artifactd/api/types"
)

// startKeeper keeps a lease of ttl seconds whose renewals are answered by renew.
func startKeeper(ctx context.Context, ttl float64, renew func(context.Context) (Lease, error)) *Keeper {
	lease := Lease{Lease: types.Lease{TtlSeconds: ttl, ExpiresInSeconds: ttl}, sent: time.Now()}
	k := &Keeper{done: make(chan struct{}), lease: lease, until: lease.EndsBefore(), renew: renew}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	go k.run()
	return k
}

func TestKeeperRenewsAtAThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		k := startKeeper(t.Context(), 30, func(context.Context) (Lease, error) {
			sent := time.Now()
			at = append(at, sent.Sub(start))
			time.Sleep(2 * time.Second) // the way there and back
			return Lease{Lease: types.Lease{TtlSeconds: 30, ExpiresInSeconds: 29}, sent: sent}, nil
		})
		time.Sleep(5 * time.Minute)
		if err := k.Stop(); err != nil {
			t.Errorf("the keeper ended early: %v", err)
		}
		if len(at) < 20 || at[0] != 10*time.Second {
			t.Errorf("renewed %d times, first after %v", len(at), at)
		}
	})
}

// TestKeeperEndsBeforeTheLease: the time left counts from when the last successful renewal was sent.
func TestKeeperEndsBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		renewals := 0
		k := startKeeper(t.Context(), 30, func(ctx context.Context) (Lease, error) {
			renewals++
			if renewals == 1 {
				sent := time.Now()
				time.Sleep(3 * time.Second)
				return Lease{Lease: types.Lease{TtlSeconds: 30, ExpiresInSeconds: 30}, sent: sent}, nil
			}
			<-ctx.Done() // a service that never answers
			return Lease{}, ctx.Err()
		})
		<-k.Context().Done()
		ended := time.Since(start)
		if ended > 40*time.Second || ended < 36*time.Second {
			t.Errorf("ended after %s; the lease ends after 40s", ended)
		}
		if err := k.Stop(); !errors.Is(err, ErrLeaseLost) || !errors.Is(err, ErrLeaseEnding) {
			t.Errorf("cause %v", err)
		}
	})
}

func TestKeeperTriesAgainWithinTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := 0
		k := startKeeper(t.Context(), 9, func(context.Context) (Lease, error) {
			if failures++; failures%4 != 0 {
				return Lease{}, &TransportError{Host: "h", Err: errors.New("broken")}
			}
			return Lease{Lease: types.Lease{TtlSeconds: 9, ExpiresInSeconds: 9}, sent: time.Now()}, nil
		})
		time.Sleep(time.Hour)
		if err := k.Stop(); err != nil {
			t.Errorf("the keeper gave up: %v", err)
		}
	})
}

func TestKeeperStopsWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := &Problem{Code: ErrLeaseLost, Status: 409, Reason: "superseded"}
		k := startKeeper(t.Context(), 30, func(context.Context) (Lease, error) { return Lease{}, lost })
		<-k.Context().Done()
		if got := context.Cause(k.Context()); !errors.Is(got, ErrLeaseLost) || got != error(lost) {
			t.Errorf("cause %v", got)
		}
		if err := k.Stop(); err != error(lost) {
			t.Errorf("stop said %v", err)
		}
	})
}
