package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/faultproxy"
	"github.com/artifactd/artifactd/migrations"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

const (
	database = "artifactd"
	login    = "artifactd_campaign"
	bucket   = "artifactd-campaign"
	replicas = 3
	// connections of each replica; the workers are spread over the replicas.
	connections    = 16
	maxConnections = 200
	loopback       = "127.0.0.1:0"
	stopTimeout    = 2 * time.Minute
	startTimeout   = 5 * time.Minute
)

// stack is everything that was started for one run.
type stack struct {
	dir      string // holds all data; removed at the end
	s3       *devstack.S3
	token    string // of an administrator of everything
	replicas []*replica

	mu       sync.Mutex // guards what a crash of Postgres replaces
	postgres *devstack.Postgres
	ownerURL string
}

// startStack starts the servers and the services. sabotage is SQL for the owner to run on the
// migrated database, empty for none. After an error nothing is left.
func startStack(ctx context.Context, sabotage string) (s *stack, err error) {
	dir, err := os.MkdirTemp("", "artifactd-campaign-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the servers' data: %w", err)
	}
	s = &stack{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.postgres, err = devstack.StartPostgres(ctx, s.postgresOptions()); err != nil {
		return nil, err
	}
	s.ownerURL = s.postgres.URL(database)
	if s.s3, err = devstack.StartS3(ctx, devstack.S3Options{DataDir: filepath.Join(dir, "s3")}); err != nil {
		return nil, err
	}
	if err := s.install(ctx, sabotage); err != nil {
		return nil, err
	}
	for i := range replicas {
		if err := s.startReplica(ctx, i); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s, s.awaitReady(ctx)
}

// postgresOptions are the same at every start. Without fsync a crash of the process still loses
// nothing that was written: the system has it.
func (s *stack) postgresOptions() devstack.PostgresOptions {
	return devstack.PostgresOptions{
		DataDir: filepath.Join(s.dir, "postgres"), MaxConnections: maxConnections, FsyncOff: true,
		Settings: map[string]string{"max_wal_size": "2GB", "shared_buffers": "256MB"},
	}
}

// install makes the database with its schema, the service's login and an access token.
func (s *stack) install(ctx context.Context, sabotage string) error {
	if err := s.postgres.CreateDatabase(ctx, database); err != nil {
		return err
	}
	if err := migrations.Up(ctx, s.ownerURL, migrations.Options{}); err != nil {
		return err
	}
	if err := daemon.EnsureLogin(ctx, s.ownerURL, login); err != nil {
		return err
	}
	owner, err := s.owner(ctx)
	if err != nil {
		return err
	}
	_, err = owner.Exec(ctx, sabotage)
	if err = errors.Join(err, owner.Close(ctx)); err != nil {
		return err
	}
	admin, err := daemon.OpenAdmin(ctx, s.ownerURL)
	if err != nil {
		return err
	}
	defer admin.Close()
	_, s.token, err = admin.CreateToken(ctx, "campaign", []pointer.Scope{pointer.ScopeAdmin}, []string{"*"}, nil)
	return err
}

func (s *stack) startReplica(ctx context.Context, i int) error {
	proxy, err := faultproxy.New(s.postgres.Socket())
	if err != nil {
		return err
	}
	address, err := devstack.FreeAddress(loopback)
	if err != nil {
		proxy.Close()
		return err
	}
	c := daemon.Default()
	c.Listen = address
	c.DatabaseURL, c.DatabaseConns = throughProxy(proxy), connections
	c.S3 = daemon.S3Config{
		Driver: "aws", Endpoint: s.s3.Endpoint(), Region: s.s3.Region(), Bucket: bucket, CreateBucket: true,
		Prefix: c.S3.Prefix, AccessKeyID: s.s3.AccessKeyID(), SecretAccessKey: s.s3.SecretAccessKey(), PathStyle: true,
	}
	// What a rollback goes back to must not be collected: whether the collector is safe is
	// another test's question.
	c.GC.Interval = 0
	c.AllowUnsafeDurability = true
	c.ShutdownGrace = time.Second
	// Postgres is stopped every few seconds, and each start of it has to be looked at.
	c.HistoryTiming = recovery.Timing{Confirm: 4 * time.Second}
	r, err := startReplica(ctx, filepath.Join(s.dir, fmt.Sprintf("replica-%d", i)), c, proxy)
	if err != nil {
		proxy.Close()
		return err
	}
	s.replicas = append(s.replicas, r)
	return nil
}

// throughProxy is the database's URL for a service behind a proxy. The proxy speaks to the
// server's socket, where the server trusts whoever comes.
func throughProxy(proxy *faultproxy.Proxy) string {
	u := url.URL{Scheme: "postgres", User: url.User(login), Host: proxy.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// awaitReady returns when every replica answers and reaches the database.
func (s *stack) awaitReady(ctx context.Context) error {
	client := http.Client{Timeout: 10 * time.Second}
	for _, r := range s.replicas {
		for {
			resp, err := client.Get(r.url + "/readyz")
			if err == nil {
				err = resp.Body.Close()
			}
			if err == nil && resp.StatusCode == http.StatusOK {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("a service does not get ready: %w; it said:\n%s", errors.Join(ctx.Err(), err), r.said())
			}
		}
	}
	return nil
}

// owner opens a connection as the owner of everything, around the proxies.
func (s *stack) owner(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.ownerURL) }

// crashPostgres ends the server without a shutdown and starts it again, which makes it recover.
// immediate is pg_ctl's immediate mode; otherwise it is kill -9 of the postmaster.
func (s *stack) crashPostgres(ctx context.Context, immediate bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if immediate {
		if err := syscall.Kill(s.postgres.Pid(), syscall.SIGQUIT); err != nil {
			return fmt.Errorf("crash Postgres: %w", err)
		}
		<-s.postgres.Done()
	}
	if err := s.postgres.Kill(); err != nil {
		return fmt.Errorf("crash Postgres: %w", err)
	}
	started, err := devstack.StartPostgres(ctx, s.postgresOptions())
	if err != nil {
		return fmt.Errorf("start Postgres after a crash: %w", err)
	}
	s.postgres = started
	return nil
}

// stop ends everything, the last first, and removes the data.
func (s *stack) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	for _, r := range s.replicas {
		errs = append(errs, r.stop(ctx))
		r.proxy.Close()
	}
	if s.s3 != nil {
		errs = append(errs, s.s3.Stop(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// httpClient is for all workers.
func httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext,
	}}
}
