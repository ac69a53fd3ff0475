package client

import (
	"context"
	"errors"
	"sync"
	"time"
)

// stallLimit is how long a connection may move no byte while it should, in either direction. A peer
// that is frozen, or gone without a word, shows itself in no other way.
const stallLimit = answerTimeout

var errStalled = errors.New("the connection moves no bytes any more")

// idleness ends a context when a transfer has stood still for too long.
type idleness struct {
	cancel context.CancelCauseFunc
	limit  time.Duration

	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

// stopWhenIdle makes the context of one transfer with host. Its cause is then a [*TransportError],
// so that the transfer is tried again. Nothing is watched before the first call of watch; end must
// be called.
func stopWhenIdle(ctx context.Context, limit time.Duration, host string) (context.Context, *idleness) {
	ctx, cancel := context.WithCancelCause(ctx)
	i := &idleness{cancel: cancel, limit: limit}
	i.timer = time.AfterFunc(limit, func() { cancel(&TransportError{Host: host, Err: errStalled}) })
	i.timer.Stop()
	return ctx, i
}

// watch counts from now on.
func (i *idleness) watch() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.over {
		i.timer.Reset(i.limit)
	}
}

// pause stops counting until the next watch.
func (i *idleness) pause() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.timer.Stop()
}

// end releases the context. A transport may still call watch after it.
func (i *idleness) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	i.timer.Stop()
	i.cancel(nil)
}
