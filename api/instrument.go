package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/api/types"
)

// metrics of the HTTP layer. No label carries a pointer's name or a caller's.
type metrics struct {
	requests *prometheus.CounterVec   // route, method, status
	seconds  *prometheus.HistogramVec // route, method
	problems *prometheus.CounterVec   // code, reason
	inFlight prometheus.Gauge
	received prometheus.Counter // bytes of artifacts
	sent     prometheus.Counter // bytes of artifacts
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "artifactd_http_requests_total", Help: "Requests answered, by route, method and status.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "artifactd_http_request_seconds", Help: "Time from a request's headers to the end of its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"route", "method"}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "artifactd_http_problems_total", Help: "Problem documents answered, by code and reason.",
		}, []string{"code", "reason"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "artifactd_http_requests_in_flight", Help: "Requests being answered.",
		}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "artifactd_http_artifact_received_bytes_total", Help: "Bytes of artifacts taken through the service.",
		}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "artifactd_http_artifact_sent_bytes_total", Help: "Bytes of artifacts sent through the service.",
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.problems, m.inFlight, m.received, m.sent} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// codeKey holds the problem code of a request for the access log.
const codeKey = "artifactd.code"

// instrument counts, times and logs every request, and turns a handler's error or panic into its
// answer.
func (s *Server) instrument(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		body := c.Request().Body
		s.metrics.inFlight.Inc()
		aborted := true
		defer func() {
			s.metrics.inFlight.Dec()
			s.record(c, start, aborted)
		}()
		if err := s.callSafely(next, c); err != nil {
			drain(c, body)
			c.Error(err)
		}
		aborted = false
		return nil
	}
}

// panicError is a handler's panic as an error.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return "panic in a handler" }

// callSafely turns a panic into an error, except the one by which a handler breaks off the
// connection on purpose.
func (s *Server) callSafely(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			panic(v)
		}
		err = &panicError{value: v, stack: debug.Stack()}
	}()
	return next(c)
}

// record writes one request into the metrics and the access log.
func (s *Server) record(c echo.Context, start time.Time, aborted bool) {
	r, took := c.Request(), time.Since(start)
	route := c.Path()
	if code, _ := c.Get(codeKey).(string); route == "" || code == "not-found" || code == "method-not-allowed" {
		route = "unmatched" // a stranger's paths must not become labels
	}
	status := strconv.Itoa(c.Response().Status)
	if aborted {
		status = "aborted"
	}
	method := knownMethod(r.Method)
	s.metrics.requests.WithLabelValues(route, method, status).Inc()
	s.metrics.seconds.WithLabelValues(route, method).Observe(took.Seconds())
	if !s.logger.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	code, _ := c.Get(codeKey).(string)
	s.logger.LogAttrs(r.Context(), slog.LevelDebug, "request",
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.String("route", route),
		slog.String("status", status), slog.String("code", code), slog.Duration("took", took),
		slog.Int64("bytes", c.Response().Size), slog.String("remote", c.RealIP()), slog.String("caller", callerOf(c).label()))
}

// knownMethod keeps invented methods out of the labels.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodOptions, http.MethodPatch:
		return m
	}
	return "other"
}

// writeError is the one place that turns an error into an answer.
func (s *Server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		// Part of an answer is out. Only a broken connection tells the caller that the rest is missing.
		s.logger.LogAttrs(c.Request().Context(), slog.LevelDebug, "answer broken off", slog.String("path", c.Request().URL.Path), slog.Any("error", err))
		panic(http.ErrAbortHandler)
	}
	p, retryAfter := s.problem(c, err)
	c.Set(codeKey, p.Code)
	h := c.Response().Header()
	if retryAfter > 0 {
		h.Set(echo.HeaderRetryAfter, retryAfterSeconds(retryAfter))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set(echo.HeaderWWWAuthenticate, `Bearer realm="artifactd"`)
	}
	writeProblem(c, p)
}

// problem tells an error to the caller, and to whom it may concern here.
func (s *Server) problem(c echo.Context, err error) (types.Problem, time.Duration) {
	p, retryAfter, unexpected := problemOf(err)
	if unexpected {
		id := uuid.NewString()
		p.ErrorId = &id
		s.logUnexpected(c, id, err)
	} else if p.Status == http.StatusServiceUnavailable && errors.Is(c.Request().Context().Err(), context.Canceled) {
		// A watch that ends, or Ctrl-C: nothing is wrong here, and nobody reads the answer.
		s.logger.LogAttrs(c.Request().Context(), slog.LevelDebug, "the caller is gone", slog.String("route", c.Path()), slog.Any("error", err))
	} else if p.Status == http.StatusServiceUnavailable {
		s.logger.LogAttrs(c.Request().Context(), slog.LevelWarn, "unavailable", slog.String("route", c.Path()), slog.Any("error", err))
	}
	reason := ""
	if p.Reason != nil {
		reason = *p.Reason
	}
	s.metrics.problems.WithLabelValues(p.Code, reason).Inc()
	s.auditRefusal(c, p, err)
	return p, retryAfter
}

// writeProblem sends the document, or its headers alone to a HEAD.
func writeProblem(c echo.Context, p types.Problem) {
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, problemMediaType)
	h.Set(echo.HeaderCacheControl, "no-store")
	for _, stale := range []string{"ETag", "Repr-Digest", "Content-Disposition", "Accept-Ranges", echo.HeaderContentLength, echo.HeaderLocation} {
		h.Del(stale)
	}
	if c.Request().Method == http.MethodHead {
		setSendDeadline(c)
		c.Response().WriteHeader(p.Status)
		return
	}
	// The caller may be gone; there is nobody left to tell.
	_ = writeJSON(c, p.Status, p)
}

// logUnexpected writes what the caller is not told, under the id that the caller has.
func (s *Server) logUnexpected(c echo.Context, id string, err error) {
	attrs := []slog.Attr{slog.String("error_id", id), slog.String("method", c.Request().Method), slog.String("route", c.Path()), slog.Any("error", err)}
	if p := (*panicError)(nil); errors.As(err, &p) {
		attrs = append(attrs, slog.Any("panic", p.value), slog.String("stack", string(p.stack)))
	}
	s.logger.LogAttrs(c.Request().Context(), slog.LevelError, "unexpected error", attrs...)
}
