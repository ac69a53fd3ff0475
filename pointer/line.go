package pointer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Bounds on how often the first in line asks the database again. Releases and publications made
// through this process wake it at once; those made through others are seen at the next question.
const (
	linePollMin = 5 * time.Millisecond
	linePollMax = 250 * time.Millisecond
)

// acquireInLine waits behind the other callers of this process that want the same pointer, in the
// order they came. Only the first in line asks the database, so that a thousand waiters cost no
// more than one.
func (c *Catalogue) acquireInLine(ctx context.Context, req AcquireRequest) (Lease, error) {
	deadline, cancel := context.WithTimeout(ctx, req.Wait)
	defer cancel()
	leave, err := c.lines.enter(deadline, req.Pointer)
	if err != nil {
		// Never came to the front in time: say who holds the lease now.
		if ctx.Err() != nil {
			return Lease{}, ctx.Err()
		}
		return c.acquireOnce(ctx, req)
	}
	defer leave()
	for {
		lease, err := c.acquireOrWait(ctx, deadline, req)
		var held *LeaseHeldError
		switch {
		case !errors.As(err, &held):
			return lease, err
		case ctx.Err() != nil:
			return Lease{}, ctx.Err()
		case deadline.Err() != nil:
			return Lease{}, err
		}
	}
}

// acquireOrWait tries once; when the lease is held, it returns that after a pause, which a change
// announced meanwhile cuts short.
func (c *Catalogue) acquireOrWait(ctx, deadline context.Context, req AcquireRequest) (Lease, error) {
	changed, stop := c.changes.watch(req.Pointer)
	defer stop()
	lease, err := c.acquireOnce(ctx, req)
	var held *LeaseHeldError
	if !errors.As(err, &held) {
		return lease, err
	}
	timer := time.NewTimer(min(max(held.ExpiresIn, linePollMin), linePollMax))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-deadline.Done():
	}
	return Lease{}, err
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
