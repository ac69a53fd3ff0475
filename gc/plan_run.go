package gc

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

const (
	openPlanSQL        = `SELECT status, coalesce(grace_seconds, 0), coalesce(expires_at, clock_timestamp()) FROM artifactd.open_plan($1)`
	markPlannedSQL     = `SELECT looked, expired, marked FROM artifactd.collect_mark($1, $2, $3, true)`
	filesPlannedSQL    = `SELECT status, coalesce(finished, true) FROM artifactd.collect_files($1, $2, $3, $4)`
	replacedPlannedSQL = `SELECT looked, artifacts FROM artifactd.collect_unnamed($1, $2, $3, $4)`
	settleItemsSQL     = `SELECT reason, items FROM artifactd.settle_plan_items($1, $2, $3)`
)

// openPlan is a plan that may be run.
type openPlan struct {
	id           uuid.UUID
	graceSeconds float64
}

func (c *Collector) openPlan(ctx context.Context, id uuid.UUID) (openPlan, error) {
	plan := openPlan{id: id}
	var status string
	var expires time.Time
	if err := c.pool.QueryRow(ctx, openPlanSQL, id).Scan(&status, &plan.graceSeconds, &expires); err != nil {
		return plan, fmt.Errorf("open the plan: %w", err)
	}
	switch status {
	case "plan-not-found":
		return plan, fmt.Errorf("%w: %s", ErrPlanNotFound, id)
	case "plan-expired":
		return plan, fmt.Errorf("%w at %s: make a new one", ErrPlanExpired, expires.UTC().Format(time.RFC3339))
	case "plan-incomplete":
		return plan, fmt.Errorf("%w: wait for whoever makes it, or make a new one", ErrPlanIncomplete)
	}
	return plan, nil
}

// runPlan collects what a plan says, and nothing else: each item is judged again under the locks,
// and of the deletion ledger only what the plan's items bring there is deleted now. A crash leaves
// what any crash of collection leaves; the plan can be run again until it expires, and any other run
// goes on with it, too.
func (c *Collector) runPlan(ctx context.Context, plan openPlan, report *Report) error {
	report.Kept = map[string]int64{}
	var at PlanCursor
	for {
		items, next, err := c.PlanItems(ctx, plan.id, at, c.opts.Batch)
		if err != nil {
			return fmt.Errorf("read the plan: %w", err)
		}
		if len(items) == 0 {
			return c.measureLedger(ctx, report)
		}
		if err := c.runItems(ctx, plan, items, report); err != nil {
			return err
		}
		// What the page has brought into the ledger goes before the next one brings more.
		if err := c.deleteDue(ctx, &plan.id, c.progress(report), noBatches()); err != nil {
			return err
		}
		at = next
	}
}

// planGroup is the items of one kind of one pointer.
type planGroup struct {
	pointer int64
	kind    string
	ids     []uuid.UUID
}

func groups(items []PlanItem) []planGroup {
	var list []planGroup
	place := map[planGroupKey]int{}
	for _, i := range items {
		if !i.Goes {
			continue
		}
		k := planGroupKey{i.pointerID, i.Kind}
		at, ok := place[k]
		if !ok {
			at = len(list)
			place[k] = at
			list = append(list, planGroup{pointer: i.pointerID, kind: i.Kind})
		}
		list[at].ids = append(list[at].ids, i.ID)
	}
	return list
}

type planGroupKey struct {
	pointer int64
	kind    string
}

// runItems takes one page of items, several pointers at once.
func (c *Collector) runItems(ctx context.Context, plan openPlan, items []PlanItem, report *Report) error {
	list := groups(items)
	results := make([]Report, len(list))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(c.opts.Parallel)
	for i, group := range list {
		g.Go(func() error {
			if group.kind == "artifact" {
				return c.takeReplaced(gctx, plan.id, group)
			}
			return c.takeGenerations(gctx, plan, group, &results[i])
		})
	}
	err := g.Wait()
	for i, group := range list {
		report.Looked, report.Expired = report.Looked+results[i].Looked, report.Expired+results[i].Expired
		report.Marked, report.Skipped = report.Marked+results[i].Marked, report.Skipped+results[i].Skipped
		if err == nil {
			err = c.settleItems(ctx, plan.id, group, report)
		}
	}
	if err != nil {
		return fmt.Errorf("run the plan: %w", err)
	}
	return nil
}

// markRounds is how often a pointer is looked at for one plan: once to record ends that nobody saw,
// and once more to mark what they made garbage; the third is for a race.
const markRounds = 3

func (c *Collector) takeGenerations(ctx context.Context, plan openPlan, group planGroup, r *Report) error {
	for range markRounds {
		var looked, expired, marked int64
		err := c.pool.QueryRow(ctx, markPlannedSQL, group.pointer, group.ids, plan.graceSeconds).Scan(&looked, &expired, &marked)
		if lostRace(err) {
			r.Skipped++
			continue
		}
		if err != nil {
			return err
		}
		r.Looked, r.Expired, r.Marked = looked, r.Expired+expired, r.Marked+marked
		if expired == 0 {
			break
		}
	}
	for _, id := range group.ids {
		err := c.untilIdle(ctx, r, func(ctx context.Context) (bool, error) {
			var status string
			var finished bool
			err := c.pool.QueryRow(ctx, filesPlannedSQL, c.opts.Batch, c.opts.LandingGrace.Seconds(), plan.id, id).Scan(&status, &finished)
			return status == "worked" && !finished, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Collector) takeReplaced(ctx context.Context, plan uuid.UUID, group planGroup) error {
	return c.untilIdle(ctx, &Report{}, func(ctx context.Context) (bool, error) {
		var looked, buried int64
		err := c.pool.QueryRow(ctx, replacedPlannedSQL, c.opts.Batch, c.opts.LandingGrace.Seconds(), plan, group.ids).Scan(&looked, &buried)
		return false, err
	})
}

// settleItems writes down, and reports, what became of the items.
func (c *Collector) settleItems(ctx context.Context, plan uuid.UUID, group planGroup, report *Report) error {
	rows, err := c.pool.Query(ctx, settleItemsSQL, plan, group.pointer, group.ids)
	if err != nil {
		return err
	}
	var reason string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&reason, &n}, func() error {
		report.Kept[reason] += n
		return nil
	})
	return err
}
