package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/artifactd/artifactd/pointer"
)

const (
	// healthyWorkers send healthyRate requests a second each, and look at how long they take.
	healthyWorkers, healthyRate = 8, 50
	// guessRate is how many wrong access tokens come each second, from guessAddresses: below what one
	// address may send before it is answered without a look at the database.
	guessRate, guessAddresses = 1000, 50
	guesses                   = 5000
	// slowAddresses is where the slow connections come from: few enough of each to be let in.
	slowAddresses = 20
	// settling is how long the attack lasts before anything is measured, of one that is measured for long.
	settling = 10 * time.Second
)

// prepareToken compares a resolve with an access token with that of a public pointer without one.
func prepareToken(ctx context.Context, s *stack) (ours, peer side, err error) {
	names, err := pointers(ctx, s, "token", resolveConnections, make([]byte, smallSize))
	if err != nil {
		return nil, nil, err
	}
	bodies := make(map[string][]byte, len(names))
	for _, name := range names {
		if err := s.api.call(ctx, http.MethodPut, "/v1/pointers/"+name, map[string]bool{"public": true}, nil); err != nil {
			return nil, nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.api.base+"/v1/pointers/"+name, nil)
		if err != nil {
			return nil, nil, err
		}
		if bodies[name], err = s.api.send(req); err != nil {
			return nil, nil, err
		}
	}
	if ours, err = gets(s.api.base, s.api.bearer, names, bodies); err != nil {
		return nil, nil, err
	}
	peer, err = gets(s.api.base, "", names, bodies)
	return ours, peer, err
}

// prepareHostile compares what healthy callers wait for while others are hostile with what they wait
// for when they are alone. A side's rate is one over the 99th percentile.
func prepareHostile(ctx context.Context, s *stack) (ours, peer side, err error) {
	names, err := pointers(ctx, s, "hostile", healthyWorkers, make([]byte, smallSize))
	if err != nil {
		return nil, nil, err
	}
	a := &attack{address: strings.TrimPrefix(s.api.base, "http://"), slow: s.slow}
	for range guesses {
		secret, err := pointer.NewSecret()
		if err != nil {
			return nil, nil, err
		}
		a.secrets = append(a.secrets, secret)
	}
	peer = func(ctx context.Context, d time.Duration) (sample, error) { return s.healthy(ctx, names, d) }
	ours = func(ctx context.Context, d time.Duration) (sample, error) {
		ctx, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		a.start(ctx, &running)
		pause(ctx, min(settling, d))
		one, err := s.healthy(ctx, names, d)
		if err == nil {
			err = a.tell(s.service.process.Pid())
		}
		return one, err
	}
	return ours, peer, nil
}

// healthy resolves at a steady pace.
func (s *stack) healthy(ctx context.Context, names []string, d time.Duration) (sample, error) {
	transport := newTransport(len(names))
	defer transport.CloseIdleConnections()
	one := sample{latency: newHistogram()}
	var mu sync.Mutex
	var running sync.WaitGroup
	var errs []error
	end := time.Now().Add(d)
	for w, name := range names {
		running.Go(func() {
			h := newHistogram()
			err := paced(ctx, end, time.Second/healthyRate*time.Duration(w)/time.Duration(len(names)), func() error {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.api.base+"/v1/pointers/"+name, nil)
				if err != nil {
					return err
				}
				req.Header.Set("Authorization", s.api.bearer)
				began := time.Now()
				resp, err := transport.RoundTrip(req)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close() // read to its end
				if err == nil && resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("a healthy caller was answered %s", resp.Status)
				}
				return errors.Join(err, h.RecordValue(time.Since(began).Microseconds()))
			})
			mu.Lock()
			defer mu.Unlock()
			one.latency.Merge(h)
			errs = append(errs, err)
		})
	}
	running.Wait()
	one.operations = one.latency.TotalCount()
	one.calls = one.operations
	one.elapsed = time.Duration(one.operations*one.latency.ValueAtPercentile(99)) * time.Microsecond
	return one, errors.Join(errs...)
}

// paced calls do healthyRate times a second until the end.
func paced(ctx context.Context, end time.Time, offset time.Duration, do func() error) error {
	pause(ctx, offset)
	ticker := time.NewTicker(time.Second / healthyRate)
	defer ticker.Stop()
	for time.Now().Before(end) && ctx.Err() == nil {
		if err := do(); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// attack is what others do to the service.
type attack struct {
	address string
	slow    int // connections
	secrets []string

	open, reopened     atomic.Int64
	refused, postponed atomic.Int64 // guesses answered 401 and 429
}

// start lets them begin, until ctx ends.
func (a *attack) start(ctx context.Context, running *sync.WaitGroup) {
	for _, n := range []*atomic.Int64{&a.reopened, &a.refused, &a.postponed} {
		n.Store(0)
	}
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
	pause(ctx, time.Duration(n)*settling/2/time.Duration(a.slow)) // not all at once
	for ctx.Err() == nil {
		conn, err := d.DialContext(ctx, "tcp", a.address)
		if err != nil {
			pause(ctx, time.Second) // the machine has no more
			continue
		}
		a.open.Add(1)
		end := context.AfterFunc(ctx, func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, "GET /v1/pointers/x HTTP/1.1\r\nHost: slow\r\nX-Half: ") // closed early is noticed next
		_, _ = conn.Read(make([]byte, 1))
		end()
		_ = conn.Close() // whoever closed it first
		a.open.Add(-1)
		a.reopened.Add(1)
		pause(ctx, time.Second)
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

// tell says how it went, and fails when there was no attack.
func (a *attack) tell(service int) error {
	fmt.Fprintf(os.Stderr, "bench: hostile: %d slow connections open, %d reopened; %d guesses refused, %d postponed; the service has had %s MiB at most\n",
		a.open.Load(), a.reopened.Load(), a.refused.Load(), a.postponed.Load(), peakMemory(service))
	if a.open.Load()+a.reopened.Load() == 0 || a.refused.Load()+a.postponed.Load() == 0 {
		return errors.New("nobody was hostile")
	}
	return nil
}

// peakMemory is the most memory that a process has had, in MiB, where the system tells.
func peakMemory(pid int) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "?"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			if kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB")); err == nil {
				return strconv.Itoa(kib >> 10)
			}
		}
	}
	return "?"
}

// slowLimit is how many slow connections this process can hold: its own files are limited too.
func slowLimit(want int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return min(want, 200)
	}
	return min(want, int(min(files.Cur, 1<<20))*3/4)
}
