package daemon

import (
	"container/list"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/time/rate"
)

// connections is a listener that bounds how many connections are open, in all and from one address.
// When there are too many, one that has no request under way makes room: first the oldest that never
// had one, then the one that is idle for the longest. An address that has a crowd of connections
// without a first request gets no more then. So whoever opens connections and says nothing, or very
// slowly, drives out none but their like, and that costs little.
type connections struct {
	net.Listener
	limit, perAddress int            // 0 for none
	proxies           []netip.Prefix // whose connections are many people's
	logger            *slog.Logger
	lines             *rate.Limiter

	mu        sync.Mutex
	open      int
	byAddress map[netip.Addr]int
	silent    map[netip.Addr]int // of them, those in fresh
	fresh     list.List          // of *connection: no request yet, oldest first
	idle      list.List          // between two requests
}

// crowd is how many connections without a first request are many for one address.
const crowd = 16

// connection is one that was accepted.
type connection struct {
	net.Conn
	owner *connections
	from  netip.Addr
	// queue and place are where it waits to be closed, if it does.
	queue  *list.List
	place  *list.Element
	closed bool
}

// boundConnections bounds the connections of a listener.
func boundConnections(l net.Listener, c Config, logger *slog.Logger) *connections {
	proxies, _ := c.trustedProxies() // Validate has seen the error
	limit := c.MaxConnections
	// Each needs a descriptor, and the database and the store need some too.
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		if most := int(min(uint64(files.Cur), 1<<30)) * 3 / 4; limit > most {
			logger.Warn("fewer connections can be open than --max-connections says: the limit of open files is too low for it",
				"max_connections", limit, "open_files", files.Cur, "used", most)
			limit = most
		}
	}
	return &connections{
		Listener: l, limit: limit, perAddress: c.MaxConnectionsPerAddress, proxies: proxies,
		logger: logger, lines: rate.NewLimiter(0.1, 1), byAddress: map[netip.Addr]int{}, silent: map[netip.Addr]int{},
	}
}

// Accept returns the next connection that there is room for.
func (l *connections) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		admitted, evicted := l.admit(c)
		if evicted != nil {
			_ = evicted.Close() // it is in nobody's use
		}
		if admitted != nil {
			return admitted, nil
		}
		_ = c.Close() // nothing was said on it
	}
}

// admit counts a connection in, or returns nil when there is no room. The evicted one has made room.
func (l *connections) admit(c net.Conn) (admitted, evicted *connection) {
	from := remoteAddress(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	shared := slices.ContainsFunc(l.proxies, func(p netip.Prefix) bool { return p.Contains(from) })
	if l.perAddress > 0 && !shared && l.byAddress[from] >= l.perAddress {
		l.log("a connection was refused: its address has too many open", from)
		return nil, nil
	}
	if l.limit > 0 && l.open >= l.limit {
		if !shared && l.silent[from] >= crowd {
			l.log("a connection was refused: there are too many, and its address has many without a request", from)
			return nil, nil
		}
		if evicted = l.oldest(); evicted == nil {
			l.log("a connection was refused: all that are open have a request under way", from)
			return nil, nil
		}
		l.log("too many connections are open; the oldest without a request makes room", evicted.from)
		l.remove(evicted)
	}
	l.open++
	l.byAddress[from]++
	admitted = &connection{Conn: c, owner: l, from: from}
	l.enqueue(admitted, &l.fresh)
	return admitted, evicted
}

func (l *connections) log(text string, from netip.Addr) {
	if l.lines.Allow() {
		l.logger.Warn(text, "remote", from.String(), "open", l.open, "max_connections", l.limit, "max_connections_per_address", l.perAddress)
	}
}

func (l *connections) oldest() *connection {
	for _, queue := range []*list.List{&l.fresh, &l.idle} {
		if e := queue.Front(); e != nil {
			return e.Value.(*connection)
		}
	}
	return nil
}

func (l *connections) enqueue(c *connection, queue *list.List) {
	l.dequeue(c)
	c.queue, c.place = queue, queue.PushBack(c)
	if queue == &l.fresh {
		l.silent[c.from]++
	}
}

func (l *connections) dequeue(c *connection) {
	if c.queue == nil {
		return
	}
	if c.queue == &l.fresh {
		subtract(l.silent, c.from)
	}
	c.queue.Remove(c.place)
	c.queue, c.place = nil, nil
}

// subtract counts down, and forgets what is 0.
func subtract(counts map[netip.Addr]int, key netip.Addr) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// remove counts a connection out, once.
func (l *connections) remove(c *connection) {
	if c.closed {
		return
	}
	c.closed = true
	l.dequeue(c)
	l.open--
	subtract(l.byAddress, c.from)
}

// follow is the server's ConnState.
func (l *connections) follow(served net.Conn, state http.ConnState) {
	if t, ok := served.(*tls.Conn); ok {
		served = t.NetConn()
	}
	c, ok := served.(*connection)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.closed:
	case state == http.StateActive:
		l.dequeue(c)
	case state == http.StateIdle:
		l.enqueue(c, &l.idle)
	}
}

// Close counts it out.
func (c *connection) Close() error {
	c.owner.mu.Lock()
	c.owner.remove(c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// remoteAddress is the address of a connection's other end, without its port.
func remoteAddress(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
