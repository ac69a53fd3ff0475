package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

// Errors of raising.
var (
	// ErrLossNotAcknowledged: something is known to be lost, so the epoch is not raised unasked.
	ErrLossNotAcknowledged = errors.New("something is known to be lost: an operator must acknowledge that, with `artifactd recover`")
	errNothingChanged      = errors.New("nothing has changed")
)

// raiser takes the next epoch.
type raiser struct {
	bucket bucket
	table  *pointer.Histories
	timing Timing
	logger *slog.Logger
	owner  uuid.UUID
}

// claimMargin is how long a claim outlasts the wait that it covers.
const claimMargin = 30 * time.Second

// raise takes an epoch after h's; see the package for the steps. first arms an installation, which
// has nobody to wait for. acknowledged is a person's word: it passes losses and other histories by.
// It may be repeated after any error. [pointer.ErrEpochClaimed] while somebody else does it.
func (r raiser) raise(ctx context.Context, h pointer.History, why string, acknowledged bool) (taken pointer.EpochID, err error) {
	first := !h.Armed && h.ChangedAt == nil
	wait := r.timing.Confirm + r.timing.drift()
	if first {
		wait = 0
	}
	id, err := r.table.Claim(ctx, r.owner, h.Epoch, uuid.New(), wait+claimMargin)
	if err != nil {
		return taken, err
	}
	defer func() {
		if err != nil { // the next one need not wait until the claim runs out
			err = errors.Join(err, r.table.Unclaim(context.WithoutCancel(ctx), r.owner))
		}
	}()
	e, err := r.issue(ctx, h, id, first, acknowledged)
	if err != nil {
		return taken, err
	}
	r.logger.Info("an epoch is issued in the bucket; the database takes it when no older one can be confirmed any more", "epoch", e, "wait", wait, "why", why)
	select {
	case <-ctx.Done():
		return taken, ctx.Err()
	case <-time.After(wait):
	}
	return e, r.take(ctx, h.Epoch, e, why, acknowledged)
}

// issue issues the epoch and writes down what it begins with.
func (r raiser) issue(ctx context.Context, h pointer.History, id uuid.UUID, first, acknowledged bool) (pointer.EpochID, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timing.request())
	defer cancel()
	keys, err := r.bucket.witnessKeys(ctx)
	if err != nil {
		return pointer.EpochID{}, err
	}
	floor, known := h.Epoch.Number+1, h.Epoch.Number
	if first {
		floor, known = h.Epoch.Number, 0
	}
	if len(keys) > 0 {
		witnessed, _, _ := r.bucket.parseWitness(keys[len(keys)-1])
		if witnessed > known && acknowledged { // one from nowhere: stay above it
			floor = max(floor, witnessed+1)
		}
	}
	e, err := r.bucket.issue(ctx, h.Installation, id, floor, known, acknowledged)
	if err != nil {
		return e, err
	}
	// Nothing is decided any more, so this is what the epoch begins with. (When it is an operator's
	// wish with nothing changed, a little may be decided yet, which makes the counter higher.)
	now, err := r.table.Now(ctx)
	if err != nil {
		return e, err
	}
	return e, r.bucket.putWitness(ctx, witness{Installation: h.Installation, Epoch: e.Number, EpochUUID: e.UUID, Counter: now.Counter}, keys)
}

// take stores the epoch in the database. When the answer is lost, the database is asked.
func (r raiser) take(ctx context.Context, from, to pointer.EpochID, why string, acknowledged bool) error {
	status, err := r.table.Take(ctx, from, to, why, acknowledged)
	if err != nil || status == pointer.EpochSuperseded {
		now, again := r.table.Now(ctx)
		switch {
		case again == nil && now.Epoch == to:
			return nil
		case err == nil && again == nil:
			return fmt.Errorf("%w: the database is in epoch %s", pointer.ErrEpochClaimed, now.Epoch)
		}
		return errors.Join(err, again)
	}
	switch status {
	case pointer.EpochTaken:
		return nil
	case pointer.EpochLoss:
		return ErrLossNotAcknowledged
	case pointer.EpochQuiet:
		return errNothingChanged
	}
	return fmt.Errorf("take epoch: unexpected status %q", status)
}
