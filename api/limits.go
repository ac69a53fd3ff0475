package api

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

// Limits bound what one caller can take from the others. A member that is 0 limits nothing.
type Limits struct {
	// CallerRate is how many requests a second one authenticated caller may send, on average; in a
	// burst it is twice that.
	CallerRate float64
	// AddressRate is the same for requests without a token, by the address they come from.
	AddressRate float64
	// FailureRate is how many requests a second may come from one address without a good credential,
	// on average; in a burst it is five times that. Beyond it only callers who are known already, and
	// requests that need no credential, are answered.
	FailureRate float64
	// Concurrency is how many requests of one caller, or without a token from one address, are
	// answered at a time: those that wait for their turn at the database are as many at most. Calls
	// that may wait for something to happen hold nothing while they do; they are counted apart, and
	// may be eight times as many.
	Concurrency int
}

// DefaultLimits are far above what a build or a reader needs.
func DefaultLimits() Limits {
	return Limits{CallerRate: 20_000, AddressRate: 5_000, FailureRate: 20, Concurrency: 512}
}

const (
	// maxBuckets is how many callers, and how many addresses, are told apart. When there are more,
	// whoever was not seen for the longest starts afresh.
	maxBuckets = 10_000
	// waitingFactor is how many more calls may wait than work.
	waitingFactor = 8
	// maxBodies is how many bytes of JSON bodies one caller may have under way, whatever their number,
	// large answers included: they are held in memory.
	maxBodies = 64 << 20
	// refusalRate and refusalBurst are how many refusals of one caller are logged, a second and in a
	// burst; of those that come too often it is one in ten seconds.
	refusalRate, refusalBurst = 20, 200
	tooManyRate               = 0.1
)

// limits is the bookkeeping of [Limits].
type limits struct {
	callers   *buckets[uuid.UUID]
	addresses *buckets[netip.Addr]
	failures  *buckets[netip.Addr]
}

func newLimits(l Limits) *limits {
	return &limits{
		callers:   newBuckets[uuid.UUID](l.CallerRate, 2, l.Concurrency),
		addresses: newBuckets[netip.Addr](l.AddressRate, 2, l.Concurrency),
		failures:  newBuckets[netip.Addr](l.FailureRate, 5, 0),
	}
}

// address is where a request comes from, as far as it tells callers apart: who has one address of
// IPv6 usually has its whole network of 64 bits.
func (l *limits) address(c echo.Context) netip.Addr {
	a, err := netip.ParseAddr(c.RealIP())
	if err != nil {
		return netip.IPv6Unspecified() // all of these are one
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		if network, err := a.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return a
}

// enter counts a request of a caller from now to when the function it returns is called.
func (l *limits) enter(c echo.Context, b *bucket, op *operation) (done func(), err error) {
	if !b.take() {
		return nil, b.tooMany(c, "Too many requests; wait for as long as Retry-After says.")
	}
	count, most := &b.working, b.most
	if op.waits {
		count, most = &b.waiting, waitingFactor*b.most
	}
	if n := count.Add(1); most > 0 && n > int64(most) {
		count.Add(-1)
		return nil, b.tooMany(c, fmt.Sprintf("There are %d requests under way already; wait until some are answered.", most))
	}
	c.Set(bucketKey, b)
	return func() { count.Add(-1) }, nil
}

// hold counts the bytes of a body that is about to be read, or sent, until the function it returns is
// called.
func (s *Server) hold(c echo.Context, size int64) (done func(), err error) {
	return s.bucketOf(c).hold(c, size)
}

func (b *bucket) hold(c echo.Context, size int64) (done func(), err error) {
	if b.bodies.Add(size) > maxBodies {
		b.bodies.Add(-size)
		return nil, b.tooMany(c, "The bodies of your requests under way and of their answers are too large together; wait until some are answered.")
	}
	return func() { b.bodies.Add(-size) }, nil
}

// buckets has a bucket for everybody who was seen lately.
type buckets[K comparable] struct {
	entries *lru.Cache[K, *bucket]
	rate    rate.Limit
	burst   int
	most    int
}

func newBuckets[K comparable](perSecond float64, burst float64, most int) *buckets[K] {
	entries, err := lru.New[K, *bucket](maxBuckets)
	if err != nil {
		panic(err) // only for a size below 1
	}
	b := &buckets[K]{entries: entries, rate: rate.Limit(perSecond), burst: max(1, int(burst*perSecond)), most: most}
	if perSecond <= 0 {
		b.rate = rate.Inf
	}
	return b
}

func (b *buckets[K]) of(key K) *bucket {
	if found, ok := b.entries.Get(key); ok {
		return found
	}
	fresh := &bucket{
		requests: rate.NewLimiter(b.rate, b.burst), most: b.most,
		refusals: rate.NewLimiter(refusalRate, refusalBurst), excesses: rate.NewLimiter(tooManyRate, 1),
	}
	if found, ok, _ := b.entries.PeekOrAdd(key, fresh); ok {
		return found
	}
	return fresh
}

// bucket is what is known of one caller or address.
type bucket struct {
	requests         *rate.Limiter
	working, waiting atomic.Int64 // requests being answered
	bodies           atomic.Int64 // bytes of them
	most             int

	refusals, excesses *rate.Limiter // of lines in the log
	unlogged           atomic.Int64  // refusals since the last line
}

// take counts one request, and reports whether it is within the rate.
func (b *bucket) take() bool { return b.requests.Allow() }

// exhausted reports whether the next request will not be within the rate.
func (b *bucket) exhausted() bool {
	return b.requests.Limit() != rate.Inf && b.requests.Tokens() < 1
}

// logs reports whether a refusal is to be logged, and how many were not since the last one that was.
func (b *bucket) logs(excess bool) (unlogged int64, yes bool) {
	lines := b.refusals
	if excess {
		lines = b.excesses
	}
	if !lines.Allow() {
		b.unlogged.Add(1)
		return 0, false
	}
	return b.unlogged.Swap(0), true
}

// limitError is a request too many.
type limitError struct {
	fault
	after time.Duration
}

func (e *limitError) Unwrap() error { return errTooManyRequests }

// tooMany refuses a request, and notes in which bucket for the audit.
func (b *bucket) tooMany(c echo.Context, detail string) error {
	c.Set(bucketKey, b)
	after := time.Second
	if limit := b.requests.Limit(); limit < 1 {
		after = time.Duration(float64(time.Second) / float64(limit))
	}
	return &limitError{fault: fault{kind: errTooManyRequests, detail: detail}, after: after}
}
