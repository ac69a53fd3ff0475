package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/artifactd/artifactd/pointer"
)

const (
	beginPassSQL = `SELECT status, pass_id, until FROM artifactd.begin_reconcile($1, $2, $3, $4, $5, $6)`
	keepPassSQL  = `SELECT artifactd.keep_pass($1)`
	endPassSQL   = `SELECT artifactd.end_reconcile($1, $2)`
)

var (
	// ErrPassRunning: a pass is under way already, here or in another process.
	ErrPassRunning = errors.New("a reconcile pass is under way already")
	// ErrPassLost: another pass took over, because this one was not heard of for too long.
	ErrPassLost = errors.New("the reconcile pass was taken over by another one")
	// errNotDue: not so long ago another one began.
	errNotDue = errors.New("no reconcile pass is due")
)

const (
	// passLease is how long a pass that is not heard of keeps others from beginning.
	passLease = time.Minute
	// passBeats is how often it is heard of in that time.
	passBeats = 4
	// passBegin bounds how long a pass takes to begin. The database gives up before that.
	passBegin = 15 * time.Second
	// passLostCode is the SQLSTATE of a step of a pass that was taken over.
	passLostCode = "AD003"
)

// holding begins a pass, keeps its lease while run works, and ends it. The context of run ends when
// the lease is lost.
func (r *Reconciler) holding(ctx context.Context, o ReconcileOptions, run func(context.Context, int64) error) error {
	pass, err := r.begin(ctx, o)
	if err != nil {
		return err
	}
	held, cancel := context.WithCancelCause(ctx)
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		r.beat(held, pass, cancel)
	}()
	err = run(held, pass)
	if cause := context.Cause(held); err != nil && errors.Is(cause, ErrPassLost) {
		err = cause
	}
	cancel(nil)
	<-beating
	if lost := passLost(err); lost != nil {
		return lost
	}
	// Also of a pass that was stopped: the next one need not wait for the lease to run out.
	ending, cancelEnd := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancelEnd()
	if _, fault := r.pool.Exec(ending, endPassSQL, pass, passOutcome(err)); fault != nil {
		return errors.Join(err, fmt.Errorf("end the reconcile pass: %w", fault))
	}
	return err
}

func passOutcome(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, ErrShareLimit):
		return "share-limit"
	}
	return "failed"
}

func (r *Reconciler) begin(ctx context.Context, o ReconcileOptions) (int64, error) {
	var status string
	var pass *int64
	var until *time.Time
	var every *float64
	if o.every != nil {
		seconds := o.every.Seconds()
		every = &seconds
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	// Not broken off in between: a pass that began, and that nobody knows of, would keep the others from
	// beginning until its lease has run out.
	beginning, cancel := context.WithTimeout(context.WithoutCancel(ctx), passBegin)
	defer cancel()
	err := r.pool.QueryRow(beginning, beginPassSQL, r.layout.Prefix, o.Grace.Seconds(), o.MaxShare, o.DryRun, r.lease.Seconds(), every).Scan(&status, &pass, &until)
	switch {
	case err != nil:
		return 0, fmt.Errorf("begin a reconcile pass: %w", err)
	case status == "not-due":
		return 0, errNotDue
	case status == "running" && until != nil:
		return 0, fmt.Errorf("%w: wait for it; if its process died, it is taken over after %s", ErrPassRunning, until.UTC().Format(time.RFC3339))
	case status == "running":
		return 0, ErrPassRunning
	}
	return *pass, nil
}

// beat renews the lease. Faults other than its loss are no reason to give up before it has run out:
// each step of the pass asks for it anyway.
func (r *Reconciler) beat(ctx context.Context, pass int64, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(r.lease / passBeats)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_, err := r.pool.Exec(ctx, keepPassSQL, pass)
		if lost := passLost(err); lost != nil {
			cancel(lost)
			return
		}
	}
}

func passLost(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == passLostCode {
		return fmt.Errorf("%w: %s", ErrPassLost, pgErr.Message)
	}
	if errors.Is(err, ErrPassLost) {
		return err
	}
	return nil
}

// Bounds of how often a replica asks whether a pass is due.
const (
	mostAsked  = 100 * time.Millisecond
	leastAsked = 5 * time.Minute
)

// Loop makes a pass about every interval until ctx ends, together with all other replicas: whoever
// asks first when one is due makes it. It is due when so long has passed since the last one began,
// also one before a restart of this process.
func (r *Reconciler) Loop(ctx context.Context, interval time.Duration, o ReconcileOptions, logger *slog.Logger) {
	o.every = &interval
	for pause(ctx, max(mostAsked, min(leastAsked, interval/10))) {
		report, err := r.RunOnce(ctx, o)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, errNotDue), errors.Is(err, ErrPassRunning),
			errors.Is(err, pointer.ErrHistoryChanged): // which the watch of the history has told
		case err != nil:
			logger.Error("reconciliation failed; it is tried again", "listed", report.Listed, "unknown", report.Unknown, "due", report.Due, "error", err)
		default:
			logger.Info("reconciled", "took", report.FinishedAt.Sub(report.StartedAt).Round(time.Millisecond), "listed", report.Listed, "uploads", report.Uploads,
				"unknown", report.Unknown, "unknown_uploads", report.UnknownUploads, "moved", report.Moved, "aborted", report.Aborted,
				"quarantined", report.Quarantined, "first_quarantined", report.FirstQuarantined)
		}
	}
}
