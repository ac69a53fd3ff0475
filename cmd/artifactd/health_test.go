package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHealth: what the service lacks is told, by one that answers and by the silence of one that does not.
func TestHealth(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() }) // connections wait in its queue
	answers := func(status int, media, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	for name, tc := range map[string]struct {
		url            string
		code           int
		stdout, stderr string
	}{
		"ready":     {answers(200, "application/json", `{"status":"ready"}`), exitDone, "ready\n", ""},
		"read-only": {answers(200, "application/json", `{"status":"read-only","detail":"the bucket did not"}`), exitDone, "read-only\nthe bucket did not\n", ""},
		"database": {answers(503, "application/problem+json", `{"code":"unavailable","detail":"the database does not answer"}`), exitUnavailable, "",
			"artifactd: unavailable: the database does not answer; the log of the service says more\n"},
		"silent": {"http://" + silent.Addr().String(), exitUnavailable, "",
			"artifactd: no answer from " + silent.Addr().String() + ": nothing came within 10s; is the service running there? see --url, or start one with `artifactd dev`\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, nil, "health", "--url", tc.url, "--data", t.TempDir())
			if r.code != tc.code || r.stdout != tc.stdout || !strings.HasPrefix(r.stderr, tc.stderr) || tc.stderr == "" && r.stderr != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
			}
		})
	}
}
