package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/recovery"
)

const (
	database    = "artifactd"
	login       = "artifactd_bench"
	bucket      = "artifactd-bench"
	stopTimeout = 2 * time.Minute
	// maxConnections is enough for pgbench's clients beside the service.
	maxConnections = 200
)

// stack is everything that was started for one run.
type stack struct {
	dir      string // holds all data; removed at the end
	profiles string // folder of CPU profiles; empty for none

	postgres *devstack.Postgres
	s3       *devstack.S3
	store    daemon.S3Config // as the service has it
	service  *child
	children []*child // all, the service included

	api   *apiClient
	token string // access token of the service

	largeSize int64 // bytes of a large file
	files     int   // files of a version of many
	slow      int   // slow connections of hostile
	live      int   // files in the catalogue beside which is collected
	dead      int   // objects of one collection
	listed    int   // objects of one reconcile pass

	sites   map[string]*site    // installations beside the service's, by name
	closing []func()            // what ends before the servers do
	notes   map[string][]string // what is worth telling of a benchmark beside its rates
}

// note keeps what is worth telling of a benchmark.
func (s *stack) note(benchmark, format string, args ...any) {
	s.notes[benchmark] = append(s.notes[benchmark], fmt.Sprintf(format, args...))
}

// startStack starts the servers and the service. After an error nothing is left.
func startStack(ctx context.Context, o options) (s *stack, err error) {
	dir, err := os.MkdirTemp(o.dir, "artifactd-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the servers' data (choose another with -dir): %w", err)
	}
	s = &stack{dir: dir, profiles: o.cpuProfile, largeSize: o.size, files: o.files, slow: slowLimit(o.slow), live: o.live, dead: o.dead, listed: o.listed,
		sites: map[string]*site{}, notes: map[string][]string{}}
	started := s // what is returned beside an error is nil
	defer func() {
		if err != nil {
			err = errors.Join(err, started.stop())
		}
	}()
	s.postgres, err = devstack.StartPostgres(ctx, devstack.PostgresOptions{
		DataDir: filepath.Join(dir, "postgres"), MaxConnections: maxConnections,
		Settings: map[string]string{"max_wal_size": "4GB", "checkpoint_timeout": "30min"},
	})
	if err != nil {
		return nil, err
	}
	if s.s3, err = devstack.StartS3(ctx, devstack.S3Options{DataDir: filepath.Join(dir, "s3")}); err != nil {
		return nil, err
	}
	token, err := s.install(ctx, database)
	if err != nil {
		return nil, err
	}
	return s, s.startService(ctx, token)
}

func (s *stack) startService(ctx context.Context, token string) error {
	c := s.serviceConfig(database)
	s.store = c.S3
	service, err := s.startChild(ctx, childConfig{Kind: childService, Service: c, Profiles: s.profiles != ""})
	if err != nil {
		return err
	}
	s.service, s.token = service, token
	s.api = newAPIClient("http://"+service.API, token, maxWorkers)
	return nil
}

// serviceConfig is that of a service on one of the stack's databases.
func (s *stack) serviceConfig(database string) daemon.Config {
	c := daemon.Default()
	// What is measured may keep the machine so busy that a look at the bucket comes late: that must not
	// end the measurement.
	c.HistoryTiming = recovery.Timing{Confirm: time.Minute}
	c.Listen = loopback
	c.DatabaseURL = s.postgres.URLAs(login, database)
	c.S3 = daemon.S3Config{
		Driver: "aws", Endpoint: s.s3.Endpoint(), Region: s.s3.Region(), Bucket: bucket, CreateBucket: true,
		Prefix: c.S3.Prefix, AccessKeyID: s.s3.AccessKeyID(), SecretAccessKey: s.s3.SecretAccessKey(), PathStyle: true,
	}
	// One caller and one address stand for many here.
	c.CallerRate, c.AddressRate = 1e6, 1e6
	return c
}

// loopback picks a free port that no other machine reaches.
const loopback = "127.0.0.1:0"

// startChild starts this program again as one of the measured servers.
func (s *stack) startChild(ctx context.Context, c childConfig) (*child, error) {
	one, err := startChild(ctx, s.dir, c)
	if err == nil {
		s.children = append(s.children, one)
	}
	return one, err
}

// profile has the service profile itself for d and writes what it answers.
func (s *stack) profile(ctx context.Context, d time.Duration, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.service.Control+"/profile?for="+d.String(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("profile the service: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile the service: status %d, %s: %w", resp.StatusCode, body, err)
	}
	return os.WriteFile(filepath.Join(s.profiles, name), body, 0o644)
}

// stop ends everything, the last first, and removes the data.
func (s *stack) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	if s.api != nil {
		s.api.transport.CloseIdleConnections()
	}
	for _, end := range s.closing {
		end()
	}
	for _, o := range s.sites {
		if o.api != nil {
			o.api.transport.CloseIdleConnections()
		}
		errs = append(errs, o.owner.Close(ctx))
	}
	for i := len(s.children) - 1; i >= 0; i-- {
		errs = append(errs, s.children[i].stop(ctx))
	}
	if s.s3 != nil {
		errs = append(errs, s.s3.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// writeJSON writes a file whole, readable by its owner alone.
func writeJSON(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temp := name + ".part"
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, name)
}

// readJSON reads what writeJSON wrote.
func readJSON(name string, v any) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
