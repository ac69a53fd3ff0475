package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/recovery"
)

// recovering is what `artifactd recover` was asked for.
type recovering struct {
	yes, raise, resume, skipObjects bool
	quarantine                      time.Duration
	requarantine                    bool // asked for, also when collection goes on already
	bucket                          fromBucket
}

func (p *Program) recoverCommand() *cobra.Command {
	var o recovering
	cmd := &cobra.Command{
		Use: "recover", Short: "Settle what a restored or failed-over database has lost", Args: cobra.NoArgs,
		Long: `Compare the database's history with the bucket's and show what is known to be lost, and which objects
in the bucket the database does not know, by the epoch that wrote them. While something is lost, the
service answers writes with 503 history-changed. This asks, raises the epoch (which kills every lease of
the old history, so that no worker of it can publish), and then asks whether the collector, which is off
since, may go on. It is safe to run it again after a crash, and by several people at once.
Before collection goes on, look at what "artifactd verify" finds, and bring lost versions back.`,
	}
	cmd.Flags().BoolVar(&o.yes, "yes", false, "raise the epoch without asking, if writes wait for it")
	cmd.Flags().BoolVar(&o.raise, "raise", false, "raise the epoch although nothing seems to have changed")
	cmd.Flags().BoolVar(&o.resume, "resume-collection", false, "let collection go on without asking")
	cmd.Flags().DurationVar(&o.quarantine, "quarantine", recovery.DefaultQuarantine, "how long what is unknown or of earlier epochs is kept once collection goes on; lost versions may need it")
	cmd.Flags().BoolVar(&o.skipObjects, "skip-objects", false, "do not look for objects that the database does not know, which lists the whole bucket")
	o.bucket.bind(cmd)
	check := func() error {
		o.requarantine = cmd.Flags().Changed("quarantine")
		if o.quarantine < 0 {
			return fmt.Errorf("--quarantine must not be negative, as %s is; 0 keeps nothing", o.quarantine)
		}
		return o.bucket.check()
	}
	return p.maintenanceCommand(cmd, check, func(ctx context.Context, m *daemon.Maintenance) error {
		return p.recover(ctx, m, o)
	})
}

func (p *Program) recover(ctx context.Context, m *daemon.Maintenance, o recovering) error {
	operator, answers := m.History, bufio.NewReader(p.Stdin)
	if foreign, err := p.adoptBucket(ctx, m, answers, o); err != nil {
		return err
	} else if foreign {
		return p.bringBack(ctx, m, answers, o)
	}
	r, err := operator.Inspect(ctx)
	if err != nil {
		return err
	}
	shown := inspection{Report: r}
	if !o.skipObjects {
		if shown.Unknown, err = p.unknownObjects(ctx, m); err != nil {
			return err
		}
	}
	if err := p.print(shown, func(t *table) { inspected(t, shown) }); err != nil {
		return err
	}
	if o.bucket.dry {
		return p.bringBack(ctx, m, answers, o)
	}
	if r.NeedsRaise || o.raise {
		question := "Raise the epoch? Every lease of the old history dies, and writes go on with what the database has now."
		if !o.yes && !p.agrees(answers, question) {
			return fmt.Errorf("%w: the epoch was not raised and writes still wait; answer yes, or give --yes", errPartial)
		}
		e, err := operator.Raise(ctx, r)
		if err != nil {
			return fmt.Errorf("raise the epoch: %w; run it again", err)
		}
		p.note("artifactd: the database is in epoch %s; writes go on within seconds", e)
		if r, err = operator.Inspect(ctx); err != nil {
			return err
		}
	}
	if err := p.bringBack(ctx, m, answers, o); err != nil {
		return err
	}
	if r.CollectionHeldAt == nil && !o.requarantine {
		return nil
	}
	what := fmt.Sprintf("what the database does not know, and what it has of earlier epochs, is kept for another %s", o.quarantine)
	if o.quarantine == 0 {
		what = "nothing is kept for lost versions any more"
	}
	if r.CollectionHeldAt == nil {
		if _, err := operator.Resume(ctx, o.quarantine); err != nil {
			return fmt.Errorf("set the quarantine: %w", err)
		}
		p.note("artifactd: %s", what)
		return nil
	}
	question := "Let collection go on? What was lost and is not brought back becomes garbage then; " + what + "."
	if !o.resume && !p.agrees(answers, question) {
		p.note("artifactd: collection stays off; run this again, or with --resume-collection, when nothing more is to be brought back")
		return nil
	}
	if _, err := operator.Resume(ctx, o.quarantine); err != nil {
		return fmt.Errorf("resume collection: %w", err)
	}
	p.note("artifactd: collection goes on; %s", what)
	return nil
}

// agrees asks a person. No answer is a no.
func (p *Program) agrees(answers *bufio.Reader, question string) bool {
	fmt.Fprintf(p.Stderr, "%s [y/N] ", question)
	line, err := answers.ReadString('\n')
	if err != nil {
		fmt.Fprintln(p.Stderr)
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// inspection is what is printed before anything is asked.
type inspection struct {
	recovery.Report
	Unknown *gc.UnknownReport `json:"unknown_objects,omitempty"` // nil when nobody looked
}

func (p *Program) unknownObjects(ctx context.Context, m *daemon.Maintenance) (*gc.UnknownReport, error) {
	unknown, err := m.Reconciler.Unknown(ctx)
	if err != nil {
		return nil, fmt.Errorf("find objects that the database does not know: %w; run it again, or leave that out with --skip-objects", err)
	}
	return &unknown, nil
}

func inspected(t *table, r inspection) {
	t.row("state", r.State)
	if r.Why != "" {
		t.row("seen", r.Why)
	}
	t.row("installation", r.Installation)
	t.row("database's epoch", r.Epoch, r.EpochUUID)
	t.row("bucket's epoch", r.BucketEpoch, r.BucketEpochUUID)
	t.row("decisions in the database", r.Decisions)
	t.row("decisions known to be made", r.KnownDecisions)
	t.row("lost at least", r.LostDecisions)
	if r.WitnessedAt != nil {
		t.row("last witness", r.Witnessed, stamp(*r.WitnessedAt))
	}
	t.row("server", r.Server)
	if r.ServerBefore != r.Server {
		t.row("server before", r.ServerBefore)
	}
	t.row("collection off since", optionalStamp(r.CollectionHeldAt))
	if r.QuarantineUntil != nil {
		t.row("kept for lost versions until", stamp(*r.QuarantineUntil))
	}
	if r.Unknown == nil {
		return
	}
	t.row("objects in the bucket", r.Unknown.Listed)
	t.row("unknown to the database", r.Unknown.Objects, size(r.Unknown.Bytes))
	for _, e := range r.Unknown.ByEpoch {
		of := fmt.Sprintf("  of epoch %d", e.Epoch)
		if e.Epoch == 0 {
			of = "  of no known epoch"
		}
		t.row(of, e.Objects, size(e.Bytes))
	}
}
