package api

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
)

const (
	// bucketKey is where the bucket is kept that a request is counted in, or was too many for.
	bucketKey = "artifactd.bucket"
	// operationKey is where a request's operation is kept.
	operationKey = "artifactd.operation"
	// hiddenKey is where the pointer is kept that a request was about and that its caller may not know of.
	hiddenKey = "artifactd.hidden"
)

// hide notes which pointer's lease, artifact or operation the caller is told not to exist: the answer
// is what it would be if that were true, and only the log tells the difference.
func hide(c echo.Context, name string) { c.Set(hiddenKey, name) }

// auditRefusal logs who was refused what, and from where. No line has a credential in it.
func (s *Server) auditRefusal(c echo.Context, p types.Problem, cause error) {
	hidden, _ := c.Get(hiddenKey).(string)
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
	default:
		if hidden == "" && p.Code != kindPublishRefused.code && p.Code != kindLeaseLost.code {
			return
		}
	}
	attrs := []slog.Attr{slog.String("code", p.Code)}
	if hidden != "" {
		attrs = append(attrs, slog.String("hidden_pointer", hidden))
	}
	if p.Reason != nil {
		attrs = append(attrs, slog.String("reason", *p.Reason))
	}
	if p.OperationId != nil {
		attrs = append(attrs, slog.String("operation_id", *p.OperationId))
	}
	attrs = append(attrs, slog.String("detail", p.Detail))
	if v := slog.LogValuer(nil); errors.As(cause, &v) {
		attrs = append(attrs, slog.Any("cause", v))
	}
	s.logRefusal(c, p.Status == http.StatusTooManyRequests, attrs...)
}

// auditForbidden logs the names that one call of many was refused.
func (s *Server) auditForbidden(c echo.Context, names []string) {
	if len(names) > 0 {
		p, _, _ := problemOf(errForbidden)
		s.logRefusal(c, false, slog.String("code", p.Code), slog.Int("pointers", len(names)), slog.String("first_pointer", names[0]))
	}
}

// logRefusal writes a line unless its caller had too many.
func (s *Server) logRefusal(c echo.Context, excess bool, attrs ...slog.Attr) {
	unlogged, yes := s.bucketOf(c).logs(excess)
	if !yes {
		return
	}
	attrs = append(s.auditAttrs(c), attrs...)
	if unlogged > 0 {
		attrs = append(attrs, slog.Int64("more_since_last_line", unlogged))
	}
	s.logger.LogAttrs(c.Request().Context(), slog.LevelWarn, "audit: refused", attrs...)
}

// bucketOf is the bucket that a request is counted in; of one that was never let in, that of the
// failures of its address.
func (s *Server) bucketOf(c echo.Context) *bucket {
	if b, ok := c.Get(bucketKey).(*bucket); ok {
		return b
	}
	return s.limits.failures.of(s.limits.address(c))
}

// auditedOperations are no administrators' alone, but change more than one's own publication.
var auditedOperations = map[string]bool{"PinVersion": true, "UnpinVersion": true, "Rollback": true}

// auditAct logs what an administrator did, or may have done: an error that is no refusal does not say
// that nothing happened.
func (s *Server) auditAct(c echo.Context, op *operation, err error) {
	administers := op.access == accessAdmin && op.route.Method != http.MethodGet && op.route.Method != http.MethodHead
	if !administers && !auditedOperations[op.id] {
		return
	}
	status, code := c.Response().Status, ""
	if err != nil && !c.Response().Committed {
		p, _, _ := problemOf(err)
		status, code = p.Status, p.Code
	}
	if code != "" && status < http.StatusInternalServerError {
		return
	}
	attrs := append(s.auditAttrs(c), slog.Int("status", status))
	if code != "" {
		attrs = append(attrs, slog.String("code", code))
	}
	s.logger.LogAttrs(c.Request().Context(), slog.LevelInfo, "audit: administered", attrs...)
}

// auditAttrs say who, what and from where.
func (s *Server) auditAttrs(c echo.Context) []slog.Attr {
	r := c.Request()
	attrs := []slog.Attr{slog.String("remote", c.RealIP()), slog.String("method", r.Method), slog.String("path", r.URL.Path)}
	if op, ok := c.Get(operationKey).(*operation); ok {
		attrs = append(attrs, slog.String("operation", op.id))
	}
	who := callerOf(c).known
	if who == nil {
		return append(attrs, slog.String("caller", "anonymous"))
	}
	attrs = append(attrs, slog.String("caller", who.Name), slog.String("caller_id", who.ID.String()))
	if who.Issuer != "" {
		attrs = append(attrs, slog.String("issuer", who.Issuer))
	}
	return attrs
}
