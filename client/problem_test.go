package client_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/artifactd/artifactd/client"
)

func TestProblems(t *testing.T) {
	s := newService(t)
	c := s.client(t)
	s.on("GET /v1/pointers/a", refuses(404, "nothing-published", "field", "name"))
	_, err := c.Resolve(t.Context(), "a")
	var p *client.Problem
	if !errors.Is(err, client.ErrNothingPublished) || errors.Is(err, client.ErrNotFound) || !errors.As(err, &p) {
		t.Fatalf("error %v", err)
	}
	if p.Status != 404 || p.Field != "name" || p.Error() != "nothing-published: because (field name)" {
		t.Errorf("problem %+v: %v", p, p)
	}
	// Somebody else's answer.
	s.on("GET /v1/pointers/a", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusForbidden) })
	if _, err := c.Resolve(t.Context(), "a"); !errors.Is(err, client.ErrForbidden) {
		t.Errorf("error %v", err)
	}
	// A success that is none of ours.
	s.on("GET /v1/pointers/a", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	if _, err := c.Resolve(t.Context(), "a"); err == nil {
		t.Error("HTML was taken for an answer")
	}
	// A service that comes back.
	s.on("GET /v1/pointers/a", refuses(503, "unavailable"), breaksOff, replies(200, map[string]any{"version": "1.1"}))
	if v, err := c.Resolve(t.Context(), "a"); err != nil || v.Version != "1.1" {
		t.Errorf("got %+v, %v", v, err)
	}
}

func TestNewRefusesWhatIsNoAddress(t *testing.T) {
	for _, bad := range []string{"", "localhost:8080", "ftp://host", "http://", "http://host/?q=1"} {
		if _, err := client.New(bad, "", client.Options{}); err == nil {
			t.Errorf("New took %q", bad)
		}
	}
}
