package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/artifactd/artifactd/api"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/miniostore"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/migrations"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// ErrUnavailable wraps what keeps the service from starting and may pass: the database does not
// answer.
var ErrUnavailable = errors.New("not available")

// startTimeout bounds what is asked of the database before the service listens.
const startTimeout = 30 * time.Second

// Options of [Run] that are not configuration.
type Options struct {
	// Logger gets what the service has to say. Nil discards it.
	Logger *slog.Logger
	// Listener replaces listening on Config.Listen. Run closes it.
	Listener net.Listener
	// Ready is called once, with the address that is listened on, when requests are answered.
	Ready func(net.Addr)
	// Partition is how files are cut into parts. It is no configuration, because all replicas must
	// cut alike: only tests give one.
	Partition artifacts.Partition
	// Replica names this service among the replicas. A service that is the only one of this name may
	// keep it over restarts; the zero value makes a new one.
	Replica uuid.UUID
}

// Run serves until ctx ends, then lets running requests finish within Config.ShutdownGrace. It
// returns nil after an orderly end. Faults of the configuration are all reported at once.
func Run(ctx context.Context, c Config, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if o.Listener == nil {
		l, err := Listen(c.Listen)
		if err != nil {
			return err
		}
		o.Listener = l
	}
	defer o.Listener.Close() // closed by the server already, unless it never started
	s, err := assemble(ctx, c, o)
	if err != nil {
		return err
	}
	defer s.close()
	return s.serve(ctx, c, o)
}

// Listen listens on host:port and says what to do when it cannot.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program: stop that one, or choose another port with --listen (port 0 picks a free one)", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s is not allowed to this user: choose a port above 1023 with --listen", address)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

// service is everything that runs.
type service struct {
	pool      *pgxpool.Pool
	store     store
	collector *gc.Collector
	adapter   *collectorAdapter
	reconcile *gc.Reconciler
	history   *recovery.Watch
	records   *recovery.Outbox
	api       *api.Server
	cert      *certificate // nil without TLS
}

// store is a driver with what only the wiring uses of it.
type store interface {
	artifacts.Store
	// EnsureBucket makes the bucket if it is missing.
	EnsureBucket(ctx context.Context) error
	// Close drops idle connections.
	Close()
}

