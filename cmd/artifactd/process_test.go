package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/internal/testenv"
)

// built is the program as people run it: without the race detector, whose memory and time are not
// the program's.
func built(t *testing.T) string {
	t.Helper()
	program.Do(func() {
		name := filepath.Join(testenv.Folder(t, "program"), "artifactd")
		out, err := exec.Command("go", "build", "-race=false", "-o", name, ".").CombinedOutput()
		if err != nil {
			t.Errorf("go build: %v\n%s", err, out)
			return
		}
		program.name = name
	})
	if program.name == "" {
		t.Fatal("the program is not built")
	}
	return program.name
}

// program is built once for all tests.
var program struct {
	sync.Once
	name string
}

// leaseServer is a service that gives out a lease and then never answers, except that it takes the
// lease back, as slowly as is said.
func leaseServer(t *testing.T, slowly time.Duration) (url string, staging, releasing chan struct{}) {
	staging, releasing = make(chan struct{}, 1), make(chan struct{}, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/pointers/x/leases", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(types.Lease{LeaseId: uuid.New(), Token: "1.1", TtlSeconds: 60, ExpiresInSeconds: 60})
	})
	mux.HandleFunc("POST /v1/leases/{id}/files", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server sees a hang-up only after that
		staging <- struct{}{}
		<-r.Context().Done()
	})
	mux.HandleFunc("DELETE /v1/leases/{id}", func(w http.ResponseWriter, r *http.Request) {
		releasing <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-time.After(slowly):
			w.WriteHeader(http.StatusNoContent)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, staging, releasing
}

// TestSignals: Ctrl-C ends a publish in order, with its lease given back; `timeout` sends its signal
// twice at once and means the same; a second one that comes later ends it at once.
func TestSignals(t *testing.T) {
	t.Parallel()
	name := built(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	for when, again := range map[string]time.Duration{"once": -1, "twice at once": 0, "again later": 2 * sameSignal} {
		t.Run(when, func(t *testing.T) {
			slowly := 2 * time.Second // the second signal of "twice at once" comes before the end
			if again > 0 {
				slowly = time.Hour
			}
			url, staging, releasing := leaseServer(t, slowly)
			var stderr bytes.Buffer
			cmd := exec.Command(name, "publish", "x", file, "--url", url, "--data", t.TempDir())
			cmd.Stderr, cmd.Env = &stderr, []string{"PATH=" + os.Getenv("PATH")}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test failed
			await(t, staging)
			interrupt(t, cmd)
			if again == 0 {
				interrupt(t, cmd)
			}
			await(t, releasing)
			if again > 0 {
				time.Sleep(again)
				interrupt(t, cmd)
			}
			_ = cmd.Wait() // its exit code is looked at
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if again > 0 {
				if !status.Signaled() {
					t.Errorf("the second signal was ignored: %v", cmd.ProcessState)
				}
				return
			}
			if status.ExitStatus() != exitFailed || !strings.Contains(stderr.String(), "interrupted; nothing was published") {
				t.Errorf("%v: %s", cmd.ProcessState, stderr.String())
			}
		})
	}
}

func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(2 * time.Minute):
		t.Fatal("the program does not come to this point")
	}
}

func interrupt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}
