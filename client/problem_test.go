package client_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/artifactd/artifactd/api/types"
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

// A call that is not idempotent is repeated when the service says that it did nothing, and only then.
func TestRefusedCallsAreRepeated(t *testing.T) {
	const retiring, collecting = "DELETE /v1/pointers/a", "POST /v1/gc/runs"
	s := newService(t)
	c := s.client(t)
	done := replies(200, types.GcRun{State: "done"})
	s.on(retiring, refuses(503, "history-changed"), refuses(429, "too-many-requests"), replies(204, nil))
	s.on(collecting, refuses(503, "history-changed"), refuses(429, "too-many-requests"), done)
	if err := c.RetirePointer(t.Context(), "a", "1.1"); err != nil || s.count(retiring) != 3 {
		t.Errorf("retired in %d calls: %v", s.count(retiring), err)
	}
	if _, err := c.Collect(t.Context(), types.GcRequest{}, nil); err != nil || s.count(collecting) != 3 {
		t.Errorf("collected in %d calls: %v", s.count(collecting), err)
	}
	for name, ambiguous := range map[string]http.HandlerFunc{"a proxy's 502": refuses(502, ""), "unavailable": refuses(503, "unavailable"), "no answer": breaksOff} {
		retired, collected := s.count(retiring), s.count(collecting)
		s.on(retiring, ambiguous, replies(204, nil))
		s.on(collecting, ambiguous, done)
		if err := c.RetirePointer(t.Context(), "a", "1.1"); err == nil || s.count(retiring) != retired+1 {
			t.Errorf("%s: retired in %d calls: %v", name, s.count(retiring)-retired, err)
		}
		if _, err := c.Collect(t.Context(), types.GcRequest{}, nil); err == nil || s.count(collecting) != collected+1 {
			t.Errorf("%s: collected in %d calls: %v", name, s.count(collecting)-collected, err)
		}
	}
}
