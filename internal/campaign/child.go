package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/faultproxy"
)

// childVariable marks a process that this program started from its own executable. Its value is
// the file with the service's configuration.
const childVariable = "ARTIFACTD_CAMPAIGN_CHILD"

// ranChild serves and returns true in a process that startService started; in every other process
// it returns false at once.
func ranChild() bool {
	file := os.Getenv(childVariable)
	if file == "" {
		return false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serveChild(ctx, file); err != nil {
		fmt.Fprintln(os.Stderr, "campaign child process:", err)
		os.Exit(1)
	}
	return true
}

// serveChild is `artifactd serve`.
func serveChild(ctx context.Context, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c daemon.Config
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	// The name outlives a kill: nobody waits for what the one before might have seen.
	name := uuid.NewSHA1(uuid.NameSpaceURL, []byte(file))
	return daemon.Run(ctx, c, daemon.Options{Logger: log, Replica: name})
}

// replica is one service process, its address, and the proxies between it and Postgres, and it and
// the store. It is started again whenever it ends.
type replica struct {
	url   string
	proxy *faultproxy.Proxy // to the database
	store *faultproxy.Proxy
	dir   string

	mu      sync.Mutex
	process *devstack.Process
	stopped bool
	ended   chan struct{}
}

// restartPause is how long a service that ended stays down. One that cannot start, because
// Postgres is down, is tried again at this pace.
const restartPause = 100 * time.Millisecond

// startReplica writes the configuration and keeps the service running until stop.
func startReplica(ctx context.Context, dir string, c daemon.Config, proxy, store *faultproxy.Proxy) (*replica, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	// It holds the store's secret.
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return nil, err
	}
	r := &replica{url: "http://" + c.Listen, proxy: proxy, store: store, dir: dir, ended: make(chan struct{})}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	go r.keep(ctx)
	return r, nil
}

func (r *replica) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return nil
	}
	r.process, err = devstack.StartProcess(ctx, devstack.ProcessSpec{
		Path: self, Dir: r.dir, Log: filepath.Join(r.dir, "log"),
		Env: append(os.Environ(), childVariable+"="+filepath.Join(r.dir, "config.json")),
	})
	return err
}

// keep starts the service again until stop is called.
func (r *replica) keep(ctx context.Context) {
	defer close(r.ended)
	for {
		<-r.running().Done()
		select {
		case <-time.After(restartPause):
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		stopped := r.stopped
		r.mu.Unlock()
		// A start that fails for want of processes or memory is tried again like any other.
		if stopped || (r.start(ctx) != nil && ctx.Err() != nil) {
			return
		}
	}
}

func (r *replica) running() *devstack.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// said is what the service logged, for an error that would be less clear without it.
func (r *replica) said() []byte {
	b, err := os.ReadFile(filepath.Join(r.dir, "log"))
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

// kill is kill -9.
func (r *replica) kill() { r.running().Kill() }

func (r *replica) stop(ctx context.Context) error {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	err := r.running().Stop(ctx)
	select {
	case <-r.ended:
	case <-ctx.Done():
	}
	return err
}
