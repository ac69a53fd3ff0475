package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

func (p *Program) gcPlanCommand() *cobra.Command {
	var items bool
	var show string
	cmd := &cobra.Command{
		Use: "plan [NAME]", Short: "Say what a collection would delete and why, and what stays and why", Args: cobra.MaximumNArgs(1),
		Long: `Say what a collection would delete and why, and what stays and what keeps it: of all pointers, or of
NAME version by version. The plan is kept for an hour; "artifactd gc run --plan ID" does exactly that.
With --items all that goes is listed (-o json: one line for each); with --show a plan that was made
before is shown again, with what became of its items if it was run.`,
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := p.planID(ctx, c, show, args)
			if err != nil {
				return err
			}
			plan, err := c.CollectPlan(ctx, id)
			if err != nil {
				return err
			}
			if err := p.print(plan, func(t *table) { planned(t, plan) }); err != nil {
				return err
			}
			if !items && plan.Pointer == nil {
				return nil
			}
			return p.planItems(ctx, c, id)
		}),
	}
	cmd.Flags().BoolVar(&items, "items", false, "list the items, too")
	cmd.Flags().StringVar(&show, "show", "", "show the plan with this id instead of making one")
	return p.clientCommand(cmd)
}

// planID is the plan to show: a new one, unless the caller names one.
func (p *Program) planID(ctx context.Context, c *client.Client, show string, args []string) (uuid.UUID, error) {
	if show != "" {
		if len(args) > 0 {
			return uuid.Nil, fmt.Errorf("%w: a plan that was made before (--show) is about the pointer it was made for", errUsage)
		}
		return parseID("--show", show)
	}
	in := types.GcRequest{DryRun: new(true)}
	if len(args) > 0 {
		in.Pointer = &args[0]
	}
	r, err := p.collect(ctx, c, in)
	switch {
	case err != nil:
		return uuid.Nil, err
	case r.PlanId == nil:
		return uuid.Nil, fmt.Errorf("%w: no plan was made: %s", errPartial, value(r.Error))
	}
	return *r.PlanId, nil
}

func planned(t *table, plan types.GcPlan) {
	t.row("", "REASON", "GENERATIONS", "OBJECTS", "SIZE")
	for _, n := range plan.Goes {
		t.row("goes", n.Reason, n.Generations, n.Objects, size(n.Bytes))
	}
	for _, n := range plan.Stays {
		t.row("stays", n.Reason, n.Generations, n.Objects, size(n.Bytes))
	}
	if plan.LedgerObjects > 0 {
		t.row("condemned before", "ledger", "", plan.LedgerObjects, size(plan.LedgerBytes))
	}
	t.row("plan", plan.PlanId)
	t.row("can be run until", stamp(plan.ExpiresAt))
}

// planItems prints the items as they come, however many there are.
func (p *Program) planItems(ctx context.Context, c *client.Client, id uuid.UUID) error {
	lines := json.NewEncoder(p.Stdout)
	lines.SetEscapeHTML(false)
	page := make([]types.GcPlanItem, 0, itemPage)
	first := true
	flush := func() error {
		defer func() { page, first = page[:0], false }()
		t := newTable(p.Stdout)
		if first {
			t.row("", "POINTER", "VERSION", "REASON", "UNTIL", "OBJECTS", "SIZE", "OUTCOME")
		}
		for _, i := range page {
			verb := "stays"
			if i.Goes {
				verb = "goes"
			}
			t.row(verb, i.Pointer, value(i.Version), i.Reason, optionalStamp(i.KeepsUntil), i.Objects, size(i.Bytes), value(i.Outcome))
		}
		return t.w.Flush()
	}
	for i, err := range c.CollectPlanItems(ctx, id) {
		if err != nil {
			return err
		}
		if p.format == "json" {
			if err := lines.Encode(i); err != nil {
				return err
			}
			continue
		}
		if page = append(page, i); len(page) == itemPage {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if p.format == "json" || len(page) == 0 {
		return nil
	}
	return flush()
}

// itemPage is how many items are set as one table.
const itemPage = 1_000

func (p *Program) gcExplainCommand() *cobra.Command {
	return p.clientCommand(&cobra.Command{
		Use: "explain KEY", Short: "Say why an object in the bucket stays, or goes", Args: cobra.ExactArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			e, err := c.Explain(ctx, args[0])
			if err != nil {
				return err
			}
			return p.print(e, func(t *table) { explained(t, e) })
		}),
	})
}

func explained(t *table, e types.GcExplanation) {
	t.row("verdict", e.Verdict)
	t.row("reason", e.Reason)
	t.row("size", size(e.Size))
	t.row("in the store", mark(e.InStore))
	if e.EnqueuedAt != nil {
		t.row("condemned", optionalStamp(e.EnqueuedAt))
		t.row("first deleted", optionalStamp(e.DeletedAt))
		t.row("next attempt", optionalStamp(e.NextAttemptAt))
		t.row("attempts", value(e.Attempts), value(e.LastError))
	}
	if e.FirstSeenAt != nil {
		t.row("first seen", optionalStamp(e.FirstSeenAt))
		t.row("last seen", optionalStamp(e.LastSeenAt))
	}
	for _, n := range e.Names {
		verb := "stays"
		if n.Goes {
			verb = "goes"
		}
		t.row("named by", n.Pointer+" "+n.Version, n.Path, n.State, verb, n.Reason, optionalStamp(n.KeepsUntil))
	}
	if value(e.NamesTruncated) {
		t.row("…", "and more")
	}
}
