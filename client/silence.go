package client

import (
	"context"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// silenceAfter is how long a call goes without a good answer before [Options].Silent is told.
	silenceAfter = 5 * time.Second
	// proofTime is what the service may need before it answers that uploads are proved: it reads those
	// back that the store tells no digest of.
	proofTime = 30 * time.Second
)

// Silence is a call to the service that has had no good answer for some seconds, and goes on.
type Silence struct {
	// Host is the service's, as the client was given it.
	Host string
	// Connected says that a connection was made, so that it is the answer that does not come.
	Connected bool
	// Err is what the last attempt failed with, nil while the first one is under way.
	Err error
	// Left is how long the call is tried from now on, at most; 0 means for as long as it takes.
	Left time.Duration
}

// listener waits with one call for its answer.
type listener struct {
	c       *Client
	began   time.Time
	endless bool // the call is tried for as long as it takes
	timer   *time.Timer
	told    chan struct{} // closed when the timer's work is done, or there is none

	connected atomic.Bool
	mu        sync.Mutex
	last      error
}

// listen counts the silence of a call from now on. held is how long the service may keep the call
// waiting by itself. stop must be called, and may be called twice; nothing is told after it.
func (c *Client) listen(held time.Duration) *listener {
	l := &listener{c: c, began: time.Now(), told: make(chan struct{})}
	l.timer = time.AfterFunc(held+silenceAfter, func() {
		defer close(l.told)
		l.tell()
	})
	return l
}

func (l *listener) stop() {
	if l.timer.Stop() {
		close(l.told)
	}
	<-l.told
}

// attempt makes one attempt of the call.
func (l *listener) attempt(ctx context.Context, call func(context.Context) error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { l.connected.Store(true) }})
	err := call(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
}

// tell tells of the silence, the first time in this client's life.
func (l *listener) tell() {
	if l.c.silent == nil || !l.c.toldSilence.CompareAndSwap(false, true) {
		return
	}
	l.mu.Lock()
	s := Silence{Host: l.c.base.Host, Connected: l.connected.Load(), Err: l.last}
	l.mu.Unlock()
	if !l.endless {
		s.Left = max(time.Second, l.bound(s)-time.Since(l.began))
	}
	l.c.silent(s)
}

// bound is how long the call is tried at most, from its beginning.
func (l *listener) bound(s Silence) time.Duration {
	switch {
	case s.Err == nil && s.Connected:
		return max(answerTimeout, retryElapsed)
	case s.Err == nil && !l.c.met.Load():
		return dialTimeout // and given up then, see retryUnmet
	}
	return retryElapsed
}

// ask is retry for calls of the service. held is how long the service may keep one waiting by itself.
func ask[T any](ctx context.Context, c *Client, held time.Duration, call func(context.Context) (T, error)) (T, error) {
	return askWhile(ctx, c, held, worthRetrying, call)
}

func askWhile[T any](ctx context.Context, c *Client, held time.Duration, worth func(error) bool, call func(context.Context) (T, error)) (T, error) {
	l := c.listen(held)
	defer l.stop()
	return retryWhile(ctx, worth, func(ctx context.Context) (v T, err error) {
		l.attempt(ctx, func(ctx context.Context) error {
			v, err = call(ctx)
			return err
		})
		return v, err
	})
}
