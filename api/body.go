package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/labstack/echo/v4"
)

const (
	jsonMediaType = "application/json"
	// maxJSONBody is the largest JSON body in bytes. A stage call with 1,000 files at the longest
	// paths fits; other calls are far smaller.
	maxJSONBody = 4 << 20
	// jsonDeadline is how long the JSON body of a request may take to arrive.
	jsonDeadline = 30 * time.Second
	// maxDrain is how much of a refused body is read off, in bytes: most clients look for the
	// answer only after they have sent everything, and lose it when the connection closes first.
	maxDrain = 32 << 20
	// drainDeadline bounds the time for that.
	drainDeadline = 10 * time.Second

	bodyKey = "artifactd.body"
)

// readJSON reads the body, checks that it is one JSON value as the document describes it, and
// leaves it for [decode].
func (s *Server) readJSON(c echo.Context, op *operation, params map[string]string) error {
	r := c.Request()
	body, err := readBody(c)
	if err != nil {
		return err
	}
	if len(body) > 0 {
		if media, _, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType)); err != nil || media != jsonMediaType {
			return errUnsupportedMedia
		}
		if err := checkJSON(body); err != nil {
			return err
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	err = openapi3filter.ValidateRequestBody(r.Context(), &openapi3filter.RequestValidationInput{
		Request:    r,
		PathParams: params,
		Route:      op.route,
		Options:    &openapi3filter.Options{SkipSettingDefaults: true},
	}, op.route.Operation.RequestBody.Value)
	if err != nil {
		return err
	}
	c.Set(bodyKey, body)
	return nil
}

// readBody takes at most maxJSONBody bytes, within jsonDeadline.
func readBody(c echo.Context) ([]byte, error) {
	r := c.Request()
	if r.ContentLength > maxJSONBody {
		return nil, &http.MaxBytesError{Limit: maxJSONBody}
	}
	control := http.NewResponseController(c.Response().Writer)
	_ = control.SetReadDeadline(time.Now().Add(jsonDeadline))
	body, err := io.ReadAll(io.LimitReader(r.Body, maxJSONBody+1))
	// The server watches the connection while the handler runs; an old deadline would look to it
	// like a caller who hung up.
	_ = control.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, invalid("body", "body: it did not arrive within %s", jsonDeadline)
	case err != nil:
		return nil, invalid("body", "body: it ended early")
	case len(body) > maxJSONBody:
		return nil, &http.MaxBytesError{Limit: maxJSONBody}
	}
	return body, nil
}

// checkJSON refuses what is not exactly one JSON value, and texts that would not survive the way
// to the database unchanged.
func checkJSON(body []byte) error {
	if !utf8.Valid(body) {
		return invalid("body", "body: not valid UTF-8")
	}
	if !json.Valid(body) {
		var v any
		return invalid("body", "body: not one JSON value: %v", json.Unmarshal(body, &v))
	}
	return checkEscapes(body)
}

// checkEscapes refuses NUL, which Postgres does not store, and lone surrogates, which decoding
// would silently turn into another character. body is valid JSON.
func checkEscapes(body []byte) error {
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			return nil
		}
		if body[i+1] != 'u' {
			body = body[i+2:]
			continue
		}
		unit := escapeUnit(body[i:])
		body = body[i+6:]
		switch {
		case unit == 0:
			return invalid("body", `body: it contains \u0000; NUL characters are not taken`)
		case !utf16.IsSurrogate(unit):
		case utf16.DecodeRune(unit, escapeUnit(body)) == utf8.RuneError:
			return invalid("body", "body: it contains half of a surrogate pair")
		default:
			body = body[6:]
		}
	}
}

// escapeUnit is the UTF-16 unit of the \uXXXX that b begins with, or utf8.RuneError.
func escapeUnit(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return utf8.RuneError
	}
	v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return utf8.RuneError
	}
	return rune(v)
}

// decode gives a handler the body that readJSON has checked; the zero value when there was none.
func decode[T any](c echo.Context) (T, error) {
	var v T
	body, _ := c.Get(bodyKey).([]byte)
	if len(body) == 0 {
		return v, nil
	}
	err := json.Unmarshal(body, &v)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return v, invalid(wrong.Field, "%s: %s does not fit", wrong.Field, strings.TrimPrefix(wrong.Value, "number "))
	}
	if err != nil {
		return v, invalid("body", "body: %v", err)
	}
	return v, nil
}

// drain reads off what is left of a refused request's body. A client that waits for permission to
// send it (Expect: 100-continue) is answered at once instead.
func drain(c echo.Context, body io.Reader) {
	if body == nil || body == http.NoBody || c.Request().Header.Get("Expect") != "" {
		return
	}
	_ = http.NewResponseController(c.Response().Writer).SetReadDeadline(time.Now().Add(drainDeadline))
	_, _ = io.CopyN(io.Discard, body, maxDrain)
}

// bindContext puts a deadline on the request's context. What it returns releases it.
func bindContext(c echo.Context, d time.Duration) context.CancelFunc {
	ctx, cancel := context.WithTimeout(c.Request().Context(), d)
	c.SetRequest(c.Request().WithContext(ctx))
	return cancel
}
