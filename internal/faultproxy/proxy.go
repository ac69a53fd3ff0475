package faultproxy

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Fault is what a Proxy does to connections. The zero value forwards.
type Fault struct {
	// Reset breaks connections with a TCP reset, and new ones at once.
	Reset bool
	// HoldToServer and HoldToClient are black holes: bytes in that direction do not arrive. They
	// are held, not lost, and go on when the fault is lifted, as TCP does.
	HoldToServer, HoldToClient bool
	// LoseAnswer drops the next bytes from the server and then resets the connection: the server
	// has acted, the client does not learn of it.
	LoseAnswer bool
	// Delay is added to every chunk, in both directions.
	Delay time.Duration
}

// Proxy is a TCP proxy in front of one server. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	network  string
	target   string

	mu      sync.Mutex
	changed *sync.Cond // fault, trips or closed, of the proxy or of a connection
	fault   Fault
	trips   []*Trip
	conns   map[*proxied]struct{}
	closed  bool
	wg      sync.WaitGroup
}

// New starts a proxy on a free port of the loopback interface, for target: "host:port", a URL's
// "http://host:port", or the path of a Unix socket. Close ends it.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, network: "tcp", target: strings.TrimPrefix(target, "http://"), conns: map[*proxied]struct{}{}}
	if strings.HasPrefix(target, "/") {
		p.network = "unix"
	}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set changes the fault of all connections, present and future, and ends what trips did to single
// ones.
func (p *Proxy) Set(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	for c := range p.conns {
		c.fault = Fault{}
		if f.Reset {
			c.reset()
		}
	}
	p.changed.Broadcast()
}

// Close breaks all connections and returns when nothing of the proxy runs any more.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close() // ends accept; there is nothing to lose
	for c := range p.conns {
		c.reset()
	}
	p.changed.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// proxied is one connection through the proxy. Its fault is guarded by the proxy's lock.
type proxied struct {
	client, server net.Conn
	fault          Fault
	tail           []byte // the last bytes from the client, in which a pattern may begin
}

// reset closes both sides; the client sees a TCP reset.
func (c *proxied) reset() {
	if tcp, ok := c.client.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only on a closed connection, and then it does not matter
	}
	_ = c.client.Close()
	_ = c.server.Close()
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial(p.network, p.target)
	if err != nil {
		_ = client.Close() // the target is down: so is the proxy
		return
	}
	c := &proxied{client: client, server: server}
	p.mu.Lock()
	if p.closed || p.fault.Reset {
		c.reset()
		p.mu.Unlock()
		return
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { p.pump(c, server, client, p.toServer) })
	both.Go(func() { p.pump(c, client, server, p.toClient) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	_ = client.Close()
	_ = server.Close()
}

// pump copies one direction until it ends; pass decides on each chunk.
func (p *Proxy) pump(c *proxied, dst, src net.Conn, pass func(*proxied, []byte) bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if !pass(c, buf[:n]) {
				p.mu.Lock()
				c.reset()
				p.mu.Unlock()
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if half, ok := dst.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // the other side may be gone already
			}
			return
		}
		if err != nil {
			_ = dst.Close() // a reset on one side ends the other
			return
		}
	}
}

// toServer decides on a chunk from the client: false breaks the connection.
func (p *Proxy) toServer(c *proxied, chunk []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trip(c, chunk)
	return p.gate(c, func(f Fault) bool { return f.HoldToServer })
}

// toClient decides on a chunk from the server: false breaks the connection.
func (p *Proxy) toClient(c *proxied, _ []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault.LoseAnswer || c.fault.LoseAnswer {
		return false
	}
	return p.gate(c, func(f Fault) bool { return f.HoldToClient })
}

// gate waits while the direction is held. It is called with the lock and returns with it.
func (p *Proxy) gate(c *proxied, held func(Fault) bool) bool {
	if d := max(p.fault.Delay, c.fault.Delay); d > 0 {
		p.mu.Unlock()
		time.Sleep(d)
		p.mu.Lock()
	}
	for !p.closed && !p.fault.Reset && !c.fault.Reset && (held(p.fault) || held(c.fault)) {
		p.changed.Wait()
	}
	return !p.closed && !p.fault.Reset && !c.fault.Reset
}
