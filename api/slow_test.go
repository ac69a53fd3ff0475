package api

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A caller who begins a request and does not go on is hung up on.
func TestSlowHeaders(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil && strings.Contains(err.Error(), "i/o timeout") {
		t.Error("half a header is waited for, for a minute already")
	}
}

// deadlines is a ResponseWriter that keeps the read deadline of its connection.
type deadlines struct {
	http.ResponseWriter
	read time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.read = at; return nil }

// slowBody is a body whose reader looks whether anything bounds the wait for it.
type slowBody struct {
	t    *testing.T
	of   *deadlines
	most time.Duration
	n    int
}

func (b *slowBody) Read(p []byte) (int, error) {
	b.t.Helper()
	if left := time.Until(b.of.read); b.of.read.IsZero() || left > b.most {
		b.t.Errorf("a body may take until %v to arrive", b.of.read)
	}
	if b.n--; b.n < 0 {
		return 0, io.EOF
	}
	return copy(p, "1"), nil
}

// No body is waited for longer than its deadline, and the deadline does not stay for what the
// connection does next.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	for name, read := range map[string]func(d *deadlines) error{
		"JSON": func(d *deadlines) error {
			r := httptest.NewRequest(http.MethodPost, "/", &slowBody{t: t, of: d, most: jsonDeadline, n: 3})
			_, err := readBody(h.server.echo.NewContext(r, d), 10)
			return err
		},
		"bytes": func(d *deadlines) error {
			r := httptest.NewRequest(http.MethodPut, "/", &slowBody{t: t, of: d, most: stallLimit, n: 3})
			_, err := io.Copy(io.Discard, newArrival(h.server.echo.NewContext(r, d)))
			return err
		},
	} {
		d := &deadlines{ResponseWriter: httptest.NewRecorder()}
		if err := read(d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !d.read.IsZero() {
			t.Errorf("%s: a deadline stays", name)
		}
	}
}

// A body that is too large is refused whether its size was announced or not, and is not kept.
func TestBodySizes(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	for name, body := range map[string]io.Reader{
		"announced": strings.NewReader(strings.Repeat(" ", maxJSONBody+1)),
		"unknown":   io.MultiReader(strings.NewReader(strings.Repeat(" ", maxJSONBody+1))),
	} {
		r := h.admin.request(http.MethodPost, "/v1/resolve", body)
		if announced := r.ContentLength > 0; announced != (name == "announced") {
			t.Fatalf("%s: Content-Length %d", name, r.ContentLength)
		}
		h.admin.send(r).problem(http.StatusRequestEntityTooLarge, "too-large")
	}
	// What is announced to be too large is refused before any of it is read.
	var large *http.MaxBytesError
	body := &counting{}
	r := httptest.NewRequest(http.MethodPost, "/", body)
	r.ContentLength = maxJSONBody + 1
	if _, err := h.server.takeJSON(h.server.echo.NewContext(r, httptest.NewRecorder()), &operation{}); !errors.As(err, &large) || body.reads > 0 {
		t.Errorf("after %d reads: %v", body.reads, err)
	}
	// One byte more than is allowed tells that there is more; the rest is not read.
	c := h.server.echo.NewContext(httptest.NewRequest(http.MethodPost, "/", endless{}), httptest.NewRecorder())
	if _, err := readBody(c, 10); !errors.As(err, &large) {
		t.Errorf("a body without an end: %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type counting struct {
	endless
	reads int
}

func (c *counting) Read(p []byte) (int, error) {
	c.reads++
	return c.endless.Read(p)
}
