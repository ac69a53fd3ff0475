package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// runInterrupted runs the program and interrupts it once ready says so.
func runInterrupted(t *testing.T, ready func() bool, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr buffer
	p := Program{Args: args, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}
	ended := make(chan int, 1)
	go func() { ended <- p.Run(ctx) }()
	deadline := time.Now().Add(5 * time.Minute)
	for !ready() {
		select {
		case code := <-ended:
			t.Fatalf("ended with %d before the interrupt: %s", code, stderr.String())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("never came to this point: %s", stderr.String())
		}
	}
	cancel()
	select {
	case code := <-ended:
		return result{code, stdout.String(), stderr.String()}
	case <-time.After(5 * time.Minute):
		t.Fatal("does not end")
	}
	return result{}
}

// An interrupted publish says that nothing was published, and that the same command goes on; it does.
func TestAnInterruptedPublishGoesOn(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	d.run(exitDone, "pointer", "create", "x")
	// Two batches of parts; the second is never answered, so that the publish cannot end by itself.
	const part, parts = 16 << 20, 12
	file := filepath.Join(t.TempDir(), "large")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range parts {
		if _, err := f.WriteAt(fmt.Appendf(nil, "part %d", i), int64(i)*part); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(part * parts); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	api, err := url.Parse(d.env()["ARTIFACTD_URL"])
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(api)
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/parts") && asked.Add(1) > 1 {
			_, _ = io.Copy(io.Discard, r.Body) // a server sees a hang-up only after that
			<-r.Context().Done()
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer server.Close()
	arrived := func() bool {
		files, err := filepath.Glob(filepath.Join(d.data, "s3", "objects", "*", ".sgwtmp", "multipart", "*", "*", "*"))
		return err == nil && len(files) > 0 && asked.Load() > 1
	}
	r := runInterrupted(t, arrived, "publish", "x", file, "--url", server.URL, "--data", d.data)
	if r.code != exitFailed || !strings.HasSuffix(r.stderr, "artifactd: interrupted; nothing was published; run the same command again: what has arrived is not sent again\n") {
		t.Errorf("exit code %d, %q", r.code, r.stderr)
	}
	d.run(exitNotFound, "resolve", "x")
	p := decode[client.FilesPublished](t, d.run(exitDone, "publish", "x", file, "-o", "json"))
	if p.AdoptedBytes < part || p.AdoptedBytes+p.UploadedBytes != part*parts {
		t.Errorf("sent %d again, %d were there", p.UploadedBytes, p.AdoptedBytes)
	}
}

// An interrupted collection goes on in the service, and whoever waited for it is told so.
func TestAnInterruptedCollection(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	for says, answered := range map[string]bool{
		"a collection that has begun goes on inside the service: see `artifactd gc runs`":                  false,
		"collection " + id.String() + " goes on inside the service: see `artifactd gc runs " + id.String(): true,
	} {
		var waiting atomic.Bool
		hang := func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			waiting.Store(true)
			<-r.Context().Done()
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/gc/runs/{id}", hang)
		mux.HandleFunc("POST /v1/gc/runs", func(w http.ResponseWriter, r *http.Request) {
			if !answered {
				hang(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusAccepted)
			_ = json.NewEncoder(w).Encode(types.GcRun{RunId: id, State: "running"})
		})
		server := httptest.NewServer(mux)
		r := runInterrupted(t, waiting.Load, "gc", "run", "-q", "--url", server.URL, "--data", t.TempDir())
		server.Close()
		if r.code != exitFailed || !strings.HasPrefix(r.stderr, "artifactd: interrupted; "+says) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("exit code %d, %q", r.code, r.stderr)
		}
	}
}
