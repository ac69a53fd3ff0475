package testenv

import (
	"sync"
	"testing"

	"github.com/artifactd/artifactd/internal/faultproxy"
)

// Fault is what a Proxy does to the connections through it. The zero value forwards.
type Fault = faultproxy.Fault

// Proxy is a TCP proxy that can do what networks do, for one test.
type Proxy struct {
	*faultproxy.Proxy

	mu   sync.Mutex
	trip *faultproxy.Trip
}

// NewProxy starts a proxy for target: "host:port", a URL's "http://host:port", or the path of a
// Unix socket. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := faultproxy.New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return &Proxy{Proxy: p}
}

// TripOn puts the fault on the one connection whose client next sends the pattern, before the
// bytes that complete it are passed on. The channel closes when that happened. A later TripOn
// replaces one that has not happened.
func (p *Proxy) TripOn(pattern string, f Fault) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trip != nil {
		select {
		case <-p.trip.Tripped(): // it happened: what it did stays until Set
		default:
			p.trip.Lift()
		}
	}
	p.trip = p.Arm([]byte(pattern), f)
	return p.trip.Tripped()
}
