package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/artifactd/artifactd/pointer"
)

// Look compares once and does what follows: confirms the epoch, writes the witness, arms, releases,
// writes a sign down, or raises the epoch, which takes as long as a confirmation lasts.
func (w *Watch) Look(ctx context.Context) error {
	w.looking.Lock()
	defer w.looking.Unlock()
	// Arming and releasing are followed by a look at what they changed.
	for range 3 {
		again, err := w.look(ctx)
		if err != nil {
			w.mu.Lock()
			w.fault = err
			w.mu.Unlock()
			w.metrics.faults.Inc()
		}
		if err != nil || !again {
			return err
		}
	}
	return nil
}

func (w *Watch) look(ctx context.Context) (again bool, err error) {
	sent := time.Now()
	w.asked = sent
	v, wit, h, err := w.read(ctx)
	if err != nil {
		return false, err
	}
	if h.InRecovery {
		return false, fmt.Errorf("%w: the database is a standby in recovery", pointer.ErrUnavailable)
	}
	j := judge(v, wit, h, w.memory)
	w.metrics.observe(h, j)
	switch j.verdict {
	case quiet:
		return false, w.confirm(ctx, sent, v, wit, h)
	case unarmed:
		return true, w.arm(ctx, h)
	}
	w.block(j)
	switch j.verdict {
	case restarted:
		return w.release(ctx, h, j)
	case changed:
		return w.raise(ctx, h, j)
	case lost:
		return false, w.noteLoss(ctx, h, j)
	default:
		w.tell(slog.LevelError, "no write is admitted", j.why)
		return false, nil
	}
}

// read reads the bucket and then the database. Two histories that pass each other on the way are
// read once more.
func (w *Watch) read(ctx context.Context) (v view, wit *witness, h pointer.History, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.o.Timing.request())
	defer cancel()
	return readBoth(ctx, w.bucket, w.o.Table)
}

// readTries bounds how often both sides are read when an epoch is taken in between.
const readTries = 3

func readBoth(ctx context.Context, b bucket, table *pointer.Histories) (v view, wit *witness, h pointer.History, err error) {
	for range readTries {
		var before pointer.History
		if before, err = table.Now(ctx); err != nil { // whose witness to read
			return v, nil, h, err
		}
		if v, err = b.look(ctx); err != nil {
			return v, nil, h, err
		}
		if v.fault == nil {
			wit, err = b.newestWitness(ctx, v.keys, before.Epoch.Number)
			if bad := (*unreadable)(nil); errors.As(err, &bad) {
				v.fault, err = bad, nil
			}
			if err != nil {
				return v, nil, h, err
			}
		}
		if h, err = table.Now(ctx); err != nil {
			return v, nil, h, err
		}
		if h.Epoch == before.Epoch {
			return v, wit, h, nil
		}
	}
	return v, wit, h, fmt.Errorf("%w: the epoch changes all the time", pointer.ErrUnavailable)
}

// confirm notes that the bucket confirmed the epoch, and bears witness.
func (w *Watch) confirm(ctx context.Context, sent time.Time, v view, wit *witness, h pointer.History) error {
	w.memory.note(h)
	w.mu.Lock()
	w.epoch, w.until, w.blocked, w.fault = h.Epoch, sent.Add(w.o.Timing.Confirm), nil, nil
	w.mu.Unlock()
	w.tell(slog.LevelInfo, "", "")
	if err := w.o.Table.NoteLook(ctx, w.o.Replica); err != nil {
		return err
	}
	if h.Counter <= wit.Counter {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.o.Timing.request())
	defer cancel()
	return w.bucket.putWitness(ctx, witness{Installation: h.Installation, Epoch: h.Epoch.Number, EpochUUID: h.Epoch.UUID, Counter: h.Counter}, v.keys)
}

// block stops acknowledgements at once.
func (w *Watch) block(j judgement) {
	w.mu.Lock()
	w.blocked = &pointer.HistoryChangedError{Seen: j.why, Operator: j.verdict == lost}
	w.mu.Unlock()
}

