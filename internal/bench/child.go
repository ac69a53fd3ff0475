package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
)

// childVariable marks a process that this program started from its own executable. Its value is
// the file with the child's configuration.
const childVariable = "ARTIFACTD_BENCH_CHILD"

// What a child serves.
const (
	childService = "service"
	childEcho    = "echo"
	childAttack  = "attack"
)

// childStart bounds how long a child may take to listen.
const childStart = 30 * time.Second

// childConfig goes from this process to a child, in a file: it holds secrets.
type childConfig struct {
	Kind        string
	AddressFile string            // gets the child's childAddress once it listens
	Service     daemon.Config     // of childService
	Profiles    bool              // childService listens for requests to profile itself
	Bodies      map[string][]byte // of childEcho: the answer, by pointer
	Attack      attackConfig      // of childAttack
	Nice        int               // how much later than others its turn comes, as nice(1) takes it
}

// childAddress is where a child listens, as host:port.
type childAddress struct {
	API     string
	PID     int    // of the service
	Control string // where it can be asked for a profile; empty when it cannot
}

// child is a running measured server.
type child struct {
	childAddress
	process *devstack.Process
}

func (c *child) stop(ctx context.Context) error { return c.process.Stop(ctx) }

// startChild starts a child whose files are in dir and returns when it listens.
func startChild(ctx context.Context, dir string, c childConfig) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable: %w", err)
	}
	dir, err = os.MkdirTemp(dir, c.Kind+"-")
	if err != nil {
		return nil, err
	}
	c.AddressFile = filepath.Join(dir, "address.json")
	config, log := filepath.Join(dir, "config.json"), filepath.Join(dir, "log")
	if err := writeJSON(config, c); err != nil {
		return nil, err
	}
	var args []string
	if c.Nice > 0 {
		args = []string{"-n", strconv.Itoa(c.Nice), self}
		if self, err = exec.LookPath("nice"); err != nil {
			return nil, err
		}
	}
	process, err := devstack.StartProcess(ctx, devstack.ProcessSpec{
		Path: self, Args: args, Dir: dir, Log: log, Env: append(os.Environ(), childVariable+"="+config),
	})
	if err != nil {
		return nil, err
	}
	started := &child{process: process}
	ctx, cancel := context.WithTimeout(ctx, childStart)
	defer cancel()
	err = process.Await(ctx, func(context.Context) (bool, error) {
		err := readJSON(c.AddressFile, &started.childAddress)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		process.Kill()
		<-process.Done()
		said, _ := os.ReadFile(log) // without it the error is only less clear
		return nil, fmt.Errorf("the %s process did not start: %w; it said:\n%s", c.Kind, err, said)
	}
	return started, nil
}

// ranChild serves and returns true in a process that startChild started; in every other process it
// returns false at once.
func ranChild() bool {
	config := os.Getenv(childVariable)
	if config == "" {
		return false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serveChild(ctx, config); err != nil {
		fmt.Fprintln(os.Stderr, "bench child process:", err)
		os.Exit(1)
	}
	return true
}

func serveChild(ctx context.Context, config string) error {
	var c childConfig
	if err := readJSON(config, &c); err != nil {
		return err
	}
	switch c.Kind {
	case childService:
		return serveService(ctx, c)
	case childEcho:
		return serveEcho(ctx, c)
	case childAttack:
		return serveAttack(ctx, c)
	}
	return fmt.Errorf("unknown kind of child %q", c.Kind)
}

// serveService is `artifactd serve`.
func serveService(ctx context.Context, c childConfig) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	address := childAddress{PID: os.Getpid()}
	if c.Profiles {
		l, err := net.Listen("tcp", loopback)
		if err != nil {
			return err
		}
		control := &http.Server{Handler: http.HandlerFunc(serveProfile), ReadHeaderTimeout: time.Second}
		go func() { _ = control.Serve(l) }() // until Close
		defer control.Close()
		address.Control = l.Addr().String()
	}
	err := daemon.Run(ctx, c.Service, daemon.Options{
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Ready: func(a net.Addr) {
			address.API = a.String()
			if err := writeJSON(c.AddressFile, address); err != nil {
				cancel(err)
			}
		},
	})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// serveProfile answers a CPU profile of the next ?for=.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil {
		http.Error(w, "for must be a duration: "+err.Error(), http.StatusBadRequest)
		return
	}
	var profile bytes.Buffer
	if err := pprof.StartCPUProfile(&profile); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
	pprof.StopCPUProfile()
	_, _ = w.Write(profile.Bytes()) // whoever asked may be gone
}

// serveEcho answers resolves from memory, with nothing but the router in between.
func serveEcho(ctx context.Context, c childConfig) error {
	e := echo.New()
	e.GET("/v1/pointers/:name", func(ec echo.Context) error {
		body, ok := c.Bodies[ec.Param("name")]
		if !ok {
			return echo.ErrNotFound
		}
		return ec.JSONBlob(http.StatusOK, body)
	})
	l, err := net.Listen("tcp", loopback)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	if err := writeJSON(c.AddressFile, childAddress{API: l.Addr().String()}); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}
