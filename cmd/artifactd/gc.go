package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

func (p *Program) gcCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "gc", Short: "Collect what no reader can reach, plan it, explain it"}
	cmd.AddCommand(p.gcRunCommand(), p.gcRunsCommand(), p.gcPlanCommand(), p.gcExplainCommand(), p.reconcileCommand())
	return cmd
}

func (p *Program) gcRunCommand() *cobra.Command {
	var dry bool
	var plan string
	cmd := &cobra.Command{
		Use: "run", Short: "Collect now and say what was deleted", Args: cobra.NoArgs,
		Long: `Collect now, wait for the end however long it takes, and say what was deleted. A run goes on inside the
service when this command is interrupted; "artifactd gc runs ID" shows how far it has come. With --plan
exactly that plan is done (see "artifactd gc plan"): each of its items is checked again, what is wanted
again is left alone and counted, and nothing that the plan does not name is touched.`,
		RunE: p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			in := types.GcRequest{DryRun: &dry}
			if plan != "" {
				id, err := parseID("--plan", plan)
				if err != nil {
					return err
				}
				if dry {
					return fmt.Errorf("%w: --dry-run makes a plan, and --plan runs one: give one of them", errUsage)
				}
				in.PlanId = &id
			}
			r, err := p.collect(ctx, c, in)
			if err != nil {
				return err
			}
			if err := p.print(r, func(t *table) { collected(t, r) }); err != nil {
				return err
			}
			p.explainLedger(r)
			if plan != "" && r.DeletedObjects == 0 {
				p.recallPlan(ctx, c, r)
			}
			return unfinished(r)
		}),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "make a plan: say what would be deleted and change nothing else")
	cmd.Flags().StringVar(&plan, "plan", "", "do exactly the plan with this id")
	return p.clientCommand(cmd)
}

// collect has the service collect, and says on the way how far it has come.
func (p *Program) collect(ctx context.Context, c *client.Client, in types.GcRequest) (types.GcRun, error) {
	r, err := c.Collect(ctx, in, func(r types.GcRun) {
		p.note("artifactd: collection %s is under way: %d objects, %s deleted so far", r.RunId, r.DeletedObjects, size(r.DeletedBytes))
	})
	switch {
	case err == nil:
	case ctx.Err() != nil && r.RunId == uuid.Nil:
		return r, &interruptedError{"a collection that has begun goes on inside the service: see `artifactd gc runs`"}
	case ctx.Err() != nil:
		return r, &interruptedError{fmt.Sprintf("collection %s goes on inside the service: see `artifactd gc runs %[1]s`", r.RunId)}
	case r.RunId != uuid.Nil:
		p.note("artifactd: collection %s goes on inside the service; see `artifactd gc runs %s`", r.RunId, r.RunId)
	}
	return r, err
}

// explainLedger says why keys stay in the ledger after a collection.
func (p *Program) explainLedger(r types.GcRun) {
	if r.DryRun || r.LedgerSize == 0 || r.LedgerNextAt == nil {
		return
	}
	p.note("artifactd: in the ledger: %s; each stays until no upload of it can arrive any more, and is then deleted once more by a collection, the first after %s",
		counted(r.LedgerSize, "key"), stamp(*r.LedgerNextAt))
}

// mostRuns is how many runs the service tells of at once.
const mostRuns = 1000

// recallPlan says of a plan that found nothing to do when it was done. It is a remark: where the runs
// cannot be told, the collection has happened all the same.
func (p *Program) recallPlan(ctx context.Context, c *client.Client, r types.GcRun) {
	runs, err := c.CollectRuns(ctx, mostRuns)
	if err != nil || r.PlanId == nil {
		return
	}
	for _, before := range slices.Backward(runs) { // the first run of a plan is the one that did it
		if before.PlanId != nil && *before.PlanId == *r.PlanId && before.RunId != r.RunId {
			p.note("artifactd: this plan was run before: at %s collection %s deleted %s, %s", stamp(before.StartedAt), before.RunId, counted(before.DeletedObjects, "object"), size(before.DeletedBytes))
			return
		}
	}
}

// unfinished is the error of a run that left something undone.
func unfinished(r types.GcRun) error {
	switch failed := value(r.FailedObjects); {
	case r.State == "interrupted":
		return fmt.Errorf("%w: the collection was interrupted; run it again", errPartial)
	case failed > 0:
		return fmt.Errorf("%w: %d objects could not be deleted; they stay in the ledger and are tried again", errPartial, failed)
	case r.Error != nil:
		return fmt.Errorf("%w: %s; run it again", errPartial, *r.Error)
	}
	return nil
}

func collected(t *table, r types.GcRun) {
	verb := "deleted"
	if r.DryRun {
		verb = "would be deleted"
	}
	t.row("objects "+verb, r.DeletedObjects)
	t.row("bytes "+verb, r.DeletedBytes)
	for _, reason := range slices.Sorted(maps.Keys(r.ByReason)) {
		t.row("  "+reason, r.ByReason[reason])
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Kept)) {
		t.row("left alone, "+reason, r.Kept[reason])
	}
	t.row("leases found expired", value(r.ExpiredLeases))
	t.row("retained by the store", value(r.RetainedObjects))
	t.row("failed, tried again", value(r.FailedObjects))
	t.row("waiting in the ledger", r.LedgerSize)
	if r.LedgerNextAt != nil {
		t.row("  next attempt", optionalStamp(r.LedgerNextAt))
	}
	if r.DryRun && r.PlanId != nil {
		t.row("plan", r.PlanId)
	}
}

func (p *Program) gcRunsCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "runs [ID]", Short: "Show the last collections, or one as far as it has come", Args: cobra.MaximumNArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 1 {
				id, err := parseID("ID", args[0])
				if err != nil {
					return err
				}
				r, err := c.CollectRun(ctx, id)
				if err != nil {
					return err
				}
				return p.print(r, func(t *table) {
					t.row("state", r.State)
					collected(t, r)
				})
			}
			if limit < 1 || limit > 1000 {
				return fmt.Errorf("%w: --limit must be 1 to 1000, not %d", errUsage, limit)
			}
			runs, err := c.CollectRuns(ctx, limit)
			if err != nil {
				return err
			}
			return p.print(map[string]any{"items": runs}, func(t *table) {
				t.row("RUN", "STARTED", "STATE", "OBJECTS", "BYTES", "FAILED", "LEDGER", "ERROR")
				for _, r := range runs {
					t.row(r.RunId, stamp(r.StartedAt), r.State, r.DeletedObjects, size(r.DeletedBytes), value(r.FailedObjects), r.LedgerSize, value(r.Error))
				}
			})
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "most runs to show, newest first")
	return p.clientCommand(cmd)
}

// parseID reads an id that was given by hand.
func parseID(what, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, fmt.Errorf("%w: %s must be a UUID, not %q", errUsage, what, text)
	}
	return id, nil
}
