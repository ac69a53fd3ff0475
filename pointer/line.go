package pointer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Bounds on how often the first in line asks the database again: soon at first, ever less often
// while the same lease lives. Releases and publications made through this process wake it at
// once; those made through others are seen at the next question. The longest pause is well below
// the second after which the database takes a waiter for gone.
const (
	linePollMin = 5 * time.Millisecond
	linePollMax = 250 * time.Millisecond
)

// inLineError says that the lease is free, and that somebody who came before waits for it.
type inLineError struct{ LeaseHeldError }

func (e *inLineError) Unwrap() error { return &e.LeaseHeldError }

// acquireInLine waits behind the other callers that want the same pointer. Those of this process
// stand in the order they came, and only the first of them asks the database, so that a thousand
// waiters cost no more than one. The firsts of all processes stand in line in the database.
func (c *Catalogue) acquireInLine(ctx context.Context, req AcquireRequest) (Lease, error) {
	req.waiter = uuid.New()
	// Asked once before standing in line: a repeated operation may hold the lease that the others
	// wait for.
	lease, err := c.acquireOnce(ctx, req)
	if !isHeld(err) {
		return lease, err
	}
	defer c.leaveLine(ctx, req)
	deadline, cancel := context.WithTimeout(ctx, req.Wait)
	defer cancel()
	leave, err := c.lines.enter(deadline, req.Pointer)
	if err == nil {
		defer leave()
		lease, err = c.askUntil(ctx, deadline, req)
		if !isHeld(err) {
			return lease, err
		}
	}
	if ctx.Err() != nil {
		return Lease{}, ctx.Err()
	}
	// Out of time: one who does not wait takes the lease if it happens to be free.
	req.waiter = uuid.Nil
	return c.acquireOnce(ctx, req)
}

func isHeld(err error) bool {
	var held *LeaseHeldError
	return errors.As(err, &held)
}

// leaveLine gives up a place in the database's line. If it cannot, the place is gone in a second.
func (c *Catalogue) leaveLine(ctx context.Context, req AcquireRequest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := c.pool.Exec(ctx, leaveLineSQL, req.Pointer, req.waiter); err != nil {
		c.opts.Logger.Debug("leave the line for a lease", "pointer", req.Pointer, "error", err)
	}
}

// askUntil asks for the lease until it is got, or the deadline has passed.
func (c *Catalogue) askUntil(ctx, deadline context.Context, req AcquireRequest) (Lease, error) {
	pause, holder := linePollMin, Token{}
	for {
		changed, stop := c.changes.watch(req.Pointer)
		lease, err := c.acquireOnce(ctx, req)
		var held *LeaseHeldError
		if !errors.As(err, &held) || ctx.Err() != nil || deadline.Err() != nil {
			stop()
			return lease, err
		}
		if held.CurrentToken != holder {
			pause, holder = linePollMin, held.CurrentToken
		}
		var inLine *inLineError
		if errors.As(err, &inLine) {
			sleep(deadline, linePollMin, nil) // the one ahead is about to take it
		} else {
			sleep(deadline, min(max(held.ExpiresIn, linePollMin), pause), changed)
			pause = min(pause*3/2, linePollMax)
		}
		stop()
	}
}

// sleep returns after d, at the end of ctx, or when woken.
func sleep(ctx context.Context, d time.Duration, woken <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
	}
}

// lines holds, for each pointer that somebody waits for, the order of the waiters.
type lines struct {
	mu   sync.Mutex
	wait map[string][]chan struct{}
}

func newLines() *lines { return &lines{wait: make(map[string][]chan struct{})} }

// enter returns when the caller is the first in line for name; leave lets the next one ahead.
func (l *lines) enter(ctx context.Context, name string) (leave func(), err error) {
	turn := make(chan struct{})
	l.mu.Lock()
	l.wait[name] = append(l.wait[name], turn)
	if len(l.wait[name]) == 1 {
		close(turn)
	}
	l.mu.Unlock()
	leave = func() { l.leave(name, turn) }
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

func (l *lines) leave(name string, turn chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.wait[name]
	for i, t := range queue {
		if t != turn {
			continue
		}
		queue = append(queue[:i], queue[i+1:]...)
		if i == 0 && len(queue) > 0 {
			close(queue[0])
		}
		break
	}
	if len(queue) == 0 {
		delete(l.wait, name)
	} else {
		l.wait[name] = queue
	}
}

// changes tells waiters of this process that something was released or published through it. It
// only ever saves time: nothing depends on it.
type changes struct {
	mu      sync.Mutex
	waiting map[string]*change
}

// change is closed at the next announcement; it is forgotten with the last of its watchers.
type change struct {
	ch       chan struct{}
	watchers int
}

func newChanges() *changes { return &changes{waiting: make(map[string]*change)} }

// watch returns a channel that is closed at the next announcement for name. The caller calls stop
// when it does not wait any more.
func (c *changes) watch(name string) (announced <-chan struct{}, stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.waiting[name]
	if !ok {
		w = &change{ch: make(chan struct{})}
		c.waiting[name] = w
	}
	w.watchers++
	return w.ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if w.watchers--; w.watchers == 0 && c.waiting[name] == w {
			delete(c.waiting, name)
		}
	}
}

func (c *changes) announce(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.waiting[name]; ok {
		close(w.ch)
		delete(c.waiting, name)
	}
}
