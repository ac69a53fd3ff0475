package daemon

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api"
	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/pointer"
)

// collectorAdapter gives the API the collector in the API's own words, and carries runs on that
// nobody waits for any more.
type collectorAdapter struct {
	collector *gc.Collector
	confirm   func() (epoch int64, err error) // says why no write is admitted at this moment
	layout    artifacts.Layout
	logger    *slog.Logger

	ctx     context.Context // of the runs
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newCollectorAdapter(c *gc.Collector, confirm func() (int64, error), layout artifacts.Layout, logger *slog.Logger) *collectorAdapter {
	ctx, cancel := context.WithCancel(context.Background())
	return &collectorAdapter{collector: c, confirm: confirm, layout: layout, logger: logger, ctx: ctx, cancel: cancel}
}

// stop ends the runs under way and waits for them. What they did is durable.
func (a *collectorAdapter) stop() {
	a.cancel()
	a.running.Wait()
}

func (a *collectorAdapter) Collect(ctx context.Context, r api.CollectRequest) (types.GcRun, error) {
	// The database refuses too, but does not know whether a person is needed.
	if _, err := a.confirm(); errors.Is(err, pointer.ErrHistoryChanged) {
		return types.GcRun{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return types.GcRun{}, err
	}
	started := make(chan struct{})
	run := gc.RunOptions{RunID: id, Started: func() { close(started) }, DryRun: r.DryRun, Pointer: r.Pointer}
	if r.PlanID != nil {
		run.PlanID = *r.PlanID
	}
	type outcome struct {
		report gc.Report
		err    error
	}
	done := make(chan outcome, 1)
	a.running.Go(func() {
		report, err := a.collector.RunOnce(a.ctx, run)
		if err != nil && inAPIWords(err) == err {
			a.logger.Error("a collection that was asked for failed", "run_id", id, "error", err)
		}
		done <- outcome{report, err}
	})
	select {
	case <-started: // so that whoever is told the id finds the run
	case o := <-done:
		return gcRun(o.report), inAPIWords(o.err)
	}
	select {
	case o := <-done:
		return gcRun(o.report), inAPIWords(o.err)
	case <-ctx.Done():
		return gcRun(gc.Report{RunID: id, State: gc.RunRunning, StartedAt: time.Now(), DryRun: r.DryRun, PlanID: r.PlanID}), api.ErrStillCollecting
	}
}

// inAPIWords translates the collector's refusals; every other error stays what it is.
func inAPIWords(err error) error {
	for _, pair := range [][2]error{
		{gc.ErrRunNotFound, api.ErrRunNotFound}, {gc.ErrPlanNotFound, api.ErrPlanNotFound}, {gc.ErrPlanIncomplete, api.ErrPlanNotFound},
		{gc.ErrPlanExpired, api.ErrPlanExpired}, {artifacts.ErrForeignKey, api.ErrForeignKey},
	} {
		if errors.Is(err, pair[0]) {
			return fmt.Errorf("%w: %w", pair[1], err)
		}
	}
	return err
}

func (a *collectorAdapter) CollectRun(ctx context.Context, id uuid.UUID) (types.GcRun, error) {
	r, err := a.collector.Run(ctx, id)
	return gcRun(r), inAPIWords(err)
}

func (a *collectorAdapter) CollectRuns(ctx context.Context, limit int) ([]types.GcRun, error) {
	return translated(gcRun)(a.collector.Runs(ctx, limit))
}

func (a *collectorAdapter) CollectPlans(ctx context.Context, limit int) ([]types.GcPlan, error) {
	return translated(gcPlan)(a.collector.Plans(ctx, limit))
}

func (a *collectorAdapter) CollectPlan(ctx context.Context, id uuid.UUID) (types.GcPlan, error) {
	p, err := a.collector.PlanByID(ctx, id)
	return gcPlan(p), inAPIWords(err)
}

func (a *collectorAdapter) CollectPlanItems(ctx context.Context, id uuid.UUID, cursor string, limit int) ([]types.GcPlanItem, string, error) {
	var at gc.PlanCursor
	if cursor != "" {
		text, err := base64.RawURLEncoding.DecodeString(cursor)
		if err != nil || json.Unmarshal(text, &at) != nil {
			return nil, "", &pointer.InvalidError{Field: "cursor", Detail: "not a cursor that this service gave"}
		}
	}
	items, at, err := a.collector.PlanItems(ctx, id, at, limit)
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(items) == limit {
		text, err := json.Marshal(at)
		if err != nil {
			return nil, "", err
		}
		next = base64.RawURLEncoding.EncodeToString(text)
	}
	out, err := translated(gcPlanItem)(items, nil)
	return out, next, err
}

func (a *collectorAdapter) Explain(ctx context.Context, key string) (types.GcExplanation, error) {
	e, err := a.collector.Explain(ctx, a.layout, key)
	return gcExplanation(e), inAPIWords(err)
}

// translated lifts a translation to lists.
func translated[F, T any](one func(F) T) func([]F, error) ([]T, error) {
	return func(list []F, err error) ([]T, error) {
		out := make([]T, len(list))
		for i, item := range list {
			out[i] = one(item)
		}
		return out, err
	}
}
