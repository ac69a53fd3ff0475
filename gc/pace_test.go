package gc

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// paced runs as many goroutines of so many steps, each of which lasts for a tenth of a second, and
// returns the most that ran at once and how long all of it took.
func paced(t *testing.T, goroutines, steps int, ask func(context.Context) (bool, error)) (most int, took time.Duration) {
	p := newPacer(ask)
	var mu sync.Mutex
	var all sync.WaitGroup
	running, began := 0, time.Now()
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		running += n
		most = max(most, running)
	}
	for range goroutines {
		all.Go(func() {
			pace := p.pace(1000)
			for range steps {
				err := pace.step(t.Context(), func(int) error {
					count(1)
					defer count(-1)
					time.Sleep(100 * time.Millisecond)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	return most, time.Since(began)
}

func TestPace(t *testing.T) {
	for _, test := range []struct {
		name string
		busy bool
		err  error
		most int
		took time.Duration
	}{
		{"alone", false, nil, 4, 300 * time.Millisecond},
		{"beside publishers", true, nil, 1, 2 * 12 * 100 * time.Millisecond}, // as long a rest after each
		{"who cannot tell is alone", true, errors.New("no answer"), 4, 300 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				most, took := paced(t, 4, 3, func(context.Context) (bool, error) { return test.busy, test.err })
				if most != test.most || took != test.took {
					t.Errorf("%d at once in %s, want %d in %s", most, took, test.most, test.took)
				}
			})
		})
	}
}

// Publishers who come and go are noticed within a moment.
func TestPaceFollowsThePublishers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := false
		p := newPacer(func(context.Context) (bool, error) { return busy, nil })
		for _, now := range []bool{true, false} {
			if p.beside(t.Context()) == now {
				t.Errorf("%v was known before", now)
			}
			busy = now
			time.Sleep(lookEvery + 1)
			if p.beside(t.Context()) != now {
				t.Errorf("%v was not noticed", now)
			}
		}
		busy = true
		time.Sleep(patience)
		if p.beside(t.Context()) {
			t.Error("a run makes way for ever")
		}
	})
}

func TestNextSize(t *testing.T) {
	for _, test := range []struct {
		size   int
		took   time.Duration
		beside bool
		want   int
	}{
		{400, stepAlone, false, 400},
		{800, 2 * stepAlone, false, 400},
		{400, stepAlone / 10, false, 800}, // twice as much at most
		{800, stepAlone / 10, false, 1000},
		{800, 2 * stepBeside, true, 400},
		{800, time.Hour, true, leastStep},
		{400, 0, false, 800},
	} {
		if got := nextSize(test.size, 1000, test.took, test.beside); got != test.want {
			t.Errorf("%d after %s (beside %v): %d, want %d", test.size, test.took, test.beside, got, test.want)
		}
	}
	if got := nextSize(5, 10, time.Hour, false); got != 10 {
		t.Errorf("%d, and no step is larger than a batch", got)
	}
}

// The rate is waited for before a claim, and only for what the one before has not left over.
func TestAllowance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := allowance{limit: rate.NewLimiter(10, 10)} // keys a second
		for _, step := range []struct {
			used int
			at   time.Duration // when the next 10 are allowed
		}{{0, 0}, {0, 0}, {3, 300 * time.Millisecond}, {10, 1300 * time.Millisecond}} {
			a.keys -= step.used
			if err := a.await(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
			if at := time.Since(began).Round(time.Millisecond); at != step.at {
				t.Errorf("after %d keys: allowed at %s, want %s", step.used, at, step.at)
			}
		}
	})
}
