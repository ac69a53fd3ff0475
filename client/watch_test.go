package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/artifactd/artifactd/client"
)

const watched = "GET /v1/pointers/x"

func showing(version string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"name": "x", "version": %q}`, version) // the client finds out
	}
}

func refusing(status int, code client.Code) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"code": %q, "status": %d}`, code, status) // the client finds out
	}
}

// knowing answers only those who say that they know a version.
func knowing(t *testing.T, version string, then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("If-None-Match"); got != version || r.URL.Query().Get("wait") == "" {
			t.Errorf("asked with If-None-Match %q and %q, want %q and a wait", got, r.URL.RawQuery, version)
		}
		then(w, r)
	}
}

func unchanged(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// silent never answers.
func silent(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // a server sees a hang-up only after that
	<-r.Context().Done()
}

// watching collects n versions of a watch, or what it gave before its error.
func watching(t *testing.T, s *service, after string, n int) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := client.New(s.URL, "", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got []string
	for v, err := range c.Watch(ctx, "x", after) {
		if err != nil {
			return got, err
		}
		if got = append(got, v.Version); len(got) == n {
			break
		}
	}
	return got, nil
}

func TestWatch(t *testing.T) {
	history := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"items": [{"version": "2.4", "state": "leased"}, {"version": "2.3", "state": "published"},
			{"version": "2.2", "state": "published"}, {"version": "2.1", "state": "expired"}, {"version": "1.10", "state": "published"},
			{"version": "1.9", "state": "published"}, {"version": "1.8", "state": "published"}]}`) // the client finds out
	}
	for name, test := range map[string]struct {
		after string
		shows []http.HandlerFunc
		want  []string
	}{
		"from nothing": {
			shows: []http.HandlerFunc{knowing(t, "", refusing(404, client.ErrNothingPublished)), showing("1.9")}, want: []string{"1.9"},
		},
		"goes on where it was": {
			after: "1.9", shows: []http.HandlerFunc{knowing(t, `"1.9"`, unchanged), knowing(t, `"1.9"`, showing("2.3"))},
			want: []string{"1.10", "2.3"},
		},
		"connection breaks": {
			shows: []http.HandlerFunc{showing("1.10"), knowing(t, `"1.10"`, hangUp), refusing(503, client.ErrUnavailable), knowing(t, `"1.10"`, showing("2.3"))},
			want:  []string{"1.10", "2.3"},
		},
		"ahead of what is shown": {
			after: "2.1", shows: []http.HandlerFunc{knowing(t, `"2.1"`, showing("1.10")), knowing(t, `"1.10"`, showing("2.3"))}, want: []string{"2.3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			s.on(watched, append(test.shows, silent)...)
			s.on("GET /v1/pointers/x/versions", history)
			s.on("GET /v1/pointers/x/versions/1.10", showing("1.10"))
			s.on("GET /v1/pointers/x/versions/2.2", refusing(404, client.ErrVersionNotFound)) // collected
			got, err := watching(t, s, test.after, len(test.want))
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("%v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestWatchEnds(t *testing.T) {
	s := newService(t)
	s.on(watched, showing("1.1"), refusing(410, client.ErrPointerRetired))
	if got, err := watching(t, s, "", 2); !errors.Is(err, client.ErrPointerRetired) || !slices.Equal(got, []string{"1.1"}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := watching(t, s, "1.x", 1); !errors.Is(err, client.ErrInvalidRequest) {
		t.Errorf("a bad version: %v", err)
	}
	// A service that was never there is an error soon.
	s.Close()
	began := time.Now()
	if _, err := watching(t, s, "", 1); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