// arm issues an installation's first epoch.
func (w *Watch) arm(ctx context.Context, h pointer.History) error {
	if w.o.Claim != nil {
		if err := w.o.Claim(ctx); err != nil {
			return err
		}
	}
	e, err := w.raiser.raise(ctx, h, "first start", false)
	switch {
	case errors.Is(err, pointer.ErrEpochClaimed):
		return nil // another replica does it
	case err != nil:
		return fmt.Errorf("arm the guard of the database's history: %w", err)
	}
	w.o.Logger.Info("the guard of the database's history is armed", "epoch", e)
	return nil
}

// release lets writes go on after a restart of the server.
func (w *Watch) release(ctx context.Context, h pointer.History, j judgement) (again bool, err error) {
	if err := w.o.Table.NoteLook(ctx, w.o.Replica); err != nil {
		return false, err
	}
	released, err := w.o.Table.Release(ctx, w.o.Replica, h.Epoch, w.o.Timing.hold())
	if err != nil || !released {
		return false, err // another replica has not looked yet
	}
	w.metrics.releases.Inc()
	w.o.Logger.Info("nothing is missing after a restart of the database server; writes go on", "epoch", h.Epoch, "counter", h.Counter, "seen", j.why)
	return true, nil
}

// raise takes the next epoch after a change that lost nothing.
func (w *Watch) raise(ctx context.Context, h pointer.History, j judgement) (again bool, err error) {
	if err := w.note(ctx, h, j, false); err != nil {
		return false, err
	}
	if err := w.o.Table.NoteLook(ctx, w.o.Replica); err != nil {
		return false, err
	}
	w.sayLooked()
	e, err := w.raiser.raise(ctx, h, j.why, false)
	switch {
	case errors.Is(err, pointer.ErrEpochClaimed), errors.Is(err, ErrLossNotAcknowledged), errors.Is(err, errOtherHistory), errors.Is(err, errNothingChanged):
		return false, nil // the next look tells what it is now
	case err != nil:
		return false, fmt.Errorf("raise the epoch: %w", err)
	}
	w.metrics.raises.Inc()
	w.o.Logger.Warn("the epoch was raised: every lease of the old one is dead, and writes go on; collection is off until an operator runs `artifactd recover`", "epoch", e, "why", j.why)
	return true, nil
}

// noteLoss writes down what waits for a person.
func (w *Watch) noteLoss(ctx context.Context, h pointer.History, j judgement) error {
	if h.LossKnown && h.KnownAhead >= j.ahead {
		w.tell(slog.LevelError, "the database lost part of its history: writes wait until an operator runs `artifactd recover`", j.why)
		return nil
	}
	return w.note(ctx, h, j, true)
}

// note writes a sign down, once.
func (w *Watch) note(ctx context.Context, h pointer.History, j judgement, loss bool) error {
	if h.ChangedAt == nil || loss {
		if _, err := w.o.Table.Note(ctx, h.Epoch, j.why, loss, j.ahead); err != nil {
			return err
		}
	}
	if loss {
		w.tell(slog.LevelError, "the database lost part of its history: writes wait until an operator runs `artifactd recover`", j.why)
	} else {
		w.tell(slog.LevelWarn, "the database's history changed and nothing is known to be lost: the epoch is being raised", j.why)
	}
	return nil
}

// tell logs a state when it begins, and nothing while it lasts.
func (w *Watch) tell(level slog.Level, message, why string) {
	if w.told == message+why {
		return
	}
	w.told = message + why
	if message != "" {
		w.o.Logger.Log(context.Background(), level, message, "seen", why)
	}
}

// tellFault logs that looking fails, when it begins to; every error has a text of its own.
func (w *Watch) tellFault(err error) {
	const message = "the database's history cannot be compared with the bucket; no write is admitted when that lasts"
	if w.told != message {
		w.told = message
		w.o.Logger.Warn(message, "error", err)
	}
}
