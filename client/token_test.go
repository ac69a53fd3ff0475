package client_test

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactd/artifactd/client"
)

// ready answers a call that is good for any token, and notes the token.
func ready(seen *atomic.Value) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"))
		replies(200, map[string]string{"status": "ready"})(w, r)
	}
}

// A rotated file is seen by the next request, and one that is no good is said to be.
func TestTokenFile(t *testing.T) {
	s := newService(t)
	var seen atomic.Value
	s.on("GET /readyz", ready(&seen))
	name := filepath.Join(t.TempDir(), "token")
	c, err := client.New(s.URL, "", client.Options{Token: client.TokenFile(name)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, token := range []string{"first", "second"} {
		if err := os.WriteFile(name, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Ready(t.Context()); err != nil || seen.Load() != "Bearer "+token {
			t.Errorf("%v, sent %v", err, seen.Load())
		}
	}
	if err := os.WriteFile(name, []byte("two tokens"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ready(t.Context()); err == nil || s.count("GET /readyz") != 2 {
		t.Errorf("with a bad file: %v", err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ready(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}

// A job's token is asked for once, and again before it ends.
func TestGitHubToken(t *testing.T) {
	s := newService(t)
	var seen atomic.Value
	s.on("GET /readyz", ready(&seen))
	lifetimes, n := []time.Duration{time.Hour, time.Second, time.Hour}, atomic.Int32{}
	var fail atomic.Bool
	github := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer job" || r.URL.Query().Get("audience") != "https://a b" || r.URL.Query().Get("api-version") != "2" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		if fail.Swap(false) {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		claims := fmt.Sprintf(`{"exp":%d}`, time.Now().Add(lifetimes[n.Add(1)-1]).Unix())
		replies(200, map[string]string{"value": "h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s"})(w, r)
	}))
	defer github.Close()
	ask := func() client.TokenSource {
		source, err := client.GitHubToken(github.URL+"?api-version=2", "job", "https://a b")
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	long := ask()
	fail.Store(true) // is asked again
	c, err := client.New(s.URL, "", client.Options{Token: long})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if _, err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n.Load() != 1 || seen.Load() == "" {
		t.Errorf("a token of an hour was fetched %d times", n.Load())
	}
	short := ask()
	for range 2 {
		if _, err := short(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n.Load() != 3 {
		t.Errorf("a token that is about to end was used again")
	}
	if _, err := client.GitHubToken("", "", "x"); err == nil {
		t.Error("a token outside a job")
	}
}

// A service with a certificate of its own authority is trusted when that is named, and not otherwise.
func TestRootCAs(t *testing.T) {
	s := httptest.NewTLSServer(replies(200, map[string]string{"status": "ready"}))
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	for want, o := range map[bool]client.Options{true: {RootCAs: roots}, false: {}} {
		c, err := client.New(s.URL, "", o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Ready(t.Context())
		if unknown := (x509.UnknownAuthorityError{}); (err == nil) != want || err != nil && !errors.As(err, &unknown) {
			t.Errorf("with its authority %v: %v", want, err)
		}
	}
}

// A caller that is told to wait waits, and then goes on.
func TestTooManyRequestsAreRepeated(t *testing.T) {
	s := newService(t)
	wait := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		refuses(429, "too-many-requests")(w, r)
	}
	s.on("GET /v1/pointers/p/lease", wait, replies(200, map[string]bool{"live": false}))
	began := time.Now()
	if _, err := s.client(t).LeaseStatus(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < time.Second || s.count("GET /v1/pointers/p/lease") != 2 {
		t.Errorf("%d requests in %s", s.count("GET /v1/pointers/p/lease"), took)
	}
	s.on("POST /v1/pointers/p/leases", wait, refuses(404, "pointer-not-found"))
	if _, err := s.client(t).Acquire(t.Context(), "p", client.AcquireOptions{Holder: "h"}); !errors.Is(err, client.ErrPointerNotFound) {
		t.Error(err)
	}
}
