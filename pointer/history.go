package pointer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	historySQL = `SELECT installation_id, epoch, epoch_uuid, armed, counter, in_recovery, same_system, same_timeline, same_server,
			coalesce(was, ''), coalesce(now, ''), changed_at, coalesce(changed_why, ''), loss_known, coalesce(known_ahead, 0),
			collection_held_at, CASE WHEN q > clock_timestamp() THEN q END, pending_uuid
		FROM artifactd.history_now(), artifactd.quarantined_until(epoch) q`
	noteLookSQL         = `SELECT artifactd.note_look($1)`
	leaveReplicasSQL    = `SELECT artifactd.leave_replicas($1)`
	noteHistorySQL      = `SELECT first FROM artifactd.note_history($1, $2, $3, $4, $5)`
	releaseServerSQL    = `SELECT released FROM artifactd.release_server($1, $2, $3, $4)`
	claimEpochSQL       = `SELECT u FROM artifactd.claim_epoch($1, $2, $3, $4, $5) u`
	unclaimEpochSQL     = `SELECT artifactd.unclaim_epoch($1)`
	takeEpochSQL        = `SELECT status FROM artifactd.take_epoch($1, $2, $3, $4, $5, $6)`
	resumeCollectionSQL = `SELECT resumed FROM artifactd.resume_collection($1, $2)`
	epochOfServerSQL    = `SELECT epoch FROM artifactd.installation`
)

// HistoryChangedError says that the database's history may have changed, or that the bucket does
// not confirm it: nothing is decided until that is settled.
type HistoryChangedError struct {
	Seen string
	// Operator: it waits for a person, because something is known to be missing or because nobody has
	// acknowledged the change yet. Otherwise it may settle itself.
	Operator bool
}

func (e *HistoryChangedError) Error() string {
	return "the database's history may have changed: " + e.Seen
}

// Is makes every HistoryChangedError an [ErrHistoryChanged].
func (e *HistoryChangedError) Is(target error) bool { return target == ErrHistoryChanged }

// EpochID names one epoch: two histories may count to the same number, but issue it under
// different ids. The zero UUID is a database that no service has armed yet.
type EpochID struct {
	Number int64
	UUID   uuid.UUID
}

func (e EpochID) String() string { return fmt.Sprintf("%d (%s)", e.Number, e.UUID) }

// History is what the database says of its own history.
type History struct {
	Installation uuid.UUID
	Epoch        EpochID
	Armed        bool
	// Counter is how many decisions the tables know of. It is read when History is asked for.
	Counter    int64
	InRecovery bool // a standby, which decides nothing
	// Whether this is what was written down: the cluster, its timeline, the start of the server
	// (and the database and table in it).
	SameSystem, SameTimeline, SameServer bool
	Was, Now                             string // both, for people
	// The sign that was noted, if any.
	ChangedAt  *time.Time
	ChangedWhy string
	LossKnown  bool
	KnownAhead int64 // highest counter that anybody reported; 0 when nobody did
	// CollectionHeldAt is since when collection waits for an operator; nil when it does not.
	CollectionHeldAt *time.Time
	// QuarantineUntil is until when collection keeps what a lost version may need; nil when it does not.
	QuarantineUntil *time.Time
	// Pending is under which id an epoch is being issued; zero when none is.
	Pending uuid.UUID
}

// Histories asks and changes what the database knows of its history. Its calls decide nothing by
// themselves and need no confirmation.
type Histories struct{ pool *pgxpool.Pool }

// NewHistories works on a pool made with [PoolConfig].
func NewHistories(pool *pgxpool.Pool) *Histories { return &Histories{pool: pool} }

// Now reads the history. What is compared with it must have been read before.
func (h *Histories) Now(ctx context.Context) (History, error) {
	var s History
	var id, pending *uuid.UUID
	err := h.pool.QueryRow(ctx, historySQL).Scan(&s.Installation, &s.Epoch.Number, &id, &s.Armed, &s.Counter, &s.InRecovery,
		&s.SameSystem, &s.SameTimeline, &s.SameServer, &s.Was, &s.Now, &s.ChangedAt, &s.ChangedWhy, &s.LossKnown, &s.KnownAhead,
		&s.CollectionHeldAt, &s.QuarantineUntil, &pending)
	if err != nil {
		return History{}, readFault(err)
	}
	s.Epoch.UUID, s.Pending = orZero(id), orZero(pending)
	return s, nil
}

// NoteLook writes down that a replica has looked at this start of the server and misses nothing.
func (h *Histories) NoteLook(ctx context.Context, replica uuid.UUID) error {
	_, err := h.pool.Exec(ctx, noteLookSQL, replica)
	return readFault(err)
}

