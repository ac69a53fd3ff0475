package client_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// Who waits is told at once that somebody else holds the lease, and once; who does not wait gets that as
// the error alone. The first call therefore does not wait.
func TestHeldIsToldAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const route = "POST /v1/pointers/a/leases"
	held := refuses(http.StatusLocked, "lease-held", "holder", "B", "expires_in_seconds", 0.01)
	s.on(route, held, held, replies(http.StatusCreated, types.Lease{Token: "1.1", ExpiresInSeconds: 60, TtlSeconds: 60}))
	var told []string
	o := client.AcquireOptions{Holder: "A", Wait: time.Hour, Held: func(p *client.Problem) { told = append(told, p.Holder) }}
	if l, err := s.client(t).Acquire(t.Context(), "a", o); err != nil || l.Token != "1.1" || len(told) != 1 || told[0] != "B" || s.count(route) != 3 {
		t.Errorf("%v, %v; told %q, asked %d times", l, err, told, s.count(route))
	}
	s.on(route, held)
	o.Wait, told = 0, nil
	if _, err := s.client(t).Acquire(t.Context(), "a", o); err == nil || len(told) != 0 {
		t.Errorf("%v; told %q", err, told)
	}
}

// Silence is told of once by a client, however many calls go without an answer; how long it goes on is
// told as it is.
func TestSilenceIsToldOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.on("GET /v1/pointers/a", hangs)
	s.on("GET /v1/pointers/b", refuses(http.StatusServiceUnavailable, "unavailable"))
	told := make(chan client.Silence, 10)
	c, err := client.New(s.URL, "", client.Options{Silent: func(q client.Silence) { told <- q }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var calls []chan error
	for _, name := range []string{"a", "a", "b"} {
		done := make(chan error, 1)
		calls = append(calls, done)
		go func() {
			_, err := c.Resolve(t.Context(), name)
			done <- err
		}()
	}
	q := <-told
	if !q.Connected || q.Left <= 0 || q.Left > 2*time.Minute || q.Host == "" {
		t.Errorf("told %+v", q)
	}
	<-calls[2] // it has tried for as long as it does
	if len(told) != 0 {
		t.Errorf("told again: %+v", <-told)
	}
}

// A service that says for some seconds that it cannot now, and to ask again in one, is waited for: it is the
// time that bounds the tries, not their number.
func TestShortPausesDoNotEndTheRetries(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var answers []http.HandlerFunc
	for range 10 {
		answers = append(answers, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "1")
			refuses(http.StatusServiceUnavailable, "unavailable")(w, r)
		})
	}
	s.on("GET /v1/pointers/a", append(answers, replies(http.StatusOK, types.ResolvedVersion{Version: "1.1"}))...)
	if v, err := s.client(t).Resolve(t.Context(), "a"); err != nil || v.Version != "1.1" {
		t.Errorf("%+v, %v after %d tries", v, err, s.count("GET /v1/pointers/a"))
	}
}
