package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactd/artifactd/internal/supervise"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) {
	if !supervise.RunChild() {
		testenv.Main(m)
	}
}

// buffer is written by one goroutine and read by another.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// result is what one run of the program left.
type result struct {
	code           int
	stdout, stderr string
}

// run runs the program whole, in this process.
func run(t *testing.T, environ []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var stdout, stderr buffer
	p := Program{Args: args, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Environ: environ}
	code := p.Run(ctx)
	return result{code, stdout.String(), stderr.String()}
}

// instance is a running `artifactd dev`.
type instance struct {
	t      *testing.T
	data   string
	stderr buffer
	cancel context.CancelFunc
	done   chan int
}

// startDev runs `artifactd dev` on a folder and waits until it is ready.
func startDev(t *testing.T, data string, flags ...string) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &instance{t: t, data: data, cancel: cancel, done: make(chan int, 1)}
	p := Program{
		// Nobody collects but who is told to: tests count what went.
		Args:  append([]string{"dev", "--data", data, "--listen", "127.0.0.1:0", "--gc-interval", "0"}, flags...),
		Stdin: strings.NewReader(""), Stdout: &d.stderr, Stderr: &d.stderr,
	}
	go func() { d.done <- p.Run(ctx) }()
	t.Cleanup(func() { d.stop() })
	deadline := time.Now().Add(5 * time.Minute)
	for {
		if _, err := os.Stat(filepath.Join(data, clientEnvName)); err == nil {
			return d
		}
		select {
		case code := <-d.done:
			d.done <- code
			t.Fatalf("dev ended with %d: %s", code, d.stderr.String())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("dev is not ready: %s", d.stderr.String())
		}
	}
}

// stop interrupts it, as Ctrl-C does, and returns its exit code.
func (d *instance) stop() int {
	d.t.Helper()
	d.cancel()
	select {
	case code := <-d.done:
		d.done <- code
		return code
	case <-time.After(3 * time.Minute):
		d.t.Error("dev does not end")
		return -1
	}
}

// env is what its client.env says.
func (d *instance) env() map[string]string {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join(d.data, clientEnvName))
	if err != nil {
		d.t.Fatal(err)
	}
	return parseEnvFile(string(b))
}

// run runs a client command against it, and fails the test unless it ends with the wanted code.
func (d *instance) run(want int, args ...string) result {
	d.t.Helper()
	r := run(d.t, nil, append(args, "--data", d.data)...)
	if r.code != want {
		d.t.Fatalf("artifactd %s: exit code %d, want %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), r.code, want, r.stdout, r.stderr)
	}
	return r
}

func writeFile(t *testing.T, name string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
