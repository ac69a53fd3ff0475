package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/labstack/echo/v4"
)

const (
	jsonMediaType = "application/json"
	// maxJSONBody and maxJSONValues are the most bytes and the most values (members, elements) of a
	// JSON body, unless largeBodies allows a call more. Checking a body makes a tree of it, in which
	// each value takes some hundred bytes, however short it was written.
	maxJSONBody   = 512 << 10
	maxJSONValues = 20_000
	// jsonDeadline is how long the JSON body of a request may take to arrive.
	jsonDeadline = 30 * time.Second
	// maxDrain is how much of a refused body is read off, in bytes: most clients look for the
	// answer only after they have sent everything, and lose it when the connection closes first.
	maxDrain = 32 << 20
	// drainDeadline bounds the time for that.
	drainDeadline = 10 * time.Second

	bodyKey = "artifactd.body"
)

// readUpTo reads at most limit bytes, into memory of the right size when that is announced.
func readUpTo(r io.Reader, limit, announced int64) ([]byte, error) {
	var b bytes.Buffer
	if announced > 0 {
		b.Grow(int(min(announced, limit)) + bytes.MinRead) // ReadFrom wants that much room to see the end
	}
	_, err := b.ReadFrom(io.LimitReader(r, limit))
	return b.Bytes(), err
}

// bodyLimit is what a JSON body may have at most.
type bodyLimit struct {
	bytes  int64
	values int
}

// largeBodies are the calls whose own limits (files, parts, pointers with their metadata) reach
// further.
var largeBodies = map[string]bodyLimit{
	"StageFiles":       {bytes: 4 << 20, values: maxJSONValues},
	"CompleteArtifact": {bytes: 2 << 20, values: 100_000},
	"PublishMany":      {bytes: 2 << 20, values: 100_000},
}

func (op *operation) bodyLimit() bodyLimit {
	if l, ok := largeBodies[op.id]; ok {
		return l
	}
	return bodyLimit{bytes: maxJSONBody, values: maxJSONValues}
}

// takeJSON reads and checks the body. What it returns is to be called when nobody needs it any more.
func (s *Server) takeJSON(c echo.Context, op *operation) (done func(), err error) {
	size, limit := c.Request().ContentLength, op.bodyLimit().bytes
	if size > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	if size < 0 {
		size = limit
	}
	if done, err = s.hold(c, size); err != nil {
		return nil, err
	}
	if err := s.readJSON(c, op); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// readJSON reads the body, checks that it is one JSON value as the document describes it, and
// leaves it for [decode].
func (s *Server) readJSON(c echo.Context, op *operation) error {
	r := c.Request()
	limit := op.bodyLimit()
	body, err := readBody(c, limit.bytes)
	if err != nil {
		return err
	}
	if len(body) > maxJSONBody {
		// The memory for checking is many times the body's: large ones take turns.
		select {
		case s.largeBody <- struct{}{}:
			defer func() { <-s.largeBody }()
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	if len(body) > 0 {
		if media, _, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType)); err != nil || media != jsonMediaType {
			return errUnsupportedMedia
		}
		if err := checkJSON(body, limit.values); err != nil {
			return err
		}
	}
	if err := validateBody(op, body); err != nil {
		return err
	}
	c.Set(bodyKey, body)
	return nil
}

// validateBody holds a JSON body against the document. The library's own function does the same on
// copies of the body.
func validateBody(op *operation, body []byte) error {
	described := op.route.Operation.RequestBody.Value
	refused := func(err error) error { return &openapi3filter.RequestError{RequestBody: described, Err: err} }
	if len(body) == 0 {
		if described.Required {
			return refused(openapi3filter.ErrInvalidRequired)
		}
		return nil
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return invalid("body", "body: %v", err)
	}
	if err := described.Content[jsonMediaType].Schema.Value.VisitJSON(value, openapi3.VisitAsRequest()); err != nil {
		return refused(err)
	}
	return nil
}

// readBody takes at most limit bytes, within jsonDeadline.
func readBody(c echo.Context, limit int64) ([]byte, error) {
	r := c.Request()
	control := http.NewResponseController(c.Response().Writer)
	_ = control.SetReadDeadline(time.Now().Add(jsonDeadline))
	body, err := readUpTo(r.Body, limit+1, r.ContentLength)
	// The server watches the connection while the handler runs; an old deadline would look to it
	// like a caller who hung up.
	_ = control.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, invalid("body", "body: it did not arrive within %s", jsonDeadline)
	case err != nil:
		return nil, invalid("body", "body: it ended early")
	case int64(len(body)) > limit:
		return nil, &http.MaxBytesError{Limit: limit}
	}
	return body, nil
}

// checkJSON refuses what is not exactly one JSON value, what has more values in it than the call can
// need, and texts that would not survive the way to the database unchanged.
func checkJSON(body []byte, maxValues int) error {
	if !utf8.Valid(body) {
		return invalid("body", "body: not valid UTF-8")
	}
	if !json.Valid(body) {
		var v any
		return invalid("body", "body: not one JSON value: %v", json.Unmarshal(body, &v))
	}
	if n := countValues(body); n > maxValues {
		return &fault{kind: errTooLarge, field: "body", detail: fmt.Sprintf("The body has %d JSON values, and this call takes at most %d.", n, maxValues)}
	}
	return checkEscapes(body)
}

// countValues counts the values in body, which is valid JSON, those within others included.
func countValues(body []byte) int {
	n, text := 1, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == ',' || c == '[' || c == '{':
			n++ // an empty array or object counts one too many
		}
	}
	return n
}

// checkEscapes refuses NUL, which Postgres does not store, and lone surrogates, which decoding
// would silently turn into another character. whole is valid JSON.
func checkEscapes(whole []byte) error {
	body := whole
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
			field := "body"
			var v any
			if json.Unmarshal(whole, &v) == nil {
				field = cmp.Or(memberPath(memberWithNUL(v)), field)
			}
			return invalid(field, `%s: it contains \u0000; NUL characters are not taken`, field)
		case !utf16.IsSurrogate(unit):
		case utf16.DecodeRune(unit, escapeUnit(body)) == utf8.RuneError:
			return invalid("body", "body: it contains half of a surrogate pair")
		default:
			body = body[6:]
		}
	}
}

// memberWithNUL leads to a text with a NUL character, or to the object that has one in a name; nil
// when the whole value is that text.
func memberWithNUL(v any) []string {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if strings.Contains(name, "\x00") {
				return nil
			}
			if hasNUL(v[name]) {
				return append([]string{name}, memberWithNUL(v[name])...)
			}
		}
	case []any:
		if i := slices.IndexFunc(v, hasNUL); i >= 0 {
			return append([]string{strconv.Itoa(i)}, memberWithNUL(v[i])...)
		}
	}
	return nil
}

func hasNUL(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, "\x00")
	case []any:
		return slices.ContainsFunc(v, hasNUL)
	case map[string]any:
		for name, member := range v {
			if strings.Contains(name, "\x00") || hasNUL(member) {
				return true
			}
		}
	}
	return false
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