// assemble makes the parts, from the database up, and checks that they fit together.
func assemble(ctx context.Context, c Config, o Options) (_ *service, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &service{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.pool, err = openPool(ctx, c); err != nil {
		return nil, err
	}
	if err := checkSchema(ctx, s.pool); err != nil {
		return nil, err
	}
	if s.store, err = openStore(ctx, c.S3); err != nil {
		return nil, err
	}
	if c.S3.CreateBucket {
		if err := s.store.EnsureBucket(ctx); err != nil {
			return nil, fmt.Errorf("%w: the bucket %q: %w; see the --s3-… settings", ErrUnavailable, c.S3.Bucket, err)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.history, err = watchHistory(s, c, o, registry); err != nil {
		return nil, err
	}
	catalogue, err := pointer.New(s.pool, pointer.Options{
		UploadTTL: c.UploadURLTTL, ResumeGrace: c.GC.ResumeGrace, Logger: o.Logger, Confirm: s.history.Confirm,
	})
	if err != nil {
		return nil, err
	}
	if err := checkPromises(ctx, catalogue, c); err != nil {
		return nil, err
	}
	if err := catalogue.ClaimKeyPrefix(ctx, c.S3.Prefix); err != nil {
		return nil, err
	}
	if err := claimBucket(ctx, s, c, o.Logger); err != nil {
		return nil, err
	}
	if s.records, err = writeRecords(s, catalogue, c, o, registry); err != nil {
		return nil, err
	}
	s.collector, err = gc.New(s.pool, s.store, gc.Options{
		ResumeGrace: c.GC.ResumeGrace, LandingGrace: c.GC.LandingGrace, Rate: c.GC.Rate, Logger: o.Logger, Registry: registry,
	})
	if err != nil {
		return nil, err
	}
	identities, err := c.identities()
	if err != nil {
		return nil, err
	}
	proxies, err := c.trustedProxies()
	if err != nil {
		return nil, err
	}
	if c.TLSCert != "" {
		if s.cert, err = loadCertificate(c, o.Logger); err != nil {
			return nil, err
		}
	}
	layout := artifacts.Layout{Prefix: c.S3.Prefix}
	if s.reconcile, err = gc.NewReconciler(s.pool, s.store, layout, registry); err != nil {
		return nil, err
	}
	s.adapter = newCollectorAdapter(s.collector, s.history.Confirm, layout, o.Logger)
	s.api, err = api.New(api.Options{
		Catalogue: catalogue, Store: s.store, Layout: layout,
		Collector: s.adapter, Logger: o.Logger, Registry: registry,
		PublicURL: c.PublicURL, ProxyLimit: c.ProxyLimit, ReadURLTTL: c.ReadURLTTL,
		Partition: o.Partition, Identities: identities, Limits: c.limits(), TrustedProxies: proxies,
		HistorySign: s.history.Sign,
	})
	return s, err
}

// claimTimeout bounds the wait for a store that does not answer at the start.
const claimTimeout = 5 * time.Second

// claimBucket refuses a bucket that is another installation's, and marks one that is nobody's. A
// store that is down now must not keep the service down: it is asked again at the next start.
func claimBucket(ctx context.Context, s *service, c Config, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	err := gc.ClaimBucket(ctx, s.pool, s.store, artifacts.Layout{Prefix: c.S3.Prefix})
	if err == nil || errors.Is(err, gc.ErrForeignBucket) {
		return err
	}
	logger.Warn("the bucket could not be marked as this installation's; until a service that starts has done it there is no reconciliation",
		"bucket", c.S3.Bucket, "error", err)
	return nil
}

// minConns is the smallest pool that the service chooses by itself.
const minConns = 16

func openPool(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	cfg, err := pointer.PoolConfig(c.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("--database-url (%s): %w", EnvName("database-url"), err)
	}
	cfg.MaxConns = int32(max(minConns, 4*runtime.GOMAXPROCS(0)))
	if c.DatabaseConns > 0 {
		cfg.MaxConns = int32(c.DatabaseConns)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("%w: the database does not let this service in: %w; see --database-url (%s)", ErrUnavailable, err, EnvName("database-url"))
	}
	return pool, nil
}

// checkPromises refuses a database, or a role in it, with which the service could not keep what it
// promises.
func checkPromises(ctx context.Context, catalogue *pointer.Catalogue, c Config) error {
	if err := catalogue.CheckDurability(ctx); err != nil && !c.AllowUnsafeDurability {
		return fmt.Errorf("%w; only for development there is --allow-unsafe-durability", err)
	}
	if err := catalogue.CheckRole(ctx); err != nil && !c.AllowUnfencedRole {
		return fmt.Errorf("%w; only for development there is --allow-unfenced-role", err)
	}
	return nil
}

// checkSchema refuses a schema that is not this program's.
func checkSchema(ctx context.Context, pool *pgxpool.Pool) (err error) {
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	applied, known, err := migrations.Current(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("%w: ask the database for its schema: %w", ErrUnavailable, err)
	case applied < known:
		return fmt.Errorf("the database's schema has version %d and this program needs %d: run `artifactd migrate` first", applied, known)
	case applied > known:
		return fmt.Errorf("the database's schema has version %d and this program knows only %d: run the newer program", applied, known)
	}
	return nil
}

// driverConfig is the configuration as both drivers take it.
func (c *S3Config) driverConfig() s3store.Config {
	return s3store.Config{
		Endpoint: c.Endpoint, PublicEndpoint: c.PublicEndpoint, Region: c.Region, Bucket: c.Bucket, Prefix: c.Prefix,
		AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken, PathStyle: c.PathStyle, CAFile: c.CAFile,
	}
}

// openStore makes the driver that the configuration names. It does not talk to the store yet.
func openStore(ctx context.Context, c S3Config) (store, error) {
	cfg := c.driverConfig()
	// Not one expression: a nil driver in an interface is not nil.
	if c.Driver == driverMinIO {
		s, err := miniostore.New(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	s, err := s3store.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *service) close() {
	if s.adapter != nil {
		s.adapter.stop()
	}
	if s.store != nil {
		s.store.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
}

// serve answers requests and collects until ctx ends or the listener fails.
func (s *service) serve(ctx context.Context, c Config, o Options) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	logger := o.Logger
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	if c.GC.Interval > 0 {
		running.Go(func() { s.collector.Loop(background, c.GC.Interval) })
	}
	if c.GC.ReconcileInterval > 0 {
		o := gc.ReconcileOptions{Grace: c.GC.ReconcileGrace, MaxShare: c.GC.ReconcileMaxShare}
		running.Go(func() { s.reconcile.Loop(background, c.GC.ReconcileInterval, o, logger) })
	}
	running.Go(func() { s.history.Run(background) })
	running.Go(func() { s.records.Loop(background) })
	s.awaitHistory(ctx)
	running.Go(func() { s.lookAtStore(background, c, o.Logger) })
	server := s.api.HTTPServer()
	failed := make(chan error, 1)
	running.Go(func() { failed <- s.listen(server, boundConnections(o.Listener, c, o.Logger)) })
	if s.cert != nil {
		running.Go(func() { s.cert.watch(background) })
	}
	o.Logger.Info("serving", "address", o.Listener.Addr().String(), "bucket", c.S3.Bucket, "prefix", c.S3.Prefix)
	if o.Ready != nil {
		o.Ready(o.Listener.Addr())
	}
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	o.Logger.Info("shutting down", "grace", c.ShutdownGrace)
	return shutDown(ctx, server, c.ShutdownGrace)
}

// listen serves, with TLS if there is a certificate.
func (s *service) listen(server *http.Server, l *connections) error {
	server.ConnState = l.follow
	// One request at a time on a connection: so the limits of connections mean something, and large
	// uploads do not share one's window.
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	if s.cert == nil {
		return server.Serve(l)
	}
	server.TLSConfig = s.cert.config()
	return server.ServeTLS(l, "", "")
}

// shutDown lets running requests finish for as long as the grace lasts, then cuts them off.
func shutDown(ctx context.Context, server *http.Server, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	}
	return err
}

// lookAtStore asks the store what it does once, so that a wrong bucket or credential is seen at the
// start and not with the first upload. A store that is down now must not keep the service down.
func (s *service) lookAtStore(ctx context.Context, c Config, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	enforces, err := s.store.EnforcesSignedDigest(ctx)
	switch {
	case ctx.Err() != nil && err != nil:
	case err != nil:
		logger.Error("the object store cannot be used: see the --s3-… settings", "bucket", c.S3.Bucket, "endpoint", c.S3.Endpoint, "error", err)
	case !enforces:
		logger.Warn("the store does not check the digest of presigned uploads, so all uploads go through the service", "endpoint", c.S3.Endpoint)
	}
}
