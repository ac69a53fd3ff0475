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

	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/faultproxy"
	"github.com/artifactd/artifactd/migrations"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

const (
	database  = "artifactd"
	login     = "artifactd_campaign"
	bucket    = "artifactd-campaign"
	replicas  = 3
	keyPrefix = "artifactd/"
	// connections of each replica; the workers are spread over the replicas.
	connections    = 16
	maxConnections = 200
	loopback       = "127.0.0.1:0"
	stopTimeout    = 2 * time.Minute
	startTimeout   = 5 * time.Minute
)

// stack is everything that was started for one run.
type stack struct {
	options  stackOptions
	dir      string // holds all data; removed at the end
	s3       *devstack.S3
	store    *s3store.Store // the campaign's own way to the bucket, around the proxies
	token    string         // of an administrator of everything
	replicas []*replica

	mu       sync.Mutex // guards what a crash of Postgres replaces
	data     string     // its folder
	archive  string     // where its WAL goes; empty for nowhere
	postgres *devstack.Postgres
	ownerURL string
}

// stackOptions are what differs between the attacks.
type stackOptions struct {
	sabotage string // SQL for the owner to run on the migrated database, empty for none
	// confirm is for how long the bucket's word counts, and about how long it takes to raise an epoch.
	confirm time.Duration
	// configure changes a service's configuration.
	configure func(*daemon.Config)
	archived  bool // the database's WAL is kept, to restore from
}

// startStack starts the servers and the services. After an error nothing is left.
func startStack(ctx context.Context, o stackOptions) (s *stack, err error) {
	dir, err := os.MkdirTemp("", "artifactd-campaign-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the servers' data: %w", err)
	}
	s = &stack{options: o, dir: dir, data: filepath.Join(dir, "postgres")}
	started := s // which the returns below forget
	defer func() {
		if err != nil {
			err = errors.Join(err, started.stop())
		}
	}()
	if o.archived {
		if err := s.newArchive(); err != nil {
			return nil, err
		}
	}
	if s.postgres, err = devstack.StartPostgres(ctx, s.postgresOptions()); err != nil {
		return nil, err
	}
	s.ownerURL = s.postgres.URL(database)
	if s.s3, err = devstack.StartS3(ctx, devstack.S3Options{DataDir: filepath.Join(dir, "s3")}); err != nil {
		return nil, err
	}
	s.store, err = s3store.New(ctx, s3store.Config{
		Endpoint: s.s3.Endpoint(), Region: s.s3.Region(), Bucket: bucket, Prefix: keyPrefix,
		AccessKeyID: s.s3.AccessKeyID(), SecretAccessKey: s.s3.SecretAccessKey(), PathStyle: true,
	})
	if err != nil {
		return nil, err
	}
	if err := s.install(ctx); err != nil {
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
	o := devstack.PostgresOptions{
		DataDir: s.data, SocketDir: filepath.Join(s.dir, "socket"), MaxConnections: maxConnections, FsyncOff: true,
		Settings: map[string]string{"max_wal_size": "2GB", "shared_buffers": "256MB"},
	}
	if s.archive != "" {
		o.Settings["archive_mode"], o.Settings["archive_command"] = "on", "cp %p '"+s.archive+"/%f'"
	}
	return o
}

// newArchive makes the folder that the WAL of the next server goes to.
func (s *stack) newArchive() (err error) {
	if s.archive, err = os.MkdirTemp(s.dir, "archive-"); err != nil {
		return err
	}
	return os.Chmod(s.archive, 0o777) // the server may run as another account
}

// install makes the database with its schema, the service's login and an access token.
func (s *stack) install(ctx context.Context) error {
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
	_, err = owner.Exec(ctx, auditSQL+s.options.sabotage)
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
	store, err := faultproxy.New(s.s3.Endpoint())
	if err != nil {
		proxy.Close()
		return err
	}
	r, err := s.startBehind(ctx, i, proxy, store)
	if err != nil {
		proxy.Close()
		store.Close()
		return err
	}
	s.replicas = append(s.replicas, r)
	return nil
}

// startBehind starts a service that reaches its database and its store through proxies. Callers
// are sent to the store itself.
func (s *stack) startBehind(ctx context.Context, i int, database, store *faultproxy.Proxy) (*replica, error) {
	address, err := devstack.FreeAddress(loopback)
	if err != nil {
		return nil, err
	}
	c := s.config()
	c.Listen = address
	c.DatabaseURL, c.DatabaseConns = throughProxy(database), connections
	c.S3.Endpoint, c.S3.PublicEndpoint = "http://"+store.Addr(), s.s3.Endpoint()
	s.options.configure(&c)
	return startReplica(ctx, filepath.Join(s.dir, fmt.Sprintf("replica-%d", i)), c, database, store)
}

// config is how the installation is reached around the proxies.
func (s *stack) config() daemon.Config {
	c := daemon.Default()
	c.DatabaseURL = s.ownerURL
	c.S3 = daemon.S3Config{
		Driver: "aws", Endpoint: s.s3.Endpoint(), Region: s.s3.Region(), Bucket: bucket, CreateBucket: true,
		Prefix: keyPrefix, AccessKeyID: s.s3.AccessKeyID(), SecretAccessKey: s.s3.SecretAccessKey(), PathStyle: true,
	}
	c.AllowUnsafeDurability = true
	c.ShutdownGrace = time.Second
	c.HistoryTiming = recovery.Timing{Confirm: s.options.confirm}
	return c
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
		r.store.Close()
	}
	if s.store != nil {
		s.store.Close()
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
