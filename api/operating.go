package api

import (
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// RunGc collects now and answers what was done. The run goes on when the caller hangs up only as
// far as the collector's own steps reach; it can be stopped anywhere.
func (s *Server) RunGc(c echo.Context) error {
	if who := callerOf(c); !who.mayEverywhere(pointer.ScopeAdmin) {
		return who.refuse(pointer.ScopeAdmin, "every pointer (*)")
	}
	in, err := decode[types.GcRequest](c)
	if err != nil {
		return err
	}
	report, err := s.collector.Collect(c.Request().Context(), in.DryRun != nil && *in.DryRun)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, gcRun(report))
}

// ListGcRuns answers the last collections.
func (s *Server) ListGcRuns(c echo.Context, params types.ListGcRunsParams) error {
	if who := callerOf(c); !who.mayEverywhere(pointer.ScopeAdmin) {
		return who.refuse(pointer.ScopeAdmin, "every pointer (*)")
	}
	runs, err := s.collector.CollectRuns(c.Request().Context(), page(params.Limit, nil).Limit)
	if err != nil {
		return err
	}
	out := types.GcRunPage{Items: make([]types.GcRun, 0, len(runs))}
	for _, r := range runs {
		out.Items = append(out.Items, gcRun(r))
	}
	return writeJSON(c, http.StatusOK, out)
}

func gcRun(r CollectReport) types.GcRun {
	by := r.ByReason
	if by == nil {
		by = map[string]int64{}
	}
	return types.GcRun{
		StartedAt: r.StartedAt.UTC(), FinishedAt: r.FinishedAt.UTC(), DryRun: r.DryRun,
		ExpiredLeases: &r.ExpiredLeases, CollectedGenerations: &r.CollectedGenerations,
		DeletedObjects: r.DeletedObjects, DeletedBytes: r.DeletedBytes, RetainedObjects: &r.RetainedObjects,
		FailedObjects: &r.FailedObjects, SkippedConflicts: &r.SkippedConflicts, ByReason: by, LedgerSize: r.LedgerSize,
		Error: optional(r.Error),
	}
}

// GetHealth says that the process answers. It touches nothing.
func (s *Server) GetHealth(c echo.Context) error {
	return writeJSON(c, http.StatusOK, types.Health{Status: "ok"})
}

// readyDeadline is how long the database may take to say that it is there. Whoever asks has a
// deadline too, and learns more from an answer than from silence.
const readyDeadline = 3 * time.Second

// GetReadiness says whether the service can do its work. While no write is admitted, because the
// database's history is in doubt, it is ready all the same, for reading, and says what was seen.
func (s *Server) GetReadiness(c echo.Context) error {
	select {
	case <-s.draining:
		return errUnavailable // leave this replica out while it shuts down
	default:
	}
	defer bindContext(c, readyDeadline)()
	if err := s.catalogue.Ready(c.Request().Context()); err != nil {
		return err
	}
	if sign := s.sign(); sign != "" {
		return writeJSON(c, http.StatusOK, types.Health{Status: "read-only", Detail: &sign})
	}
	return writeJSON(c, http.StatusOK, types.Health{Status: "ready"})
}

// GetMetrics answers the registry's metrics.
func (s *Server) GetMetrics(c echo.Context) error {
	promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}).ServeHTTP(c.Response(), c.Request())
	return nil
}

// GetOpenapiDocument answers the document that this package is generated from.
func (s *Server) GetOpenapiDocument(c echo.Context) error {
	h := c.Response().Header()
	h.Set(echo.HeaderCacheControl, "no-cache")
	return c.Blob(http.StatusOK, "application/yaml", document)
}

// checkText refuses a query's text that no stored text could match.
func checkText(field, text string) error {
	if !utf8.ValidString(text) || hasControl(text) {
		return invalid(field, "%s: not UTF-8 without control characters", field)
	}
	return nil
}
