package api

import (
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Defaults of [Options].
const (
	DefaultProxyLimit = 8 << 20 // bytes
	DefaultReadURLTTL = 15 * time.Minute
)

// Options wire a [Server]. Catalogue, Store and Collector are required.
type Options struct {
	// Catalogue decides everything.
	Catalogue *pointer.Catalogue
	// Store holds the bytes.
	Store artifacts.Store
	// Layout names the objects; it must be the one that the collector uses.
	Layout artifacts.Layout
	// Collector runs collections on demand.
	Collector Collector
	// HistorySign says why no write is admitted at this moment, for readiness; empty when they are.
	// Nil means that they always are.
	HistorySign func() string
	// Logger gets the access log at debug level, unexpected errors, and an audit line for every
	// refusal and every administrator's act. Nil discards them.
	Logger *slog.Logger
	// Registry takes this package's metrics and is what /metrics shows. Nil makes a new one.
	Registry *prometheus.Registry
	// PublicURL is put before the paths of URLs and Locations in answers: scheme, host and
	// optionally a path, without a trailing slash. Empty leaves them absolute paths.
	PublicURL string
	// ProxyLimit is the size in bytes up to which files are read through the service; larger ones
	// are redirected to the store. 0 means DefaultProxyLimit; a negative one redirects only when
	// the caller asks for it.
	ProxyLimit int64
	// ReadURLTTL is how long a presigned read URL can be used. 0 means DefaultReadURLTTL. How long
	// upload URLs can be used is the catalogue's business, which records it.
	ReadURLTTL time.Duration
	// Partition is how files are cut into parts. All replicas must cut alike; the zero value is
	// the one for production.
	Partition artifacts.Partition
	// Identities finds the callers behind identity tokens. Nil takes none.
	Identities Identities
	// Limits bound what one caller can take. The zero value limits nothing.
	Limits Limits
	// TrustedProxies are the networks whose X-Forwarded-For is believed. With none a request comes
	// from where its connection does.
	TrustedProxies []netip.Prefix
}

// Server is the HTTP API, an [http.Handler]. Serve it with [Server.HTTPServer], whose timeouts it
// counts on.
type Server struct {
	catalogue *pointer.Catalogue
	store     artifacts.Store
	layout    artifacts.Layout
	collector Collector
	sign      func() string
	logger    *slog.Logger
	registry  *prometheus.Registry
	metrics   *metrics
	bodies    *resolvedBodies

	publicURL  string
	proxyLimit int64
	readTTL    time.Duration
	partition  artifacts.Partition
	identities Identities
	limits     *limits
	addressOf  echo.IPExtractor
	proofs     *proofs
	readBacks  *semaphore.Weighted
	// largeCopies are the large buffers that transfers may have at once.
	largeCopies *semaphore.Weighted
	bulks       *semaphore.Weighted // archives of many artifacts that are taken at once

	echo      *echo.Echo
	drainOnce sync.Once
	draining  chan struct{}
	largeBody chan struct{} // held while a large JSON body is checked
}

var _ ServerInterface = (*Server)(nil)

//go:embed openapi.yaml
var document []byte

// New makes the API's handler. It fails when an option is missing, when the registry has other
// metrics of the same names, or when the embedded document is not what this package expects.
func New(o Options) (*Server, error) {
	if o.Catalogue == nil || o.Store == nil || o.Collector == nil {
		return nil, errors.New("api: Catalogue, Store and Collector are required")
	}
	s := &Server{
		catalogue:   o.Catalogue,
		store:       o.Store,
		layout:      o.Layout,
		collector:   o.Collector,
		sign:        o.HistorySign,
		logger:      o.Logger,
		registry:    o.Registry,
		publicURL:   strings.TrimSuffix(o.PublicURL, "/"),
		proxyLimit:  o.ProxyLimit,
		readTTL:     o.ReadURLTTL,
		partition:   o.Partition,
		identities:  o.Identities,
		limits:      newLimits(o.Limits),
		addressOf:   clientAddress(o.TrustedProxies),
		proofs:      newProofs(proofLinger),
		readBacks:   semaphore.NewWeighted(maxReadBacks),
		largeCopies: semaphore.NewWeighted(maxLargeBuffers),
		bulks:       semaphore.NewWeighted(bulkRequests),
		draining:    make(chan struct{}),
		largeBody:   make(chan struct{}, 1),
		bodies:      newResolvedBodies(),
	}
	s.applyDefaults()
	var err error
	if s.metrics, err = newMetrics(s.registry); err != nil {
		return nil, fmt.Errorf("api: register metrics: %w", err)
	}
	if err := s.route(); err != nil {
		return nil, fmt.Errorf("api: openapi.yaml: %w", err)
	}
	return s, nil
}

func (s *Server) applyDefaults() {
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.sign == nil {
		s.sign = func() string { return "" }
	}
	if s.registry == nil {
		s.registry = prometheus.NewRegistry()
	}
	if s.proxyLimit == 0 {
		s.proxyLimit = DefaultProxyLimit
	}
	if s.readTTL == 0 {
		s.readTTL = DefaultReadURLTTL
	}
}

// clientAddress finds where a request comes from.
func clientAddress(proxies []netip.Prefix) echo.IPExtractor {
	if len(proxies) == 0 {
		return echo.ExtractIPDirect()
	}
	trust := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range proxies {
		trust = append(trust, echo.TrustIPRange(&net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}))
	}
	return echo.ExtractIPFromXFFHeader(trust...)
}

// route registers every operation of the document behind its own guard.
func (s *Server) route() error {
	operations, err := loadOperations(document)
	if err != nil {
		return err
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.writeError
	e.IPExtractor = s.addressOf
	e.Use(s.instrument)
	guards := make(map[string][]echo.MiddlewareFunc, len(operations))
	for id, op := range operations {
		guards[id] = []echo.MiddlewareFunc{s.guard(op)}
	}
	RegisterHandlersWithOptions(e, s, RegisterHandlersOptions{OperationMiddlewares: guards})
	// Probes ask with HEAD as well; net/http leaves the body out.
	e.HEAD("/healthz", s.GetHealth, guards["GetHealth"]...)
	e.HEAD("/readyz", s.GetReadiness, guards["GetReadiness"]...)
	s.echo = e
	return nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The router matches RawPath when there is one and the decoded path otherwise, and decodes its
	// parameters accordingly. Setting it always leaves one way: split first, then decode.
	r.URL.RawPath = r.URL.EscapedPath()
	s.echo.ServeHTTP(w, r)
}

// HTTPServer is the server that this handler is made for. It has no total read or write timeout:
// transfers of bytes may take as long as they make progress, and every other call sets its own
// deadlines. Shutting it down ends long polls.
func (s *Server) HTTPServer() *http.Server {
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
	srv.RegisterOnShutdown(s.Drain)
	return srv
}

// Drain ends the calls that wait for something to happen; they answer as if their wait was over.
func (s *Server) Drain() {
	s.drainOnce.Do(func() {
		close(s.draining)
		s.proofs.drain()
	})
}
