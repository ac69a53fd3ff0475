package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/pointer"
)

// writeJSON sends v with a Content-Length. It keeps a Content-Type that is already set.
func writeJSON(c echo.Context, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeBody(c, status, b)
}

// largeAnswer is how many bytes the answer to a GET has that is counted while it is sent: whoever takes
// it slowly keeps it in memory. Where something was done the answer is not refused any more.
const largeAnswer = 256 << 10

// writeBody sends JSON that is encoded already.
func writeBody(c echo.Context, status int, b []byte) error {
	caller, counted := c.Get(bucketKey).(*bucket)
	if counted && len(b) > largeAnswer && c.Request().Method == http.MethodGet {
		done, err := caller.hold(c, int64(len(b)))
		if err != nil {
			return err
		}
		defer done()
	}
	h := c.Response().Header()
	if h.Get(echo.HeaderContentType) == "" {
		h.Set(echo.HeaderContentType, jsonMediaType)
	}
	if h.Get(echo.HeaderCacheControl) == "" {
		h.Set(echo.HeaderCacheControl, "no-store")
	}
	setSendDeadline(c)
	c.Response().WriteHeader(status)
	_, err := c.Response().Write(b)
	return err
}

// fileURL is the pinned URL of a file. Each segment of the path is percent-encoded by itself.
func (s *Server) fileURL(name string, token pointer.Token, path string) string {
	var b strings.Builder
	b.Grow(len(s.publicURL) + len(name) + len(path) + 48)
	b.WriteString(s.publicURL)
	b.WriteString("/v1/pointers/")
	b.WriteString(name) // letters, digits, dots, underscores and dashes
	b.WriteString("/versions/")
	b.WriteString(token.String())
	b.WriteString("/files")
	for segment := range strings.SplitSeq(path, "/") {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(segment))
	}
	return b.String()
}

// setSendDeadline gives the connection a while for what is sent next. A connection keeps its write
// deadline from one request to the next, so that every answer has to set one.
func setSendDeadline(c echo.Context) {
	// A connection that does not take deadlines (a test's recorder) goes without.
	_ = http.NewResponseController(c.Response().Writer).SetWriteDeadline(time.Now().Add(callDeadline + sendDeadline))
}
