package testenv

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/artifactd/artifactd/internal/devstack"
)

// stopTimeout bounds the end of all servers of a test process.
const stopTimeout = 2 * time.Minute

// environment is what one test process has started. It is the one global of this package: a
// server that all tests of a process share has to be known somewhere.
type environment struct {
	mu    sync.Mutex
	dir   string // temporary folder of all servers; empty until one is started
	stops []func(context.Context) error

	postgres lazy[*cluster]
	servers  map[Server]*lazy[*s3Server]
}

var process = &environment{servers: map[Server]*lazy[*s3Server]{Versitygw: {}, MinIO: {}}}

// lazy is a value that is made once, by whoever needs it first; a failure is final too, and told
// to everybody.
type lazy[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (l *lazy[T]) get(t testing.TB, make func(context.Context) (T, error)) T {
	t.Helper()
	l.once.Do(func() {
		// Not the test's context: the server outlives the test.
		l.value, l.err = make(context.Background())
	})
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.value
}

// Main runs the tests of a package and ends the process. It is the whole of TestMain.
func Main(m *testing.M) {
	if devstack.RunChild() {
		return
	}
	code := m.Run()
	if err := process.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: stop the servers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Folder makes a folder for what all tests of the process share. It goes when the process ends.
func Folder(t testing.TB, name string) string {
	t.Helper()
	dir, err := process.folder(name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// folder makes a new folder for a server.
func (e *environment) folder(name string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dir == "" {
		dir, err := os.MkdirTemp("", "artifactd-test-")
		if err != nil {
			return "", err
		}
		// Where root cannot make a user namespace, Postgres runs as an account of its own, which has
		// to pass through here. The folders inside are as private as their servers make them.
		if err := os.Chmod(dir, 0o711); err != nil {
			return "", err
		}
		e.dir = dir
	}
	return os.MkdirTemp(e.dir, name+"-")
}

// atExit remembers how to stop a server.
func (e *environment) atExit(stop func(context.Context) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stops = append(e.stops, stop)
}

func (e *environment) stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	for _, stop := range e.stops {
		errs = append(errs, stop(ctx))
	}
	if e.dir != "" {
		errs = append(errs, os.RemoveAll(e.dir))
	}
	return errors.Join(errs...)
}

// randomName is prefix and 16 random hex digits.
func randomName(prefix string) string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return prefix + hex.EncodeToString(b)
}
