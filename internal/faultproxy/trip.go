package faultproxy

import "bytes"

// Trip is a fault that waits for certain bytes from a client.
type Trip struct {
	proxy   *Proxy
	pattern []byte
	fault   Fault
	tripped chan struct{}
	conn    *proxied // that it has hit; guarded by the proxy's lock
}

// Arm puts the fault on the one connection whose client next sends the pattern, before the bytes
// that complete it are passed on. Any number of trips may wait; one happens at most once.
func (p *Proxy) Arm(pattern []byte, f Fault) *Trip {
	t := &Trip{proxy: p, pattern: bytes.Clone(pattern), fault: f, tripped: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips = append(p.trips, t)
	return t
}

// Tripped is closed when it happened.
func (t *Trip) Tripped() <-chan struct{} { return t.tripped }

// Lift ends it: what was held goes on; what has not happened will not.
func (t *Trip) Lift() { t.end(Fault{}) }

// Break ends it by resetting the connection that was hit: what is held is lost.
func (t *Trip) Break() { t.end(Fault{Reset: true}) }

func (t *Trip) end(f Fault) {
	p := t.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(t)
	if t.conn == nil {
		return
	}
	t.conn.fault = f
	if f.Reset {
		t.conn.reset()
	}
	p.changed.Broadcast()
}

func (p *Proxy) forget(t *Trip) {
	for i, armed := range p.trips {
		if armed == t {
			p.trips = append(p.trips[:i], p.trips[i+1:]...)
			return
		}
	}
}

// trip looks for the patterns in what a client sends. Called with the lock.
func (p *Proxy) trip(c *proxied, chunk []byte) {
	if len(p.trips) == 0 {
		c.tail = nil
		return
	}
	seen := append(c.tail, chunk...)
	longest := 0
	for _, t := range append([]*Trip(nil), p.trips...) {
		if bytes.Contains(seen, t.pattern) {
			c.fault, t.conn = t.fault, c
			p.forget(t)
			close(t.tripped)
			p.changed.Broadcast()
			continue
		}
		longest = max(longest, len(t.pattern))
	}
	c.tail = bytes.Clone(seen[max(0, len(seen)-max(longest-1, 0)):])
}
