package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

// Operator is a person's way to look at a history and to settle what it lost. Any number of them may
// work at once, beside replicas.
type Operator struct {
	o      Options
	bucket bucket
	raiser raiser
}

// NewOperator takes the Options of a [Watch]; Claim must only check whose the bucket is.
func NewOperator(o Options) *Operator {
	if o.Timing.Confirm <= 0 {
		o.Timing = DefaultTiming
	}
	if o.Logger == nil {
		o.Logger = discard()
	}
	b := bucket{o.Store, o.Layout.Prefix}
	return &Operator{o: o, bucket: b, raiser: raiser{bucket: b, table: o.Table, timing: o.Timing, logger: o.Logger, owner: uuid.New()}}
}

// Report is what an operator sees.
type Report struct {
	Installation uuid.UUID `json:"installation_id"`
	// State is unchanged, not armed yet, server restarted, history changed, history lost, or unsure;
	// Why says what was seen.
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
	// NeedsRaise: writes wait for the epoch to be raised. After a change that lost nothing known a
	// running service does that by itself.
	NeedsRaise bool `json:"needs_raise"`

	Epoch     int64     `json:"epoch"`
	EpochUUID uuid.UUID `json:"epoch_uuid"`
	Decisions int64     `json:"decisions"` // that the database knows of
	// KnownDecisions is how many are known to have been made, and LostDecisions how many of these
	// the database lacks at least: publishes, acquisitions, ends of leases, stagings and settings.
	KnownDecisions int64      `json:"known_decisions"`
	LostDecisions  int64      `json:"lost_decisions"`
	Server         string     `json:"server"`
	ServerBefore   string     `json:"server_before"` // as it was last compared with the bucket
	ChangedAt      *time.Time `json:"changed_at,omitempty"`
	// CollectionHeldAt is since when collection is off until an operator resumes it.
	CollectionHeldAt *time.Time `json:"collection_held_at,omitempty"`
	// QuarantineUntil is until when collection, which goes on, keeps what a lost version may need.
	QuarantineUntil *time.Time `json:"quarantine_until,omitempty"`

	BucketEpoch     int64      `json:"bucket_epoch"`
	BucketEpochUUID uuid.UUID  `json:"bucket_epoch_uuid"`
	Witnessed       int64      `json:"witnessed_decisions"`    // what the newest witness tells of
	WitnessedAt     *time.Time `json:"witnessed_at,omitempty"` // by the clock of the replica that wrote it
}

// Inspect compares the database with the bucket and changes nothing.
func (o *Operator) Inspect(ctx context.Context) (Report, error) {
	r, _, _, err := o.inspect(ctx)
	return r, err
}

func (o *Operator) inspect(ctx context.Context) (Report, pointer.History, judgement, error) {
	if o.o.Claim != nil {
		if err := o.o.Claim(ctx); err != nil {
			return Report{}, pointer.History{}, judgement{}, err
		}
	}
	v, w, h, err := readBoth(ctx, o.bucket, o.o.Table)
	if err != nil {
		return Report{}, h, judgement{}, err
	}
	if h.InRecovery {
		return Report{}, h, judgement{}, fmt.Errorf("%w: the database is a standby in recovery: promote it, or connect to the primary", pointer.ErrUnavailable)
	}
	j := judge(v, w, h, memory{})
	top, _ := newest(v.epochs)
	r := Report{
		Installation: h.Installation, State: j.verdict.String(), Why: j.why, NeedsRaise: j.verdict == changed || j.verdict == lost || j.verdict == unsure,
		Epoch: h.Epoch.Number, EpochUUID: h.Epoch.UUID, Decisions: h.Counter, KnownDecisions: max(h.Counter, h.KnownAhead, j.ahead),
		Server: h.Now, ServerBefore: h.Was, ChangedAt: h.ChangedAt, CollectionHeldAt: h.CollectionHeldAt, QuarantineUntil: h.QuarantineUntil,
		BucketEpoch: top.Number, BucketEpochUUID: top.UUID,
	}
	if w != nil {
		r.Witnessed, r.WitnessedAt = w.Counter, &w.WrittenAt
	}
	r.LostDecisions = r.KnownDecisions - r.Decisions
	return r, h, j, nil
}

// Raise raises the epoch that the report was made of, whatever was lost, and waits for somebody who
// is doing so already. It may be called again after an error or a crash. It returns the epoch that
// the database is in then.
func (o *Operator) Raise(ctx context.Context, seen Report) (pointer.EpochID, error) {
	from := pointer.EpochID{Number: seen.Epoch, UUID: seen.EpochUUID}
	for {
		_, h, j, err := o.inspect(ctx)
		if err != nil {
			return pointer.EpochID{}, err
		}
		if h.Epoch != from && j.verdict == quiet {
			return h.Epoch, nil // somebody else was faster
		}
		if j.verdict == unarmed {
			return pointer.EpochID{}, errors.New("no service has been started on this database and bucket yet: there is nothing to recover")
		}
		why := j.why
		if j.verdict == quiet {
			why = "an operator asked for it"
		}
		// Nothing is decided from here on, and the history keeps what was known to be lost.
		if _, err := o.o.Table.Note(ctx, h.Epoch, why, j.verdict == lost, j.ahead); err != nil {
			return pointer.EpochID{}, err
		}
		e, err := o.raiser.raise(ctx, h, why, true)
		if !errors.Is(err, pointer.ErrEpochClaimed) {
			return e, err
		}
		select {
		case <-ctx.Done():
			return pointer.EpochID{}, ctx.Err()
		case <-time.After(o.o.Timing.tick()):
		}
	}
}

// DefaultQuarantine is how long what earlier epochs left is kept after collection goes on.
const DefaultQuarantine = 24 * time.Hour

// Resume lets collection go on in the database's epoch; for as long as the quarantine, what earlier
// epochs left is no garbage: a lost version may name it. It reports whether collection was off.
func (o *Operator) Resume(ctx context.Context, quarantine time.Duration) (bool, error) {
	h, err := o.o.Table.Now(ctx)
	if err != nil {
		return false, err
	}
	return o.o.Table.ResumeCollection(ctx, h.Epoch, quarantine)
}
