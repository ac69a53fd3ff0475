package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// healthyWorkers send healthyRate requests a second each, and look at how long they take.
	healthyWorkers, healthyRate = 8, 50
	// healthyLonger is how many times longer than other benchmarks' sides theirs are, up to healthyLeast:
	// a 99th percentile is made of the slowest few.
	healthyLonger, healthyLeast = 5, 15 * time.Second
	// attackOpening is how long the slow connections take to come the first time, and attackSettled how
	// long is waited at most until all have been tried and guesses are answered.
	attackOpening, attackSettled = 5 * time.Second, 2 * time.Minute
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
	// The same callers on both sides, each on a connection that it has had before anybody was hostile.
	h := healthy{base: s.api.base, bearer: s.api.bearer, names: names}
	for range names {
		transport := newTransport(1)
		s.closing = append(s.closing, transport.CloseIdleConnections)
		h.callers = append(h.callers, transport)
	}
	if _, err := h.resolve(ctx, warmUp(time.Second)); err != nil {
		return nil, nil, err
	}
	alone := func(ctx context.Context, d time.Duration) (sample, error) {
		return h.resolve(ctx, max(d, min(healthyLonger*d, healthyLeast)))
	}
	beside := func(ctx context.Context, d time.Duration) (one sample, err error) {
		// Attackers have machines of their own; what they cost here is not to be the service's.
		attackers, err := startChild(ctx, s.dir, childConfig{
			Kind: childAttack, Nice: 10, Attack: attackConfig{Address: strings.TrimPrefix(s.api.base, "http://"), Slow: s.slow},
		})
		if err != nil {
			return one, err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
			defer cancel()
			err = errors.Join(err, attackers.stop(ctx))
		}()
		before, err := settled(ctx, attackers, s.slow)
		if err != nil {
			return one, err
		}
		began := time.Now()
		if one, err = alone(ctx, d); err != nil {
			return one, err
		}
		after, err := attacked(ctx, attackers)
		if err != nil {
			return one, err
		}
		tell(before, after, time.Since(began), s.service.PID)
		return one, nil
	}
	return beside, alone, nil
}

// healthy are callers that do nobody any harm.
type healthy struct {
	base, bearer string
	names        []string          // pointers, one for each caller
	callers      []*http.Transport // of one connection each
}

// resolve has them resolve at a steady pace for d.
func (h healthy) resolve(ctx context.Context, d time.Duration) (sample, error) {
	one := sample{latency: newHistogram()}
	var mu sync.Mutex
	var running sync.WaitGroup
	var errs []error
	end := time.Now().Add(d)
	for w, name := range h.names {
		running.Go(func() {
			waited := newHistogram()
			offset := time.Second / healthyRate * time.Duration(w) / time.Duration(len(h.names))
			err := paced(ctx, end, offset, func() error {
				began := time.Now()
				if err := h.get(ctx, h.callers[w], name); err != nil {
					return err
				}
				return waited.RecordValue(time.Since(began).Microseconds())
			})
			mu.Lock()
			defer mu.Unlock()
			one.latency.Merge(waited)
			errs = append(errs, err)
		})
	}
	running.Wait()
	one.operations = one.latency.TotalCount()
	one.calls = one.operations
	one.elapsed = time.Duration(one.operations*one.latency.ValueAtPercentile(99)) * time.Microsecond
	return one, errors.Join(errs...)
}

func (h healthy) get(ctx context.Context, caller *http.Transport, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.base+"/v1/pointers/"+name, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", h.bearer)
	resp, err := caller.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // read to its end
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("a healthy caller was answered %s", resp.Status)
	}
	return err
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

// settled waits until the attack is in full swing: every slow connection has been tried, and guesses
// are answered.
func settled(ctx context.Context, attackers *child, slow int) (attackCounts, error) {
	ctx, cancel := context.WithTimeout(ctx, attackSettled)
	defer cancel()
	for {
		did, err := attacked(ctx, attackers)
		if err != nil {
			return did, fmt.Errorf("the attack has not begun: %+v: %w", did, err)
		}
		if did.Tried >= int64(slow) && did.Refused+did.Postponed > 0 {
			return did, nil
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// attacked asks the attackers how far they have come.
func attacked(ctx context.Context, attackers *child) (did attackCounts, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+attackers.API, nil)
	if err != nil {
		return did, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return did, err
	}
	defer resp.Body.Close()
	return did, json.NewDecoder(resp.Body).Decode(&did)
}

// tell says how the attack went while it was measured.
func tell(before, after attackCounts, took time.Duration, service int) {
	rate := func(n int64) float64 { return float64(n) / took.Seconds() }
	peak := "?" // where the system does not tell
	if n, err := peakMemory(service); err == nil {
		peak = strconv.FormatInt(n/mebibyte, 10)
	}
	fmt.Fprintf(os.Stderr, "bench: hostile: %d slow connections open, %.0f a second opened again; %.0f guesses a second refused, %.0f told to wait; the service has had %s MiB at most\n",
		after.Open, rate(after.Tried-before.Tried), rate(after.Refused-before.Refused), rate(after.Postponed-before.Postponed), peak)
}
