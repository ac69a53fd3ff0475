package client

import (
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
)

// How long one request for a run waits for its end, in seconds: well below what any proxy in
// between allows a request.
const collectWait = 20.0

// runStateRunning is the state of a run that is under way.
const runStateRunning = "running"

// Collect has the service collect garbage now, or with DryRun plan what it would collect, and waits
// for the end however long it takes. progress, which may be nil, is told how far the run has come,
// every [collectWait] or so. When ctx ends the run goes on: the answer says which it is.
func (c *Client) Collect(ctx context.Context, in types.GcRequest, progress func(types.GcRun)) (types.GcRun, error) {
	if in.WaitSeconds == nil {
		in.WaitSeconds = new(collectWait)
	}
	// Not repeated when its answer is lost: there may be a run already.
	run, err := askRefused(ctx, c, seconds(*in.WaitSeconds), func(ctx context.Context) (types.GcRun, error) { return answer[types.GcRun](c.raw.RunGc(ctx, in)) })
	for err == nil && run.State == runStateRunning {
		if progress != nil {
			progress(run)
		}
		next, fault := c.collectRun(ctx, run.RunId, new(collectWait))
		if fault != nil {
			return run, fault
		}
		run = next
	}
	return run, err
}

// CollectRun answers one run as far as it has come.
func (c *Client) CollectRun(ctx context.Context, id uuid.UUID) (types.GcRun, error) {
	return c.collectRun(ctx, id, nil)
}

func (c *Client) collectRun(ctx context.Context, id uuid.UUID, wait *float64) (types.GcRun, error) {
	var held time.Duration
	if wait != nil {
		held = seconds(*wait)
	}
	return ask(ctx, c, held, func(ctx context.Context) (types.GcRun, error) {
		return answer[types.GcRun](c.raw.GetGcRun(ctx, id, &types.GetGcRunParams{Wait: wait}))
	})
}

// CollectRuns answers the last runs, newest first.
func (c *Client) CollectRuns(ctx context.Context, limit int) ([]types.GcRun, error) {
	page, err := get[types.GcRunPage](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ListGcRuns(ctx, &types.ListGcRunsParams{Limit: &limit})
	})
	return page.Items, err
}

// CollectPlan answers what a plan says.
func (c *Client) CollectPlan(ctx context.Context, id uuid.UUID) (types.GcPlan, error) {
	return get[types.GcPlan](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.GetGcPlan(ctx, id) })
}

// CollectPlanItems walks the items of a plan. An error ends the walk.
func (c *Client) CollectPlanItems(ctx context.Context, id uuid.UUID) iter.Seq2[types.GcPlanItem, error] {
	return walk(func(cursor *string) ([]types.GcPlanItem, *string, error) {
		page, err := get[types.GcPlanItemPage](ctx, c, func(ctx context.Context) (*http.Response, error) {
			limit := pageSize
			return c.raw.ListGcPlanItems(ctx, id, &types.ListGcPlanItemsParams{Limit: &limit, Cursor: cursor})
		})
		return page.Items, page.NextCursor, err
	})
}

// Explain answers what collection makes of one object key, and why.
func (c *Client) Explain(ctx context.Context, key string) (types.GcExplanation, error) {
	return get[types.GcExplanation](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ExplainKey(ctx, &types.ExplainKeyParams{Key: key})
	})
}
