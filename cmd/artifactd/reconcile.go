package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/daemon"
)

// maintenanceCommand is a command that works on the database and the bucket themselves.
func (p *Program) maintenanceCommand(cmd *cobra.Command, check func() error, run func(context.Context, *daemon.Maintenance) error) *cobra.Command {
	config := daemon.Default()
	cmd.Flags().StringVar(&config.DatabaseURL, "database-url", "", "Postgres, as the service's role or the owner")
	config.S3.Bind(cmd.Flags())
	// What is done here starts on a bucket that a service has been started on before.
	_ = cmd.Flags().MarkHidden("s3-create-bucket")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		if config.DatabaseURL == "" || config.S3.Bucket == "" {
			return fmt.Errorf("%w: --database-url (%s) and --s3-bucket (%s) are required: this works on the database and the bucket themselves",
				errUsage, daemon.EnvName("database-url"), daemon.EnvName("s3-bucket"))
		}
		m, err := daemon.OpenMaintenance(cmd.Context(), config)
		if err != nil {
			return unavailable(err)
		}
		defer m.Close()
		err = run(cmd.Context(), m)
		if errors.Is(err, artifacts.ErrStoreUnavailable) {
			return fmt.Errorf("%w: %w", errUnavailable, err)
		}
		return unavailable(err)
	}
	return withClientEnv(cmd)
}

func (p *Program) reconcileCommand() *cobra.Command {
	var o gc.ReconcileOptions
	cmd := &cobra.Command{
		Use: "reconcile", Short: "Find objects in the bucket that the database does not know", Args: cobra.NoArgs,
		Long: `Compare the whole bucket with the database. Objects and multipart uploads that no row knows are written
down; those that an earlier pass had seen already, longer ago than --grace, are deleted: uploads at
once, objects by the collector ("artifactd gc run", or the one inside the service). Run it from time
to time, for example once a day. It works only on a bucket that is marked as this installation's,
never touches keys that are not its artifacts', and deletes nothing when more than --max-share is due.`,
	}
	cmd.Flags().DurationVar(&o.Grace, "grace", gc.DefaultOrphanGrace, "how long ago an object must have been seen first")
	cmd.Flags().Float64Var(&o.MaxShare, "max-share", gc.DefaultMaxShare, "largest share of the bucket's objects, 0 to 1, that may be deleted")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "write down what is unknown and delete nothing")
	check := func() error {
		switch {
		case o.Grace < 0:
			return fmt.Errorf("--grace must not be negative, as %s is", o.Grace)
		case !(o.MaxShare >= 0 && o.MaxShare <= 1): // NaN is refused, too
			return fmt.Errorf("--max-share must be 0 to 1, not %v", o.MaxShare)
		}
		return nil
	}
	return p.maintenanceCommand(cmd, check, func(ctx context.Context, m *daemon.Maintenance) error {
		r, err := m.Reconciler.RunOnce(ctx, o)
		if err != nil && !errors.Is(err, gc.ErrShareLimit) {
			return err
		}
		if printed := p.print(r, func(t *table) { reconciled(t, r) }); printed != nil {
			return printed
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errPartial, err)
		}
		return nil
	})
}

func reconciled(t *table, r gc.ReconcileReport) {
	t.row("objects listed", r.Listed)
	t.row("uploads in progress listed", r.Uploads)
	t.row("other keys, left alone", r.Foreign, r.FirstForeign)
	t.row("unknown objects", r.Unknown)
	t.row("unknown uploads", r.UnknownUploads)
	t.row("due for deletion", r.Due)
	t.row("moved to the ledger", r.Moved)
	t.row("uploads aborted", r.Aborted)
	t.row("of another history, kept", r.Quarantined, r.FirstQuarantined)
}

// maxProblems bounds the list that `artifactd verify` prints; all are counted.
const maxProblems = 1_000

// verification is what `artifactd verify` prints.
type verification struct {
	gc.VerifyReport
	Problems  []gc.Problem `json:"problems"`
	Truncated bool         `json:"problems_truncated"`
}

func (p *Program) verifyCommand() *cobra.Command {
	var o gc.VerifyOptions
	var after string
	cmd := &cobra.Command{
		Use: "verify", Short: "Check that every stored artifact has its object", Args: cobra.NoArgs,
		Long: `Look up the object of every artifact that counts as stored: is it there, with its size and digest?
Lost ones are marked, so that nobody adopts them: publishing the same bytes again uploads them anew. One
that is marked stays suspect, whatever it looks like, until --deep has read it back whole. When it breaks off it says where to go on with --after.`,
	}
	cmd.Flags().BoolVar(&o.Deep, "deep", false, "read and hash every object, too")
	cmd.Flags().StringVar(&after, "after", "", "go on behind this artifact id")
	cmd.Flags().IntVar(&o.Parallel, "parallel", gc.DefaultVerifyParallel, "objects asked for at once, 1 to 256")
	check := func() (err error) {
		if o.Parallel < 1 || o.Parallel > 256 {
			return fmt.Errorf("--parallel must be 1 to 256, not %d", o.Parallel)
		}
		if after == "" {
			return nil
		}
		if o.After, err = uuid.Parse(after); err != nil {
			return fmt.Errorf("--after must be an artifact's id, not %q", after)
		}
		return nil
	}
	return p.maintenanceCommand(cmd, check, func(ctx context.Context, m *daemon.Maintenance) error {
		v := verification{Problems: []gc.Problem{}}
		o.Found = func(problem gc.Problem) {
			if len(v.Problems) < maxProblems {
				v.Problems = append(v.Problems, problem)
			}
		}
		var err error
		v.VerifyReport, err = m.Verifier.Run(ctx, o)
		v.Truncated = v.Wrong() > int64(len(v.Problems))
		if printed := p.print(v, func(t *table) { verified(t, v) }); printed != nil {
			return printed
		}
		switch {
		case err != nil && v.Last != uuid.Nil:
			return fmt.Errorf("%w; go on with --after %s", err, v.Last)
		case err != nil:
			return err
		case v.Wrong() > 0 && v.Wrong() == v.Suspect:
			return fmt.Errorf("%w: %d of %d artifacts were missing or wrong in the bucket before, and have not been read since; "+
				"`artifactd verify --deep` reads them", errPartial, v.Suspect, v.Checked)
		case v.Wrong() > 0:
			return fmt.Errorf("%w: %d of %d artifacts are missing or wrong in the bucket; publish the same files again for a whole version (older ones stay as they are until they are collected), "+
				"or restore the objects and verify with --deep", errPartial, v.Wrong(), v.Checked)
		}
		return nil
	})
}

func verified(t *table, v verification) {
	t.row("artifacts checked", v.Checked)
	t.row("bytes", size(v.Bytes))
	t.row("missing", v.Missing)
	t.row("wrong size", v.WrongSize)
	t.row("wrong digest", v.WrongHash)
	if v.Deep {
		t.row("recovered", v.Recovered)
	} else {
		t.row("wrong before, not read since", v.Suspect)
	}
	t.row("took", v.FinishedAt.Sub(v.StartedAt).Round(time.Millisecond))
	for _, p := range v.Problems {
		t.row(p.Fault, p.Pointer, size(p.Size), p.Key)
	}
	if v.Truncated {
		t.row("…", "and more")
	}
}
