package api

import (
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/artifactd/artifactd/api/types"
)

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
		return errDraining // leave this replica out while it shuts down
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