// Leave takes a replica that ends from the list.
func (h *Histories) Leave(ctx context.Context, replica uuid.UUID) error {
	_, err := h.pool.Exec(ctx, leaveReplicasSQL, replica)
	return readFault(err)
}

// Note writes down a sign that the history changed, seen while the database was in epoch; from then
// on nothing is decided. A loss waits for a person; ahead is the counter that is known to have been
// reached, or 0. It reports whether this is the first sign.
func (h *Histories) Note(ctx context.Context, epoch EpochID, why string, loss bool, ahead int64) (first bool, err error) {
	err = h.pool.QueryRow(ctx, noteHistorySQL, epoch.Number, orNull(epoch.UUID), why, loss, ahead).Scan(&first)
	return first, readFault(err)
}

// Release accepts another start of the same server. It reports false while a replica that the
// database knows of has not looked at that start, for up to hold after it.
func (h *Histories) Release(ctx context.Context, replica uuid.UUID, epoch EpochID, hold time.Duration) (released bool, err error) {
	err = h.pool.QueryRow(ctx, releaseServerSQL, replica, epoch.Number, epoch.UUID, hold.Seconds()).Scan(&released)
	return released, readFault(err)
}

// ErrEpochClaimed: somebody else takes the next epoch at this moment, or has taken it.
var ErrEpochClaimed = errors.New("somebody else is raising the epoch")

// Claim makes owner the one who takes the epoch after from, for as long as d. The id to issue it
// under is that of an earlier owner who did not come to an end, else fresh.
func (h *Histories) Claim(ctx context.Context, owner uuid.UUID, from EpochID, fresh uuid.UUID, d time.Duration) (id uuid.UUID, err error) {
	err = h.pool.QueryRow(ctx, claimEpochSQL, owner, from.Number, orNull(from.UUID), fresh, d.Seconds()).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, ErrEpochClaimed
	}
	return id, readFault(err)
}

// Unclaim leaves the claim to the next one at once.
func (h *Histories) Unclaim(ctx context.Context, owner uuid.UUID) error {
	_, err := h.pool.Exec(ctx, unclaimEpochSQL, owner)
	return readFault(err)
}

// TakeStatus is what became of taking an epoch.
type TakeStatus string

// Statuses of [Histories.Take].
const (
	EpochTaken      TakeStatus = "taken"
	EpochSuperseded TakeStatus = "superseded" // the database has gone on to another one
	EpochLoss       TakeStatus = "loss"       // something is known to be lost, and nobody acknowledged that
	EpochQuiet      TakeStatus = "quiet"      // nothing has changed, and nobody asked for it all the same
)

// Take begins an epoch that was issued in the bucket: every lease of the one before is dead. The
// error may leave it open whether it was taken; [Histories.Now] tells.
func (h *Histories) Take(ctx context.Context, from, to EpochID, why string, acknowledged bool) (status TakeStatus, err error) {
	err = h.pool.QueryRow(ctx, takeEpochSQL, from.Number, orNull(from.UUID), to.Number, to.UUID, why, acknowledged).Scan(&status)
	return status, readFault(err)
}

// ResumeCollection lets collection go on in an epoch. What earlier epochs left is garbage no earlier
// than the quarantine (0 to ten years) from now. It reports whether collection was held.
func (h *Histories) ResumeCollection(ctx context.Context, epoch EpochID, quarantine time.Duration) (resumed bool, err error) {
	err = h.pool.QueryRow(ctx, resumeCollectionSQL, epoch.Number, quarantine.Seconds()).Scan(&resumed)
	return resumed, readFault(commitFault(err))
}

func orNull(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

// epochKey is where a connection remembers the epoch of the server at its other end. A server's
// epoch only rises, and a connection never changes its server.
const epochKey = "artifactd.epoch"

// confirmedOn reports why a decision on this connection could not be acknowledged: the bucket does
// not confirm the epoch of the server at its other end (any more).
func (c *Catalogue) confirmedOn(ctx context.Context, conn *pgxpool.Conn) error {
	if c.opts.Confirm == nil {
		return nil
	}
	epoch, err := c.opts.Confirm()
	if err != nil {
		return err
	}
	data := conn.Conn().PgConn().CustomData()
	if data[epochKey] == epoch {
		return nil
	}
	var have int64
	if err := conn.QueryRow(ctx, epochOfServerSQL).Scan(&have); err != nil {
		return readFault(err)
	}
	data[epochKey] = have
	if have != epoch {
		return &HistoryChangedError{Seen: fmt.Sprintf("this database is in epoch %d, and the bucket confirms epoch %d", have, epoch)}
	}
	return nil
}
