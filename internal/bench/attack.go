package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/artifactd/artifactd/pointer"
)

const (
	// guessRate is how many wrong access tokens come each second, from guessAddresses: below what one
	// address may send before it is answered without a look at the database.
	guessRate, guessAddresses = 1000, 50
	guesses                   = 5000
	// reopenAfter is how long it takes until a slow connection that was closed is opened again.
	reopenAfter = 5 * time.Second
	// slowAddresses is where the slow connections come from: few enough of each to be let in.
	slowAddresses = 20
)

// attackConfig is what a child of the kind childAttack is told.
type attackConfig struct {
	Address string // of the service
	Slow    int    // connections
}

// attackCounts are what it has done.
type attackCounts struct {
	Open, Tried        int64 // slow connections: those there are, and all that were opened so far
	Refused, Postponed int64 // guesses answered 401 and 429
}

// attack is what others do to the service.
type attack struct {
	address string
	slow    int // connections
	secrets []string

	open, tried, refused, postponed atomic.Int64 // see attackCounts
}

// serveAttack is hostile until ctx ends, and answers how far it has come.
func serveAttack(ctx context.Context, c childConfig) error {
	a := &attack{address: c.Attack.Address, slow: c.Attack.Slow}
	for range guesses {
		secret, err := pointer.NewSecret()
		if err != nil {
			return err
		}
		a.secrets = append(a.secrets, secret)
	}
	l, err := net.Listen("tcp", loopback)
	if err != nil {
		return err
	}
	counts := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(attackCounts{ // whoever asked may be gone
			Open: a.open.Load(), Tried: a.tried.Load(), Refused: a.refused.Load(), Postponed: a.postponed.Load(),
		})
	})}
	go func() { _ = counts.Serve(l) }() // until Close
	defer counts.Close()
	var running sync.WaitGroup
	a.start(ctx, &running)
	if err := writeJSON(c.AddressFile, childAddress{API: l.Addr().String()}); err != nil {
		return err
	}
	running.Wait()
	return nil
}

// start lets them begin, until ctx ends.
func (a *attack) start(ctx context.Context, running *sync.WaitGroup) {
	for n := range a.slow {
		running.Go(func() { a.beSlow(ctx, n) })
	}
	for n := range guessAddresses {
		running.Go(func() { a.guess(ctx, n) })
	}
}

// from is a dialer with an address of its own, where this machine has more than one.
func from(host int) *net.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second}
	if runtime.GOOS == "linux" {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(host))}
	}
	return d
}

// beSlow holds a connection on which half a request is said, and another one when that is closed.
func (a *attack) beSlow(ctx context.Context, n int) {
	d := from(1 + n%slowAddresses)
	pause(ctx, time.Duration(n)*attackOpening/time.Duration(a.slow)) // not all at once
	for ctx.Err() == nil {
		conn, err := d.DialContext(ctx, "tcp", a.address)
		if err != nil {
			pause(ctx, time.Second) // the machine has no more
			continue
		}
		a.open.Add(1)
		a.tried.Add(1)
		end := context.AfterFunc(ctx, func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, "GET /v1/pointers/x HTTP/1.1\r\nHost: slow\r\nX-Half: ") // closed early is noticed next
		_, _ = conn.Read(make([]byte, 1))
		end()
		_ = conn.Close() // whoever closed it first
		a.open.Add(-1)
		pause(ctx, reopenAfter)
	}
}

// guess tries access tokens, a share of guessRate.
func (a *attack) guess(ctx context.Context, n int) {
	transport := newTransport(1)
	transport.DialContext = from(100 + n).DialContext
	defer transport.CloseIdleConnections()
	ticker := time.NewTicker(time.Second * guessAddresses / guessRate)
	defer ticker.Stop()
	for i := n; ctx.Err() == nil; i += guessAddresses {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.address+"/v1/pointers/x/settings", nil)
		if err != nil {
			return
		}
		req.Header.Set("Authorization", "Bearer "+a.secrets[i%len(a.secrets)])
		resp, err := transport.RoundTrip(req)
		if err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body) // what it says is of no interest
		_ = resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusUnauthorized:
			a.refused.Add(1)
		case http.StatusTooManyRequests:
			a.postponed.Add(1)
		}
	}
}

// slowLimit is how many slow connections this process can hold: its own files are limited too.
func slowLimit(want int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return min(want, 200)
	}
	return min(want, int(min(files.Cur, 1<<20))*3/4)
}
