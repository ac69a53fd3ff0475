package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// Errors of a [Collector].
var (
	// ErrStillCollecting: the run was not done when the wait for it ended. It goes on.
	ErrStillCollecting = errors.New("the collection is still under way")
	ErrRunNotFound     = errors.New("no such collection, or too long ago")
	ErrPlanNotFound    = errors.New("no such plan, or it was never completed")
	ErrPlanExpired     = errors.New("the plan has expired: make a new one")
	ErrForeignKey      = errors.New("this is no artifact's key of this installation: collection never touches it")
)

// CollectRequest is what a run is asked to do.
type CollectRequest struct {
	DryRun  bool
	Pointer string     // confines a dry run; empty for all
	PlanID  *uuid.UUID // do exactly this plan
}

// Collector collects, plans and explains. Package gc implements it; an adapter in the wiring
// translates.
type Collector interface {
	// Collect starts a run and waits for its end. When ctx ends first the run goes on, and the
	// answer, with ErrStillCollecting, tells its id and that it has begun.
	Collect(ctx context.Context, r CollectRequest) (types.GcRun, error)
	// CollectRun is one run as far as it has come. ErrRunNotFound.
	CollectRun(ctx context.Context, id uuid.UUID) (types.GcRun, error)
	// CollectRuns are the last runs, newest first, at most limit.
	CollectRuns(ctx context.Context, limit int) ([]types.GcRun, error)
	// CollectPlans are the last plans, newest first, at most limit.
	CollectPlans(ctx context.Context, limit int) ([]types.GcPlan, error)
	// CollectPlan is one plan. ErrPlanNotFound.
	CollectPlan(ctx context.Context, id uuid.UUID) (types.GcPlan, error)
	// CollectPlanItems are a plan's items behind a cursor, and the next cursor, empty at the end.
	CollectPlanItems(ctx context.Context, id uuid.UUID, cursor string, limit int) ([]types.GcPlanItem, string, error)
	// Explain says what collection makes of an object key. ErrForeignKey.
	Explain(ctx context.Context, key string) (types.GcExplanation, error)
}

// stateRunning is a run's that is under way.
const stateRunning = "running"

// mayCollect refuses everybody but an administrator of everything.
func mayCollect(c echo.Context) error {
	if who := callerOf(c); !who.mayEverywhere(pointer.ScopeAdmin) {
		return who.refuse(pointer.ScopeAdmin, "every pointer (*)")
	}
	return nil
}

// RunGc collects now, or plans it. The run goes on when the caller hangs up.
func (s *Server) RunGc(c echo.Context) error {
	if err := mayCollect(c); err != nil {
		return err
	}
	in, err := decode[types.GcRequest](c)
	if err != nil {
		return err
	}
	r := CollectRequest{DryRun: in.DryRun != nil && *in.DryRun, PlanID: in.PlanId}
	if in.Pointer != nil {
		r.Pointer = *in.Pointer
	}
	switch {
	case r.DryRun && r.PlanID != nil:
		return invalid("plan_id", "plan_id: a dry run makes a plan, and cannot be asked to run one")
	case r.Pointer != "" && !r.DryRun:
		return invalid("pointer", "pointer: only a dry run can be confined to a pointer; run the plan that it makes")
	}
	waiting, stop := s.untilDraining(c.Request().Context(), true)
	defer stop()
	if in.WaitSeconds != nil {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(waiting, seconds(*in.WaitSeconds))
		defer cancel()
	}
	run, err := s.collector.Collect(waiting, r)
	switch {
	case errors.Is(err, ErrStillCollecting):
		if run, err = s.collector.CollectRun(c.Request().Context(), run.RunId); err != nil {
			return err
		}
		return writeJSON(c, http.StatusAccepted, run)
	case err != nil:
		return err
	}
	return writeJSON(c, http.StatusOK, run)
}

// runLook is how often a run is looked at for one who waits for its end.
const runLook = 500 * time.Millisecond

// GetGcRun answers one run, or waits for its end.
func (s *Server) GetGcRun(c echo.Context, id uuid.UUID, params types.GetGcRunParams) error {
	if err := mayCollect(c); err != nil {
		return err
	}
	wait := time.Duration(0)
	if params.Wait != nil {
		wait = seconds(min(*params.Wait, maxWait.Seconds()))
	}
	defer boundCall(c, wait+callDeadline)()
	ctx := c.Request().Context()
	waiting, stop := s.untilDraining(ctx, true)
	defer stop()
	waiting, cancel := context.WithTimeout(waiting, wait)
	defer cancel()
	for {
		run, err := s.collector.CollectRun(ctx, id)
		if err != nil {
			return err
		}
		if run.State == stateRunning {
			select {
			case <-waiting.Done():
			case <-time.After(runLook):
				continue
			}
		}
		return writeJSON(c, http.StatusOK, run)
	}
}

// ListGcRuns answers the last collections.
func (s *Server) ListGcRuns(c echo.Context, params types.ListGcRunsParams) error {
	if err := mayCollect(c); err != nil {
		return err
	}
	runs, err := s.collector.CollectRuns(c.Request().Context(), page(params.Limit, nil).Limit)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, types.GcRunPage{Items: listed(runs)})
}

// ListGcPlans answers the last plans.
func (s *Server) ListGcPlans(c echo.Context, params types.ListGcPlansParams) error {
	if err := mayCollect(c); err != nil {
		return err
	}
	plans, err := s.collector.CollectPlans(c.Request().Context(), page(params.Limit, nil).Limit)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, types.GcPlanPage{Items: listed(plans)})
}

// GetGcPlan answers what a plan says.
func (s *Server) GetGcPlan(c echo.Context, id uuid.UUID) error {
	if err := mayCollect(c); err != nil {
		return err
	}
	plan, err := s.collector.CollectPlan(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, plan)
}

// ListGcPlanItems answers a page of a plan's items.
func (s *Server) ListGcPlanItems(c echo.Context, id uuid.UUID, params types.ListGcPlanItemsParams) error {
	if err := mayCollect(c); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if _, err := s.collector.CollectPlan(ctx, id); err != nil {
		return err
	}
	p := page(params.Limit, params.Cursor)
	items, next, err := s.collector.CollectPlanItems(ctx, id, p.Cursor, p.Limit)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, types.GcPlanItemPage{Items: listed(items), NextCursor: optional(next)})
}

// ExplainKey answers what collection makes of an object.
func (s *Server) ExplainKey(c echo.Context, params types.ExplainKeyParams) error {
	if err := mayCollect(c); err != nil {
		return err
	}
	if err := checkText("key", params.Key); err != nil {
		return err
	}
	e, err := s.collector.Explain(c.Request().Context(), params.Key)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, e)
}

// listed is never null in an answer.
func listed[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
