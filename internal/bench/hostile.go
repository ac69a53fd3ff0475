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
	peer = func(ctx context.Context, d time.Duration) (sample, error) { return s.healthy(ctx, names, d) }
	ours = func(ctx context.Context, d time.Duration) (one sample, err error) {
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
		pause(ctx, min(settling, d))
		if one, err = s.healthy(ctx, names, d); err != nil {
			return one, err
		}
		return one, tell(ctx, attackers, s.service.PID)
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

// tell says how the attack went, and fails when there was none.
func tell(ctx context.Context, attackers *child, service int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+attackers.API, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var did attackCounts
	if err := json.NewDecoder(resp.Body).Decode(&did); err != nil {
		return err
	}
	peak := "?" // where the system does not tell
	if n, err := peakMemory(service); err == nil {
		peak = strconv.FormatInt(n/mebibyte, 10)
	}
	fmt.Fprintf(os.Stderr, "bench: hostile: %d slow connections open, %d opened again; %d guesses refused, %d told to wait; the service has had %s MiB at most\n",
		did.Open, did.Reopened, did.Refused, did.Postponed, peak)
	if did.Open+did.Reopened == 0 || did.Refused+did.Postponed == 0 {
		return errors.New("nobody was hostile")
	}
	return nil
}
