package client_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/artifactd/artifactd/client"
)

// service is a scripted service: every request takes the next handler of its route, and the last
// one stays.
type service struct {
	*httptest.Server
	t      *testing.T
	mu     sync.Mutex
	routes map[string][]http.HandlerFunc
	calls  map[string]int
}

func newService(t *testing.T) *service {
	s := &service{t: t, routes: map[string][]http.HandlerFunc{}, calls: map[string]int{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *service) on(route string, handlers ...http.HandlerFunc) { s.routes[route] = handlers }

func (s *service) count(route string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[route]
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route := r.Method + " " + r.URL.Path
	s.mu.Lock()
	handlers := s.routes[route]
	if len(handlers) > 1 {
		s.routes[route] = handlers[1:]
	}
	s.calls[route]++
	s.mu.Unlock()
	if len(handlers) == 0 {
		s.t.Errorf("unexpected request %s", route)
		http.NotFound(w, r)
		return
	}
	handlers[0](w, r)
}

func (s *service) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(s.URL, "artd_secret", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// replies answers a JSON document.
func replies(status int, v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if _, isProblem := v.(problem); isProblem {
			w.Header().Set("Content-Type", "application/problem+json")
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
}

type problem map[string]any

func refuses(status int, code string, members ...any) http.HandlerFunc {
	p := problem{"type": "/problems/" + code, "status": status, "code": code, "title": code, "detail": "because"}
	for i := 0; i < len(members); i += 2 {
		p[members[i].(string)] = members[i+1]
	}
	return replies(status, p)
}

// hangs gives no answer until the caller has hung up, which a server notices once it has read the body.
func hangs(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// breaksOff closes the connection without an answer, after the request was read.
func breaksOff(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	panic(http.ErrAbortHandler)
}
